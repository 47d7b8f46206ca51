"""Each part of a step as a kernel and in plain torch: the same numbers, on a GPU or in Triton's interpreter."""

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

HEADS, WIDTH = 2, 12  # numbers that are no powers of two
SIZE = HEADS * WIDTH
SPECIAL = SpecialIds(pad_id=0, bos_id=1, eos_id=2)


def in_the_middle(shape: SlotShape, positions: list[int], device: torch.device) -> Slots:
    """Searches that have come this far, by any way that hypotheses can have gone."""
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


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("normed", [True, False])
def test_words_become_the_same_vectors(placed: bool, normed: bool, device: torch.device) -> None:
    slots = in_the_middle(SlotShape(3, 2, 4, 8), [0, 3, 7], device)
    matrix, places = torch.randn(9, SIZE, device=device), torch.randn(8, SIZE, device=device)
    words = EmbeddingParams(matrix, 5.0, places if placed else None, None, norm(device) if normed else None)
    for own, plain in zip(TRITON.embed(words, slots), REFERENCE.embed(words, slots), strict=True):
        torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("post", "outer"), [(True, False), (False, False), (False, True)])
def test_what_was_found_joins_the_stream_in_all_orders(post: bool, outer: bool, device: torch.device) -> None:
    x, y, bias = (torch.randn(*size, device=device) for size in ((5, SIZE), (5, SIZE), (SIZE,)))
    closing = ResidualNorm(bias, norm(device) if outer else None, norm(device), post)
    for own, plain in zip(
        TRITON.add_residual_norm(x, y, closing), REFERENCE.add_residual_norm(x, y, closing), strict=True
    ):
        torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("turned", [True, False])
def test_looking_back_sees_the_same_past_and_leaves_the_same(width: int, turned: bool, device: torch.device) -> None:
    shape = SlotShape(3, width, 4, 80)
    slots = in_the_middle(shape, [0, 4, 71], device)  # nothing, a part of a tile, several tiles
    angle = torch.randn(80, WIDTH // 2, device=device)
    turns = torch.stack((angle.cos(), angle.sin())) if turned else None
    qkv, bias = torch.randn(shape.rows, 3 * SIZE, device=device), torch.randn(3 * SIZE, device=device)
    other = copy.deepcopy(slots)
    own, plain = (
        part(qkv, bias, at, 1, turns)
        for part, at in ((TRITON.self_attention, slots), (REFERENCE.self_attention, other))
    )
    torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(slots.self_kv, other.self_kv, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [1, 3])
def test_looking_across_sees_each_source_up_to_its_end(width: int, device: torch.device) -> None:
    shape = SlotShape(3, width, 70, 8)
    slots = in_the_middle(shape, [0, 3, 7], device)
    slots.source_lengths.copy_(torch.tensor([1, 32, 70]))
    queries, bias = torch.randn(shape.rows, SIZE, device=device), torch.randn(SIZE, device=device)
    own, plain = (part(queries, bias, slots, 1) for part in (TRITON.cross_attention, REFERENCE.cross_attention))
    torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)


def ended(slots: Slots) -> list[list[tuple[float, ...]]]:
    """Those of each sentence, in an order of their own."""
    names = ("finished_scores", "finished_log_probs", "finish_order", "finish_hypothesis")
    each = [getattr(slots, name).tolist() for name in names]
    return [sorted(zip(*row, strict=True)) for row in zip(*each, strict=True)]


def assert_same_searches(one: Slots, other: Slots) -> None:
    assert one.finished.tolist() == other.finished.tolist()
    assert one.positions.tolist() == other.positions.tolist()
    for rows, expected in zip(ended(one), ended(other), strict=True):
        for (score, *of_it), (other_score, *of_other) in zip(rows, expected, strict=True):
            assert score == pytest.approx(other_score, abs=1e-4)
            if abs(score) < torch.inf:
                assert of_it == pytest.approx(of_other, abs=1e-4)
    torch.testing.assert_close(one.live_log_probs, other.live_log_probs, atol=1e-4, rtol=0)
    alive = other.live_log_probs > -torch.inf
    assert torch.equal(one.ids[alive], other.ids[alive])
    for b, position in enumerate(one.positions.tolist()):
        last, here = max(position - 1, 0), alive[b]
        assert torch.equal(one.tokens[b, last][here], other.tokens[b, last][here])
        assert torch.equal(one.parents[b, last][here], other.parents[b, last][here])
        if one.shape.beam > 1 and not int(one.finished[b]):
            lines = [
                slots.kv_rows[position % 2].view(one.shape.slots, -1, one.shape.target_length)[b]
                for slots in (one, other)
            ]
            assert torch.equal(*(line[here, :position] for line in lines))


def searching(width: int, positions: list[int], device: torch.device) -> Slots:
    slots = in_the_middle(SlotShape(len(positions), width, 4, 12), positions, device)
    slots.live_log_probs.copy_(-torch.randint(9, slots.live_log_probs.shape).double().sort(-1).values)
    slots.finished_scores.fill_(-torch.inf)
    slots.length_penalties.copy_(((5 + torch.arange(14).double()) / 6) ** 0.6)
    return slots


def logits(rows: int, size: int, levels: int, device: torch.device) -> Tensor:
    """With few levels, many words are equally likely."""
    return torch.randint(levels, (rows, size)).float().div(levels / 20).to(device)


@pytest.mark.parametrize("levels", [4, 100_000])
@pytest.mark.parametrize(("width", "size"), [(1, 13), (3, 13), (2, 5000), (5, 40)])
def test_a_search_takes_the_same_step(width: int, size: int, levels: int, device: torch.device) -> None:
    one = searching(width, [0, 3, 5, 11, 2], device)
    one.rules.copy_(torch.tensor([3, int(width == 1)]))
    one.max_lengths[2], one.finished[4] = 5, 1  # the third must end now, as must the fourth; the last has
    if levels == 4:
        one.length_penalties.copy_(((5 + torch.arange(14).double()) / 6) ** -2)  # the longer, the dearer
    one.finished_scores[:, 1:] = (
        torch.inf if levels == 4 else -torch.inf
    )  # one that ended is wanted, or as many as there may be
    other, bias = copy.deepcopy(one), torch.randn(size, device=device) if levels > 4 else None
    for _ in range(3):
        given = logits(one.shape.rows, size, levels, device)
        given[:, 2] += 12.0  # that some may end
        TRITON.beam_step(given, bias, one, SPECIAL)
        REFERENCE.beam_step(given, bias, other, SPECIAL)
        assert_same_searches(one, other)
    assert one.finished.tolist()[2:] == [1, 1, 1]


def test_what_is_not_a_number_ends_a_search_with_nothing(device: torch.device) -> None:
    one = searching(2, [1, 1], device)
    other = copy.deepcopy(one)
    given = logits(4, 13, 50, device)
    given[2:, 5] = torch.nan
    for part, slots in ((TRITON, one), (REFERENCE, other)):
        part.beam_step(given, None, slots, SPECIAL)
        assert slots.finished.tolist()[1] == 1
        assert slots.finished_scores[1].tolist() == [-torch.inf] * 2


def test_an_early_end_waits_for_no_other_if_so_set(device: torch.device) -> None:
    given = torch.zeros(2, 13, device=device)
    given[:, 2] = 3.0
    for stop, over in ((1, [1]), (0, [0])):
        for part in (TRITON, REFERENCE):
            slots = searching(2, [1], device)
            slots.live_log_probs.copy_(torch.tensor([[-1.0, -1.0]]))
            slots.finished_scores[:, 1] = torch.inf
            slots.length_penalties.copy_(torch.arange(14).double() ** 3 + 1)  # who waits scores better
            slots.rules.copy_(torch.tensor([0, stop]))
            part.beam_step(given, None, slots, SPECIAL)
            assert slots.finished.tolist() == over


@pytest.mark.parametrize(("dear", "over"), [(None, 1), (3, 0), (12, 0)])
def test_nobody_is_over_who_can_still_win_next_or_at_last(dear: int | None, over: int, device: torch.device) -> None:
    given = torch.zeros(2, 13, device=device)
    given[:, 2] = 3.0
    for part in (TRITON, REFERENCE):
        slots = searching(2, [1], device)  # lengths up to 11: the next to end has 3 tokens with its end, the last 12
        slots.live_log_probs.copy_(torch.tensor([[-1.0, -1.0]]))
        slots.finished_scores[:, 1] = torch.inf
        slots.length_penalties.fill_(1.0)
        if dear is not None:
            slots.length_penalties[dear] = 100.0
        part.beam_step(given, None, slots, SPECIAL)
        assert slots.finished.tolist() == [over]


def test_of_equals_who_ended_first_stays(device: torch.device) -> None:
    given = torch.zeros(2, 13, device=device)
    given[:, 2] = 3.0
    for part in (TRITON, REFERENCE):
        score, expected = -torch.inf, (2, 77)  # the first to end takes the place; its equal does not
        for order in expected:
            slots = searching(2, [1], device)
            slots.live_log_probs.copy_(torch.tensor([[-1.0, -2.0]]))
            slots.finished_scores.copy_(torch.tensor([[score, torch.inf]], dtype=torch.float64))
            slots.finish_order[0, 0] = 77
            part.beam_step(given, None, slots, SPECIAL)
            real = slots.finished_scores[0] < torch.inf
            assert slots.finish_order[0][real].tolist() == [order]
            score = float(slots.finished_scores[0][real])


def test_half_precision_is_only_rounded(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("bfloat16 is for a GPU")
    shape = SlotShape(3, 3, 70, 80)
    exact = in_the_middle(shape, [0, 4, 71], device)
    half = replace(copy.deepcopy(exact), self_kv=exact.self_kv.bfloat16(), cross_kv=exact.cross_kv.bfloat16())
    exact = replace(exact, self_kv=half.self_kv.float(), cross_kv=half.cross_kv.float())
    qkv, bias = torch.randn(9, 3 * SIZE, device=device).bfloat16(), torch.randn(3 * SIZE, device=device).bfloat16()
    own, plain = (
        TRITON.self_attention(qkv, bias, half, 0, None),
        REFERENCE.self_attention(qkv.float(), bias.float(), exact, 0, None),
    )
    torch.testing.assert_close(own.float(), plain, atol=0.03, rtol=0.03)
    queries, bias = qkv[:, :SIZE].contiguous(), bias[:SIZE].contiguous()
    own = TRITON.cross_attention(queries, bias, half, 0)
    torch.testing.assert_close(
        own.float(), REFERENCE.cross_attention(queries.float(), bias.float(), exact, 0), atol=0.03, rtol=0.03
    )


@pytest.mark.parametrize(
    "design", [("post", "sinusoidal", "relu"), ("pre", "rotary", "swiglu"), ("sandwich", "learned", "gelu")]
)
def test_whole_steps_are_the_same_captured_if_there_is_a_gpu(
    design: tuple[str, str, str], device: torch.device
) -> None:
    settings = dict(zip(("norm", "positions", "activation"), design, strict=True))
    model = make(ModelConfig.model_validate({**SHAPE, **settings}), device, torch.float32)
    src, layout = torch.tensor([5, 6, 7, 2, 8, 2], device=device), Packed.from_lengths([4, 2]).to(device)
    limits = torch.tensor([[4, 2], [5, 3]], dtype=torch.int32, device=device)  # of the sources; of what is written
    ended_searches = []
    for parts in (TRITON, REFERENCE):
        decoder = StaticDecoder(model, torch.float32, parts)
        slots, words = decoder.slots(SlotShape(3, 2, 4, 6))
        step: Callable[[], None] = partial(decoder.step, slots, words)
        if parts is TRITON and device.type == "cuda":
            step = capture(step, device)
        slots.length_penalties.fill_(1.0)
        memory = decoder.project_memory(layout.to_rows(decoder.encode(src, layout)))
        slots.begin(torch.tensor([2, 0], device=device), memory, limits, 1, 2)
        for _ in range(6):
            step()
        assert slots.finished.tolist() == [1, 1, 1]
        ended_searches.append(ended(slots))
    for one, other in zip(*ended_searches, strict=True):
        for found, expected in zip(one, other, strict=True):
            assert found == pytest.approx(expected, abs=1e-4)
