"""Which packages `pip install .` installs, from the metadata of the packages in this environment."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]


def installed_packages(extras: Iterable[str] = ()) -> set[str]:
    """The packages that heed requires with these extras, and those that they require in turn."""
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in PROJECT["optional-dependencies"][extra])]
    pending, names = [Requirement(line) for line in lines], set[str]()
    while pending:
        requirement = pending.pop()
        if (name := canonicalize_name(requirement.name)) in names:
            continue
        names.add(name)
        try:
            lines = requires(name) or []
        except PackageNotFoundError:  # required on another system only
            continue
        for extra in ("", *requirement.extras):
            requirements = (Requirement(line) for line in lines)
            pending += [
                requirement
                for requirement in requirements
                if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            ]
    return names


def not_installed(extras: Iterable[str] = ()) -> list[str]:
    """The modules of this environment that `pip install .` with these extras would not install."""
    installed = installed_packages(extras) | {"heed"}
    return [
        module
        for module, packages in packages_distributions().items()
        if module.isidentifier() and not installed & {canonicalize_name(name) for name in packages}
    ]
