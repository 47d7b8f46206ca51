import math
import re

import pytest

from heed import ModelConfig, TrainingConfig
from heed.config import DataConfig
from heed.errors import ConfigError

CONTRACT = {
    "kind": "encoder-decoder",
    "d_model": 512,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "d_ff": 2048,
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "activation": "relu",
    "norm": "post",
    "norm_eps": 1e-5,
    "positions": "sinusoidal",
    "tie_embeddings": True,
    "output_bias": False,
    "mixer": "attention",
    "source_context": "attention",
    "without": None,
    "d_k": None,
    "kernel_size": 3,
    "max_length": 1024,
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
}


def test_the_defaults_are_the_papers_base_model() -> None:
    assert ModelConfig(vocab_size=100).model_dump(exclude={"vocab_size", "source_vocab_size", "labels"}) == CONTRACT


def test_every_setting_has_a_help_sentence() -> None:
    for name, field in ModelConfig.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name


def test_presets_can_be_overridden() -> None:
    tiny = ModelConfig.preset("tiny", vocab_size=100, norm="pre", dropout=0.0)
    assert (tiny.d_model, tiny.norm, tiny.dropout) == (128, "pre", 0.0)
    assert ModelConfig.preset("big", vocab_size=100).heads == 16
    assert ModelConfig.preset("small", vocab_size=100).encoder_layers == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"d_modle": 64}, "unknown setting 'd_modle' in ModelConfig: did you mean 'd_model'?"),
        ({"zzz": 1}, "unknown setting 'zzz' in ModelConfig: expected one of kind, vocab_size, source_vocab_size"),
        ({"d_model": 100, "heads": 7}, "d_model = 100 is not divisible by heads = 7"),
        ({"d_model": 0}, "d_model = 0: input should be greater than 0"),
        ({"vocab_size": 0}, "vocab_size = 0: input should be greater than 0"),
        ({"decoder_layers": 0}, "decoder_layers = 0: input should be greater than 0"),
        ({"heads": -1}, "heads = -1: input should be greater than 0"),
        ({"heads": True}, "heads = True: input should be a valid integer"),
        ({"d_model": "512"}, "d_model = '512': input should be a valid integer"),
        ({"dropout": 1.0}, "dropout = 1.0: input should be less than 1"),
        ({"dropout": float("nan")}, "dropout = nan: input should be a finite number"),
        ({"norm": "rms"}, "norm = 'rms': input should be 'post', 'pre' or 'sandwich'"),
        ({"d_model": 15, "heads": 3}, "d_model = 15 is odd: sinusoidal"),
        ({"d_model": 12, "heads": 4, "positions": "rotary"}, "d_model / heads = 12 / 4 = 3 is odd: rotary"),
        ({"eos_id": 100}, "eos_id = 100 is outside a vocabulary of 100 tokens"),
        ({"source_vocab_size": 2}, "eos_id = 2 is outside a vocabulary of 2 tokens"),
        ({"bos_id": 0}, "special tokens must differ from one another, found pad_id = 0, bos_id = 0, eos_id = 2"),
        (
            {"kind": "decoder", "source_vocab_size": 50},
            "source_vocab_size = 50 needs kind = 'encoder-decoder', found 'decoder'",
        ),
    ],
    ids=lambda value: value[:45] if isinstance(value, str) else "",
)
def test_invalid_settings_are_rejected_with_name_and_value(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ModelConfig.model_validate({"vocab_size": 100, **settings})


def test_settings_that_need_another_setting_are_rejected_without_it() -> None:
    with pytest.raises(ConfigError, match=r"bpe_dropout = 0.1 needs tokenizer = 'bpe', found 'characters'"):
        DataConfig(bpe_dropout=0.1, source_tokenizer="characters")


def test_several_errors_are_reported_at_once() -> None:
    with pytest.raises(ConfigError, match=r"heads = 0: .*; d_ff = -1: "):
        ModelConfig(vocab_size=100, heads=0, d_ff=-1)


def test_a_missing_required_setting_is_explained() -> None:
    with pytest.raises(ConfigError, match="ModelConfig needs 'vocab_size': Number of tokens"):
        ModelConfig.model_validate({})


def test_an_unknown_preset_suggests_the_closest_name() -> None:
    with pytest.raises(ConfigError, match="unknown preset 'smal': did you mean 'small'"):
        ModelConfig.preset("smal", vocab_size=100)


def test_settings_round_trip_through_json_and_are_immutable() -> None:
    config = ModelConfig.preset("tiny", vocab_size=100, kind="decoder")
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(Exception, match="frozen"):
        config.heads = 2  # type: ignore[misc]


def test_the_string_none_is_null_only_for_settings_that_default_to_none() -> None:
    assert TrainingConfig.model_validate({"patience": "none", "clip_norm": "none"}).patience is None
    with pytest.raises(ConfigError, match="max_steps = 'none'"):
        TrainingConfig.model_validate({"max_steps": "none"})
    assert DataConfig.model_validate({"source_language": "none"}).source_language == "none"


def test_each_setting_alone_is_checked_as_it_is_among_the_others() -> None:
    """Whatever the others are: heads = 7 may fit the d_model of a preset."""
    ModelConfig.check_each({"heads": 7, "norm": "pre", "d_k": "none", "dropout": 0, "norm_eps": 1e-6})
    for settings in (
        {"norm": "rms"},
        {"d_model": 1.5},
        {"heads": True},
        {"dropout": math.inf},
        {"nrom": 1},
        {"heads": None},
    ):
        with pytest.raises(ConfigError) as alone:
            ModelConfig.check_each(settings)
        with pytest.raises(ConfigError) as among_others:
            ModelConfig.model_validate({"vocab_size": 100, **settings})
        assert str(alone.value) == str(among_others.value)
