from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from heed.artifacts.quantization import (
    QuantizedMatrix,
    dequantize,
    dequantize_weights,
    quantize_rows,
    quantize_weights,
    scaled,
)
from heed.errors import FolderError
from tests.model.examples import COMBINATIONS, make

CPU = torch.device("cpu")
RANDOM = np.random.default_rng(1)


def random_matrix(rows: int, columns: int) -> NDArray[np.float32]:
    return RANDOM.standard_normal((rows, columns), np.float32)


def test_the_quantisation_error_of_a_weight_is_at_most_half_a_step() -> None:
    weight = random_matrix(40, 30)
    weight[3] *= 1000
    weight[4] = 0
    integers, scales = quantize_rows(weight)
    assert integers.dtype == np.int8
    assert np.abs(integers).max(1)[:4].tolist() == [127] * 4
    assert (np.abs(integers * scales[:, None] - weight) <= 0.501 * scales[:, None]).all()


@pytest.mark.parametrize("config", COMBINATIONS[::4], ids=str)
def test_quantising_dequantised_weights_gives_the_same_integers(config: object) -> None:
    model = make(config, CPU, torch.float32)  # type: ignore[arg-type]
    weights = {name: weight.numpy() for name, weight in model.state_dict().items()}
    quantised = quantize_weights(weights)
    requantised = quantize_weights(dequantize_weights(quantised))
    assert dequantize_weights(quantised).keys() == weights.keys()
    assert quantised.keys() == requantised.keys()
    for name, integers in quantised.items():
        if integers.dtype == np.int8:
            assert np.array_equal(integers, requantised[name]), name
    matrices = {name for name, weight in weights.items() if weight.ndim == 2 and "positions" not in name}
    assert {name for name, weight in quantised.items() if weight.dtype == np.int8} == matrices


@pytest.mark.parametrize("factor", [1.0, 0.125, 32**-0.5, 84**-0.5])
def test_scaling_a_quantised_matrix_gives_the_bits_of_quantising_the_dequantised_one(factor: float) -> None:
    weight = random_matrix(200, 30) * np.float32(10.0) ** RANDOM.integers(-12, 3, (200, 1))
    weight[4] = 0
    by_heed = quantize_rows(weight)
    by_others = QuantizedMatrix(RANDOM.integers(-128, 99, (50, 30), np.int8), by_heed.scales[:50])
    for matrix in (by_heed, by_others):
        expected = quantize_rows(dequantize(matrix) * np.float32(factor))
        found = scaled(matrix, factor)
        assert found.integers.tobytes() == expected.integers.tobytes()
        assert found.scales.tobytes() == expected.scales.tobytes()


@pytest.mark.parametrize(("scales", "found_shape"), [(None, "none"), (np.ones(2), r"\(2,\)")])
def test_int8_weights_without_a_scale_per_row_are_refused(scales: NDArray[Any] | None, found_shape: str) -> None:
    weights: dict[str, NDArray[Any]] = {"a.weight": np.ones((3, 4), np.int8)}
    if scales is not None:
        weights["a.weight.scales"] = scales
    message = rf"weight a.weight of shape \(3, 4\) needs a scale for each row, found {found_shape}"
    with pytest.raises(FolderError, match=message):
        dequantize_weights(weights)
