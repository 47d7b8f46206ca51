"""The documentation site: it builds without a warning, needs no network, and describes every public name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import heed

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", str(DOCS), str(folder)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_in_the_reading_order(site: Path) -> None:
    index = (DOCS / "index.md").read_text()
    for page in set(DOCS.glob("*.md")) - {DOCS / "index.md"}:
        assert f"]({page.name})" in index, f"{page.name} is not on the index page"
        assert (site / f"{page.stem}.html").is_file()


LOADED = re.compile(r'<(?:script|img|iframe)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)"')


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    for page in site.rglob("*.html"):
        addresses = [address for groups in LOADED.findall(page.read_text()) for address in groups]
        assert not [address for address in addresses if re.match(r"(https?:)?//", address)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text()), sheet


def test_the_site_has_the_pictures_of_its_pages_and_a_search_index(site: Path) -> None:
    assert (site / "searchindex.js").stat().st_size > 10_000
    for page in DOCS.glob("*.md"):
        for picture in re.findall(r"!\[[^\]]*\]\((?!http)([^)]+)\)", page.read_text()):
            assert (site / "_images" / Path(picture).name).is_file(), f"{page.name}: {picture}"


def test_the_reference_describes_every_public_name(site: Path) -> None:
    reference = (site / "reference.html").read_text()
    for name in set(heed.__all__) - {"__version__"}:
        assert f'id="heed.{name}"' in reference, name
