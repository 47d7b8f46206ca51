import math
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.artifacts.checkpoint import Progress
from heed.model.attention import fused_attention
from heed.training.batches import collate
from heed.training.distributed import ProcessGroup
from heed.training.loss import smoothed_cross_entropy, symmetric_kl
from heed.training.run import Run
from heed.training.steps import _own, launch_steps, micro_batches, prefetch, take_step
from heed.training.tasks import task_of
from tests.training.test_trainer import make_run


@given(batches=st.integers(1, 12), size=st.integers(1, 5), sharded=st.booleans())
def test_every_batch_of_a_step_counts_once_in_one_process(batches: int, size: int, sharded: bool) -> None:
    group = [np.array([number]) for number in range(batches)]
    shares = [_own(group, ProcessGroup(rank, size), sharded=sharded) for rank in range(size)]
    counted = sorted(int(numbers[0]) for share in shares for _, numbers, weight in share if weight)
    assert counted == list(range(batches))
    if sharded:
        assert len({len(share) for share in shares}) == 1  # all take part in every pass
        assert {weight for share in shares for _, _, weight in share} <= {0.0, float(size)}


def test_the_dropout_of_a_batch_depends_on_its_number_not_on_its_process() -> None:
    group = [np.array([number]) for number in range(6)]
    for rank in range(3):
        assert all(index == numbers[0] for index, numbers, _ in _own(group, ProcessGroup(rank, 3), sharded=False))


def test_r_drop_without_dropout_is_the_plain_loss(tmp_path: Path) -> None:
    plain, twice = make_run(tmp_path), make_run(tmp_path, r_drop=5.0)
    group = plain.batches.epoch(0)[:2]
    losses = []
    for run in (plain, twice):
        gradients = run.gradients()
        losses.append(take_step(run, gradients, micro_batches(run, gradients, group, 0), 1).loss())
    ours, theirs = losses
    assert math.isclose(ours, theirs, rel_tol=1e-5)


def test_r_drop_is_its_formula_over_two_passes() -> None:
    batch = collate([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]])
    one, other = torch.randn(7, 20), torch.randn(7, 20)

    class TwoPasses(Transformer):
        def forward(self, *_: Any, **given: Any) -> torch.Tensor:
            assert [len(given[name]) for name in ("src", "tgt_in")] == [12, 14]
            return torch.cat((one, other))

    config = RunConfig(
        model=ModelConfig(vocab_size=20, d_model=8, heads=1, d_ff=8), training=TrainingConfig(r_drop=3.0)
    )
    found = task_of(config).loss(TwoPasses(config.model), batch, config, fused_attention)
    losses = [smoothed_cross_entropy(logits, batch.tgt_out, 0, 0.1)[0] for logits in (one, other)]
    torch.testing.assert_close(found, (losses[0] + losses[1] + 3.0 * symmetric_kl(one, other, batch.tgt_out, 0)) / 2)


@pytest.mark.parametrize("by_score", [False, True])
def test_the_best_is_known_by_what_was_asked_for(by_score: bool) -> None:
    progress = Progress(step=1).validated(2.0, 10.0, by_score=by_score)
    worse_loss = Progress(**{**vars(progress), "step": 2}).validated(3.0, 20.0, by_score=by_score)
    assert worse_loss.best_step == (2 if by_score else 1)


def test_the_steps_of_a_run_go_on_from_any_progress_with_the_same_losses(tmp_path: Path) -> None:
    def losses(run: Run, start: Progress, count: int) -> list[tuple[int, tuple[int, int], float]]:
        with closing(launch_steps(run, run.gradients(), start)) as steps:
            return [(one.step, one.after, one.loss()) for _, one in zip(range(count), steps, strict=False)]

    whole = losses(make_run(tmp_path, accumulate=2), Progress(), 9)
    assert [step for step, _, _ in whole] == list(range(1, 10))
    cut = make_run(tmp_path, accumulate=2)
    first = losses(cut, Progress(), 4)
    step, (epoch, position), _ = first[-1]
    assert whole == first + losses(cut, Progress(step=step, epoch=epoch, position=position), 5)
    assert whole[-1][1][0] > 0  # across the end of an epoch


def test_a_step_is_launched_only_when_it_is_asked_for(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    before = [weight.clone() for weight in run.model.parameters()]
    with closing(launch_steps(run, run.gradients(), Progress())) as steps:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(run.model.parameters(), before, strict=True))
        next(steps)
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(run.model.parameters(), before, strict=True))


def test_everything_comes_in_order() -> None:
    assert list(prefetch(lambda n: n * n, range(20))) == [n * n for n in range(20)]


def test_the_next_one_is_made_while_one_is_in_use() -> None:
    made = threading.Semaphore(0)

    def make(number: int) -> int:
        made.release()
        return number

    with closing(prefetch(make, range(10))) as results:
        assert next(results) == 0
        assert made.acquire(timeout=5)
        assert made.acquire(timeout=5)  # nobody has asked for this one yet


def test_what_goes_wrong_is_raised_when_its_turn_comes() -> None:
    results = prefetch(lambda n: 1 // n, [2, 1, 0, 5])
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_nothing_runs_on_after_the_end() -> None:
    asked = []

    def items() -> Iterator[int]:
        for number in range(1000):
            asked.append(number)
            yield number

    with closing(prefetch(lambda n: n, items())) as results:
        next(results)
    assert len(asked) < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
