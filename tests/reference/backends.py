"""Backends for tests: the one that models get without a search of its own, and one that must not be asked."""

from collections.abc import Sequence
from typing import Any

from heed import Transformer
from heed.backends.base import Choice, Hypothesis, Start
from heed.backends.select import inference_backend
from heed.config import ModelConfig
from heed.decoding.engine import Engine


def begin(models: Sequence[Transformer], sources: Sequence[Sequence[int]]) -> Start[Any]:
    """Where a search of these models starts, step by step."""
    return inference_backend(models, whole_search=False).start(sources)


def stepwise(*models: Transformer) -> Engine:
    """heed's own searches over these models, step by step."""
    return Engine(inference_backend(models, whole_search=False))


class Unasked:
    """A backend for engines that search without one."""

    choice = Choice("none", "float32", "cpu", "a test's engine")
    configs: Sequence[ModelConfig] = ()
    tokens_per_batch = 4096
    can_step = True

    def start(self, *asked: Any) -> Start[Any]:
        raise AssertionError(f"asked to step: {asked}")

    def search(self, *asked: Any) -> list[list[Hypothesis]]:
        raise AssertionError(f"asked to search: {asked}")
