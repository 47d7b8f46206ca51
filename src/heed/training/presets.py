"""Merges a run's settings from a preset, a TOML file and single settings, later layers on top, and checks them."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heed.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
from heed.errors import ConfigError
from heed.search_config import SearchConfig, TranslateConfig
from heed.settings import did_you_mean
from heed.text.language_codes import check_language_code

NestedSettings = dict[str, dict[str, Any]]  # by section, then by name: {"training": {"max_steps": 2000}}


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
    small_batches = {
        "tokens_per_batch": 4096,
        "validate_every": 500,
        "checkpoint_every": 500,
        "patience": 10,
        "stop_when_exact": 3,
    }
    presets: dict[str, dict[str, Any]] = {
        "tiny": {
            **small_batches,
            "max_steps": 10_000,
            "schedule": "inverse-sqrt",
            "learning_rate": 5e-3,
            "warmup_steps": 400,
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
    """Raise for mistakes in the user's settings, before any text is read."""
    data = DataConfig.model_validate(settings["data"])
    TrainingConfig.model_validate(settings["training"])
    SearchConfig.model_validate(settings["search"])
    TranslateConfig.model_validate(settings["translate"])
    derived = {"vocab_size": "the tokenizer: set data.vocab_size", "kind": "the task: set data.task"}
    derived |= {"source_vocab_size": derived["vocab_size"], "labels": "the text: set data.labels"}
    for name in derived.keys() & settings["model"].keys():
        raise ConfigError(f"model.{name} follows from {derived[name]} instead")
    ModelConfig.check_each(settings["model"])  # together they can be checked only on top of a preset
    check_positions(settings["model"], data.max_tokens)


def check_positions(model: Mapping[str, Any], max_tokens: int) -> None:
    """Raise where learned positions are too few for a sentence of `max_tokens` and its BOS or EOS.

    Not a rule of `RunConfig`: a model with fewer positions, such as an imported one, can be used for inference.
    """
    longest = model.get("max_length", ModelConfig.model_fields["max_length"].default)
    if model.get("positions") == "learned" and isinstance(longest, int) and longest <= max_tokens:
        raise ConfigError(
            f"model.max_length = {longest} learned positions are too few for data.max_tokens = {max_tokens} and the "
            f"end of a sentence: set model.max_length to {max_tokens + 1} or more, or data.max_tokens to {longest - 1} "
            "or less"
        )


def merge_settings(*layers: NestedSettings) -> NestedSettings:
    """One set of settings from several layers; later layers override earlier ones."""
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
    """The user's settings, lowest layer first: the TOML file, single settings, and those with arguments of their own.

    They are checked as far as possible before any text is read.
    """
    layers = (read_settings(config), settings, _named_settings(task, source_language, target_language))
    check_settings(merge_settings(*layers))
    if preset is not None:
        training_preset(preset)
    return layers


def _named_settings(task: str | None, source_language: str | None, target_language: str | None) -> NestedSettings:
    data: dict[str, Any] = {} if task is None else {"task": task}
    for side, code in {"source": source_language, "target": target_language}.items():
        if code is not None:
            data[f"{side}_language"] = check_language_code(code, f"{side} language")
    return {"data": data}


def nest_settings(settings: Mapping[str, Any]) -> NestedSettings:
    """`{"training.max_steps": 2000}` as {"training": {"max_steps": 2000}}; whole sections are accepted, too."""
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


def read_settings(path: Path | None) -> NestedSettings:
    """The settings of a TOML file with a table per section: [model], [data], [training], …"""
    if path is None:
        return {}
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    for section, value in settings.items():
        if not isinstance(value, dict):
            raise ConfigError(
                f"{path}: {section} = {value!r} is outside a table: put settings into [model], [data], [training] …"
            )
    return settings
