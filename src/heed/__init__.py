"""heed: the Transformer of "Attention Is All You Need", whole, as software people use.

Public names are imported when first used, so that settings and `heed --help` never wait for torch.
"""

from typing import TYPE_CHECKING, Any

from heed.config import ModelConfig
from heed.errors import ConfigError, HeedError, InputError
from heed.version import __version__

if TYPE_CHECKING:
    from heed.model.transformer import Transformer

__all__ = ["ConfigError", "HeedError", "InputError", "ModelConfig", "Transformer", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Transformer":
        from heed.model.transformer import Transformer  # noqa: PLC0415 - torch takes seconds to import

        return Transformer
    raise AttributeError(f"module 'heed' has no attribute {name!r}")
