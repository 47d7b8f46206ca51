"""Every shape written in a signature of heed is checked while the tests run."""

import pytest
import torch
from jaxtyping import install_import_hook

ROOMS = ["heed.model", "heed.decoding", "heed.training", "heed.interpret"]  # where tensors live
install_import_hook(ROOMS, "beartype.beartype")

torch.set_num_threads(1)  # the models here are too small to share out, and other work may be going on


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where the model tests run: cpu or cuda")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)
