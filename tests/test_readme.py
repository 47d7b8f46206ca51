"""What the README and the docs say is true: their code runs, their map is the territory."""

import re
from pathlib import Path

import pytest

from heed.config import DataConfig, TrainingConfig

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_file_map_is_true() -> None:
    mapped = re.findall(r"^\| `(src/heed/[^`]+)` \|", README, flags=re.MULTILINE)
    files = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "src" / "heed").rglob("*.py")
        if file.name not in ("__init__.py", "__main__.py") or file.parent.name == "heed"
    }
    assert sorted(mapped) == sorted(files)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_on_every_page_runs(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for block in code:
        if "runs/demo" not in block:  # that needs the demo's model; tests/cli/test_translate loads one
            exec(compile(block, page.name, "exec"), {})  # noqa: S102 - our own page
    if page.name == "model.md":
        assert capsys.readouterr().out == "12 torch.Size([1, 4, 2, 3])\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_and_file_named_on_a_page_is_there(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    for link in links:
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`((?:tests|docs|src|\.ci)/[\w./]+)`", text):
        assert (ROOT / name).exists(), name


def test_the_commands_of_the_readme_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "test", "check"} <= targets
    assert set(re.findall(r"\bmake ([a-z]+) ", README)) <= targets | {"on"}


@pytest.mark.parametrize("settings", [TrainingConfig, DataConfig], ids=lambda settings: settings.__name__)
def test_the_docs_name_every_setting_with_its_default(settings: type[TrainingConfig] | type[DataConfig]) -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    for name, field in settings.model_fields.items():
        default = "none" if field.default is None else field.default
        assert f"| `{name}` | {default} | {field.description} |" in page


def test_no_file_of_the_source_is_too_long_to_read_at_once() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 300, file
