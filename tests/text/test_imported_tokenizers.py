"""Tokenizers of imported models; tests/interop compares them with the libraries they come from."""

import json
from pathlib import Path

import pytest

from heed.errors import DataError
from heed.interop.spm import SpmModel, read_spm, to_spm, tokenizer_from_spm
from heed.text.tokenizer import AnyTokenizerType, Tokenizer

PIECES = {"▁": -4.0, "▁dog": -2.0, "▁do": -2.5, "g": -3.0, "s": -3.0, "d": -5.0, "o": -5.0, "▁d": -6.0}
# ids:      0 ⟨pad⟩ 1 ⟨s⟩ 2 ⟨/s⟩ 3 ▁dog 4 g 5 >>fra<< 6 chien 7 ▁ 8 s 9 ⟨unk⟩; the model has no other pieces
NAMES = ["▁dog", "g", ">>fra<<", "chien", "▁", "s"]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return tokenizer_from_spm(SpmModel(PIECES, b""), NAMES)


@pytest.mark.parametrize(
    ("text", "ids", "decoded"),
    [
        ("dogs", [3, 8], "dogs"),
        ("  dog   dog ", [3, 3], "dog dog"),
        ("do", [9], ""),  # a piece that the model lacks
        ("dog chien", [3, 7, 6], "dog chien"),  # a token of the model that this tokenizer has no piece for
        (">>fra<< dogs", [5, 3, 8], ">>fra<< dogs"),
        (">>deu<< dogs", [9, 3, 8], "dogs"),
        ("a >>fra<<", [7, 9, 7, 5], ">>fra<<"),
        ("⟨pad⟩", [7, 9, 9, 9], ""),  # d is a piece that the model lacks
        (" ", [], ""),
        ("", [], ""),
    ],
)
def test_text_is_segmented_into_the_most_probable_pieces_and_unknown_ones_become_unk(
    tokenizer: Tokenizer, text: str, ids: list[int], decoded: str
) -> None:
    assert tokenizer.encode([text]) == [ids]
    assert tokenizer.decode([[1, *ids, 2, 0]]) == [decoded]
    assert b"".join(tokenizer.pieces(ids)).decode().strip() == decoded
    assert len(tokenizer.tokens([0, *ids])) == len(ids) + 1


def test_the_vocabulary_has_the_names_and_the_special_tokens_also_after_loading(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocab_size == len(NAMES) + 4
    assert tokenizer.tokens([1, 3, 9]) == ["", " dog", "⟨unk⟩"]
    loaded = Tokenizer.from_json(tokenizer.to_json(), "sentencepiece")
    assert loaded.encode(["dogs chien"]) == tokenizer.encode(["dogs chien"])
    assert loaded.to_json() == tokenizer.to_json()


def test_an_exported_sentencepiece_file_has_the_imported_pieces(tokenizer: Tokenizer, tmp_path: Path) -> None:
    content, names = to_spm(tokenizer)
    path = tmp_path / "x.spm"
    path.write_bytes(content)
    assert read_spm(path) == SpmModel(PIECES, b"")
    assert names == ["⟨pad⟩", "⟨s⟩", "⟨/s⟩", *NAMES, "⟨unk⟩"]


@pytest.mark.parametrize("kind", ["sentencepiece", "spaced"])
def test_imported_tokenizer_types_cannot_be_trained(kind: AnyTokenizerType) -> None:
    with pytest.raises(DataError, match=f"tokenizer = '{kind}' cannot be trained, only imported with a model"):
        Tokenizer.train(["a dog"], kind)


def test_tokenizer_files_of_another_type_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(
        DataError, match=r"unsupported tokenizer: expected normalizer = None, found {'type': 'Sequence'"
    ):
        Tokenizer.from_json(tokenizer.to_json(), "unigram")
    with pytest.raises(DataError, match=r"the special token ⟨pad⟩ must have id 0, found .'⟨pad⟩'."):
        Tokenizer.from_json(tokenizer.to_json().replace('" ⟨pad⟩"', '"⟨pad⟩"'), "sentencepiece")
    parts = json.loads(tokenizer.to_json())
    parts["model"]["unk_id"] = 3
    with pytest.raises(
        DataError, match=r"the last token of a sentencepiece vocabulary must be ⟨unk⟩, found \['▁dog'\]"
    ):
        Tokenizer.from_json(json.dumps(parts), "sentencepiece")
    words = {" ⟨pad⟩": 0, " ⟨s⟩": 1, " ⟨/s⟩": 2, "dog": 3}
    parts |= {
        "model": {"type": "WordLevel", "vocab": words, "unk_token": " ⟨unk⟩"},
        "normalizer": None,
        "decoder": None,
    }
    parts["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    with pytest.raises(DataError, match=r"the last token of a word list must be ⟨unk⟩, found \['dog'\]"):
        Tokenizer.from_json(json.dumps(parts), "spaced")
