"""How the signatures of heed are checked while the tests run, and in which modules.

What torch.compile compiles runs in processes of its own, without these checks, which it cannot compile: see
tests/model/compiled_step.py and tests/training/captured_step.py.
"""

import functools
from collections import Counter
from pathlib import Path
from types import FunctionType
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as for every other type checker

SOURCE = Path(__file__).parents[1] / "src"
# The rooms whose signatures carry shapes. The others take and give text, settings and HTTP, which mypy checks.
ROOMS = (
    "artifacts", "backends", "decoding", "evaluation", "inference", "interop", "interpret", "model", "plots",
    "training",
)  # fmt: skip
# Triton compiles the source of its programs itself; they take pointers, not tensors.
UNCHECKED = "heed.backends.cuda.triton."
CHECKED = [
    name
    for room in ROOMS
    for file in sorted((SOURCE / "heed" / room).rglob("*.py"))
    if file.name != "__init__.py"
    and not (name := ".".join(file.relative_to(SOURCE).with_suffix("").parts)).startswith(UNCHECKED)
]

CALLS = 4  # of a function that are checked in each test: the thousandth step of a loop has the shapes of the second
calls: Counter[int] = Counter()  # of each function so far, in the test that runs
_every_call_checked = jaxtyping.jaxtyped


def install() -> None:
    """Check signatures in whatever is imported from now on: of each function the first calls in every test.

    Checking every call took a quarter of the suite's time.
    """
    jaxtyping.jaxtyped = _first_calls_checked  # type: ignore[assignment] # what the hook puts on every function
    jaxtyping.install_import_hook(CHECKED, f"{__name__}.checked")


def _first_calls_checked(function: Any = None, **options: Any) -> Any:
    if function is None:
        return functools.partial(_first_calls_checked, **options)
    checked_function = _every_call_checked(function, **options)
    if not isinstance(checked_function, FunctionType):
        return checked_function  # a class; its methods come here one by one

    @functools.wraps(checked_function)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[key] += 1
        return (checked_function if calls[key] <= CALLS else function)(*args, **kwargs)

    key = id(call)
    return call
