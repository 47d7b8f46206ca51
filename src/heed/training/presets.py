"""Settings in layers: a preset for the size of the corpus, a TOML file, and single settings on top. Needs no torch."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heed.config import DataConfig, ModelConfig, RunConfig, SearchConfig, TrainingConfig
from heed.errors import ConfigError
from heed.settings import did_you_mean
from heed.text.language_codes import check_language_code

NestedSettings = dict[str, dict[str, Any]]


def preset_for(pairs: int) -> str:
    """The preset for a corpus of this many pairs."""
    if pairs < 200_000:
        return "tiny"
    return "small" if pairs < 2_000_000 else "base"


def training_preset(name: str) -> dict[str, Any]:
    """The training settings of a preset.

    tiny     up to 200 thousand pairs: strong regularisation, a high learning rate, early stopping
    small    up to 2 million pairs
    base     the paper's base model and its training
    big      the paper's big model and its training
    """
    small_batches = {"tokens_per_batch": 4096, "validate_every": 500, "checkpoint_every": 500, "patience": 10}
    presets: dict[str, dict[str, Any]] = {
        "tiny": {
            **small_batches,
            "max_steps": 10_000,
            "schedule": "inverse-sqrt",
            "learning_rate": 5e-3,
            "warmup_steps": 1000,
            "ema_decay": 0.999,
        },
        "small": {**small_batches, "max_steps": 50_000, "tokens_per_batch": 8192},
        "base": {},
        "big": {"max_steps": 300_000},
    }
    if name not in presets:
        raise ConfigError(f"unknown preset {name!r}: {did_you_mean(name, presets)}")
    return presets[name]


def check_settings(settings: NestedSettings) -> None:
    """Find mistakes in what a person has set before any text is read."""
    data = DataConfig.model_validate(settings["data"])
    TrainingConfig.model_validate(settings["training"])
    SearchConfig.model_validate(settings["search"])
    follows = {"vocab_size": "the tokenizer: set data.vocab_size", "kind": "the task: set data.task"}
    follows |= {"source_vocab_size": follows["vocab_size"], "labels": "the text: set data.labels"}
    for name in follows.keys() & settings["model"].keys():
        raise ConfigError(f"model.{name} follows from {follows[name]} instead")
    for name in settings["model"]:
        if name not in ModelConfig.model_fields:
            raise ConfigError(
                f"unknown setting {name!r} in ModelConfig: {did_you_mean(name, ModelConfig.model_fields)}"
            )
    check_positions(settings["model"], data.max_tokens)


def check_positions(model: Mapping[str, Any], max_tokens: int) -> None:
    """A sentence of `max_tokens` and its BOS or EOS must have learned positions.

    Not a rule of `RunConfig`: a model with fewer positions, imported say, may well be used.
    """
    longest = model.get("max_length", ModelConfig.model_fields["max_length"].default)
    if model.get("positions") == "learned" and isinstance(longest, int) and longest <= max_tokens:
        raise ConfigError(
            f"model.max_length = {longest} learned positions are too few for data.max_tokens = {max_tokens} and the "
            f"end of a sentence: set model.max_length to {max_tokens + 1} or more, or data.max_tokens to {longest - 1} "
            "or less"
        )


def merge_settings(*layers: NestedSettings) -> NestedSettings:
    """Several layers of settings as one, the later ones on top."""
    result: NestedSettings = {name: {} for name in RunConfig.model_fields}
    for layer in layers:
        for section, settings in layer.items():
            if section not in result:
                raise ConfigError(f"unknown section {section!r}: {did_you_mean(section, result)}")
            result[section].update(settings)
    return result


def setting_layers(
    config: Path | None,
    settings: NestedSettings,
    task: str | None,
    source_language: str | None,
    target_language: str | None,
    preset: str | None = None,
) -> tuple[NestedSettings, ...]:
    """What a person has set, the later layers on top: a TOML file, single settings, and those with an argument.

    Checked as far as it can be before any text is read.
    """
    layers = (settings_file(config), settings, _named_settings(task, source_language, target_language))
    check_settings(merge_settings(*layers))
    if preset is not None:
        training_preset(preset)
    return layers


def _named_settings(task: str | None, source_language: str | None, target_language: str | None) -> NestedSettings:
    languages = {"source": source_language, "target": target_language}
    data: dict[str, Any] = {} if task is None else {"task": task}
    for side, code in languages.items():
        if code is not None:
            data[f"{side}_language"] = check_language_code(code, f"--{side}-language")
    return {"data": data}


def nested(settings: Mapping[str, Any]) -> NestedSettings:
    """`{"training.max_steps": 2000}` as {"training": {"max_steps": 2000}}; sections may be given whole, too."""
    result: NestedSettings = {}
    for name, value in settings.items():
        section, dot, field = name.partition(".")
        if dot and section and field:
            result.setdefault(section, {})[field] = value
        elif isinstance(value, Mapping):
            result.setdefault(name, {}).update(value)
        else:
            raise ConfigError(f"settings: {name!r} = {value!r}, expected section.name, such as training.max_steps")
    return result


def settings_file(path: Path | None) -> NestedSettings:
    """The settings of a TOML file with the tables [model], [data] and [training]."""
    if path is None:
        return {}
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for section, value in settings.items():
        if not isinstance(value, dict):
            raise ConfigError(
                f"{path}: {section} = {value!r} stands outside a table; settings are in [model], [data] …"
            )
    return settings
