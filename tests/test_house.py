"""How the source is written: files and functions that can be read at once, docstrings that say something."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FunctionType

import pytest
import torch
from jaxtyping import TypeCheckError

import heed
from heed.backends.kv_cache import split_by_layer
from tests.signatures import CHECKED

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "heed"
MODULES = sorted(SOURCE.rglob("*.py"))
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 350, 60
LEAST_WORDS_OF_A_MODULE, LEAST_WORDS = 5, 3
TRITON = "backends/cuda/triton/"  # programs whose constants are arguments

Function = ast.FunctionDef | ast.AsyncFunctionDef


def named(module: Path) -> str:
    return module.relative_to(SOURCE).as_posix()


@cache
def parsed(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


def functions(module: Path) -> Iterator[tuple[str, int]]:
    """The name of each function, a method's with its class, and its lines: signature and docstring included."""

    def walk(node: ast.AST, path: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            inner = f"{path}.{child.name}" if isinstance(child, Function | ast.ClassDef) else path
            if isinstance(child, Function):
                yield inner, (child.end_lineno or 0) - child.lineno + 1
            yield from walk(child, inner)

    return walk(parsed(module), named(module).removesuffix(".py").replace("/", "."))


def documented(module: Path) -> Iterator[tuple[str, str]]:
    """The first paragraph of each docstring of a class or a function, with its name."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, Function | ast.ClassDef) and (text := ast.get_docstring(node)):
            yield node.name, text.partition("\n\n")[0]


def test_no_file_of_the_source_is_too_long_to_read_at_once() -> None:
    sources = [file for ending in ("py", "c", "h") for file in SOURCE.rglob(f"*.{ending}")]
    lengths = {named(file): len(file.read_text(encoding="utf-8").splitlines()) for file in sources}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_too_long_to_read_at_once() -> None:
    lengths = {name: lines for module in MODULES if TRITON not in named(module) for name, lines in functions(module)}
    too_long = {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_FUNCTION}
    assert too_long == {}, f"at most {MOST_LINES_OF_A_FUNCTION} lines: split it into steps that have a name"


def test_every_module_says_what_it_is_for() -> None:
    texts = {named(module): ast.get_docstring(parsed(module)) or "" for module in MODULES}
    assert {name: text for name, text in texts.items() if len(text.split()) < LEAST_WORDS_OF_A_MODULE} == {}


def test_a_docstring_says_more_than_a_word_or_two() -> None:
    short = {
        named(module): [name for name, text in documented(module) if len(text.split()) < LEAST_WORDS]
        for module in MODULES
    }
    assert {name: found for name, found in short.items() if found} == {}, (
        f"fewer than {LEAST_WORDS} words: say what the name does not"
    )


def type_names(module: Path) -> Iterator[str]:
    """The names of the classes and type aliases that a module defines."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in parsed(module).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", target.id):
            yield target.id


def test_a_class_or_type_alias_has_a_name_of_its_own() -> None:
    counts = Counter(name for module in MODULES for name in type_names(module))
    assert {name: count for name, count in counts.items() if count > 1} == {}


def imported_modules(module: Path) -> Iterator[str]:
    """The modules that a module imports, and the names that it imports from them, which may be modules too."""
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (alias.name for alias in node.names)


def test_no_test_module_is_imported_by_another() -> None:
    """Shared helpers are in modules that hold no tests: pytest would collect imported tests twice."""
    tests = ROOT / "tests"
    importing = {
        module.relative_to(tests).as_posix(): [
            name for name in imported_modules(module) if name.rpartition(".")[2].startswith("test_")
        ]
        for module in sorted(tests.rglob("*.py"))
    }
    assert {module: names for module, names in importing.items() if names} == {}


def public_api() -> Iterator[tuple[str, object]]:
    """Every function and class that heed exports, and the public methods and properties of these classes."""
    for name in set(heed.__all__) - {"__version__"}:
        exported = getattr(heed, name)
        yield name, exported
        if isinstance(exported, type):
            for member, value in vars(exported).items():
                if isinstance(value, FunctionType | classmethod | staticmethod | property) and member[0] != "_":
                    yield f"{name}.{member}", value


def test_everything_public_has_a_docstring() -> None:
    assert [name for name, value in public_api() if not value.__doc__] == []


def test_every_shape_in_a_signature_is_checked_while_the_tests_run() -> None:
    with_shapes = [named(module) for module in MODULES if "\nfrom jaxtyping import " in module.read_text()]
    names = {"heed." + name.removesuffix(".py").replace("/", ".") for name in with_shapes}
    assert names - set(CHECKED) == set()
    with pytest.raises(TypeCheckError, match="split_by_layer"):
        split_by_layer(torch.zeros(2, 2), single_row=True)


def test_the_page_of_backends_names_every_file_and_only_files_that_are_there() -> None:
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    table = page.partition("## Operation by operation")[2]
    named = {name.replace("csrc/", "cpu/csrc/") for name in re.findall(r"`([\w/]+\.(?:py|h))`", table)}
    tests = {name for name in named if Path(name).name.startswith("test_")}
    for name in tests:
        assert (ROOT / name if name.startswith("tests/") else ROOT / "tests" / "backends" / name).is_file(), name
    there = {
        file.relative_to(SOURCE / "backends").as_posix()
        for file in (SOURCE / "backends").rglob("*.*")
        if file.suffix in (".py", ".h") and file.name != "__init__.py"
    }
    elsewhere = ("model/", "training/", "decoding/", "text/", "tests/")
    assert {name for name in named - tests if not name.startswith(elsewhere)} == there
