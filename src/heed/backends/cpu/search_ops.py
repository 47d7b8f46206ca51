"""The inner operations of a search in compiled code, on a CPU: `csrc/topk.h` and `csrc/beam.h` from Python.

The reference of top-k and argmax is a stable sort, that of a beam step `backends.torch.search_ops`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.library import native, threads_for
from heed.backends.cpu.pointers import pointer
from heed.backends.torch.search_ops import Continuations


def topk(numbers: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """The `count` largest of each row, or all, best first, and their indices; of equals the first, nan last."""
    numbers, (rows, words) = numbers.contiguous(), numbers.shape
    if count >= words:
        values, places = numbers.sort(dim=-1, descending=True, stable=True)
        return values, places
    values = torch.empty(rows, count, dtype=torch.float32, device="cpu")
    places = torch.empty(rows, count, dtype=torch.int64, device="cpu")
    native().heed_rank(
        pointer(numbers, torch.float32, rows, words), rows, words, count, pointer(values, torch.float32, rows, count),
        pointer(places, torch.int64, rows, count), threads_for(numbers.nbytes),
    )  # fmt: skip
    return values, places


def argmax(numbers: Float[Tensor, "R V"]) -> Int[Tensor, "R"]:
    """The index of the largest of each row; of equals the first."""
    return topk(numbers, 1)[1][:, 0]


def beam_step(
    live: Float[Tensor, "B W"], log_probs: Float[Tensor, "R V"], eos_id: int
) -> tuple[Continuations, Continuations | None]:
    """Those that go on, and those that end if any do; of float32 numbers row by row, summed up in float64."""
    shape, words = live.shape, log_probs.shape[1]
    live, log_probs = live.contiguous(), log_probs.contiguous()
    found = torch.empty(2, 3, *shape, dtype=torch.int64, device="cpu")
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
