"""Dropout in compiled code on a CPU: `csrc/dropout.h` from Python. The twin is `dropout.dropped`."""

import ctypes
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heed.backends.base import dropout_threshold
from heed.backends.cpu.library import native
from heed.backends.cpu.pointers import pointer
from heed.model.transformer import replace_modules


class Dropout(ctypes.Structure):
    """What the C calls a `Dropout`."""

    _fields_: ClassVar = [("seed", ctypes.c_uint32), ("threshold", ctypes.c_uint32), ("kept", ctypes.c_float)]

    @classmethod
    def of(cls, share: float, seed: int) -> "Dropout":
        """Of a share of all numbers; which ones follows from the seed."""
        return cls(seed, dropout_threshold(share), 1 / (1 - share))


class NativeDropout(nn.Module):
    """Sets a share of the numbers to zero and makes up for it in the others; which ones follows from torch's seed."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor) -> Tensor:
        """What is left of x."""
        if not self.training or self.share == 0.0:
            return x
        return _Drop.apply(x, Dropout.of(self.share, drawn_seed()))  # type: ignore[no-untyped-call]


def with_compiled_dropout(model: nn.Module) -> None:
    """Give a model this dropout in all places of torch's own."""
    replace_modules(model, nn.Dropout, lambda part: NativeDropout(part.p))


def drawn_seed() -> int:
    """From torch's own generator."""
    return int(torch.randint(2**31, (), device="cpu"))


def drop(x: Tensor, dropout: Dropout) -> Tensor:
    """What is left of x: rows of numbers."""
    x, found = x.contiguous(), torch.empty(x.shape, dtype=torch.float32, device="cpu")
    rows, size = x.shape[:-1].numel(), x.shape[-1]
    both = (pointer(one, torch.float32, *x.shape) for one in (x, found))
    native().heed_drop(ctypes.byref(dropout), *both, rows, size, torch.get_num_threads())
    return found


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout) -> Tensor:
        ctx.dropout = dropout
        return drop(x, dropout)

    @staticmethod
    def backward(ctx: Any, above: Tensor) -> tuple[Tensor, None]:
        return drop(above, ctx.dropout), None
