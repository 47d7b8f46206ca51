"""Every shape written in a signature of heed is checked while the tests run."""

import os
from collections.abc import Iterator

# Tests run side by side, and OpenMP's threads spin while they wait for each other. It reads this when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import torch

from tests import signatures

signatures.install()

torch.set_num_threads(1)  # the models here are too small to share out, and other work may be going on


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where the model tests run: cpu or cuda")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _same_start_for_every_test() -> None:
    torch.manual_seed(0)
    signatures.calls.clear()


@pytest.fixture
def unchecked_signatures() -> Iterator[None]:
    """As a user meets heed: without the checks of signatures, which would refuse first what heed itself refuses."""
    jaxtyping.config.update("jaxtyping_disable", True)  # noqa: FBT003
    yield
    jaxtyping.config.update("jaxtyping_disable", False)  # noqa: FBT003
