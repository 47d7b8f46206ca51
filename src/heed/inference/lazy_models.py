"""The torch models of a translator that translates without torch, built when something needs them.

Enters: a model folder's own way to build its model. Leaves: the models, the same ones at every call, and their backend.
Importing torch takes seconds, and a second copy of the weights takes memory: most translations need neither.
"""

from collections.abc import Callable, Sequence
from threading import RLock
from typing import TYPE_CHECKING

from heed.backends.protocol import Backend
from heed.model.torch_state import require_torch

if TYPE_CHECKING:
    import heed.model.transformer


class LazyModels:
    """Models that are built once, on the first call; safe to call from several threads.

    make_backend: the backend that `select` chooses for them.
    """

    def __init__(
        self,
        build: "Callable[[], list[heed.model.transformer.Transformer]]",
        make_backend: "Callable[[list[heed.model.transformer.Transformer]], Backend]",
    ) -> None:
        self._build, self._make_backend, self._lock = build, make_backend, RLock()
        self._models: list[heed.model.transformer.Transformer] | None = None
        self._backend: Backend | None = None

    def __call__(self) -> "list[heed.model.transformer.Transformer]":
        with self._lock:
            if self._models is None:
                require_torch()
                self._models = self._build()
            return self._models

    def backend(self) -> Backend:
        """The backend of the built models, which follows every change of them."""
        with self._lock:
            if self._backend is None:
                self._backend = self._make_backend(self())
            return self._backend


def backend_of(models: "Sequence[heed.model.transformer.Transformer]") -> Backend:
    """The backend that `select` chooses for models."""
    from heed.backends.select import inference_backend  # noqa: PLC0415 - torch takes seconds to import

    return inference_backend(models)
