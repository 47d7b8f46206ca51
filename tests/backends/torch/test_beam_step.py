import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from heed.backends.cpu.library import missing_for_compiled_code
from heed.backends.cpu.search_ops import beam_step as native_beam_step
from heed.backends.torch.search_ops import Continuations, beam_step

pytestmark = pytest.mark.skipif(missing_for_compiled_code() is not None, reason="there is no compiled code here")

EOS = 2


def finite(found: Continuations | None) -> list[list[tuple[float, int, int]]]:
    """What of each sentence is possible at all, if anything; the order of what is not means nothing."""
    if found is None:
        return []
    rows = (zip(*(part.tolist() for part in one), strict=True) for one in zip(*found, strict=True))
    possible = [[one for one in row if one[0] > -torch.inf] for row in rows]
    return possible if any(possible) else []


def same(live: Tensor, log_probs: Tensor) -> tuple[Continuations, Continuations | None]:
    own, plain = (grow(live, log_probs, EOS) for grow in (native_beam_step, beam_step))
    assert [finite(one) for one in own] == [finite(one) for one in plain]
    return own


@given(
    sentences=st.integers(1, 4), width=st.integers(1, 6), words=st.integers(3, 200),
    levels=st.sampled_from([2, 5, 10**6]), hidden=st.floats(0, 1), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_a_native_beam_step_is_that_of_torch(
    sentences: int, width: int, words: int, levels: int, hidden: float, seed: int
) -> None:
    """levels: few, and many are equal. hidden: a share of -inf."""
    draw = torch.Generator().manual_seed(seed)
    log_probs = -torch.randint(levels, (sentences * width, words), generator=draw) / levels
    log_probs[torch.rand(log_probs.shape, generator=draw) < hidden] = -torch.inf
    live = -torch.randint(3, (sentences, width), generator=draw).double().cumsum(1)
    if width > 1:
        live[0, -1] = -torch.inf
    same(live, log_probs)


def test_an_end_among_the_best_is_set_aside_and_others_go_on() -> None:
    live = torch.tensor([[-1.0, -2.0], [-1.0, -1.5]], dtype=torch.float64)
    log_probs = torch.tensor([[-3.0, -1, -0.5, -9], [-4, -9, -3, -8], [-1, -2, -9, -9], [-1, -2, -9, -9]])
    going_on, ending = same(live, log_probs)
    assert going_on.tokens.tolist() == [[1, 0], [0, 0]]
    assert going_on.rows.tolist() == [[0, 0], [2, 3]]
    assert ending is not None
    assert finite(ending) == [[(-1.5, EOS, 0)], []]


def test_no_end_among_the_best_is_no_end() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -9.0]])
    assert same(torch.zeros(1, 1, dtype=torch.float64), log_probs)[1] is None


def test_what_is_no_number_ends() -> None:
    log_probs = torch.full((2, 50), torch.nan)
    going_on, ending = native_beam_step(torch.zeros(1, 2, dtype=torch.float64), log_probs, EOS)
    assert going_on.log_probs.isnan().all()
    assert ending is not None
    assert ending.log_probs.isnan().all()
    assert (ending.tokens == EOS).all()


def test_many_rows_and_words_are_shared_out_among_threads() -> None:
    draw = torch.Generator().manual_seed(1)
    log_probs = torch.randn(128, 32_000, generator=draw).log_softmax(-1)
    same(torch.randn(32, 4, generator=draw).double().sort(descending=True).values, log_probs)
