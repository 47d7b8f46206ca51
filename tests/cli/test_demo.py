"""The test of the whole, through the real command: a two-layer model of width 32 learns from examples alone."""

import re

import pytest

from heed.training.digits import CONFIG, decode, encode, strings
from tests.cli.command import heed


@pytest.mark.parametrize("seed", [1, 2])
def test_a_small_model_learns_to_write_digits_backwards(seed: int) -> None:
    out = heed("demo", "--seed", str(seed)).stdout
    share = re.search(r"Exact on ([\d.]+)% of 1,000 strings it has never seen", out)
    assert share, out
    assert float(share[1]) >= 99.0
    examples = re.findall(r"^ +(\d+) > (\d+)$", out, flags=re.MULTILINE)
    assert len(examples) == 4
    assert sum(written == text[::-1] for text, written in examples) >= 3


def test_the_model_is_as_small_as_claimed() -> None:
    assert (CONFIG.d_model, CONFIG.encoder_layers, CONFIG.decoder_layers) == (32, 2, 2)


def test_strings_to_learn_from_and_strings_to_be_tested_on_share_none() -> None:
    learn, test = strings(1, unseen=False, longest=4), strings(1, unseen=True, longest=4)
    assert not {next(learn) for _ in range(5000)} & {next(test) for _ in range(1000)}


def test_digits_survive_encoding_and_end_where_they_end() -> None:
    assert encode(["07", "5"], begin=True, end=True).tolist() == [[1, 3, 10, 2], [1, 8, 2, 0]]
    assert decode([3, 10, 2, 8]) == "07"
    assert decode([3, 0, 10]) == "0?7"
