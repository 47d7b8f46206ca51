"""One server for all tests that do not need one of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from heed import Translator, load
from tests.serving.folders import make_folder
from tests.serving.running import Running, serving

MANY = ("--set", "serve.requests_per_minute=1000000", "--set", "serve.burst=1000000")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """English to German, and back."""
    where = tmp_path_factory.mktemp("models")
    return make_folder(where / "ende"), make_folder(where / "deen", "de", "en", seed=1)


@pytest.fixture(scope="session")
def server(folders: tuple[Path, Path]) -> Iterator[Running]:
    with serving(*folders, *MANY) as running:
        yield running


@pytest.fixture(scope="session")
def translator(folders: tuple[Path, Path]) -> Translator:
    """English to German, without a server: what the server must answer."""
    return load(folders[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Not part of the quick suite yet: together with the rest, a run once did not end."""
    for item in items:
        if "tests/serving" in str(item.path):
            item.add_marker(pytest.mark.slow)
