"""Search engines for tests: step by step, in static buffers, and a backend that fails when it is used."""

from collections.abc import Sequence
from typing import Any

import torch

from heed import Transformer
from heed.backends.base import Start
from heed.backends.cuda.engine import StaticEngine
from heed.backends.protocol import BackendChoice, Hypothesis
from heed.backends.select import inference_backend, search_ops
from heed.backends.stepping import HeedBackend, ReferenceStepper
from heed.config import ModelConfig
from heed.decoding.engine import Engine
from tests.reference.step_ops import REFERENCE


def start_search(models: Sequence[Transformer], sources: Sequence[Sequence[int]]) -> Start[Any]:
    """The start of a stepwise search with an ensemble of these models."""
    return inference_backend(models, whole_search=False).start(sources)


def stepwise_engine(*models: Transformer) -> Engine:
    return Engine(inference_backend(models, whole_search=False))


class NoFallbackEngine(StaticEngine):
    """Fails where `StaticEngine` would leave a search to the stepwise path."""

    def search(self, *args: Any) -> list[list[Hypothesis]] | None:
        hypotheses = super().search(*args)
        assert hypotheses is not None, f"left to the stepwise path: {args}"
        return hypotheses


def static_engine(model: Transformer, engine_type: type[StaticEngine] = NoFallbackEngine) -> Engine:
    """The CUDA backend's whole search: captured Triton kernels on a GPU, the same steps in plain torch on a CPU."""
    device = model.device
    ops = REFERENCE
    if device.type == "cuda":
        from heed.backends.cuda.triton_ops import TRITON as ops  # noqa: N811, PLC0415
    choice = BackendChoice("cuda", "float32", str(device), "a test")
    engine = engine_type(model, torch.float32, ops)
    steppers = (search_ops(device), lambda model, _dtype: ReferenceStepper(model), "float32")
    return Engine(HeedBackend([model], choice, *steppers, 4096, engine))


class UnusedBackend:
    """A backend for engines that search without one: any call fails the test."""

    choice = BackendChoice("none", "float32", "cpu", "a test's engine")
    configs: Sequence[ModelConfig] = ()
    tokens_per_batch = 4096
    can_step = True

    def start(self, *args: Any) -> Start[Any]:
        raise AssertionError(f"start was called with {args}")

    def search(self, *args: Any) -> list[list[Hypothesis]]:
        raise AssertionError(f"search was called with {args}")
