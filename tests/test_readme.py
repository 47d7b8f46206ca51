"""What the README and the docs say is true: their code runs, their map is the territory."""

import re
from pathlib import Path

import pytest

from heed import Transformer
from heed.training.digits import CONFIG

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


def test_the_size_of_the_demos_model_is_the_one_stated() -> None:
    size = sum(weight.numel() for weight in Transformer(CONFIG).parameters())
    assert f"a model of {size:,} parameters" in README.replace("\n", " ")


def test_no_file_of_the_source_is_too_long_to_read_at_once() -> None:
    for file in (ROOT / "src").rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 300, file
