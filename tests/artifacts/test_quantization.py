import pytest
import torch

from heed.artifacts.quantization import dequantize_weights, quantize_rows, quantize_weights
from heed.errors import FolderError
from tests.model.examples import COMBINATIONS, make

CPU = torch.device("cpu")


def test_the_quantisation_error_of_a_weight_is_at_most_half_a_step() -> None:
    weight = torch.randn(40, 30)
    weight[3] *= 1000
    weight[4] = 0
    integers, scales = quantize_rows(weight)
    assert integers.dtype == torch.int8
    assert integers.abs().amax(1)[:4].tolist() == [127] * 4
    assert ((integers * scales[:, None] - weight).abs() <= 0.501 * scales[:, None]).all()


@pytest.mark.parametrize("config", COMBINATIONS[::4], ids=str)
def test_quantising_dequantised_weights_gives_the_same_integers(config: object) -> None:
    weights = make(config, CPU, torch.float32).state_dict()  # type: ignore[arg-type]
    quantised = quantize_weights(weights)
    requantised = quantize_weights(dequantize_weights(quantised))
    assert dequantize_weights(quantised).keys() == weights.keys()
    assert quantised.keys() == requantised.keys()
    for name, integers in quantised.items():
        if integers.dtype == torch.int8:
            assert torch.equal(integers, requantised[name]), name
    matrices = {name for name, weight in weights.items() if weight.ndim == 2 and "positions" not in name}
    assert {name for name, weight in quantised.items() if weight.dtype == torch.int8} == matrices


@pytest.mark.parametrize(("scales", "found_shape"), [(None, "none"), (torch.ones(2), r"\(2,\)")])
def test_int8_weights_without_a_scale_per_row_are_refused(scales: torch.Tensor | None, found_shape: str) -> None:
    weights = {"a.weight": torch.ones(3, 4, dtype=torch.int8)}
    if scales is not None:
        weights["a.weight.scales"] = scales
    message = rf"weight a.weight of shape \(3, 4\) needs a scale for each row, found {found_shape}"
    with pytest.raises(FolderError, match=message):
        dequantize_weights(weights)
