"""heed: the Transformer of "Attention Is All You Need", to train, use, inspect, serve and exchange.

Settings and errors are imported with it, all other public names on first use; translating on a CPU imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heed.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
from heed.errors import ConfigError, DataError, FolderError, HeedError, InputError, TrainingError
from heed.search_config import SearchConfig, TranslateConfig
from heed.version import __version__

if TYPE_CHECKING:
    from heed.artifacts.save import save
    from heed.inference.classifier import Classifier
    from heed.inference.generator import Generator
    from heed.inference.open import load, look_into
    from heed.inference.translation import Translation
    from heed.inference.translator import Translator
    from heed.interpret.trace import Trace
    from heed.model.transformer import Transformer
    from heed.serving.config import ServeConfig
    from heed.text.tokenizer import Tokenizer
    from heed.training.distillation import distil
    from heed.training.step_log import Listener
    from heed.training.train import train

__all__ = [
    "Classifier",
    "ConfigError",
    "DataConfig",
    "DataError",
    "FolderError",
    "Generator",
    "HeedError",
    "InputError",
    "Listener",
    "ModelConfig",
    "RunConfig",
    "SearchConfig",
    "ServeConfig",
    "Tokenizer",
    "Trace",
    "TrainingConfig",
    "TrainingError",
    "Transformer",
    "TranslateConfig",
    "Translation",
    "Translator",
    "__version__",
    "distil",
    "load",
    "look_into",
    "save",
    "train",
]

_LAZY_IMPORTS = {
    "Classifier": "heed.inference.classifier",
    "Generator": "heed.inference.generator",
    "ServeConfig": "heed.serving.config",
    "Tokenizer": "heed.text.tokenizer",
    "Trace": "heed.interpret.trace",
    "Transformer": "heed.model.transformer",
    "Translation": "heed.inference.translation",
    "Translator": "heed.inference.translator",
    "Listener": "heed.training.step_log",
    "distil": "heed.training.distillation",
    "load": "heed.inference.open",
    "look_into": "heed.inference.open",
    "save": "heed.artifacts.save",
    "train": "heed.training.train",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _LAZY_IMPORTS:
        return getattr(import_module(_LAZY_IMPORTS[name]), name)
    raise AttributeError(f"module 'heed' has no attribute {name!r}")
