"""What a model refuses, before any arithmetic: each refusal names the value found."""

import torch
from torch import Tensor

from heed.errors import InputError
from heed.model.layout import Layout


def check_ids(name: str, ids: Tensor, vocab_size: int, shape: tuple[str, ...]) -> None:
    """Ids must be int64, of as many dimensions as `shape` has names, not empty, and words of the vocabulary."""
    if ids.dtype != torch.int64:
        raise InputError(f"{name} holds token ids and must be int64, found {ids.dtype}")
    if ids.ndim != len(shape) or ids.numel() == 0:
        raise InputError(f"{name} must have shape ({', '.join(shape)}) with no size of zero, found {tuple(ids.shape)}")
    # Code that is compiled or captured cannot look at values: who does that answers for the ids.
    if not torch.compiler.is_compiling() and not (ids.is_cuda and torch.cuda.is_current_stream_capturing()):
        smallest, largest = (int(bound) for bound in ids.aminmax())
        if smallest < 0 or largest >= vocab_size:
            wrong = smallest if smallest < 0 else largest
            raise InputError(f"{name} holds id {wrong}, outside a vocabulary of {vocab_size} tokens")


def check_layout(name: str, ids: Tensor, layout: Layout) -> None:
    """A layout given beside ids must be the layout of those ids."""
    if ids.shape != layout.positions.shape:
        expected = tuple(layout.positions.shape)
        raise InputError(f"{name} has shape {tuple(ids.shape)}, but its layout is for tokens of shape {expected}")
