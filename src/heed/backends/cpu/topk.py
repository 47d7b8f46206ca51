"""Top-k of log-probabilities in compiled code, on a CPU: `csrc/topk.h` from Python. The reference is a stable sort."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.backends.cpu.library import native, threads_for
from heed.backends.cpu.pointers import pointer


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
