"""Docs, help texts and error texts use the field's vocabulary."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from heed.cli.main import app
from heed.config import DataConfig, ModelConfig, TrainingConfig
from heed.search_config import SearchConfig, TranslateConfig
from heed.serving.config import ServeConfig

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "recipes/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]

# A word that readers of the field would have to decode, and what to write instead.
INSTEAD = {
    r"(tokens|words|sentences|pairs|operations|bytes|requests|lines|characters) a second": "tokens/s, requests/s",
    r"(tokens|sentences|words) a (batch|line|step)": "per batch, per line, per step",
    r"thousand million": "billion; GFLOP/s, GB/s",
    r"integers of 8 bits|in integers": "int8, quantised",
    r"(on the |its |the )way back": "backward pass, gradient",
    r"learnt|learns|relearn\w*": "trained, trains",
    r"quick(er|est|ly)?(?! start)": "fast, faster, fastest",
    r"likel(iest|ier)": "most probable, more probable",
    r"running mean": "EMA",
    r"hidden words?": "masked tokens",
    r"half a transformer|halves of a transformer": "encoder-only, decoder-only",
    r"matri(x|ces) products?|products? of (large |two )?matrices": "matmul",
    r"filled up": "padded",
    r"made ahead": "prefetched",
    r"sayable|blind": "allowed; fully masked",
    r"end to end (sentences|texts)|sentences (lie )?end to end": "packed, concatenated",
    r"the (second|other|same) likewise": "a row that can be read alone",
    r"without ceremony|company": "what is meant",
}


@cache
def documents() -> list[tuple[str, str]]:
    """Every text for users, with its file or setting."""
    return list(_documents())


def _documents() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        yield page.name, re.sub(r"“[^”]*”", "", prose)  # quotations have the words of others
    for settings in (ModelConfig, DataConfig, TrainingConfig, SearchConfig, TranslateConfig, ServeConfig):
        for name, field in settings.model_fields.items():
            yield f"{settings.__name__}.{name}", field.description or ""
    yield from _help(typer.main.get_group(app), "heed")
    for file in sorted((ROOT / "src" / "heed").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Raise):
                texts = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
                yield f"{file.name}:{node.lineno}", " ".join(text for text in texts if isinstance(text, str))


def _help(command: typer.core.TyperCommand | typer.core.TyperGroup, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    for parameter in command.params:
        yield f"{name} {parameter.name}", getattr(parameter, "help", "") or ""
    for verb, below in getattr(command, "commands", {}).items():
        yield from _help(below, f"{name} {verb}")


@pytest.mark.parametrize("words", INSTEAD)
def test_no_text_for_users_has_a_word_that_the_glossary_replaces(words: str) -> None:
    pattern = re.compile(rf"\b(?:{words})\b", flags=re.IGNORECASE)
    hits = [
        f"{location}: {text[max(0, hit.start() - 40) : hit.end() + 20]!r}"
        for location, text in documents()
        for hit in pattern.finditer(text)
    ]
    assert not hits, f"write {INSTEAD[words]}\n" + "\n".join(hits)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_prose_is_wrapped_at_120_characters(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"(?<=<!-- table: ).*?(?=<!-- end -->)", "", prose, flags=re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    ", "!["))]
    assert not [line for line in lines if len(line) > 120 and " " in line.strip()]
