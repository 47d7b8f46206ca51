"""The names of the inference engines, and the packages that each needs.

    heed                heed's own backends
    heed-int8           heed with int8 matmuls, on a CPU
    ctranslate2         CTranslate2 in float32, with its own search
    ctranslate2-int8    CTranslate2 in int8, with its own search
    onnx                ONNX Runtime in float32, with heed's search

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
    for engine in ENGINES:
        if engine == name:
            return engine
    raise ConfigError(f"unknown engine {name!r}: {did_you_mean(name, ENGINES)}")


def engine_family(name: str) -> str:
    """The name of an engine without its precision; also the extra that installs it."""
    return name.removesuffix("-int8")


def missing_packages(name: EngineName) -> list[str]:
    """The packages that an engine needs and that are not installed."""
    return [module for module in _MODULES.get(engine_family(name), ()) if importlib.util.find_spec(module) is None]


def require_engine(name: EngineName) -> None:
    """Raise if an engine's packages are not installed."""
    if absent := missing_packages(name):
        raise ConfigError(f"{name} needs {', '.join(absent)}: install with pip install 'heed[{engine_family(name)}]'")
