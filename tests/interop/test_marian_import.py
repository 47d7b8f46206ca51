"""MarianMT models imported from `transformers` give the same ids, logits and translations."""

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
from heed.errors import DataError, FolderError
from heed.inference.translator import Translator
from heed.interop.marian import import_marian
from heed.interop.name_mapping import IdMapping
from heed.interop.spm import read_spm
from heed.interpret.tokens import TokenizedText
from heed.microworld.corpus import corpus
from heed.search_config import SearchConfig

transformers = pytest.importorskip("transformers", reason="Hugging Face transformers is not installed")
sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
from tests.interop.marian_models import TINY, Recipe, make  # noqa: E402 - needs both packages

TEXTS = corpus("test", 500, seed=3)
SOURCES, TARGETS = [pair.source for pair in TEXTS], [pair.target for pair in TEXTS]
# Letters of every script, combining marks, spaces of every width, and symbols.
LETTERS = [chr(code) for code in range(32, 0x3000) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
LETTERS += list("犬が通りを走한국어🙂👩\u200d\u200b\ufeff\u00a0\u3000ﬁﷺ▁  \t\n\r\x00\x7f\xad\u0301\u0308\u1161\u11a8")
EDGE_CASES = [
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
EDGE_CASES += [
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


def unusual_texts() -> list[str]:
    rng = random.Random(1)
    texts = ["".join(rng.choices(LETTERS, k=rng.randint(1, 12))) for _ in range(400)]
    for sentence in SOURCES[:300]:
        letters = list(sentence)
        for _ in range(3):
            letters.insert(rng.randrange(len(letters) + 1), rng.choice(LETTERS))
        texts.append("".join(letters))
    return EDGE_CASES + texts


class ImportedModel:
    """A model in transformers, and imported into heed."""

    def __init__(self, theirs: Path, ours: Path) -> None:
        import_marian(theirs, ours)
        self.folder = theirs
        self.model = transformers.MarianMTModel.from_pretrained(theirs).eval()
        with warnings.catch_warnings(action="ignore"):  # it recommends sacremoses, which is not needed
            self.tokenizer = transformers.MarianTokenizer.from_pretrained(theirs)
        self.translator: Translator = heed.load(ours)
        config, separate = self.model.config, self.tokenizer.separate_vocabs
        special = (config.pad_token_id, config.decoder_start_token_id, config.eos_token_id, 1)
        sizes = (config.vocab_size, config.decoder_vocab_size if separate else config.vocab_size)
        self.their_ids = [IdMapping.of(size, *special).their_ids for size in sizes]

    def logits(self, sources: list[str], targets: list[str]) -> tuple[Tensor, Tensor]:
        """heed's logits, and transformers' in heed's order, of every target token; without ⟨s⟩, which Marian lacks."""
        source, target = self.translator.tokenizers
        ids = [source.encode(sources), target.encode(targets)]
        src = pad_sequence([torch.tensor([*row, 2]) for row in ids[0]], batch_first=True)
        tgt_in = pad_sequence([torch.tensor([1, *row]) for row in ids[1]], batch_first=True)
        marian_ids = [torch.tensor(mapping) for mapping in self.their_ids]
        with torch.no_grad():
            logits = self.translator.model(src, tgt_in)
            expected = self.model(
                input_ids=marian_ids[0][src], attention_mask=(src != 0).long(), decoder_input_ids=marian_ids[1][tgt_in]
            ).logits[..., marian_ids[1]]
        not_bos = torch.arange(logits.shape[-1]) != 1
        return logits[tgt_in != 0][:, not_bos], expected[tgt_in != 0][:, not_bos]


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> ImportedModel:
    """A model trained for a few steps."""
    folder = tmp_path_factory.mktemp("marian")
    settings = {**TINY, "d_model": 64, "init_std": 0.12}
    make(folder / "theirs", Recipe(settings, steps=120, batch=16, pairs=1000, pieces=200))
    return ImportedModel(folder / "theirs", folder / "ours")


def test_ids_and_decoded_text_equal_the_sentencepiece_tokenizers(imported: ImportedModel) -> None:
    source, target = imported.translator.tokenizers
    for text in SOURCES + TARGETS + unusual_texts():
        for ours, theirs, side in (
            (source, imported.tokenizer(text), 0),
            (target, imported.tokenizer(text_target=text), 1),
        ):
            (ids,) = ours.encode([text])
            assert [imported.their_ids[side][number] for number in ids] == theirs["input_ids"][:-1], text
            assert ours.decode([ids])[0] == imported.tokenizer.decode(theirs["input_ids"], skip_special_tokens=True), (
                text
            )


def test_pieces_missing_from_the_vocabulary_become_unk(imported: ImportedModel) -> None:
    source, _ = imported.translator.tokenizers
    vocabulary = json.loads((imported.folder / "vocab.json").read_text())
    pieces = read_spm(imported.folder / "source.spm").pieces
    missing = [piece for piece in pieces if piece not in vocabulary]
    target_only = read_spm(imported.folder / "target.spm").pieces.keys() - pieces.keys()
    target_only_names = [name for name in vocabulary if name in target_only]
    assert missing
    assert target_only_names
    assert source.vocab_size == len(vocabulary) + 1  # ⟨s⟩
    text = missing[-1].replace("▁", " ")
    assert source.vocab_size - 1 in source.encode([text])[0]
    assert "⟨unk⟩" in source.tokens(source.encode([text])[0])


def test_text_that_looks_like_a_special_token_stays_text(imported: ImportedModel) -> None:
    for tokenizer in imported.translator.tokenizers:
        (ids,) = tokenizer.encode(["</s> <pad> <unk> <s>"])
        assert min(ids) >= 3


def test_each_tokens_span_is_its_text(imported: ImportedModel) -> None:
    tokenizer = imported.translator.tokenizers[1]
    for text in (*TARGETS[:20], *unusual_texts()[:200], "Le ⊕ chat ⊕⊕", "⊕"):
        tokenized = TokenizedText.of(tokenizer, tokenizer.encode([text])[0], (1,), (2,))
        assert tokenized.text == tokenizer.decode([tokenized.ids])[0]
        for token, (start, end), number in zip(tokenized.tokens, tokenized.spans, tokenized.ids, strict=True):
            assert 0 <= start <= end <= len(tokenized.text)
            is_special = number < 3 or number == tokenizer.vocab_size - 1
            assert tokenized.text[start:end] == ("" if is_special else token.strip() if start in (0, end) else token)


def test_logits_equal_transformers(imported: ImportedModel) -> None:
    logits, expected = imported.logits(SOURCES[:100], TARGETS[:100])
    assert expected.std() > 0.5  # the logits are not all alike
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_bos_has_probability_zero(imported: ImportedModel) -> None:
    logits, expected = imported.logits(SOURCES[:20], TARGETS[:20])
    scores = imported.translator.score(SOURCES[:20], TARGETS[:20])
    assert min(scores) > -1e4
    torch.testing.assert_close(logits.logsumexp(-1), expected.logsumexp(-1))
    src, tgt_in = torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7, 8]])
    assert imported.translator.model(src, tgt_in).softmax(-1)[..., 1].max() == 0


@pytest.mark.parametrize(("beams", "count"), [(1, 200), (4, 60)])
def test_translations_equal_transformers(imported: ImportedModel, beams: int, count: int) -> None:
    """Without a length penalty: transformers' is length^α, heed's ((5 + length) / 6)^α, and both are 1 for α = 0."""
    max_tokens = 60
    theirs: list[str] = []
    for start in range(0, count, 50):
        batch = imported.tokenizer(SOURCES[start : start + 50], return_tensors="pt", padding=True)
        penalty: dict[str, Any] = {"length_penalty": 0.0} if beams > 1 else {}
        generated = imported.model.generate(**batch, num_beams=beams, max_new_tokens=max_tokens, **penalty)
        theirs += imported.tokenizer.batch_decode(generated, skip_special_tokens=True)
    search = SearchConfig(beam=beams, length_penalty=0.0, max_length=max_tokens - 1)
    ours = imported.translator.translate(SOURCES[:count], search=search, align=False)
    # At the maximum length transformers adds EOS without its log-probability; heed includes it in the score.
    compared = [
        number for number, translation in enumerate(ours) if beams == 1 or len(translation.ids) < max_tokens - 1
    ]
    assert len(compared) > 0.8 * count
    assert [ours[number].text for number in compared] == [theirs[number] for number in compared]
    assert len(set(theirs)) > 20  # the translations differ


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("separate", [False, True])
def test_logits_are_equal_for_every_way_of_sharing_embeddings(
    tmp_path: Path, separate: bool, tied: bool, scale: bool
) -> None:
    activation = {(True, True): "relu", (True, False): "gelu"}.get((tied, scale), "swish")
    settings = {**TINY, "tie_word_embeddings": tied, "scale_embedding": scale, "activation_function": activation}
    make(tmp_path / "theirs", Recipe({**settings, "init_std": 0.3}, separate=separate, pairs=200, pieces=120))
    imported = ImportedModel(tmp_path / "theirs", tmp_path / "ours")
    logits, expected = imported.logits(SOURCES[:10], TARGETS[:10])
    assert expected.std() > 0.5
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    config = imported.translator.model.config
    assert (config.source_vocab_size is not None, config.tie_embeddings) == (separate, tied)


# ---- Refusals ----


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
def test_settings_that_heed_does_not_support_are_refused_with_the_reason(
    theirs: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    config = json.loads((theirs / "config.json").read_text())
    (theirs / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(FolderError, match=message):
        import_marian(theirs, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_position_tables_other_than_marians_sinusoids_are_refused(theirs: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file  # noqa: PLC0415

    model = transformers.MarianMTModel.from_pretrained(theirs)
    weights = load_file(theirs / "model.safetensors")
    weights["model.encoder.embed_positions.weight"] = model.model.encoder.embed_positions.weight.detach().clone()
    save_file(weights, theirs / "model.safetensors")
    import_marian(theirs, tmp_path / "formula")  # a table of exactly these sinusoids is accepted
    weights["model.encoder.embed_positions.weight"][3, 5] += 0.01
    save_file(weights, theirs / "model.safetensors")
    with pytest.raises(FolderError, match="the positions of the encoder are not MarianMT's sinusoids"):
        import_marian(theirs, tmp_path / "ours")


def test_a_pickle_is_read_only_if_named_and_if_it_holds_only_tensors(theirs: Path, tmp_path: Path) -> None:
    import_marian(theirs, tmp_path / "safe")
    model = transformers.MarianMTModel.from_pretrained(theirs)
    torch.save(model.state_dict(), theirs / "pytorch_model.bin")
    (theirs / "model.safetensors").unlink()
    hint = r"has no model.safetensors; it has pytorch_model.bin, a pickle: to read it, use --weights pytorch_model.bin"
    with pytest.raises(FolderError, match=hint):
        import_marian(theirs, tmp_path / "ours")
    import_marian(theirs, tmp_path / "pickled", "pytorch_model.bin")
    safetensors, pickled = (read_model_folder(tmp_path / name).model().state_dict() for name in ("safe", "pickled"))
    assert all(torch.equal(safetensors[name], pickled[name]) for name in safetensors)
    torch.save({"shape": Path("anything that runs")}, theirs / "pytorch_model.bin")
    with pytest.raises(
        FolderError, match=r"pytorch_model.bin is refused: only tensors and plain .* it names pathlib.PosixPath"
    ):
        import_marian(theirs, tmp_path / "ours", "pytorch_model.bin")


def test_a_folder_of_heeds_own_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": {"d_model": 16}}')
    with pytest.raises(FolderError, match=f"{tmp_path} is a heed model folder already: expected a MarianMT model"):
        import_marian(tmp_path, tmp_path / "out")


def test_unknown_or_missing_weights_and_tokens_are_refused(theirs: Path, tmp_path: Path) -> None:
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


def test_missing_or_damaged_files_are_named(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    with pytest.raises(FolderError, match="ours already exists: choose another --out"):
        import_marian(theirs, tmp_path / "ours")
    (tmp_path / "ours").rmdir()
    (theirs / "target.spm").write_bytes(b"\x0a\xff")
    with pytest.raises(DataError, match=r"target.spm is not a SentencePiece model"):
        import_marian(theirs, tmp_path / "ours")
    (theirs / "target.spm").unlink()
    with pytest.raises(FolderError, match=r"theirs has no target.spm: heed imports MarianMT's SentencePiece"):
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
def test_unsupported_sentencepiece_models_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with (tmp_path / "x.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SOURCES), model_writer=file, vocab_size=330, minloglevel=2, **options
        )
    with pytest.raises(DataError, match=message):
        read_spm(tmp_path / "x.model")
