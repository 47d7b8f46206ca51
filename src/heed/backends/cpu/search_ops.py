"""Top-k, argmax and beam step on a CPU in compiled C: `csrc/topk.h` and `csrc/beam.h` from Python.

The reference of top-k and argmax is a stable sort, that of a beam step `backends.torch.search_ops`.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.library import engine, team, threads_for
from heed.backends.cpu.pointers import pointer
from heed.backends.torch.search_ops import Continuations


def topk(log_probs: Float[Tensor, "R V"], count: int) -> tuple[Float[Tensor, "R N"], Int[Tensor, "R N"]]:
    """The `count` largest values of each row, or all, best first, and their ids; ties go to the lower id, NaN last."""
    log_probs, (rows, vocab_size) = log_probs.contiguous(), log_probs.shape
    if count >= vocab_size:
        values, ids = log_probs.sort(dim=-1, descending=True, stable=True)
        return values, ids
    values = torch.empty(rows, count, dtype=torch.float32, device="cpu")
    ids = torch.empty(rows, count, dtype=torch.int64, device="cpu")
    engine().topk(
        pointer(log_probs, torch.float32, rows, vocab_size), rows, vocab_size, count,
        pointer(values, torch.float32, rows, count), pointer(ids, torch.int64, rows, count),
        *team(threads_for(log_probs.nbytes)),
    )  # fmt: skip
    return values, ids


def argmax(log_probs: Float[Tensor, "R V"]) -> Int[Tensor, "R"]:
    """The id of the largest value of each row; ties go to the lower id."""
    return topk(log_probs, 1)[1][:, 0]


def beam_step(
    live: Float[Tensor, "B W"], log_probs: Float[Tensor, "R V"], eos_id: int
) -> tuple[Continuations, Continuations | None]:
    """Unfinished continuations, and finished ones if there are any; as `backends.torch.search_ops.beam_step`."""
    shape, vocab_size = live.shape, log_probs.shape[1]
    live, log_probs = live.contiguous(), log_probs.contiguous()
    result = torch.empty(2, 3, *shape, dtype=torch.int64, device="cpu")
    status = engine().beam_step(
        pointer(live, torch.float64, *shape), pointer(log_probs, torch.float32, shape.numel(), vocab_size), *shape,
        vocab_size, eos_id, pointer(result, torch.int64, 2, 3, *shape), *team(threads_for(log_probs.nbytes)),
    )  # fmt: skip
    if status < 0:
        raise MemoryError("out of memory for a beam step in compiled code")
    return _continuations(result[0]), _continuations(result[1]) if status else None


def _continuations(result: Int[Tensor, "3 B W"]) -> Continuations:
    totals, tokens, rows = result.unbind()
    return Continuations(totals.view(torch.float64), tokens, rows)
