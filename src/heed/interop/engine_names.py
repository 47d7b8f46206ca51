"""The engines by name, and what each needs to be installed.

    heed                our own model on torch
    heed-int8           the same with its products in integers of 8 bits, on a CPU
    ctranslate2         CTranslate2 in float32, with its own search
    ctranslate2-int8    the same with integers of 8 bits
    onnx                ONNX Runtime in float32, under our own search

Imports none of them, nor torch.
"""

import importlib.util
from typing import Literal, get_args

from heed.errors import ConfigError
from heed.settings import did_you_mean

EngineName = Literal["heed", "heed-int8", "ctranslate2", "ctranslate2-int8", "onnx"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)
_MODULES = {"ctranslate2": ("ctranslate2",), "onnx": ("onnx", "onnxruntime")}  # by extra


def parse_engine_name(name: str) -> EngineName:
    """The engine of that name."""
    for one in ENGINES:
        if one == name:
            return one
    raise ConfigError(f"unknown engine {name!r}: {did_you_mean(name, ENGINES)}")


def engine_family(name: str) -> str:
    """The system behind an engine; also the name of the extra that brings it."""
    return name.removesuffix("-int8")


def missing_packages(name: EngineName) -> list[str]:
    """What an engine needs that is not installed."""
    return [module for module in _MODULES.get(engine_family(name), ()) if importlib.util.find_spec(module) is None]


def require_engine(name: EngineName) -> None:
    """Refuse an engine that is not installed."""
    if absent := missing_packages(name):
        raise ConfigError(f"{name} needs {', '.join(absent)}: install with pip install 'heed[{engine_family(name)}]'")
