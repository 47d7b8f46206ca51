import math
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
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
from heed.training.steps import _batches_of_rank, launch_steps, micro_batches, prefetch, take_step
from heed.training.tasks import task_of
from tests.training.examples import make_run


@given(batches=st.integers(1, 12), size=st.integers(1, 5), sharded=st.booleans())
def test_every_batch_of_a_step_counts_in_exactly_one_process(batches: int, size: int, sharded: bool) -> None:
    step = [np.array([index]) for index in range(batches)]
    ranks = [_batches_of_rank(step, ProcessGroup(rank, size), sharded=sharded) for rank in range(size)]
    counted = sorted(int(pairs[0]) for assigned in ranks for _, pairs, weight in assigned if weight)
    assert counted == list(range(batches))
    if sharded:
        assert len({len(assigned) for assigned in ranks}) == 1  # all take part in every pass
        assert {weight for assigned in ranks for _, _, weight in assigned} <= {0.0, float(size)}


def test_a_batch_has_the_same_index_and_so_the_same_dropout_in_any_process() -> None:
    step = [np.array([index]) for index in range(6)]
    for rank in range(3):
        assigned = _batches_of_rank(step, ProcessGroup(rank, 3), sharded=False)
        assert all(index == pairs[0] for index, pairs, _ in assigned)


def test_r_drop_without_dropout_is_the_plain_loss(tmp_path: Path) -> None:
    losses = []
    for run in (make_run(tmp_path), make_run(tmp_path, r_drop=5.0)):
        gradients = run.gradients()
        micro = micro_batches(run, gradients, run.batches.epoch(0)[:2], 0)
        losses.append(take_step(run, gradients, micro, 1).loss())
    assert math.isclose(*losses, rel_tol=1e-5)


def test_the_r_drop_loss_is_its_formula_over_two_forward_passes() -> None:
    batch = collate([[5, 6, 7], [8]], [[9, 10], [11, 12, 13]])
    first, second = torch.randn(7, 20), torch.randn(7, 20)

    class TwoPasses(Transformer):
        def forward(self, *_: Any, **inputs: Any) -> torch.Tensor:
            assert [len(inputs[name]) for name in ("src", "tgt_in")] == [12, 14]
            return torch.cat((first, second))

    config = RunConfig(
        model=ModelConfig(vocab_size=20, d_model=8, heads=1, d_ff=8), training=TrainingConfig(r_drop=3.0)
    )
    loss = task_of(config).loss(TwoPasses(config.model), batch, config, fused_attention)
    losses = [smoothed_cross_entropy(logits, batch.tgt_out, 0, 0.1)[0] for logits in (first, second)]
    divergence = symmetric_kl(first, second, batch.tgt_out, 0)
    torch.testing.assert_close(loss, (losses[0] + losses[1] + 3.0 * divergence) / 2)


@pytest.mark.parametrize("by_score", [False, True])
def test_the_best_checkpoint_is_chosen_by_loss_or_by_score(by_score: bool) -> None:
    progress = Progress(step=1).validated(2.0, 10.0, by_score=by_score)
    worse_loss = Progress(**{**vars(progress), "step": 2}).validated(3.0, 20.0, by_score=by_score)
    assert worse_loss.best_step == (2 if by_score else 1)


def test_resumed_steps_have_the_losses_of_an_uninterrupted_run(tmp_path: Path) -> None:
    def losses(run: Run, start: Progress, count: int) -> list[tuple[int, tuple[int, int], float]]:
        with closing(launch_steps(run, run.gradients(), start)) as steps:
            return [(pending.step, pending.after, pending.loss()) for pending in islice(steps, count)]

    uninterrupted = losses(make_run(tmp_path, accumulate=2), Progress(), 6)
    assert [step for step, _, _ in uninterrupted] == list(range(1, 7))
    run = make_run(tmp_path, accumulate=2)
    before = losses(run, Progress(), 2)
    step, (epoch, position), _ = before[-1]
    assert uninterrupted == before + losses(run, Progress(step=step, epoch=epoch, position=position), 4)
    assert uninterrupted[-1][1][0] > 0  # across the end of an epoch


def test_a_step_is_launched_only_when_the_iterator_is_advanced(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    before = [weight.clone() for weight in run.model.parameters()]
    with closing(launch_steps(run, run.gradients(), Progress())) as steps:
        assert all(map(torch.equal, run.model.parameters(), before))
        next(steps)
    assert not all(map(torch.equal, run.model.parameters(), before))


def test_prefetched_results_come_in_order() -> None:
    assert list(prefetch(lambda n: n * n, range(20))) == [n * n for n in range(20)]


def test_the_next_results_are_prefetched_while_one_is_in_use() -> None:
    prefetched = threading.Semaphore(0)

    def make(number: int) -> int:
        prefetched.release()
        return number

    with closing(prefetch(make, range(10))) as results:
        assert next(results) == 0
        assert prefetched.acquire(timeout=5)
        assert prefetched.acquire(timeout=5)  # made before it is requested


def test_an_exception_while_prefetching_is_raised_at_its_items_turn() -> None:
    results = prefetch(lambda n: 1 // n, [2, 1, 0, 5])
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_closing_prefetch_stops_its_thread() -> None:
    consumed = []

    def items() -> Iterator[int]:
        for number in range(1000):
            consumed.append(number)
            yield number

    with closing(prefetch(lambda n: n, items())) as results:
        next(results)
    assert len(consumed) < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
