"""How the signatures of heed are checked while the tests run, and in which modules.

What torch.compile compiles runs in processes of its own, without these checks, which it cannot compile: see
tests/model/compiled_step.py and tests/training/captured_step.py.
"""

from pathlib import Path

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
