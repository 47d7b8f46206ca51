"""Run-time checks of heed's signatures (types and tensor shapes) during the tests.

torch.compile cannot compile these checks, so tests of compiled code run in subprocesses without them: see
tests/model/compiled_step.py and tests/training/captured_step.py.
"""

import functools
from collections import Counter
from pathlib import Path
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is accepted as a float, as by other type checkers

SOURCE = Path(__file__).parents[1] / "src"
# The sub-packages whose signatures have tensor shapes. The others handle text, settings and HTTP: mypy suffices.
ROOMS = (
    "artifacts", "backends", "decoding", "evaluation", "inference", "interop", "interpret", "model", "plots",
    "training",
)  # fmt: skip
# Triton compiles the source of its kernels itself; they take pointers, not tensors.
UNCHECKED = "heed.backends.cuda.triton."
CHECKED = [
    name
    for room in ROOMS
    for file in sorted((SOURCE / "heed" / room).rglob("*.py"))
    if file.name != "__init__.py"
    and not (name := ".".join(file.relative_to(SOURCE).with_suffix("").parts)).startswith(UNCHECKED)
]

# How many calls of a function are checked per test: later iterations of a loop have the shapes of the first ones.
CALLS = 4
calls: Counter[int] = Counter()  # how often each function was called in the current test
_every_call_checked = jaxtyping.jaxtyped


def install() -> None:
    """Check the signatures of modules imported from now on, in the first calls of each function per test.

    Checking every call took a quarter of the suite's time.
    """
    jaxtyping.jaxtyped = _first_calls_checked  # type: ignore[assignment] # the decorator that the import hook applies
    jaxtyping.install_import_hook(CHECKED, f"{__name__}.checked")


def _first_calls_checked(function: Any = None, **options: Any) -> Any:
    if function is None:
        return functools.partial(_first_calls_checked, **options)
    checked_function = _every_call_checked(function, **options)
    if not isinstance(checked_function, FunctionType):
        return checked_function  # a class: its methods are decorated separately

    @functools.wraps(checked_function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[key] += 1
        return (checked_function if calls[key] <= CALLS else function)(*args, **kwargs)

    key = id(call)
    return call
