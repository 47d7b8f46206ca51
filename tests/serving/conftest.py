"""One server for all tests that do not need one of their own; and no test here goes on for ever."""

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that hangs fails, wherever it waits."""
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
