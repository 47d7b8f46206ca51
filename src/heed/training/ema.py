"""A running mean of the weights: smoother than the weights themselves, and mostly better.

At each step the mean moves towards the weights by 1 - decay. In the first steps it moves faster, so that it never
remembers the random numbers that training began with.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from heed.model.transformer import Transformer


class RunningMean:
    """The mean of a model's weights, and the means to put it in their place."""

    def __init__(self, model: Transformer, decay: float) -> None:
        self._decay = decay
        self._weights = dict(model.named_parameters())
        self._mean = {name: weight.detach().clone() for name, weight in self._weights.items()}

    @torch.no_grad()
    def update(self, step: int, skip: Float[Tensor, ""] | None = None) -> None:
        """Take a step's new weights into account. skip: 1 where there was none; only the weights' device knows."""
        decay = min(self._decay, (1 + step) / (10 + step))
        mean: list[Tensor] = list(self._mean.values())
        weights: list[Tensor] = list(self._weights.values())
        if skip is None:
            torch._foreach_lerp_(mean, weights, 1 - decay)  # in few kernels
            return
        change = torch._foreach_sub(weights, mean)
        torch._foreach_mul_(change, (1 - decay) * (1 - skip))
        torch._foreach_add_(mean, change)

    @contextmanager
    def in_place(self) -> Iterator[Mapping[str, Tensor]]:
        """While this is on, the model has the mean for its weights; gives the weights it had."""
        own = {name: weight.detach().clone() for name, weight in self._weights.items()}
        self._put(self._mean)
        try:
            yield own
        finally:
            self._put(own)

    @torch.no_grad()
    def restart(self, weights: Mapping[str, Tensor]) -> None:
        """The model's weights are the mean of a run that goes on: keep them as such, and give the model its own."""
        for name, weight in self._weights.items():
            self._mean[name].copy_(weight)
        self._put(weights)

    @torch.no_grad()
    def _put(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in self._weights.items():
            weight.copy_(weights[name])
