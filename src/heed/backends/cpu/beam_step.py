"""A step of beam search in compiled code, on a CPU: `csrc/beam.h` from Python.

The twin is `decoding.growth.plain_growth`.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.packed_linear import native, threads_for
from heed.backends.cpu.pointers import pointer


class Continuations(NamedTuple):
    """W for each sentence, best first: how likely each is in all, its newest token, and which row of R it goes on."""

    log_probs: Float[Tensor, "B W"]
    tokens: Int[Tensor, "B W"]
    rows: Int[Tensor, "B W"]


def compiled_growth(
    live: Float[Tensor, "B W"], log_probs: Float[Tensor, "R V"], eos_id: int
) -> tuple[Continuations, Continuations | None]:
    """Those that go on, and those that end if any do; of float32 numbers row by row, summed up in float64."""
    shape, words = live.shape, log_probs.shape[1]
    live, found = live.contiguous(), torch.empty(2, 3, *shape, dtype=torch.int64, device="cpu")
    ends = native().heed_grow(
        pointer(live, torch.float64, *shape), pointer(log_probs, torch.float32, shape.numel(), words), *shape, words,
        eos_id, pointer(found, torch.int64, 2, 3, *shape), threads_for(log_probs.nbytes),
    )  # fmt: skip
    if ends < 0:
        raise MemoryError("there is no memory for a step of beam search")
    return _continuations(found[0]), _continuations(found[1]) if ends else None


def _continuations(found: Int[Tensor, "3 B W"]) -> Continuations:
    totals, tokens, rows = found.unbind()
    return Continuations(totals.view(torch.float64), tokens, rows)
