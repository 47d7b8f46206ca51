"""Every shape written in a signature of heed is checked while the tests run."""

import os
from collections.abc import Iterator

# Tests run in parallel, and waiting OpenMP threads spin. OpenMP reads this variable when it is loaded: set it first.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping
import pytest
import torch

from tests import signatures

signatures.install()

torch.set_num_threads(1)  # the models are too small to gain from threads


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
    """Turn the signature checks off: on invalid input they would raise before heed's own checks do."""
    jaxtyping.config.update("jaxtyping_disable", True)  # noqa: FBT003
    yield
    jaxtyping.config.update("jaxtyping_disable", False)  # noqa: FBT003
