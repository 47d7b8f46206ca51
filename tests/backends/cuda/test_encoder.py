from importlib.util import find_spec

import pytest
import torch

from heed import ModelConfig
from heed.backends.cuda.decoder import StaticEncoder
from heed.backends.cuda.step_ops import StepOps
from heed.model.layout import Packed
from tests.backends.decoder_steps import DESIGNS, design_name
from tests.model.examples import FIRST_WORD, VOCAB, make
from tests.reference.step_ops import REFERENCE

LENGTHS = [5, 1, 3, 11]


def step_ops_for(device: torch.device) -> list[StepOps]:
    if device.type != "cuda" or find_spec("triton") is None:
        return [REFERENCE]
    from heed.backends.cuda.triton_ops import TRITON  # noqa: PLC0415 - needs Triton

    return [REFERENCE, TRITON]


@pytest.mark.parametrize("config", DESIGNS, ids=design_name)
@torch.no_grad()
def test_static_encoder_output_equals_the_models(config: ModelConfig, device: torch.device) -> None:
    model = make(config, device, torch.float32)
    for lengths in (LENGTHS, [*LENGTHS, 14]):  # the second batch has a longer sentence than the first
        layout = Packed.from_lengths(lengths).to(device)
        src = torch.randint(FIRST_WORD, VOCAB, (sum(lengths),), generator=torch.Generator().manual_seed(1)).to(device)
        expected = model.encode(src, layout)
        for ops in step_ops_for(device):
            torch.testing.assert_close(StaticEncoder(model, ops)(src, layout), expected, atol=2e-5, rtol=1e-4)
