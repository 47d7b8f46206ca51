import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.errors import InputError
from heed.model.cache import KVCache, LayerKVCache
from tests.model.examples import (
    SHAPE,
    VOCAB,
    both_sides,
    covering_combinations_that_decode,
    every_combination_that_decodes,
    make,
    packed,
    padded,
    sentences,
)


def start(model: Transformer, sides: dict[str, list[Tensor]]) -> KVCache:
    return model.start(padded(sides["src"])) if "src" in sides else model.start(rows=len(sides["tgt_in"]))


def full_logits(model: Transformer, src: list[Tensor] | None, tgt_in: list[Tensor]) -> list[Tensor]:
    """The logits of each sentence from one pass without a cache, padding removed."""
    logits = model(None if src is None else padded(src), padded(tgt_in))
    return [row[: len(ids)] for row, ids in zip(logits, tgt_in, strict=True)]


@every_combination_that_decodes
def test_cached_steps_equal_the_full_pass(config: ModelConfig, device: torch.device) -> None:
    model, sides = make(config, device), both_sides(config, device)
    ids = padded(sides["tgt_in"])
    cache, steps = start(model, sides), []
    for column in ids.split(1, dim=1):  # a finished row continues with padding
        logits, cache = model.step(column, cache)
        steps.append(logits)
    for row, expected in zip(torch.cat(steps, 1), full_logits(model, sides.get("src"), sides["tgt_in"]), strict=True):
        torch.testing.assert_close(row[: len(expected)], expected, rtol=0, atol=1e-12)


@covering_combinations_that_decode
def test_prefixes_of_different_lengths_can_be_continued(config: ModelConfig, device: torch.device) -> None:
    model, sides = make(config, device), both_sides(config, device)
    _, cache = model.step(padded(sides["tgt_in"]), start(model, sides))
    more = sentences([3, 3, 3, 3], device)
    logits, _ = model.step(padded(more), cache)
    all_ids = [torch.cat(pair) for pair in zip(sides["tgt_in"], more, strict=True)]
    for row, expected in zip(logits, full_logits(model, sides.get("src"), all_ids), strict=True):
        torch.testing.assert_close(row, expected[-3:], rtol=0, atol=1e-12)


@covering_combinations_that_decode
def test_a_reordered_cache_continues_the_selected_hypotheses(config: ModelConfig, device: torch.device) -> None:
    """Sentences 2 and 0 are kept, with three hypotheses each, which are then reordered within their sentence."""
    model, sides = make(config, device), both_sides(config, device)
    _, cache = model.step(padded(sides["tgt_in"]), start(model, sides))
    cache = cache.select(torch.tensor([[2, 2, 2], [0, 0, 0]], device=device), torch.tensor([2, 0], device=device))
    second = sentences([2] * 6, device)
    _, cache = model.step(padded(second), cache)
    cache = cache.select(torch.tensor([[1, 0, 0], [5, 3, 4]], device=device))
    third = sentences([1] * 6, device)
    logits, _ = model.step(padded(third), cache)

    sentence_of, row_of = [2, 2, 2, 0, 0, 0], [1, 0, 0, 5, 3, 4]
    src = [sides["src"][number] for number in sentence_of] if "src" in sides else None
    all_ids = [
        torch.cat((sides["tgt_in"][number], second[row], last))
        for number, row, last in zip(sentence_of, row_of, third, strict=True)
    ]
    for row, expected in zip(logits, full_logits(model, src, all_ids), strict=True):
        torch.testing.assert_close(row, expected[-1:], rtol=0, atol=1e-12)


def test_a_cache_can_be_continued_twice_with_the_same_result(device: torch.device) -> None:
    model, sides = make(ModelConfig(**SHAPE), device), both_sides(ModelConfig(**SHAPE), device)
    _, cache = model.step(padded(sides["tgt_in"]), start(model, sides))
    token, other = torch.tensor([[4]] * 4, device=device), torch.tensor([[5]] * 4, device=device)
    first, after_first = model.step(token, cache)
    model.step(other, cache)  # continues the same cache: must not change the first continuation
    again, _ = model.step(token, cache)
    assert torch.equal(again, first)
    follow, _ = model.step(other, after_first)
    all_ids = [torch.cat((row, token[0], other[0])) for row in sides["tgt_in"]]
    for row, expected in zip(follow, full_logits(model, sides["src"], all_ids), strict=True):
        torch.testing.assert_close(row, expected[-1:], rtol=0, atol=1e-12)


def test_a_growing_cache_is_reallocated_a_logarithmic_number_of_times(device: torch.device) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, "encoder_layers": 1, "decoder_layers": 1}), device)
    src = padded(sentences([3, 2], device))
    cache, addresses = model.start(src), []
    for _ in range(140):  # capacities 32, 66, 134, 270
        _, cache = model.step(torch.full((2, 1), 4, device=device), cache)
        layer = cache.past[0]
        assert isinstance(layer, LayerKVCache)
        buffer = layer._buffer
        assert buffer is not None
        addresses.append(buffer.slots.data_ptr())
    assert sum(before != after for before, after in pairwise(addresses)) == 3


def test_reordering_hypotheses_does_not_copy_the_source_keys_and_values(device: torch.device) -> None:
    model = make(ModelConfig(**SHAPE), device)
    cache = model.start(padded(sentences([3, 2], device)))
    _, cache = model.step(torch.tensor([[4], [5]], device=device), cache)
    wide = cache.select(torch.tensor([[0, 0], [1, 1]], device=device))
    assert all(new[0] is old[0] for new, old in zip(wide.memory, cache.memory, strict=True))


def test_decoding_from_packed_sources_equals_padded_sources(device: torch.device) -> None:
    config = ModelConfig(**SHAPE)
    model, sides = make(config, device), both_sides(config, device)
    ids, layout = packed(sides["src"])
    tgt_in = padded(sides["tgt_in"])
    from_packed, _ = model.step(tgt_in, model.start(ids, layout))
    from_padded, _ = model.step(tgt_in, model.start(padded(sides["src"])))
    torch.testing.assert_close(from_packed, from_padded, rtol=0, atol=1e-12)


def test_cross_mask_acts_in_a_step_as_in_the_full_pass(device: torch.device) -> None:
    config = ModelConfig(**SHAPE)
    model, sides = make(config, device), both_sides(config, device)
    src, tgt_in = padded(sides["src"]), sentences([4, 4, 4, 4], device)
    mask = torch.rand(4, 4, src.shape[1], device=device) > 0.4
    full = model(src, padded(tgt_in), cross_mask=mask)
    cache = model.start(src)
    for column in range(4):
        step, cache = model.step(padded(tgt_in)[:, column, None], cache, cross_mask=mask[:, column, None])
        torch.testing.assert_close(step, full[:, column, None], rtol=0, atol=1e-12)


def test_cross_mask_is_per_hypothesis_in_a_beam(device: torch.device) -> None:
    config = ModelConfig(**SHAPE)
    model = make(config, device)
    src, prefix, ids = padded(sentences([5, 3], device)), sentences([2, 2], device), sentences([1] * 6, device)
    _, cache = model.step(padded(prefix), model.start(src))
    cache = cache.select(torch.tensor([[0, 0, 0], [1, 1, 1]], device=device))
    mask = torch.rand(6, 1, src.shape[1], device=device) > 0.4
    step, _ = model.step(padded(ids), cache, cross_mask=mask)
    sentence_of = [0, 0, 0, 1, 1, 1]
    all_ids = torch.stack([torch.cat((prefix[number], last)) for number, last in zip(sentence_of, ids, strict=True)])
    everything = torch.ones(6, 2, src.shape[1], dtype=torch.bool, device=device)
    full = model(src[sentence_of], all_ids, cross_mask=torch.cat((everything, mask), 1))
    torch.testing.assert_close(step, full[:, -1:], rtol=0, atol=1e-12)


def test_a_step_that_does_not_fit_its_cache_is_rejected(device: torch.device) -> None:
    model = make(ModelConfig(**SHAPE), device)
    cache = model.start(padded(sentences([3, 2], device)))
    with pytest.raises(InputError, match="a step of 3 rows cannot continue a cache of 2 rows"):
        model.step(torch.full((3, 1), 4, device=device), cache)
    with pytest.raises(InputError, match="rows are given for 3 sentences, but 2 of 2 are kept"):
        cache.select(torch.zeros(3, 1, dtype=torch.int64, device=device))
    wrong = torch.ones(2, 1, 9, dtype=torch.bool, device=device)
    with pytest.raises(InputError, match=re.escape("shape (2, 1, 9), expected") + ".*" + re.escape("(2, 1, 3)")):
        model.step(torch.full((2, 1), 4, device=device), cache, cross_mask=wrong)
    with pytest.raises(InputError, match=f"ids holds id {VOCAB}, outside a vocabulary of {VOCAB} tokens"):
        model.step(torch.full((2, 1), VOCAB, device=device), cache)
