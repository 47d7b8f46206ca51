"""Every command on a documentation page runs, in the page's order, in a folder with the files it names."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from heed.cli.main import app
from tests.cli.command import ONE_THREAD, heed, heed_command
from tests.installed import not_installed
from tests.interop.marian_models import TINY, Recipe, make
from tests.pages import EXTRA_OPTIONS, SHORT_RUN, block_commands, is_server, write_texts
from tests.serving.folders import Task, make_lm_or_classifier
from tests.serving.running import serving

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
each_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)

# Languages of the runs that translate (all are copies of one run), and tasks of the others.
LANGUAGES = {"ende": "en-de", "deen": "de-en", "demo": "en-fr"}
OTHER_TASKS: dict[str, Task] = {"lm": "language-model", "c": "classify", "m": "masked"}


def make_files(page: str, folder: Path) -> None:
    """Run the page's Python code that writes text files, then keep the first 40 lines of each file."""
    before = set(folder.iterdir())
    with chdir(folder):
        for code in re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
            if ".write_text(" in code:
                exec(compile(code, "page", "exec"), {})  # noqa: S102 - our own page
    for file in {path for path in folder.iterdir() if path.is_file()} - before:
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:40]))


def documented_responses(page: str) -> dict[str, str]:
    """The responses that a page shows: each curl command with the JSON line after it."""
    return dict(re.findall(r"^    (curl .*)\n    ([\[{].*)", page, flags=re.MULTILINE))


def inline_commands(page: str) -> list[str]:
    """The commands in running text, complete or not."""
    return [" ".join(command.split()) for command in re.findall(r"`((?:heed|torchrun) [^`]+)`", page)]


def is_complete(line: str) -> bool:
    """Whether an inline command can be run: it has at least two arguments and no placeholders."""
    return len(line.split()) > 3 and not re.search(r"…|\b[A-Z]{3,}\b", line)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run of a few steps."""
    folder = tmp_path_factory.mktemp("docs")
    write_texts(folder)
    texts = ["--pairs", f"{folder}/train.tsv", "--valid-pairs", f"{folder}/val.tsv", "--cache", f"{folder}/cache"]
    process = heed("train", *texts, "--out", f"{folder}/run", *SHORT_RUN.split())
    assert process.returncode == 0, process.stderr
    return folder / "run"


@pytest.fixture
def folder(run: Path, page: str, tmp_path: Path) -> Path:
    """A folder with a `heed` command, texts, and the runs that the page uses but does not train."""
    write_texts(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "heed").write_text(f'#!/bin/sh\nexec {shlex.join(heed_command())} "$@"\n')
    (tmp_path / "bin" / "heed").chmod(0o755)
    if "opus-mt-en-de" in page:
        pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
        make(tmp_path / "opus-mt-en-de", Recipe(TINY, pairs=200, pieces=120))
    make_files(page, tmp_path)
    lines = "\n".join((*block_commands(page), *filter(is_complete, inline_commands(page))))
    trained = re.findall(r"--out (\S+)", lines)
    for name in set(re.findall(r"\bruns/\w+", lines)) - set(trained):
        if (task := OTHER_TASKS.get(name.removeprefix("runs/"))) is None:
            shutil.copytree(run, tmp_path / name)
        else:
            (tmp_path / "runs").mkdir(exist_ok=True)
            make_lm_or_classifier(tmp_path / name, task, labels=("de", "en"))
    return tmp_path


@each_page
def test_every_command_on_a_page_runs(page: str, folder: Path) -> None:
    environment = {
        **ONE_THREAD,
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{ONE_THREAD['PATH']}",
        "XDG_CACHE_HOME": f"{folder}/cache",
        "PET_STANDALONE": "1",  # torchrun uses a free port
        "MODULES_NOT_INSTALLED": ",".join(not_installed(extras_of(page))),
    }
    lines = (*block_commands(page), *filter(is_complete, inline_commands(page)))
    if any(line.startswith("curl ") for line in lines) and shutil.which("curl") is None:
        pytest.skip("no curl here: apt-get install curl")
    with ExitStack() as last_server:
        address = ""
        for line in lines:
            if is_server(line):
                last_server.close()
                address = last_server.enter_context(served(line, folder))
                continue
            is_curl = line.startswith("curl ")
            verb = "curl" if is_curl else re.findall(r"\bheed ((?:bench )?[a-z]+)", line)[-1]
            command = line.replace("localhost:8080", address) if is_curl else f"{line} {EXTRA_OPTIONS.get(verb, '')}"
            process = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=folder,
                env=environment,
                input="",
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert process.returncode == 0, f"{line}\n{process.stderr}"
            if line in documented_responses(page):
                assert shape(json.loads(process.stdout)) == shape(json.loads(documented_responses(page)[line])), (
                    process.stdout
                )


@contextmanager
def served(line: str, folder: Path) -> Iterator[str]:
    """Start the server of a page's command on a free port and yield its address; it must exit with code 0."""
    names = re.findall(r"\bruns/(\w+)", line)
    languages = [f"--languages={LANGUAGES[name]}" for name in names if name not in OTHER_TASKS]
    with chdir(folder), serving(*shlex.split(line)[2:], "--port=0", *languages) as running:
        yield running.address.removeprefix("http://")
        assert running.end() == 0


def shape(answer: Any) -> Any:
    """A response with types for values, and without `truncated`, which untrained models always set."""
    if isinstance(answer, dict):
        return {name: shape(value) for name, value in answer.items() if (name, value) != ("truncated", True)}
    return [shape(value) for value in answer] if isinstance(answer, list) else type(answer).__name__


@each_page
def test_every_verb_and_option_in_an_inline_command_exists(page: str) -> None:
    verbs = typer.main.get_group(app).commands
    for line in inline_commands(page):
        name = re.findall(r"\bheed ([a-z]+|(?=--))", line)[-1]
        assert not name or name in verbs, line
        command = verbs[name] if name else typer.main.get_command(app)
        subcommand = re.findall(rf"\bheed {name} ([a-z]+)", line)
        if subcommand:  # as in heed bench engines
            command = getattr(command, "commands", {}).get(subcommand[0], command)
        params = command.params
        options = {option for parameter in params for option in parameter.opts}
        assert set(re.findall(r" (--?[a-z][a-z-]*)", line)) <= options | {"--help"}, line


@each_page
def test_every_make_target_and_extra_on_a_page_exists(page: str) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^ {4}|`)make ([a-z]+)", page, flags=re.MULTILINE)) <= set(targets)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras_of(page) <= set(extras)


def extras_of(page: str) -> set[str]:
    """The extras that a page says to install; its commands must run without any others."""
    extra_lists = re.findall(r"pip install '(?:heed|\.)\[([a-z0-9,]+)\]'", page)
    return {extra for names in extra_lists for extra in names.split(",")}


@each_page
def test_commands_are_indented_and_not_fenced(page: str) -> None:
    assert not re.search(r"^```(sh|shell|bash|zsh|console)\b", page, flags=re.MULTILINE), (
        "indent commands by four spaces"
    )


def test_block_and_inline_commands_are_extracted() -> None:
    page = "Do\n\n    heed train --a \\\n        --b  # twice\n    no command\n    echo a | heed translate r\n"
    page += "    make test  # of heed alone\n    curl host -d a\n    {}\n\n"
    page += "or `heed train --a\nb c`, `heed train …`, `heed demo`\n\n```python\n    heed = 1\n```\n"
    assert block_commands(page) == ["heed train --a \\\n        --b", "echo a | heed translate r", "curl host -d a"]
    assert documented_responses(page) == {"curl host -d a": "{}"}
    assert shape(json.loads('{"a": [1, "b"]}')) == {"a": ["int", "str"]}
    assert inline_commands(page) == ["heed train --a b c", "heed train …", "heed demo"]
    assert list(filter(is_complete, inline_commands(page))) == ["heed train --a b c"]
