import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heed import TrainingConfig, Transformer
from heed.artifacts.checkpoint import Progress, best_checkpoint, checkpoint_path, checkpoints
from heed.errors import FolderError, TrainingError
from heed.training.batches import Batch, Batches
from heed.training.distributed import ProcessGroup
from heed.training.gradients import Gradients
from heed.training.run import Run
from heed.training.step_log import Validation, read_journal
from heed.training.steps import micro_batches, take_step
from heed.training.trainer import run_training
from tests.reference.backends import start_search
from tests.training.examples import RecordingListener, make_run


def test_accumulated_steps_equal_one_big_batch(tmp_path: Path) -> None:
    class OneBigBatch(Batches):
        """Joins neighbouring batches of the ordinary order."""

        def epoch(self, epoch: int) -> list[np.ndarray]:
            order = super().epoch(epoch)
            return [np.concatenate(order[start : start + 3]) for start in range(0, len(order), 3)]

    accumulated, single = make_run(tmp_path, accumulate=3, max_steps=3), make_run(tmp_path, max_steps=3)
    batches = OneBigBatch(single.batches._pairs, 60, 1)
    listeners = [RecordingListener(), RecordingListener()]
    (tmp_path / "single").mkdir()
    run_training(accumulated, Progress(), listeners[0])
    run_training(replace(single, batches=batches, folder=tmp_path / "single"), Progress(), listeners[1])
    for ours, theirs in zip(*(listener.steps for listener in listeners), strict=True):
        assert ours.tokens == theirs.tokens
        assert math.isclose(ours.loss, theirs.loss, rel_tol=1e-5)
    for name, weight in accumulated.model.named_parameters():
        if not name.endswith("key.bias"):  # softmax cancels it: its gradient is rounding noise, which Adam amplifies
            torch.testing.assert_close(weight, single.model.get_parameter(name), rtol=1e-3, atol=1e-4)


def test_a_loss_that_is_not_finite_is_skipped_and_many_in_a_row_end_the_run(tmp_path: Path) -> None:
    run, listener = make_run(tmp_path, max_steps=50, checkpoint_every=1), RecordingListener()
    one_step = run.config.model_copy(update={"training": TrainingConfig(max_steps=1)})
    run_training(replace(run, config=one_step), Progress(), listener)
    before = [weight.clone() for weight in run.model.parameters()]
    with torch.no_grad():
        run.model.vocabulary.embedding.weight[7] = math.nan
    with pytest.raises(
        TrainingError,
        match=r"not finite in 5 steps in a row, up to step \d+: the loss is nan; the last good checkpoint",
    ):
        run_training(run, Progress(step=1), listener)
    skipped = [line for line in read_journal(tmp_path / "journal.jsonl") if line["loss"] is None]
    assert len(skipped) >= 5
    assert any("so the step was skipped" in note for note in listener.notes)
    assert [path.name for path in checkpoints(tmp_path)][-1] == f"step-{listener.steps[-6].step:08d}"
    after = list(run.model.parameters())
    assert torch.equal(before[1], after[1])


def test_training_stops_when_validation_no_longer_improves_and_keeps_the_best(tmp_path: Path) -> None:
    run = make_run(tmp_path, [3.0, 2.0, 2.5, 2.2, 9.9], validate_every=1, patience=2, max_steps=50, keep_last=1)
    listener = RecordingListener()
    progress = run_training(run, Progress(), listener)
    assert (progress.step, progress.best_step, progress.best_loss) == (4, 2, 2.0)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002", "step-00000004"]
    assert (
        "stopping before max_steps = 50: no improvement of 0.0005 or more in training.patience = 2 validations"
        in listener.notes
    )


def test_training_stops_when_every_output_was_right_in_several_validations_in_a_row(tmp_path: Path) -> None:
    results = [Validation(1 / step, outputs=100, exact=exact) for step, exact in enumerate((100, 99, 100, 100), 1)]
    run, listener = make_run(tmp_path, results, validate_every=1, stop_when_exact=2), RecordingListener()
    assert run_training(run, Progress(), listener).step == 4
    reason = "every output was right in training.stop_when_exact = 2 validations in a row"
    assert f"stopping before max_steps = 6: {reason}" in listener.notes


@pytest.mark.parametrize("ema_decay", [None, 0.5])
def test_validation_decodes_with_the_weights_of_its_step(tmp_path: Path, ema_decay: float | None) -> None:
    decoded: list[torch.Tensor] = []

    def validate(model: Transformer, _step: int) -> Validation:
        model.eval()
        start = start_search([model], [[5, 6], [7]])
        log_probs, _ = start.step(start.first, start.state)
        cache = model.start(torch.tensor([[5, 6, model.config.eos_id], [7, model.config.eos_id, model.config.pad_id]]))
        reference = model.step(start.first[:, None], cache)[0][:, 0].log_softmax(-1)
        tokens = slice(model.config.eos_id, None)  # padding and BOS are never output
        torch.testing.assert_close(log_probs[:, tokens], reference[:, tokens], rtol=1e-4, atol=1e-4)
        decoded.append(log_probs[:, tokens])
        model.train()
        return Validation(1.0)

    run = make_run(tmp_path, validate_every=1, ema_decay=ema_decay, learning_rate=0.1, schedule="constant")
    run_training(replace(run, validate=validate), Progress(), RecordingListener())
    assert not torch.allclose(decoded[0], decoded[-1], atol=1e-3)


def test_training_stops_when_its_minutes_are_over_with_a_validation_and_a_checkpoint(tmp_path: Path) -> None:
    run, listener = make_run(tmp_path, [2.0], max_minutes=1e-9, max_steps=50), RecordingListener()
    progress = run_training(run, Progress(), listener)
    assert (progress.step, progress.best_step) == (1, 1)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000001"]
    assert "stopping before max_steps = 50: training.max_minutes = 1e-09 are over" in listener.notes


def test_too_few_right_outputs_do_not_stop_training(tmp_path: Path) -> None:
    run = make_run(tmp_path, [Validation(1.0, outputs=99, exact=99)] * 6, validate_every=1, stop_when_exact=1)
    listener = RecordingListener()
    assert run_training(run, Progress(), listener).step == 6
    assert not any("stopping" in note for note in listener.notes)


class OverflowingGradients:
    """Makes a gradient infinite in some backward passes, as an overflow would; the loss stays finite."""

    def __init__(self, gradients: Gradients, run: Run, passes: set[int]) -> None:
        self._gradients, self._run, self._passes, self._pass = gradients, run, passes, 0
        self.prepare, self.zero_grad = gradients.prepare, gradients.zero_grad

    def backward(self, prepared: list[Batch], scale: float, seed: int) -> torch.Tensor:
        loss = self._gradients.backward(prepared, scale, seed)
        self._pass += 1
        if self._pass in self._passes:
            gradient = list(self._run.model.parameters())[-1].grad
            assert gradient is not None
            gradient.view(-1)[0] = math.inf
        return loss


class OverflowingRun(Run):
    """A run whose third backward pass overflows."""

    def gradients(self) -> Gradients:
        return OverflowingGradients(super().gradients(), self, {3})


def state_tensors(run: Run) -> list[torch.Tensor]:
    """A copy of all that a step changes: weights, moments, the EMA."""
    assert run.ema is not None
    moments = [moment for state in run.optimizer.state.values() for moment in state.values()]
    tensors = (*run.model.parameters(), *moments, *run.ema._average.values())
    return [tensor.detach().clone() for tensor in tensors]


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("capture", [False, True])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments_nor_ema(
    tmp_path: Path, device: torch.device, clip_norm: float | None, capture: bool
) -> None:
    """On a GPU (`--device cuda`) the device decides this itself, after the step is launched."""
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    run = make_run(tmp_path, device=device, ema_decay=0.9, clip_norm=clip_norm, capture=capture)
    gradients = OverflowingGradients(run.gradients(), run, {2})
    states, steps = [], []
    for step, indices in enumerate(run.batches.epoch(0)[:3], start=1):
        steps.append(take_step(run, gradients, micro_batches(run, gradients, [indices], 0), step))
        states.append(state_tensors(run))
    assert all(map(torch.equal, states[0], states[1]))
    assert not all(map(torch.equal, states[1], states[2]))
    assert all(tensor.isfinite().all() for tensor in states[2])
    assert [math.isfinite(pending.loss()) for pending in steps] == [True, True, True]
    assert [math.isfinite(pending.gradient_norm()) for pending in steps] == [True, False, True]


def test_a_step_whose_gradient_is_not_finite_is_skipped_reported_and_counted(tmp_path: Path) -> None:
    run, listener = OverflowingRun(**vars(make_run(tmp_path))), RecordingListener()
    progress = run_training(run, Progress(), listener)
    assert (progress.step, progress.skipped) == (6, 1)
    assert listener.notes == ["step 3: the gradient's norm is inf, so the step was skipped"]
    norms = [line["gradient_norm"] for line in read_journal(tmp_path / "journal.jsonl")]
    assert [norm is None for norm in norms] == [False, False, True, False, False, False]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    run = make_run(tmp_path, max_steps=2)
    progress = run_training(run, Progress(), RecordingListener())
    for broken in (next(run.model.parameters()), next(iter(run.optimizer.state.values()))["exp_avg_sq"]):
        with torch.no_grad():
            before = broken.view(-1)[0].item()
            broken.view(-1)[0] = math.inf
        with pytest.raises(TrainingError, match=r"is not finite after step 3, so nothing was saved; the last good"):
            run.save(replace(progress, step=3))
        with torch.no_grad():
            broken.view(-1)[0] = before
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002"]


def test_only_the_process_that_writes_checkpoints_removes_them(tmp_path: Path) -> None:
    """Another process may prune before the new checkpoint is written, and so remove the best one."""
    for step in (1, 2, 3):
        checkpoint_path(tmp_path, step).mkdir(parents=True)
    run = make_run(tmp_path, [1.0] * 9, validate_every=2, max_steps=4, keep_last=1)
    run_training(replace(run, group=ProcessGroup(rank=1)), Progress(), RecordingListener())
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000001", "step-00000002", "step-00000003"]


def test_a_missing_or_damaged_best_checkpoint_is_replaced_by_the_newest_with_a_warning(tmp_path: Path) -> None:
    run = make_run(tmp_path, [1.0, 2.0, 3.0], validate_every=2)
    progress = run_training(run, Progress(), RecordingListener())
    assert best_checkpoint(tmp_path, progress) == (checkpoint_path(tmp_path, 2), None)
    (checkpoint_path(tmp_path, 2) / "progress.json").write_text("{}")
    path, warning = best_checkpoint(tmp_path, progress)
    assert path == checkpoint_path(tmp_path, 6)
    assert warning is not None
    assert "progress.json does not match manifest.json" in warning
    assert warning.endswith("the newest one, step-00000006, is used instead")
    shutil.rmtree(checkpoint_path(tmp_path, 2))
    assert best_checkpoint(tmp_path, progress)[0] == path
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(FolderError, match="step-00000002"):
        best_checkpoint(tmp_path, progress)


def test_the_journal_is_synced_to_disk_before_each_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_fsync(descriptor)

    run = make_run(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    run_training(run, Progress(), RecordingListener())
    checkpoint_starts = [index for index, name in enumerate(synced) if name == "model.safetensors"]
    assert len(checkpoint_starts) == 3
    assert all(synced[start - 2 : start] == ["journal.jsonl", tmp_path.name] for start in checkpoint_starts)
