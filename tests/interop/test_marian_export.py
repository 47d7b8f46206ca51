"""Models exported to `transformers` give the same ids, logits and translations, and can be imported again exactly."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import heed
from heed.artifacts.folder import model_files, read_model_folder
from heed.artifacts.writing import write_folder
from heed.config import DataConfig, ModelConfig, RunConfig
from heed.errors import ConfigError, FolderError
from heed.interop.marian import export_marian, import_marian
from heed.interop.name_mapping import layers_from_heed, layers_to_heed, sines_then_cosines
from heed.microworld.corpus import corpus
from heed.model.positions import sinusoids
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig
from heed.text.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="Hugging Face transformers is not installed")

TEXTS = corpus("test", 40, seed=3)
SOURCES, TARGETS = [pair.source for pair in TEXTS], [pair.target for pair in TEXTS]
UNUSUAL_TEXTS = ["", "  two  spaces ", "⟨pad⟩ ⟨/s⟩ </s>", "犬 🙂 e\u0301", "\ttab\n"]
SMALL: dict[str, Any] = {"d_model": 32, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "d_ff": 48}


def write_model(
    folder: Path, kind: Any = "bpe", *, separate: bool = False, source_kind: Any = None, **settings: Any
) -> Path:
    """Write a model folder with random weights, biases included. source_kind: the type of the source tokenizer."""
    target = Tokenizer.train(TARGETS if separate else SOURCES + TARGETS, kind, 400)
    source = Tokenizer.train(SOURCES, source_kind or kind, 350) if separate else target
    sizes = {"vocab_size": target.vocab_size, "source_vocab_size": source.vocab_size if separate else None}
    config = ModelConfig.model_validate({**SMALL, **sizes, **settings})
    model = Transformer(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for bias in (model.vocabulary.bias, getattr(model.vocabulary.output, "bias", None)):
            if bias is not None:
                bias[config.eos_id] += 8  # so that translations end
    types = {"tokenizer": kind, "source_tokenizer": source_kind}
    data = DataConfig(**types, separate_vocabularies=separate, source_language="en", target_language="fr")
    write_folder(folder, model_files(model.state_dict(), RunConfig(model=config, data=data), {}, (source, target), ""))
    return folder


VARIANTS = [
    {"kind": "bpe", "output_bias": True},
    {"kind": "unigram", "activation": "gelu"},
    {"kind": "words", "activation": "swish", "tie_embeddings": False},
    {"kind": "characters", "separate": True, "output_bias": True},
    {"kind": "bytes", "separate": True, "tie_embeddings": False},
    {"kind": "bpe", "source_kind": "characters", "separate": True, "output_bias": True},
]
every_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant["kind"])


@every_variant
def test_ids_logits_and_translations_in_transformers_equal_heeds(tmp_path: Path, variant: dict[str, Any]) -> None:
    ours, theirs = write_model(tmp_path / "ours", **variant), tmp_path / "theirs"
    export_marian(ours, theirs)
    translator = heed.load(ours)
    model = transformers.MarianMTModel.from_pretrained(theirs).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(theirs)
    source, target = translator.tokenizers
    ids = tokenizer(SOURCES + UNUSUAL_TEXTS)["input_ids"]
    assert ids == [[*row, 2] for row in source.encode(SOURCES + UNUSUAL_TEXTS)]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == SOURCES + UNUSUAL_TEXTS
    if source is not target:
        file, eos = str(theirs / "target_tokenizer.json"), {"eos_token": "⟨/s⟩"}
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file, split_special_tokens=True, **eos)

    src = pad_sequence([torch.tensor(row) for row in ids[:20]], batch_first=True)
    tgt_in = pad_sequence([torch.tensor([1, *row]) for row in target.encode(TARGETS[:20])], batch_first=True)
    with torch.no_grad():
        logits = model(input_ids=src, attention_mask=(src != 0).long(), decoder_input_ids=tgt_in).logits
        expected = translator.model(src, tgt_in)
    assert expected.std() > 0.5
    torch.testing.assert_close(logits[tgt_in != 0], expected[tgt_in != 0], rtol=1e-4, atol=1e-4)

    for beams, count in ((1, 40), (4, 10)):
        src = pad_sequence([torch.tensor(row) for row in ids[:count]], batch_first=True)
        penalty = {"length_penalty": 0.0 if beams > 1 else None}
        generated = model.generate(src, attention_mask=src != 0, num_beams=beams, max_length=27, **penalty)
        their_translations = tokenizer.batch_decode(generated, skip_special_tokens=True)
        search = SearchConfig(beam=beams, length_penalty=0.0, max_length=25)
        our_translations = translator.translate(SOURCES[:count], search=search, align=False)
        # At the maximum length transformers adds EOS without its log-probability; heed includes it in the score.
        compared = [
            number for number, translation in enumerate(our_translations) if beams == 1 or len(translation.ids) < 25
        ]
        assert len(compared) > count / 2 or "output_bias" not in variant
        assert [their_translations[number] for number in compared] == [
            our_translations[number].text for number in compared
        ]


@every_variant
def test_exporting_and_importing_again_gives_the_same_model_bit_for_bit(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    export_marian(write_model(tmp_path / "ours", **variant), tmp_path / "theirs")
    import_marian(tmp_path / "theirs", tmp_path / "again")
    ours, imported = (read_model_folder(tmp_path / name) for name in ("ours", "again"))
    assert imported.run.model == ours.run.model
    kept = {"source_language", "target_language", "tokenizer", "source_tokenizer", "separate_vocabularies"}
    assert imported.run.data.model_dump(include=kept) == ours.run.data.model_dump(include=kept)
    assert [tokenizer.to_json() for tokenizer in imported.tokenizers] == [
        tokenizer.to_json() for tokenizer in ours.tokenizers
    ]
    src, tgt_in = torch.tensor([[5, 9, 77, 2]]), torch.tensor([[1, 8, 30]])
    assert torch.equal(imported.model()(src, tgt_in), ours.model()(src, tgt_in))


@pytest.mark.parametrize("separate", [False, True])
def test_an_imported_model_is_exported_with_its_sentencepiece_tokenizer(tmp_path: Path, separate: bool) -> None:
    pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    from tests.interop.marian_models import TINY, Recipe, make  # noqa: PLC0415 - needs sentencepiece

    make(tmp_path / "theirs", Recipe(TINY, separate=separate, pairs=200, pieces=120))
    import_marian(tmp_path / "theirs", tmp_path / "ours")
    export_marian(tmp_path / "ours", tmp_path / "back")
    import_marian(tmp_path / "back", tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json", "source_tokenizer.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()
    with warnings.catch_warnings(action="ignore"):  # it recommends sacremoses, which is not needed
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
        original = transformers.MarianTokenizer.from_pretrained(tmp_path / "theirs")
    assert type(tokenizer).__name__ == "MarianTokenizer"
    texts = SOURCES + TARGETS + ["naïve ﬁne", ">>fra<< A dog.", "犬 Ελλ"]
    ours, target = heed.load(tmp_path / "ours").tokenizers
    assert tokenizer(texts)["input_ids"] == [[*row, 2] for row in ours.encode(texts)]
    assert tokenizer(text_target=texts)["input_ids"] == [[*row, 2] for row in target.encode(texts)]
    decoded = tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True)
    assert decoded == original.batch_decode(original(texts)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"norm": "pre"}, 'norm = "pre" cannot be expressed by MarianMT: MarianMT is post-norm'),
        ({"norm": "sandwich"}, 'norm = "sandwich" cannot be expressed by MarianMT'),
        (
            {"positions": "learned"},
            'positions = "learned" cannot be expressed by MarianMT: its positions are sinusoidal',
        ),
        ({"positions": "rotary"}, 'positions = "rotary" cannot be expressed by MarianMT'),
        (
            {"activation": "swiglu"},
            'activation = "swiglu" cannot be expressed by MarianMT: its feed-forward network has no',
        ),
        ({"norm_eps": 1e-6}, "norm_eps = 1e-06 cannot be expressed by MarianMT: its layer norm adds 1e-5"),
        ({"kind": "decoder"}, 'kind = "decoder" cannot be expressed by MarianMT: MarianMT is an encoder-decoder'),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_models_that_marianmt_cannot_express_are_refused_with_the_reason(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    tokenizer = Tokenizer.train([], "bytes", 259)
    run = RunConfig(
        model=ModelConfig.model_validate({**SMALL, "vocab_size": 259, **settings}), data=DataConfig(tokenizer="bytes")
    )
    files = model_files(Transformer(run.model).state_dict(), run, {}, (tokenizer, tokenizer), "")
    write_folder(tmp_path / "ours", files)
    with pytest.raises(ConfigError, match=message):
        export_marian(tmp_path / "ours", tmp_path / "theirs")
    assert not (tmp_path / "theirs").exists()


def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="already exists: choose another --out"):
        export_marian(write_model(tmp_path / "ours"), tmp_path)


def test_sines_then_cosines_reorders_marians_sinusoids_into_heeds() -> None:
    positions, d = torch.arange(50), 12
    angles = positions[:, None] / 10_000 ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
    marian_sinusoids = torch.cat((angles.sin(), angles.cos()), 1)
    assert sines_then_cosines(d).tolist() == [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]
    torch.testing.assert_close(marian_sinusoids[:, sines_then_cosines(d)], sinusoids(positions, d).double())


def test_layers_to_heed_is_the_inverse_of_layers_from_heed() -> None:
    weights = Transformer(ModelConfig.model_validate({**SMALL, "vocab_size": 9})).state_dict()
    layers = {name: torch.randn_like(weight) for name, weight in weights.items() if ".layers." in name}
    order = sines_then_cosines(SMALL["d_model"])
    exported = layers_from_heed(layers, order)
    imported = layers_to_heed(exported, order)
    assert imported.keys() == layers.keys()
    assert all(torch.equal(imported[name], layers[name]) for name in layers)
    assert not exported.keys() & layers.keys()
