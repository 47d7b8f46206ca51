import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.artifacts.checkpoint import Progress, best_checkpoint, checkpoint_path, checkpoints
from heed.backends.select import training_plan
from heed.errors import FolderError, TrainingError
from heed.training.batches import Batch, Batches
from heed.training.distributed import ProcessGroup
from heed.training.gradients import Gradients
from heed.training.optimizer import EMA, make_optimizer
from heed.training.run import Run
from heed.training.step_log import Listener, StepReport, Validation, read_journal
from heed.training.steps import micro_batches, take_step
from heed.training.trainer import run_training
from tests.training.test_batches import prepared, words

MODEL = ModelConfig(
    vocab_size=259, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16, dropout=0.0, attention_dropout=0.0
)
CPU = torch.device("cpu")


class Notes(Listener):
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.notes: list[str] = []

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def validation(self, step: int, result: Validation, best: bool) -> None:
        self.notes.append(f"{step} {result.loss} {best}")

    def note(self, message: str) -> None:
        self.notes.append(message)


def make_run(folder: Path, losses: list[float] | None = None, device: torch.device = CPU, **settings: object) -> Run:
    training = {"max_steps": 6, "tokens_per_batch": 60, "warmup_steps": 2, "checkpoint_every": 2, **settings}
    model_config = MODEL.model_copy(update={"activation_dropout": 0.0})
    config = RunConfig(model=model_config, training=TrainingConfig.model_validate(training))
    torch.manual_seed(0)
    model = Transformer(config.model).to(device)
    pairs = prepared(folder, [(words(40), words(40, 1), 1.0)])
    given = iter(losses or [])
    return Run(
        folder,
        config,
        model,
        make_optimizer(model, config),
        Batches(pairs, config.training.tokens_per_batch, config.training.seed),
        lambda _progress, _weights: {"model.safetensors": b""},
        (lambda _model, _step: Validation(next(given))) if losses else None,
        device,
        training_plan(config, device),
        ema=None if config.training.ema_decay is None else EMA(model, config.training.ema_decay),
    )


def test_accumulated_steps_equal_one_big_batch(tmp_path: Path) -> None:
    class OneBigBatch(Batches):
        """Joins neighbouring batches of the ordinary order."""

        def epoch(self, epoch: int) -> list[np.ndarray]:
            order = super().epoch(epoch)
            return [np.concatenate(order[start : start + 3]) for start in range(0, len(order), 3)]

    many, one = make_run(tmp_path, accumulate=3), make_run(tmp_path)
    big = OneBigBatch(one.batches._pairs, 60, 1)
    heard = [Notes(), Notes()]
    (tmp_path / "one").mkdir()
    run_training(many, Progress(), heard[0])
    run_training(Run(**{**vars(one), "batches": big, "folder": tmp_path / "one"}), Progress(), heard[1])
    for ours, theirs in zip(heard[0].steps, heard[1].steps, strict=True):
        assert ours.tokens == theirs.tokens
        assert math.isclose(ours.loss, theirs.loss, rel_tol=1e-5)
    for name, weight in many.model.named_parameters():
        if not name.endswith(
            "key.bias"
        ):  # it changes nothing in a softmax: its gradient is rounding, which Adam enlarges
            torch.testing.assert_close(weight, one.model.get_parameter(name), rtol=1e-3, atol=1e-4)


def test_a_loss_that_is_not_finite_is_skipped_and_many_in_a_row_end_the_run(tmp_path: Path) -> None:
    run, heard = make_run(tmp_path, max_steps=50, checkpoint_every=1), Notes()
    run_training(
        Run(**{**vars(run), "config": run.config.model_copy(update={"training": TrainingConfig(max_steps=1)})}),
        Progress(),
        heard,
    )
    before = [weight.clone() for weight in run.model.parameters()]
    with torch.no_grad():
        run.model.vocabulary.embedding.weight[7] = math.nan
    with pytest.raises(
        TrainingError,
        match=r"not finite in 5 steps in a row, up to step \d+: the loss is nan; the last good checkpoint",
    ):
        run_training(run, Progress(step=1), heard)
    skipped = [line for line in read_journal(tmp_path / "journal.jsonl") if line["loss"] is None]
    assert len(skipped) >= 5
    assert any("so the step was skipped" in note for note in heard.notes)
    assert [path.name for path in checkpoints(tmp_path)][-1] == f"step-{heard.steps[-6].step:08d}"
    after = list(run.model.parameters())
    assert torch.equal(before[1], after[1])


def test_training_stops_when_validation_no_longer_improves_and_keeps_the_best(tmp_path: Path) -> None:
    run = make_run(tmp_path, [3.0, 2.0, 2.5, 2.2, 9.9], validate_every=1, patience=2, max_steps=50, keep_last=1)
    progress = run_training(run, Progress(), Notes())
    assert (progress.step, progress.best_step, progress.best_loss) == (4, 2, 2.0)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002", "step-00000004"]


class Poisoned:
    """Gradients of which one is not finite in some passes, as of an overflow in the backward pass; the loss is."""

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


class PoisonedRun(Run):
    """A run with such a gradients."""

    def gradients(self) -> Gradients:
        return Poisoned(super().gradients(), self, {3})


def everything(run: Run) -> list[torch.Tensor]:
    """All that a step changes: weights, moments, the EMA."""
    assert run.ema is not None
    moments = [moment for state in run.optimizer.state.values() for moment in state.values()]
    return [one.detach().clone() for one in (*run.model.parameters(), *moments, *run.ema._average.values())]


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("capture", [False, True])
def test_a_gradient_that_is_not_finite_changes_neither_weights_nor_moments_nor_ema(
    tmp_path: Path, device: torch.device, clip_norm: float | None, capture: bool
) -> None:
    """On a GPU too (`--device cuda`), where only the device knows of it when the step is taken."""
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    run = make_run(tmp_path, device=device, ema_decay=0.9, clip_norm=clip_norm, capture=capture)
    gradients = Poisoned(run.gradients(), run, {2})
    states, taken = [], []
    for step, numbers in enumerate(run.batches.epoch(0)[:3], start=1):
        taken.append(take_step(run, gradients, micro_batches(run, gradients, [numbers], 0), step))
        states.append(everything(run))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(states[0], states[1], strict=True))
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(states[1], states[2], strict=True))
    assert all(one.isfinite().all() for one in states[2])
    assert [math.isfinite(one.loss()) for one in taken] == [True, True, True]
    assert [math.isfinite(one.gradient_norm()) for one in taken] == [True, False, True]


def test_a_step_whose_gradient_is_not_finite_is_said_and_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    run, heard = PoisonedRun(**vars(make_run(tmp_path))), Notes()
    progress = run_training(run, Progress(), heard)
    assert (progress.step, progress.skipped) == (6, 1)
    assert heard.notes == ["step 3: the gradient's norm is inf, so the step was skipped"]
    norms = [line["gradient_norm"] for line in read_journal(tmp_path / "journal.jsonl")]
    assert [norm is None for norm in norms] == [False, False, True, False, False, False]


def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path) -> None:
    run = make_run(tmp_path, max_steps=2)
    progress = run_training(run, Progress(), Notes())
    for broken in (next(run.model.parameters()), next(iter(run.optimizer.state.values()))["exp_avg_sq"]):
        with torch.no_grad():
            before = broken.view(-1)[0].item()
            broken.view(-1)[0] = math.inf
        with pytest.raises(TrainingError, match=r"after step 3 .* is not finite, so nothing was saved; the last good"):
            run.save(replace(progress, step=3))
        with torch.no_grad():
            broken.view(-1)[0] = before
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002"]


def test_only_the_process_that_writes_checkpoints_removes_them(tmp_path: Path) -> None:
    """Another may be there before the new one is written: what it removed could be the only best there is."""
    for step in (1, 2, 3):
        checkpoint_path(tmp_path, step).mkdir(parents=True)
    run = make_run(tmp_path, [1.0] * 9, validate_every=2, max_steps=4, keep_last=1)
    run_training(Run(**{**vars(run), "group": ProcessGroup(rank=1)}), Progress(), Notes())
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000001", "step-00000002", "step-00000003"]


def test_a_best_checkpoint_that_is_gone_or_damaged_is_replaced_by_the_newest_and_said(tmp_path: Path) -> None:
    run = make_run(tmp_path, [1.0, 2.0, 3.0], validate_every=2)
    progress = run_training(run, Progress(), Notes())
    assert best_checkpoint(tmp_path, progress) == (checkpoint_path(tmp_path, 2), None)
    (checkpoint_path(tmp_path, 2) / "progress.json").write_text("{}")
    path, note = best_checkpoint(tmp_path, progress)
    assert path == checkpoint_path(tmp_path, 6)
    assert note is not None
    assert "progress.json is not what manifest.json says" in note
    assert note.endswith("the newest one, step-00000006, takes its place")
    shutil.rmtree(checkpoint_path(tmp_path, 2))
    assert best_checkpoint(tmp_path, progress)[0] == path
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(FolderError, match="step-00000002"):
        best_checkpoint(tmp_path, progress)


def test_the_journal_is_on_the_disk_before_the_checkpoint_that_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        really(descriptor)

    run = make_run(tmp_path)
    monkeypatch.setattr(os, "fsync", fsync)
    run_training(run, Progress(), Notes())
    begun = [number for number, name in enumerate(synced) if name == "model.safetensors"]
    assert len(begun) == 3
    assert all(synced[number - 2 : number] == ["journal.jsonl", tmp_path.name] for number in begun)
