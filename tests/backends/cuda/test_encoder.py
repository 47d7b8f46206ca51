from importlib.util import find_spec

import pytest
import torch

from heed import ModelConfig
from heed.backends.cuda.decoder import StaticEncoder
from heed.backends.cuda.step_ops import StepOps
from heed.model.layout import Packed
from tests.model.examples import COMBINATIONS, FIRST_WORD, VOCAB, make
from tests.reference.step_ops import REFERENCE

DESIGNS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]
LENGTHS = [5, 1, 3, 11]


def parts_for(device: torch.device) -> list[StepOps]:
    if device.type != "cuda" or find_spec("triton") is None:
        return [REFERENCE]
    from heed.backends.cuda.triton_ops import TRITON  # noqa: PLC0415 - needs Triton

    return [REFERENCE, TRITON]


@pytest.mark.parametrize("config", DESIGNS, ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_it_encodes_as_the_model_does(config: ModelConfig, device: torch.device) -> None:
    model = make(config, device, torch.float32)
    for lengths in (LENGTHS, [*LENGTHS, 14]):  # the second time longer than all before
        layout = Packed.from_lengths(lengths).to(device)
        src = torch.randint(FIRST_WORD, VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(1)).to(device)
        expected = model.encode(src, layout)
        for parts in parts_for(device):
            torch.testing.assert_close(StaticEncoder(model, parts)(src, layout), expected, atol=2e-5, rtol=1e-4)
