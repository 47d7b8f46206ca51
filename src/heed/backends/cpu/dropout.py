"""Dropout for training on a CPU in compiled C: `csrc/dropout.h` from Python.

The reference is `tests/reference/dropout.py`.
"""

import ctypes
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from heed.backends.base import dropout_threshold
from heed.backends.cpu.library import engine, team_of_torch
from heed.backends.cpu.pointers import pointer
from heed.model.transformer import replace_modules


class DropoutStruct(ctypes.Structure):
    """The struct `HeedDropout` of `csrc/heed.h`."""

    _fields_: ClassVar = [("seed", ctypes.c_uint32), ("threshold", ctypes.c_uint32), ("keep_scale", ctypes.c_float)]

    @classmethod
    def of(cls, rate: float, seed: int) -> "DropoutStruct":
        """Dropout with this rate, its mask determined by the seed."""
        return cls(seed, dropout_threshold(rate), 1 / (1 - rate))


class NativeDropout(nn.Module):
    """Replacement of `nn.Dropout`; its seeds come from torch's generator."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return x
        return _Dropout.apply(x, DropoutStruct.of(self.rate, draw_seed()))  # type: ignore[no-untyped-call]


def use_native_dropout(model: nn.Module) -> None:
    """Replace every `nn.Dropout` of a model."""
    replace_modules(model, nn.Dropout, lambda part: NativeDropout(part.p))


def draw_seed() -> int:
    """A seed from torch's default generator."""
    return int(torch.randint(2**31, (), device="cpu"))


def apply_dropout(x: Tensor, dropout: DropoutStruct) -> Tensor:
    """Dropout of x with a given seed; the mask is a hash of row and column."""
    x, output = x.contiguous(), torch.empty(x.shape, dtype=torch.float32, device="cpu")
    rows, size = x.shape[:-1].numel(), x.shape[-1]
    pointers = (pointer(tensor, torch.float32, *x.shape) for tensor in (x, output))
    engine().dropout(ctypes.byref(dropout), *pointers, rows, size, *team_of_torch())
    return output


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: DropoutStruct) -> Tensor:
        ctx.dropout = dropout
        return apply_dropout(x, dropout)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor, None]:
        return apply_dropout(grad_output, ctx.dropout), None
