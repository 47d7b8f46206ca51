"""What `pip install .` brings, by the requirements of the packages that are installed here."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def brought(extras: Iterable[str] = ()) -> set[str]:
    """The packages that heed needs, with some of its extras, and those that they need in turn."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    waiting, found = [Requirement(line) for line in lines], set[str]()
    while waiting:
        needed = waiting.pop()
        if (name := canonicalize_name(needed.name)) in found:
            continue
        found.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # for another system
            continue
        for extra in ("", *needed.extras):
            of_name = (Requirement(line) for line in lines)
            waiting += [one for one in of_name if one.marker is None or one.marker.evaluate({"extra": extra})]
    return found


def not_installed(extras: Iterable[str] = ()) -> list[str]:
    """The modules of this environment that would not be in one made by `pip install .` with these extras."""
    there = brought(extras) | {"heed"}
    return [
        module
        for module, packages in packages_distributions().items()
        if module.isidentifier() and not there & {canonicalize_name(name) for name in packages}
    ]
