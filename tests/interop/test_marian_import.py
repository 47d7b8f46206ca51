"""MarianMT models that `transformers` has made, in heed: the same ids, logits and translations."""

import json
import random
import shutil
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import heed
from heed.artifacts.folder import read_model_folder
from heed.config import SearchConfig
from heed.errors import DataError, FolderError
from heed.inference.translator import Translator
from heed.interop.marian import import_marian
from heed.interop.name_mapping import IdMapping
from heed.interop.spm import read_spm
from heed.interpret.tokens import TokenizedText
from heed.microworld.corpus import corpus

transformers = pytest.importorskip("transformers", reason="Hugging Face transformers is not installed")
sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
from tests.interop.marian_models import TINY, Recipe, make  # noqa: E402 - what it needs is there now

TEXTS = corpus("test", 500, seed=3)
SOURCES, TARGETS = [pair.source for pair in TEXTS], [pair.target for pair in TEXTS]
# Letters of every kind, marks that compose with what stands before them, spaces of every width, and what is no letter.
LETTERS = [chr(code) for code in range(32, 0x3000) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
LETTERS += list("犬が通りを走한국어🙂👩\u200d\u200b\ufeff\u00a0\u3000ﬁﷺ▁  \t\n\r\x00\x7f\xad\u0301\u0308\u1161\u11a8")
AWKWARD = [
    "",
    " ",
    "▁",
    "a ▁ b",
    "x▁",
    " >>fra<< a",
    ">>fra<< A dog.",
    ">>fra<<A",
    ">>xyz<< A",
    ">>fra",
    "⟨pad⟩ ⟨unk⟩ <s>",
]
AWKWARD += [
    "e\u0301",
    "ⓞ\u0306",
    "\u1100\u1161\u11a8",
    "x\u0301\u0302\u0303",
    "\r\n",
    "ﷺ",
    "❤️",
    "👩‍👩‍👧",
    " \u3000x\u3000 ",
]


def odd_texts() -> list[str]:
    draw = random.Random(1)
    odd = ["".join(draw.choices(LETTERS, k=draw.randint(1, 12))) for _ in range(400)]
    for sentence in SOURCES[:300]:
        letters = list(sentence)
        for _ in range(3):
            letters.insert(draw.randrange(len(letters) + 1), draw.choice(LETTERS))
        odd.append("".join(letters))
    return AWKWARD + odd


class Both:
    """One model in both libraries."""

    def __init__(self, theirs: Path, ours: Path) -> None:
        import_marian(theirs, ours)
        self.folder = theirs
        self.model = transformers.MarianMTModel.from_pretrained(theirs).eval()
        with warnings.catch_warnings(action="ignore"):  # it recommends sacremoses, which it does not use
            self.tokenizer = transformers.MarianTokenizer.from_pretrained(theirs)
        self.translator: Translator = heed.load(ours)
        config, separate = self.model.config, self.tokenizer.separate_vocabs
        special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id, 1)
        sizes = (config.vocab_size, config.decoder_vocab_size if separate else config.vocab_size)
        self.their_ids = [IdMapping.of(size, *special).their_ids for size in sizes]

    def logits(self, sources: list[str], targets: list[str]) -> tuple[Tensor, Tensor]:
        """Ours, and theirs in our order, for every token of the targets; ⟨s⟩, which they do not have, left out."""
        source, target = self.translator.tokenizers
        ids = [source.encode(sources), target.encode(targets)]
        src = pad_sequence([torch.tensor([*row, 2]) for row in ids[0]], batch_first=True)
        tgt_in = pad_sequence([torch.tensor([1, *row]) for row in ids[1]], batch_first=True)
        numbers = [torch.tensor(one) for one in self.their_ids]
        with torch.no_grad():
            found = self.translator.model(src, tgt_in)
            expected = self.model(
                input_ids=numbers[0][src], attention_mask=(src != 0).long(), decoder_input_ids=numbers[1][tgt_in]
            ).logits[..., numbers[1]]
        told = torch.arange(found.shape[-1]) != 1
        return found[tgt_in != 0][:, told], expected[tgt_in != 0][:, told]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """A model that has learnt a little."""
    folder = tmp_path_factory.mktemp("marian")
    settings = {**TINY, "d_model": 64, "init_std": 0.12}
    make(folder / "theirs", Recipe(settings, steps=120, batch=16, pairs=1000, pieces=200))
    return Both(folder / "theirs", folder / "ours")


def test_ids_and_text_are_those_of_the_sentencepiece_tokenizer(both: Both) -> None:
    source, target = both.translator.tokenizers
    for text in SOURCES + TARGETS + odd_texts():
        for ours, theirs, named in ((source, both.tokenizer(text), 0), (target, both.tokenizer(text_target=text), 1)):
            (ids,) = ours.encode([text])
            assert [both.their_ids[named][number] for number in ids] == theirs["input_ids"][:-1], text
            assert ours.decode([ids])[0] == both.tokenizer.decode(theirs["input_ids"], skip_special_tokens=True), text


def test_the_vocabulary_lacks_pieces_and_knows_those_of_the_other_side(both: Both) -> None:
    source, _ = both.translator.tokenizers
    vocabulary = json.loads((both.folder / "vocab.json").read_text())
    pieces = read_spm(both.folder / "source.spm").pieces
    lacking = [piece for piece in pieces if piece not in vocabulary]
    others = read_spm(both.folder / "target.spm").pieces.keys() - pieces.keys()
    only_other = [name for name in vocabulary if name in others]
    assert lacking
    assert only_other
    assert source.vocab_size == len(vocabulary) + 1  # ⟨s⟩
    text = lacking[-1].replace("▁", " ")
    assert source.vocab_size - 1 in source.encode([text])[0]
    assert "⟨unk⟩" in source.tokens(source.encode([text])[0])


def test_text_that_looks_like_a_special_token_stays_text(both: Both) -> None:
    for tokenizer in both.translator.tokenizers:
        (ids,) = tokenizer.encode(["</s> <pad> <unk> <s>"])
        assert min(ids) >= 3


def test_each_token_is_found_in_the_text(both: Both) -> None:
    tokenizer = both.translator.tokenizers[1]
    for text in (*TARGETS[:20], *odd_texts()[:200], "Le ⊕ chat ⊕⊕", "⊕"):
        found = TokenizedText.of(tokenizer, tokenizer.encode([text])[0], (1,), (2,))
        assert found.text == tokenizer.decode([found.ids])[0]
        for token, (start, end), number in zip(found.tokens, found.spans, found.ids, strict=True):
            assert 0 <= start <= end <= len(found.text)
            silent = number < 3 or number == tokenizer.vocab_size - 1
            assert found.text[start:end] == ("" if silent else token.strip() if start in (0, end) else token)


def test_logits_are_equal(both: Both) -> None:
    found, expected = both.logits(SOURCES[:100], TARGETS[:100])
    assert expected.std() > 0.5  # not an agreement about nothing
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_the_token_that_starts_decoding_is_never_said_and_takes_no_probability(both: Both) -> None:
    found, expected = both.logits(SOURCES[:20], TARGETS[:20])
    whole = both.translator.score(SOURCES[:20], TARGETS[:20])
    assert min(whole) > -1e4
    torch.testing.assert_close(found.logsumexp(-1), expected.logsumexp(-1))
    src, tgt_in = torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7, 8]])
    assert both.translator.model(src, tgt_in).softmax(-1)[..., 1].max() == 0


@pytest.mark.parametrize(("beams", "count"), [(1, 200), (4, 60)])
def test_translations_are_the_same(both: Both, beams: int, count: int) -> None:
    """With no length penalty: theirs is length^α, ours ((5 + length) / 6)^α, and both are 1 for α = 0."""
    longest = 60
    theirs: list[str] = []
    for start in range(0, count, 50):
        batch = both.tokenizer(SOURCES[start : start + 50], return_tensors="pt", padding=True)
        penalty: dict[str, Any] = {"length_penalty": 0.0} if beams > 1 else {}
        written = both.model.generate(**batch, num_beams=beams, max_new_tokens=longest, **penalty)
        theirs += both.tokenizer.batch_decode(written, skip_special_tokens=True)
    search = SearchConfig(beam=beams, length_penalty=0.0, max_length=longest - 1)
    ours = both.translator.translate(SOURCES[:count], search=search, align=False)
    # At the greatest length a beam of theirs is given the end for nothing, and one of ours pays for it.
    compared = [number for number, one in enumerate(ours) if beams == 1 or len(one.ids) < longest - 1]
    assert len(compared) > 0.8 * count
    assert [ours[number].text for number in compared] == [theirs[number] for number in compared]
    assert len(set(theirs)) > 20  # not one sentence for all


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("separate", [False, True])
def test_every_way_of_sharing_words_is_taken_over(tmp_path: Path, separate: bool, tied: bool, scale: bool) -> None:
    activation = {(True, True): "relu", (True, False): "gelu"}.get((tied, scale), "swish")
    settings = {**TINY, "tie_word_embeddings": tied, "scale_embedding": scale, "activation_function": activation}
    make(tmp_path / "theirs", Recipe({**settings, "init_std": 0.3}, separate=separate, pairs=200, pieces=120))
    both = Both(tmp_path / "theirs", tmp_path / "ours")
    found, expected = both.logits(SOURCES[:10], TARGETS[:10])
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    config = both.translator.model.config
    assert (config.source_vocab_size is not None, config.tie_embeddings) == (separate, tied)


# ---- what is refused ----


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("marian") / "theirs", Recipe(TINY, pairs=200, pieces=120))


@pytest.fixture
def theirs(untrained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(untrained, tmp_path / "theirs"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "bart"}, "model_type = 'bart' is not supported: other models of the library"),
        ({"normalize_before": True}, "normalize_before = True is not supported: MarianMT normalises after"),
        ({"normalize_embedding": True}, "normalize_embedding = True is not supported: heed does not normalise"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm = True is not supported: there is no last norm"),
        ({"static_position_embeddings": False}, "static_position_embeddings = False is not supported: MarianMT's"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder = False is not supported: heed imports encoder-decoder"),
        ({"activation_function": "gelu_new"}, "activation_function = 'gelu_new' is not one of heed's: relu, gelu"),
        ({"decoder_attention_heads": 2}, "encoder_attention_heads = 4 and decoder_attention_heads = 2"),
        ({"decoder_ffn_dim": 40}, "encoder_ffn_dim = 48 and decoder_ffn_dim = 40, but heed has one for both"),
        ({"eos_token_id": [0, 1]}, r"eos_token_id should be a number, found \[0, 1\]"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_heed_cannot_express_is_refused_with_the_reason(
    theirs: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    config = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(FolderError, match=message):
        import_marian(theirs, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_positions_that_are_not_the_formulas_are_refused(theirs: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    model = transformers.MarianMTModel.from_pretrained(theirs)
    weights = load_file(theirs / "model.safetensors")
    weights["model.encoder.embed_positions.weight"] = model.model.encoder.embed_positions.weight.detach().clone()
    save_file(weights, theirs / "model.safetensors")
    import_marian(theirs, tmp_path / "formula")  # a table of the very sinusoids changes nothing
    weights["model.encoder.embed_positions.weight"][3, 5] += 0.01
    save_file(weights, theirs / "model.safetensors")
    with pytest.raises(FolderError, match="the positions of the encoder are not MarianMT's sinusoids"):
        import_marian(theirs, tmp_path / "ours")


def test_a_pickle_is_read_only_when_it_is_named_and_holds_nothing_but_tensors(theirs: Path, tmp_path: Path) -> None:
    import_marian(theirs, tmp_path / "safe")
    model = transformers.MarianMTModel.from_pretrained(theirs)
    torch.save(model.state_dict(), theirs / "pytorch_model.bin")
    (theirs / "model.safetensors").unlink()
    hint = r"has no model.safetensors; it has pytorch_model.bin, a pickle: to read it, use --weights pytorch_model.bin"
    with pytest.raises(FolderError, match=hint):
        import_marian(theirs, tmp_path / "ours")
    import_marian(theirs, tmp_path / "pickled", "pytorch_model.bin")
    one, other = (read_model_folder(tmp_path / name).model().state_dict() for name in ("safe", "pickled"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    torch.save({"shape": Path("anything that runs")}, theirs / "pytorch_model.bin")
    with pytest.raises(
        FolderError, match=r"pytorch_model.bin is refused: only tensors and plain .* it names pathlib.PosixPath"
    ):
        import_marian(theirs, tmp_path / "ours", "pytorch_model.bin")


def test_weights_and_vocabularies_that_do_not_fit_are_refused(theirs: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    weights = load_file(theirs / "model.safetensors")
    save_file({**weights, "model.encoder.adapter.weight": torch.ones(2)}, theirs / "model.safetensors")
    with pytest.raises(FolderError, match=r"has weights that heed's model does not have: model.encoder.adapter.weight"):
        import_marian(theirs, tmp_path / "ours")
    save_file(weights | {"model.encoder.layers.0.gate.weight": torch.ones(2)}, theirs / "model.safetensors")
    with pytest.raises(FolderError, match=r"weight encoder.layers.0.gate.weight has shape \(2,\), but .* require none"):
        import_marian(theirs, tmp_path / "ours")
    del weights["model.shared.weight"]
    save_file(weights, theirs / "model.safetensors")
    with pytest.raises(FolderError, match=r"the weights have no token embeddings, neither model.shared nor"):
        import_marian(theirs, tmp_path / "ours")
    vocabulary = json.loads((theirs / "vocab.json").read_text())
    vocabulary["<other>"] = vocabulary.pop("<unk>")
    (theirs / "vocab.json").write_text(json.dumps(vocabulary))
    with pytest.raises(FolderError, match=r"vocab.json has no <unk>, the unknown token"):
        import_marian(theirs, tmp_path / "ours")


def test_files_that_are_missing_or_damaged_are_named(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with pytest.raises(FolderError, match="ours already exists: choose another --out"):
        import_marian(theirs, tmp_path / "ours")
    (tmp_path / "ours").rmdir()
    (theirs / "target.spm").write_bytes(b"\x0a\xff")
    with pytest.raises(DataError, match=r"target.spm is not a SentencePiece model"):
        import_marian(theirs, tmp_path / "ours")
    (theirs / "target.spm").unlink()
    with pytest.raises(FolderError, match=r"theirs has no target.spm: heed takes over MarianMT's SentencePiece"):
        import_marian(theirs, tmp_path / "ours")
    (theirs / "config.json").write_text("[")
    with pytest.raises(FolderError, match=r"config.json is damaged: Expecting value"):
        import_marian(theirs, tmp_path / "ours")
    (theirs / "config.json").write_text("[]")
    with pytest.raises(FolderError, match=r"config.json should hold an object, found list"):
        import_marian(theirs, tmp_path / "ours")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "bpe"}, "it is a bpe model, but heed supports unigram models only"),
        ({"byte_fallback": True}, "which heed does not support"),
        ({"user_defined_symbols": ["<x>"]}, "its piece b'<x>' is user-defined, which heed does not support"),
        ({"add_dummy_prefix": False}, "it does not treat spaces as SentencePiece does by default"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_sentencepiece_models_that_cut_otherwise_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with (tmp_path / "x.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SOURCES), model_writer=file, vocab_size=330, minloglevel=2, **options
        )
    with pytest.raises(DataError, match=message):
        read_spm(tmp_path / "x.model")
