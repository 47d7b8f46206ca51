"""Settings as the command line gives them: a TOML file, then `--set section.name=value`, the later on top."""

import tomllib
from pathlib import Path
from typing import Any

from heed.errors import ConfigError
from heed.training.presets import Nested


def from_file(path: Path | None) -> Nested:
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


def from_options(options: list[str]) -> Nested:
    """`["training.max_steps=2000"]` as {"training": {"max_steps": 2000}}; values are read as in TOML, else as text."""
    settings: Nested = {}
    for option in options:
        name, equals, text = option.partition("=")
        section, dot, field = name.partition(".")
        if not (equals and dot and section and field):
            raise ConfigError(f"--set {option}: expected section.name=value, such as training.max_steps=2000")
        settings.setdefault(section, {})[field] = _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
