"""A server shared by the tests that need no settings of their own, and a time limit for every test."""

import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from heed import Translator, load
from tests.serving.folders import make_folder
from tests.serving.running import Running, serving

MANY = ("--set", "serve.requests_per_minute=1000000", "--set", "serve.burst=1000000")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Models for English to German and German to English."""
    folder = tmp_path_factory.mktemp("models")
    return make_folder(folder / "ende"), make_folder(folder / "deen", "de", "en", seed=1)


@pytest.fixture(scope="session")
def server(folders: tuple[Path, Path]) -> Iterator[Running]:
    with serving(*folders, *MANY) as running:
        yield running


@pytest.fixture(scope="session")
def translator(folders: tuple[Path, Path]) -> Translator:
    """The English-German model without a server, for the expected responses."""
    return load(folders[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that runs longer than its limit."""
    limits = {"endless": 3600, "slow": 900}
    limit = next((seconds for name, seconds in limits.items() if item.get_closest_marker(name)), 120)

    def fail(*_: object) -> None:
        pytest.fail(f"not done after {limit} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(limit)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
