"""Another model of the very same weights: what is changed in its parts leaves the model as it is."""

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import nn

from heed.model.transformer import Transformer

Part = TypeVar("Part", bound=nn.Module)


def sharing_weights(model: Transformer) -> Transformer:
    """A model with parts of its own, whose weights are the model's own."""
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


def replace_parts(model: nn.Module, kind: type[Part], make: Callable[[Part], nn.Module]) -> None:
    """Put, in the place of each part of a kind, what is made of it; it learns if the part did."""
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, kind):
                setattr(parent, name, make(part).train(part.training))
