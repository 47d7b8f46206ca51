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


def possible_continuations(continuations: Continuations | None) -> list[list[tuple[float, int, int]]]:
    """The continuations of each sentence above -inf, whose order matters; none if no sentence has any."""
    if continuations is None:
        return []
    rows = (
        zip(*(column.tolist() for column in sentence), strict=True) for sentence in zip(*continuations, strict=True)
    )
    possible = [[continuation for continuation in row if continuation[0] > -torch.inf] for row in rows]
    return possible if any(possible) else []


def assert_same_beam_step(live: Tensor, log_probs: Tensor) -> tuple[Continuations, Continuations | None]:
    native, expected = (step(live, log_probs, EOS) for step in (native_beam_step, beam_step))
    assert [possible_continuations(continuations) for continuations in native] == [
        possible_continuations(continuations) for continuations in expected
    ]
    return native


@given(
    sentences=st.integers(1, 4), width=st.integers(1, 6), vocabulary=st.integers(3, 200),
    levels=st.sampled_from([2, 5, 10**6]), impossible=st.floats(0, 1), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_the_native_beam_step_equals_torchs(
    sentences: int, width: int, vocabulary: int, levels: int, impossible: float, seed: int
) -> None:
    """levels: with few, many log-probabilities are equal. impossible: the share of -inf."""
    random = torch.Generator().manual_seed(seed)
    log_probs = -torch.randint(levels, (sentences * width, vocabulary), generator=random) / levels
    log_probs[torch.rand(log_probs.shape, generator=random) < impossible] = -torch.inf
    live = -torch.randint(3, (sentences, width), generator=random).double().cumsum(1)
    if width > 1:
        live[0, -1] = -torch.inf
    assert_same_beam_step(live, log_probs)


def test_a_hypothesis_ending_in_eos_is_finished_and_the_others_continue() -> None:
    live = torch.tensor([[-1.0, -2.0], [-1.0, -1.5]], dtype=torch.float64)
    log_probs = torch.tensor([[-3.0, -1, -0.5, -9], [-4, -9, -3, -8], [-1, -2, -9, -9], [-1, -2, -9, -9]])
    live_next, finished = assert_same_beam_step(live, log_probs)
    assert live_next.tokens.tolist() == [[1, 0], [0, 0]]
    assert live_next.rows.tolist() == [[0, 0], [2, 3]]
    assert finished is not None
    assert possible_continuations(finished) == [[(-1.5, EOS, 0)], []]


def test_no_hypothesis_finishes_if_eos_is_not_among_the_best() -> None:
    log_probs = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -9.0]])
    assert assert_same_beam_step(torch.zeros(1, 1, dtype=torch.float64), log_probs)[1] is None


def test_nan_log_probabilities_reach_live_and_finished_hypotheses() -> None:
    log_probs = torch.full((2, 50), torch.nan)
    live, finished = native_beam_step(torch.zeros(1, 2, dtype=torch.float64), log_probs, EOS)
    assert live.log_probs.isnan().all()
    assert finished is not None
    assert finished.log_probs.isnan().all()
    assert (finished.tokens == EOS).all()


def test_the_native_beam_step_equals_torchs_on_several_threads() -> None:
    random = torch.Generator().manual_seed(1)
    log_probs = torch.randn(128, 32_000, generator=random).log_softmax(-1)
    assert_same_beam_step(torch.randn(32, 4, generator=random).double().sort(descending=True).values, log_probs)
