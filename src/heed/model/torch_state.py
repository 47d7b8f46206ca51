"""Shields heed's public functions from autocast, default-device and inference-mode settings of the caller.

`torch.autocast`, `torch.set_default_device` and `torch.inference_mode` affect every call made while they are on. A
translation must not change with them (under bfloat16 autocast some CPUs even crash), so the functions that users call
switch them off while they run. A model that is called directly, as any `nn.Module`, follows them as usual.

torch's default dtype is global to all threads of the process, so it is not switched off: heed passes dtypes explicitly,
and `float32_by_default` covers the short time in which torch's own modules are constructed.

A program that has not imported torch has no such settings: then nothing is switched off, and torch is not imported.
"""

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import ParamSpec, TypeVar

from heed.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")
_DEVICE_TYPES = ("cpu", "cuda", "mps")  # those heed runs on


def imported_torch() -> ModuleType | None:
    """torch, if this program has imported it, or is just importing it in another thread; None: it has not."""
    if "torch" not in sys.modules:
        return None
    import torch  # noqa: PLC0415 - waits for another thread's import to end

    return torch


def require_torch() -> None:
    """Import torch; where that fails, the error says what works without it."""
    try:
        import torch  # noqa: F401, PLC0415
    except ImportError as error:
        raise InputError(
            f"this needs torch, which cannot be imported ({error}); without torch, heed only translates, by greedy or "
            "beam search on a CPU"
        ) from error


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Turn off autocast and inference mode and make the CPU the default device, in this thread; also a decorator."""
    torch = imported_torch()
    with ExitStack() as stack:
        if torch is None:
            yield
            return
        for device_type in _DEVICE_TYPES:
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        if torch.is_inference_mode_enabled():  # inference tensors could not be modified or trained afterwards
            stack.enter_context(torch.inference_mode(mode=False))
        if not _default_device_is_cpu(torch):
            stack.enter_context(torch.device("cpu"))
        yield


def generate_with_torch_defaults(function: Callable[P, Generator[T, None, R]]) -> Callable[P, Generator[T, None, R]]:
    """`torch_defaults` for a generator function: active while an item is computed, not while the caller uses it."""

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
    """Construct modules in float32. Affects all threads, so it must be left quickly."""
    import torch  # noqa: PLC0415 - it takes seconds

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _default_device_is_cpu(torch: ModuleType) -> bool:
    try:
        return bool(torch.empty(0).is_cpu)
    except (RuntimeError, AssertionError):  # the default device does not exist on this machine
        return False
