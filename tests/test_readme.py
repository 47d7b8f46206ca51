"""The README and the docs are right: their code runs, their links exist, their tables are those of the source."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from docs.make_map import MAP, map_text

from heed import Transformer
from heed.artifacts.folder import model_files
from heed.artifacts.writing import write_folder
from heed.config import DataConfig, ModelConfig, RunConfig, TrainingConfig
from heed.interop.marian import export_marian
from heed.search_config import SearchConfig
from heed.settings import Settings, format_setting
from heed.text.tokenizer import Tokenizer
from tests.installed import PROJECT, installed_packages, not_installed
from tests.pages import EXTRA_OPTIONS, block_commands, is_server, write_texts

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _sources() -> list[Path]:
    return [file for ending in ("py", "c", "h") for file in (ROOT / "src" / "heed").rglob(f"*.{ending}")]


def test_the_file_map_is_up_to_date() -> None:
    assert MAP.read_text() == map_text(), "run python docs/make_map.py"


def test_the_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_the_readme_names_every_sub_package() -> None:
    rooms = {file.parent.name for file in (ROOT / "src" / "heed").glob("*/__init__.py")}
    assert set(re.findall(r"^\| `(\w+)/` \|", README, flags=re.MULTILINE)) == rooms


@pytest.fixture(scope="module")
def folder_with_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with untrained models under the names that the pages use."""
    folder = tmp_path_factory.mktemp("pages")
    tokenizer = Tokenizer.train(["a b"], "bytes", 259)
    config = ModelConfig.preset("tiny", vocab_size=tokenizer.vocab_size)
    run = RunConfig(model=config, data=DataConfig(tokenizer="bytes"), search=SearchConfig(max_length=5))
    files = model_files(Transformer(config).state_dict(), run, {}, (tokenizer, tokenizer), "# card\n")
    for name in ("demo", "ende"):
        write_folder(folder / "runs" / name, files)
    post = RunConfig(model=ModelConfig.preset("tiny", vocab_size=259, norm="post"), data=run.data, search=run.search)
    files = model_files(Transformer(post.model).state_dict(), post, {}, (tokenizer, tokenizer), "# card\n")
    write_folder(folder / "runs" / "post", files)
    export_marian(folder / "runs" / "post", folder / "opus-marian")
    language_model = (ModelConfig.preset("tiny", vocab_size=259, kind="decoder"), DataConfig(task="language-model"))
    classifier = ModelConfig.preset("tiny", vocab_size=259, kind="encoder", labels=2)
    labelled = DataConfig(task="classify", labels=("x", "y"))
    for name, (model_config, data) in {"lm": language_model, "c": (classifier, labelled)}.items():
        run_config = RunConfig(
            model=model_config, data=data.model_copy(update={"tokenizer": "bytes"}), search=run.search
        )
        files = model_files(Transformer(model_config).state_dict(), run_config, {}, (tokenizer, tokenizer), "# card\n")
        write_folder(folder / "runs" / name, files)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_every_page_runs_and_prints_what_the_page_says(
    page: Path, folder_with_models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder_with_models)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder_with_models / "cache"))
    blocks = re.findall(
        r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    for code, printed in blocks:
        exec(compile(code, page.name, "exec"), {})  # noqa: S102 - our own page
        if printed:
            assert capsys.readouterr().out == printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_file_named_on_a_page_exists(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    for link in links:
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`((?:tests|docs|src|\.ci)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize(
    ("settings", "page"), [(TrainingConfig, "training"), (DataConfig, "training"), (SearchConfig, "translating")]
)
def test_the_docs_name_every_setting_with_its_default(settings: type[Settings], page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text()
    for name, field in settings.model_fields.items():
        assert f"| `{name}` | {format_setting(field.default)} | {field.description} |" in text


def test_pip_install_brings_what_the_readme_uses_and_no_developer_tools() -> None:
    assert "\n    pip install .\n" in README
    packages = installed_packages()
    assert {"torch", "fastapi", "uvicorn", "python-multipart", "vl-convert-python", "starlette", "h11"} <= packages
    assert not {"pytest", "ruff", "matplotlib", "ctranslate2", "transformers"} & packages
    assert "pytest" in not_installed()


def test_every_imported_module_is_a_dependency_or_in_an_extra() -> None:
    extras = set(PROJECT["optional-dependencies"]) - {"dev"}
    absent = set(not_installed(extras)) - {"triton"}  # comes with torch's CUDA builds; code asks for it first
    for file in _sources():
        if file.suffix == ".py":
            tree = ast.parse(file.read_text())
            names = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
            names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            assert not absent & {name.partition(".")[0] for name in names}, file


def test_make_demo_does_not_install_developer_tools(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    recipes = {
        target: subprocess.run(["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        for target in ("demo", "test")
    }
    assert "--editable .\n" in recipes["demo"]
    assert "[dev]" not in recipes["demo"]
    assert "[dev]" in recipes["test"]


@pytest.mark.slow
def test_the_readme_works_in_an_environment_made_by_its_own_install_line(tmp_path: Path) -> None:
    """Downloads PyTorch with pip: fails without a network."""
    clone = ["git", "clone", "--quiet", str(ROOT), str(tmp_path / "heed")]
    subprocess.run(clone, check=True)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    path = f"{tmp_path}/venv/bin:{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}
    install = next(line for line in README.splitlines() if line.startswith("    pip install"))

    def sh(line: str, folder: Path) -> str:
        command = ["bash", "-euo", "pipefail", "-c", line]
        process = subprocess.run(
            command, cwd=folder, env=environment, input="", capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, f"{line}\n{process.stdout}{process.stderr}"
        return process.stdout

    sh(install, tmp_path / "heed")
    work = tmp_path / "work"
    work.mkdir()
    write_texts(work)
    before_interop = README.partition("    heed import")[0]
    for line in ("heed demo --steps 2", *block_commands(before_interop)):
        if not is_server(line) and not line.startswith("curl "):
            verb = re.findall(r"\bheed ([a-z]+)", line)[-1]
            sh(f"{line} {EXTRA_OPTIONS.get(verb, '')}", work)
    assert "heed" in sh("heed serve --help", work)
    code = "import heed.serving.app, heed.serving.server; print('served')"
    assert sh(f'python -c "{code}"', work) == "served\n"
