"""Whether the weights of a model have changed since a copy of them was made: of packed weights, or a captured graph.

torch counts the changes of each tensor in its `_version`, except those by fused optimisers, by replayed CUDA graphs and
through `.data`. The first are counted here, after every step of such an optimiser; whoever does one of the others calls
`count_change`.
"""

from typing import Any

from torch import nn
from torch.autograd.graph import increment_version
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook


def weights_fingerprint(model: nn.Module) -> list[int]:
    """Changes whenever a module is replaced or a weight is modified."""
    fingerprint = []
    for module in modules_of(model):
        fingerprint.append(id(module))
        for weight in module._parameters.values():
            if weight is not None:
                fingerprint += (weight.data_ptr(), weight._version)
    return fingerprint


def modules_of(model: nn.Module) -> list[nn.Module]:
    """`model.modules()` in a fifth of the time; a shared module is listed once per use."""
    modules = [model]
    for module in modules:  # the list grows during the loop
        modules += [child for child in module._modules.values() if child is not None]
    return modules


def count_change(model: nn.Module) -> None:
    """Make the fingerprint of a model different, after a change that torch does not count."""
    increment_version(list(model.parameters()))


def _count_fused_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    for group in optimizer.param_groups:
        if group.get("fused"):
            increment_version(group["params"])


register_optimizer_step_post_hook(_count_fused_step)
