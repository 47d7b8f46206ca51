"""Each operation of a decoder step in Triton equals the same operation in plain torch, on a GPU or interpreted."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from heed import ModelConfig
from heed.backends.cuda.decoder import StaticDecoder
from heed.backends.cuda.graph import capture
from heed.backends.cuda.slots import Slots, SlotShape
from heed.backends.cuda.step_ops import EmbeddingParams, NormParams, ResidualNorm, SpecialIds
from heed.backends.cuda.triton_ops import TRITON
from heed.model.layout import Packed
from tests.model.examples import SHAPE, make
from tests.reference.step_ops import REFERENCE

HEADS, WIDTH = 2, 12  # the product is not a power of two
SIZE = HEADS * WIDTH
SPECIAL = SpecialIds(pad_id=0, bos_id=1, eos_id=2)


def slots_in_use(shape: SlotShape, positions: list[int], device: torch.device) -> Slots:
    """Slots of searches at these positions, with a random KV cache and random parents."""
    slots = Slots.empty(shape, 2, (HEADS, WIDTH), torch.float32, device)
    for tensor in (slots.self_kv, slots.cross_kv):
        tensor.copy_(torch.randn(tensor.shape))
    slots.positions.copy_(torch.tensor(positions))
    slots.source_lengths.copy_(torch.randint(1, shape.source_length + 1, (shape.slots,)))
    slots.max_lengths.fill_(shape.target_length - 1)
    slots.finished.fill_(0)
    slots.ids.copy_(torch.randint(9, slots.ids.shape))
    first = torch.arange(shape.rows) // shape.beam * shape.beam
    slots.kv_rows.copy_(first[:, None] + torch.randint(shape.beam, slots.kv_rows.shape))
    return slots


def norm(device: torch.device) -> NormParams:
    return NormParams(torch.randn(SIZE, device=device), torch.randn(SIZE, device=device), 1e-5)


@pytest.mark.parametrize("with_positions", [True, False])
@pytest.mark.parametrize("with_norm", [True, False])
def test_embedding_equals_the_reference(with_positions: bool, with_norm: bool, device: torch.device) -> None:
    slots = slots_in_use(SlotShape(3, 2, 4, 8), [0, 3, 7], device)
    matrix, positions = torch.randn(9, SIZE, device=device), torch.randn(8, SIZE, device=device)
    embedding = EmbeddingParams(
        matrix, 5.0, positions if with_positions else None, None, norm(device) if with_norm else None
    )
    for output, expected in zip(TRITON.embed(embedding, slots), REFERENCE.embed(embedding, slots), strict=True):
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("post", "outer"), [(True, False), (False, False), (False, True)])
def test_residual_and_norm_equal_the_reference_in_every_order(post: bool, outer: bool, device: torch.device) -> None:
    x, y, bias = (torch.randn(*size, device=device) for size in ((5, SIZE), (5, SIZE), (SIZE,)))
    residual_norm = ResidualNorm(bias, norm(device) if outer else None, norm(device), post)
    for output, expected in zip(
        TRITON.add_residual_norm(x, y, residual_norm), REFERENCE.add_residual_norm(x, y, residual_norm), strict=True
    ):
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("rotary", [True, False])
def test_self_attention_and_its_kv_cache_equal_the_reference(width: int, rotary: bool, device: torch.device) -> None:
    shape = SlotShape(3, width, 4, 80)
    slots = slots_in_use(shape, [0, 4, 71], device)  # an empty cache, part of a tile, several tiles
    angles = torch.randn(80, WIDTH // 2, device=device)
    rotations = torch.stack((angles.cos(), angles.sin())) if rotary else None
    qkv, bias = torch.randn(shape.rows, 3 * SIZE, device=device), torch.randn(3 * SIZE, device=device)
    expected_slots = copy.deepcopy(slots)
    output, expected = (
        self_attention(qkv, bias, its_slots, 1, rotations)
        for self_attention, its_slots in ((TRITON.self_attention, slots), (REFERENCE.self_attention, expected_slots))
    )
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(slots.self_kv, expected_slots.self_kv, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 3])
def test_cross_attention_equals_the_reference_for_every_source_length(width: int, device: torch.device) -> None:
    shape = SlotShape(3, width, 70, 8)
    slots = slots_in_use(shape, [0, 3, 7], device)
    slots.source_lengths.copy_(torch.tensor([1, 32, 70]))
    queries, bias = torch.randn(shape.rows, SIZE, device=device), torch.randn(SIZE, device=device)
    output, expected = (
        cross_attention(queries, bias, slots, 1)
        for cross_attention in (TRITON.cross_attention, REFERENCE.cross_attention)
    )
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def finished_hypotheses(slots: Slots) -> list[list[tuple[float, ...]]]:
    """The finished hypotheses of each sentence, sorted."""
    names = ("finished_scores", "finished_log_probs", "finish_order", "finish_hypothesis")
    columns = [getattr(slots, name).tolist() for name in names]
    return [sorted(zip(*row, strict=True)) for row in zip(*columns, strict=True)]


def assert_same_searches(slots: Slots, expected: Slots) -> None:
    assert slots.finished.tolist() == expected.finished.tolist()
    assert slots.positions.tolist() == expected.positions.tolist()
    for hypotheses, expected_hypotheses in zip(finished_hypotheses(slots), finished_hypotheses(expected), strict=True):
        for (score, *values), (expected_score, *expected_values) in zip(hypotheses, expected_hypotheses, strict=True):
            assert score == pytest.approx(expected_score, abs=1e-4)
            if abs(score) < torch.inf:
                assert values == pytest.approx(expected_values, abs=1e-4)
    torch.testing.assert_close(slots.live_log_probs, expected.live_log_probs, atol=1e-4, rtol=0)
    alive = expected.live_log_probs > -torch.inf
    assert torch.equal(slots.ids[alive], expected.ids[alive])
    for sentence, position in enumerate(slots.positions.tolist()):
        last, live = max(position - 1, 0), alive[sentence]
        assert torch.equal(slots.tokens[sentence, last][live], expected.tokens[sentence, last][live])
        assert torch.equal(slots.parents[sentence, last][live], expected.parents[sentence, last][live])
        if slots.shape.beam > 1 and not int(slots.finished[sentence]):
            kv_rows = [
                searches.kv_rows[position % 2].view(slots.shape.slots, -1, slots.shape.target_length)[sentence]
                for searches in (slots, expected)
            ]
            assert torch.equal(*(rows[live, :position] for rows in kv_rows))


def searching(width: int, positions: list[int], device: torch.device) -> Slots:
    slots = slots_in_use(SlotShape(len(positions), width, 4, 12), positions, device)
    slots.live_log_probs.copy_(-torch.randint(9, slots.live_log_probs.shape).double().sort(-1).values)
    slots.finished_scores.fill_(-torch.inf)
    slots.length_penalties.copy_(((5 + torch.arange(14).double()) / 6) ** 0.6)
    return slots


def logits(rows: int, size: int, levels: int, device: torch.device) -> Tensor:
    """With few levels, many tokens are equally probable."""
    return torch.randint(levels, (rows, size)).float().div(levels / 20).to(device)


@pytest.mark.parametrize("levels", [4, 100_000])
@pytest.mark.parametrize(("width", "size"), [(1, 13), (3, 13), (2, 5000), (5, 40)])
def test_beam_steps_equal_the_reference(width: int, size: int, levels: int, device: torch.device) -> None:
    slots = searching(width, [0, 3, 5, 11, 2], device)
    slots.rules.copy_(torch.tensor([3, int(width == 1)]))
    # The third and fourth sentences are at their maximum length; the last is finished.
    slots.max_lengths[2], slots.finished[4] = 5, 1
    if levels == 4:
        slots.length_penalties.copy_(((5 + torch.arange(14).double()) / 6) ** -2)  # longer hypotheses score lower
    slots.finished_scores[:, 1:] = torch.inf if levels == 4 else -torch.inf  # n-best of 1, or as many as the beam
    expected, bias = copy.deepcopy(slots), torch.randn(size, device=device) if levels > 4 else None
    for _ in range(3):
        step_logits = logits(slots.shape.rows, size, levels, device)
        step_logits[:, 2] += 12.0  # so that some finish
        TRITON.beam_step(step_logits, bias, slots, SPECIAL)
        REFERENCE.beam_step(step_logits, bias, expected, SPECIAL)
        assert_same_searches(slots, expected)
    assert slots.finished.tolist()[2:] == [1, 1, 1]


def test_nan_logits_end_a_search_without_a_hypothesis(device: torch.device) -> None:
    triton_slots = searching(2, [1, 1], device)
    reference_slots = copy.deepcopy(triton_slots)
    step_logits = logits(4, 13, 50, device)
    step_logits[2:, 5] = torch.nan
    for ops, slots in ((TRITON, triton_slots), (REFERENCE, reference_slots)):
        ops.beam_step(step_logits, None, slots, SPECIAL)
        assert slots.finished.tolist()[1] == 1
        assert slots.finished_scores[1].tolist() == [-torch.inf] * 2


def test_stop_first_ends_a_search_that_exact_stop_continues(device: torch.device) -> None:
    step_logits = torch.zeros(2, 13, device=device)
    step_logits[:, 2] = 3.0
    for stop, finished in ((1, [1]), (0, [0])):
        for ops in (TRITON, REFERENCE):
            slots = searching(2, [1], device)
            slots.live_log_probs.copy_(torch.tensor([[-1.0, -1.0]]))
            slots.finished_scores[:, 1] = torch.inf
            slots.length_penalties.copy_(torch.arange(14).double() ** 3 + 1)  # a longer hypothesis scores higher
            slots.rules.copy_(torch.tensor([0, stop]))
            ops.beam_step(step_logits, None, slots, SPECIAL)
            assert slots.finished.tolist() == finished


@pytest.mark.parametrize(("favoured_length", "finished"), [(None, 1), (3, 0), (12, 0)])
def test_exact_stop_continues_while_a_longer_hypothesis_could_score_higher(
    favoured_length: int | None, finished: int, device: torch.device
) -> None:
    step_logits = torch.zeros(2, 13, device=device)
    step_logits[:, 2] = 3.0
    for ops in (TRITON, REFERENCE):
        slots = searching(2, [1], device)  # with EOS, the next to finish has 3 tokens, the longest 12
        slots.live_log_probs.copy_(torch.tensor([[-1.0, -1.0]]))
        slots.finished_scores[:, 1] = torch.inf
        slots.length_penalties.fill_(1.0)
        if favoured_length is not None:
            slots.length_penalties[favoured_length] = 100.0
        ops.beam_step(step_logits, None, slots, SPECIAL)
        assert slots.finished.tolist() == [finished]


def test_of_equal_hypotheses_the_first_to_finish_is_kept(device: torch.device) -> None:
    step_logits = torch.zeros(2, 13, device=device)
    step_logits[:, 2] = 3.0
    for ops in (TRITON, REFERENCE):
        score, expected = -torch.inf, (2, 77)  # the first to finish takes the position; an equal one later does not
        for order in expected:
            slots = searching(2, [1], device)
            slots.live_log_probs.copy_(torch.tensor([[-1.0, -2.0]]))
            slots.finished_scores.copy_(torch.tensor([[score, torch.inf]], dtype=torch.float64))
            slots.finish_order[0, 0] = 77
            ops.beam_step(step_logits, None, slots, SPECIAL)
            real = slots.finished_scores[0] < torch.inf
            assert slots.finish_order[0][real].tolist() == [order]
            score = float(slots.finished_scores[0][real])


def test_bfloat16_attention_differs_from_float32_only_by_rounding(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("bfloat16 is for a GPU")
    shape = SlotShape(3, 3, 70, 80)
    exact = slots_in_use(shape, [0, 4, 71], device)
    half = replace(copy.deepcopy(exact), self_kv=exact.self_kv.bfloat16(), cross_kv=exact.cross_kv.bfloat16())
    exact = replace(exact, self_kv=half.self_kv.float(), cross_kv=half.cross_kv.float())
    qkv, bias = torch.randn(9, 3 * SIZE, device=device).bfloat16(), torch.randn(3 * SIZE, device=device).bfloat16()
    output, expected = (
        TRITON.self_attention(qkv, bias, half, 0, None),
        REFERENCE.self_attention(qkv.float(), bias.float(), exact, 0, None),
    )
    torch.testing.assert_close(output.float(), expected, atol=0.03, rtol=0.03)
    queries, bias = qkv[:, :SIZE].contiguous(), bias[:SIZE].contiguous()
    output = TRITON.cross_attention(queries, bias, half, 0)
    torch.testing.assert_close(
        output.float(), REFERENCE.cross_attention(queries.float(), bias.float(), exact, 0), atol=0.03, rtol=0.03
    )


@pytest.mark.parametrize(
    "design", [("post", "sinusoidal", "relu"), ("pre", "rotary", "swiglu"), ("sandwich", "learned", "gelu")]
)
def test_decoder_steps_equal_the_reference_captured_if_there_is_a_gpu(
    design: tuple[str, str, str], device: torch.device
) -> None:
    settings = dict(zip(("norm", "positions", "activation"), design, strict=True))
    model = make(ModelConfig.model_validate({**SHAPE, **settings}), device, torch.float32)
    src, layout = torch.tensor([5, 6, 7, 2, 8, 2], device=device), Packed.from_lengths([4, 2]).to(device)
    # Source lengths, maximum output lengths.
    limits = torch.tensor([[4, 2], [5, 3]], dtype=torch.int32, device=device)
    results = []
    for ops in (TRITON, REFERENCE):
        decoder = StaticDecoder(model, torch.float32, ops)
        slots, embedding = decoder.slots(SlotShape(3, 2, 4, 6))
        step: Callable[[], None] = partial(decoder.step, slots, embedding)
        if ops is TRITON and device.type == "cuda":
            step = capture(step, device)
        slots.length_penalties.fill_(1.0)
        memory = decoder.project_memory(layout.to_rows(decoder.encode(src, layout)))
        slots.begin(torch.tensor([2, 0], device=device), memory, limits, 1, 2)
        for _ in range(6):
            step()
        assert slots.finished.tolist() == [1, 1, 1]
        results.append(finished_hypotheses(slots))
    for sentence, expected_sentence in zip(*results, strict=True):
        for hypothesis, expected in zip(sentence, expected_sentence, strict=True):
            assert hypothesis == pytest.approx(expected, abs=1e-4)
