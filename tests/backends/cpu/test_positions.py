"""The positional encodings that compiled code reads are the model's."""

import numpy as np
import pytest
import torch

from heed import ModelConfig
from heed.backends.cpu.positions import EncodedPositions, position_tables
from heed.errors import InputError
from heed.model.positions import Rotation, sinusoids
from tests.model.examples import SHAPE

COUNT = 3000


def config_with(positions: str) -> ModelConfig:
    return ModelConfig.model_validate({**SHAPE, "d_model": 84, "heads": 3, "positions": positions, "max_length": 7})


def test_sinusoidal_positions_are_the_models() -> None:
    tables, expected = position_tables(config_with("sinusoidal"), COUNT), sinusoids(torch.arange(COUNT), 84)
    assert tables.embedding is not None
    torch.testing.assert_close(torch.from_numpy(tables.embedding), expected.float(), atol=1e-7, rtol=0)


def test_rotations_are_the_models() -> None:
    tables, expected = (
        position_tables(config_with("rotary"), COUNT),
        Rotation.at(torch.arange(COUNT), 28, torch.float32),
    )
    assert tables.embedding is None
    for table, angles in ((tables.cos, expected.cos), (tables.sin, expected.sin)):
        assert table is not None
        torch.testing.assert_close(torch.from_numpy(table), angles[:, 0], atol=1e-7, rtol=0)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_a_table_grows_with_the_sequences(positions: str) -> None:
    table = EncodedPositions(config_with(positions), None)
    assert table.struct(5).count == 256
    assert table.struct(300).count == 600
    assert table.struct(5).count == 600


def test_a_sequence_longer_than_learned_positions_is_refused() -> None:
    table = EncodedPositions(config_with("learned"), np.zeros((7, 84), np.float32))
    assert table.struct(7).count == 7
    with pytest.raises(InputError, match="a sequence of 8 tokens is longer than the 7 learned positions of this model"):
        table.struct(8)
