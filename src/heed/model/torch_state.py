"""heed computes the same whatever torch is set to for the rest of the program.

`torch.autocast`, `torch.set_default_device` and `torch.inference_mode` reach into every call that is made while they
are on. A translation that changes with them is wrong (in bfloat16 some CPUs even end the process), so the functions
that users call suspend them while they run. A model that is called directly, as any `nn.Module`, obeys them as usual.

torch's default dtype belongs to the whole process and all its threads, so it is not suspended: heed names its dtypes,
and `float32_by_default` is for the moment in which torch's own modules are made.
"""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
_KINDS = ("cpu", "cuda", "mps")  # devices whose autocast a model of heed can meet


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Autocast off, tensors made on the CPU unless another device is named, and no inference mode; of this thread.

    Also a decorator. Costs microseconds where torch is as it starts.
    """
    with ExitStack() as stack:
        for kind in _KINDS:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.is_inference_mode_enabled():  # its tensors could not be changed, or trained, afterwards
            stack.enter_context(torch.inference_mode(mode=False))
        if not _makes_tensors_on_cpu():
            stack.enter_context(torch.device("cpu"))
        yield


def generate_with_torch_defaults(function: Callable[P, Generator[T, None, R]]) -> Callable[P, Generator[T, None, R]]:
    """`torch_defaults` for a generator: they hold while an item is computed, not while the caller uses it."""

    @wraps(function)
    def stepped(*args: P.args, **kwargs: P.kwargs) -> Generator[T, None, R]:
        items = function(*args, **kwargs)
        while True:
            with torch_defaults():
                try:
                    item = next(items)
                except StopIteration as end:
                    return end.value
            yield item

    return stepped


@contextmanager
def float32_by_default() -> Iterator[None]:
    """While this is on, modules are made in float32. Other threads meet it too: it is for moments."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _makes_tensors_on_cpu() -> bool:
    try:
        return torch.empty(0).is_cpu
    except (RuntimeError, AssertionError):  # the default is a device that this machine does not have
        return False
