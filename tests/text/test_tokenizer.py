import json
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heed.backends.cpu.bpe import NativeBpeDropout
from heed.errors import DataError
from heed.text.bpe_dropout import BpeDropout
from heed.text.tokenizer import BYTE_TOKENS, SPECIAL, Tokenizer, TokenizerType
from heed.text.word_cache import WordCache

ENGLISH = ["The animal didn't cross the street.", "It was too tired.", "A dog runs  twice.", "⟨pad⟩ <pad> </s>"] * 5
OTHER_LANGUAGES = ["犬が通りを走る。", "猫が眠る。", "Ελληνικά γράμματα", "naïve café", "🙂🙃"] * 5
KINDS: tuple[TokenizerType, ...] = get_args(TokenizerType)
TRAINED = {kind: Tokenizer.train(ENGLISH + OTHER_LANGUAGES, kind, 500) for kind in KINDS}
every_kind = pytest.mark.parametrize("kind", KINDS)

EDGE_CASES = [
    "",
    " ",
    "  two  spaces ",
    "\ttab\nnew line\r\n",
    "⟨pad⟩⟨s⟩⟨/s⟩<pad><s></s><unk>[PAD]<0x41>",
    "Ġ Ċ ĉ",
    "\u2028\u00a0\u200b\ufeff",
    "never seen: ж 한국어 עברית 𝔘𝔫𝔦",
    "\x00\x01\x7f",
    "e\u0301 vs é",
]


@every_kind
@pytest.mark.parametrize("text", EDGE_CASES, ids=repr)
def test_decoding_restores_the_text(kind: TokenizerType, text: str) -> None:
    tokenizer = TRAINED[kind]
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


@every_kind
@settings(max_examples=50, deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_decoding_restores_any_unicode_texts_encoded_together_or_alone(kind: TokenizerType, texts: list[str]) -> None:
    tokenizer = TRAINED[kind]
    ids = tokenizer.encode(texts)
    assert tokenizer.decode(ids) == texts
    assert all(token >= len(SPECIAL) for row in ids for token in row)
    assert [tokenizer.encode([text])[0] for text in texts] == ids


@every_kind
def test_special_tokens_decode_to_nothing_and_are_never_made_from_text(kind: TokenizerType) -> None:
    tokenizer = TRAINED[kind]
    (ids,) = tokenizer.encode(["⟨pad⟩ ⟨s⟩"])
    assert min(ids) >= len(SPECIAL)
    assert tokenizer.decode([[1, *ids, 2, 0, 0]]) == ["⟨pad⟩ ⟨s⟩"]


@every_kind
def test_a_loaded_tokenizer_equals_the_saved_one(kind: TokenizerType, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(TRAINED[kind].to_json(), encoding="utf-8")
    loaded = Tokenizer.load(path, kind)
    assert loaded.encode(ENGLISH + OTHER_LANGUAGES) == TRAINED[kind].encode(ENGLISH + OTHER_LANGUAGES)
    assert loaded.to_json() == TRAINED[kind].to_json()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "unigram"])
def test_the_same_text_trains_the_same_tokenizer(kind: TokenizerType) -> None:
    assert Tokenizer.train(iter(ENGLISH + OTHER_LANGUAGES), kind, 500).to_json() == TRAINED[kind].to_json()


def test_each_type_segments_into_its_units() -> None:
    sentence = "The animal didn't cross the street."
    lengths = {kind: len(TRAINED[kind].encode([sentence])[0]) for kind in KINDS}
    assert lengths["bytes"] == len(sentence.encode()) == lengths["characters"]
    assert lengths["words"] == len(["The", "animal", "didn", "'t", "cross", "the", "street", "."])
    assert lengths["bpe"] < lengths["characters"]
    assert lengths["unigram"] < lengths["characters"]
    assert len(TRAINED["characters"].encode(["犬が通りを走る。"])[0]) == 8
    assert len(TRAINED["bytes"].encode(["犬"])[0]) == 3
    assert TRAINED["bytes"].vocab_size == len(SPECIAL) + len(BYTE_TOKENS)


def test_a_word_has_the_same_id_at_the_start_and_later() -> None:
    first, second = TRAINED["words"].encode(["dog dog"])[0]
    assert first == second


def test_languages_without_spaces_get_pieces_longer_than_a_character() -> None:
    tokenizer = Tokenizer.train(["東京都は大都市です", "大阪は大都市です", "京都は都市です"] * 20, "bpe", 400)
    assert len(tokenizer.encode(["大都市です"])[0]) < 5


def test_the_vocabulary_is_no_larger_than_requested() -> None:
    for kind in KINDS:
        assert TRAINED[kind].vocab_size <= 500
    with pytest.raises(DataError, match="vocab_size = 100 is too small: 3 special tokens and 256 bytes need 259"):
        Tokenizer.train(ENGLISH, "bpe", 100)


def test_an_unknown_tokenizer_type_is_refused_with_the_list_of_types() -> None:
    with pytest.raises(DataError, match="tokenizer = 'wordpiece' is unknown: choose one of bpe, unigram, words, char"):
        Tokenizer.train(ENGLISH, "wordpiece")  # type: ignore[arg-type]


def test_files_that_are_not_heed_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this is not a tokenizer: Expecting value"):
        Tokenizer.from_json("nonsense", "bpe")
    parts = json.loads(TRAINED["bpe"].to_json())
    with pytest.raises(
        DataError, match=r"unsupported tokenizer: expected normalizer = None, found {'type': 'Replace'}"
    ):
        Tokenizer.from_json(json.dumps({**parts, "normalizer": {"type": "Replace"}}), "bpe")
    parts["model"]["vocab"]["⟨pad⟩"], parts["model"]["vocab"]["⟨s⟩"] = 1, 0
    with pytest.raises(DataError, match=r"the special token ⟨pad⟩ must have id 0, found .'⟨s⟩'."):
        Tokenizer.from_json(json.dumps(parts), "bpe")
    with pytest.raises(DataError, match=r"missing.json: No such file"):
        Tokenizer.load(tmp_path / "missing.json", "bpe")


@every_kind
@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_the_bytes_of_the_tokens_join_to_the_text(kind: TokenizerType, text: str) -> None:
    tokenizer = TRAINED[kind]
    (ids,) = tokenizer.encode([text])
    before = " " if text and kind in ("bpe", "unigram", "words") else ""
    assert b"".join(tokenizer.pieces(ids)).decode() == before + text
    assert tokenizer.pieces([0, 1, 2]) == [b"", b"", b""]


HINDI = ["हिन्दी भाषा अच्छी है।", "यह किताब अच्छी है।", "लड़की स्कूल जाती है।", "मैं क्\u200dया?"] * 20
MARKED = {kind: Tokenizer.train(HINDI, kind, 700) for kind in KINDS}


def test_vowel_signs_do_not_end_words() -> None:
    (ids,) = MARKED["bpe"].encode(["हिन्दी भाषा अच्छी है।"])
    assert MARKED["bpe"].tokens(ids) == [" हिन्दी", " भाषा", " अच्छी", " है", "।"]
    (ids,) = MARKED["words"].encode(["लड़की जाती"])
    assert MARKED["words"].tokens(ids) == [" लड़की", " जाती"]


@every_kind
@pytest.mark.parametrize("text", [*EDGE_CASES, *HINDI[:4], "\u0301a \u0301", " \u200d\u200c x", "it's 12 ½"], ids=repr)
def test_tokenizers_of_text_with_marks_restore_any_text_and_are_loaded_as_saved(kind: TokenizerType, text: str) -> None:
    tokenizer = MARKED[kind]
    assert tokenizer.decode(tokenizer.encode([text])) == [text]
    loaded = Tokenizer.from_json(tokenizer.to_json(), kind)
    assert loaded.encode([text]) == tokenizer.encode([text])
    if tokenizer.encodes_words_independently:
        words = WordCache(tokenizer.encode)([text])
        assert [words.ids.tolist()] == tokenizer.encode([text])
    if kind == "bpe":
        for dropout in (BpeDropout(tokenizer, 0), NativeBpeDropout(tokenizer, 0)):
            assert dropout(tokenizer.encode([text]), ["key"]) == tokenizer.encode([text])


def test_other_tokenizers_stay_as_they_were_and_older_ones_of_hindi_are_read() -> None:
    for kind in ("bpe", "unigram", "words"):
        assert json.loads(TRAINED[kind].to_json())["pre_tokenizer"]["type"] == "ByteLevel"
    marked = json.loads(MARKED["bpe"].to_json())
    older = {**marked, "pre_tokenizer": json.loads(TRAINED["bpe"].to_json())["pre_tokenizer"]}
    tokenizer = Tokenizer.from_json(json.dumps(older), "bpe")
    (ids,) = tokenizer.encode(["हिन्दी"])
    assert tokenizer.tokens(ids)[0] == " ह"
    other = {**marked["pre_tokenizer"], "pretokenizers": marked["pre_tokenizer"]["pretokenizers"][::-1]}
    with pytest.raises(DataError, match="unsupported tokenizer: expected pre_tokenizer"):
        Tokenizer.from_json(json.dumps({**marked, "pre_tokenizer": other}), "bpe")
