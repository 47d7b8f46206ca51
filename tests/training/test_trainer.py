import math
from pathlib import Path

import numpy as np
import pytest
import torch

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.errors import TrainingError
from heed.training.batches import Batches
from heed.training.checkpoint import Progress, checkpoints
from heed.training.journal import read_journal
from heed.training.run import Run, StepReport, make_optimizer
from heed.training.task import Validation
from heed.training.trainer import train
from tests.training.test_batches import prepared, words

MODEL = ModelConfig(
    vocab_size=259, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16, dropout=0.0, attention_dropout=0.0
)


class Notes:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.notes: list[str] = []

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def validation(self, step: int, found: Validation, best: bool) -> None:
        self.notes.append(f"{step} {found.loss} {best}")

    def note(self, message: str) -> None:
        self.notes.append(message)


def make_run(folder: Path, losses: list[float] | None = None, **settings: object) -> Run:
    training = {"max_steps": 6, "tokens_per_batch": 60, "warmup_steps": 2, "checkpoint_every": 2, **settings}
    model_config = MODEL.model_copy(update={"activation_dropout": 0.0})
    config = RunConfig(model=model_config, training=TrainingConfig.model_validate(training))
    torch.manual_seed(0)
    model = Transformer(config.model)
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
        torch.device("cpu"),
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
    train(many, Progress(), heard[0])
    train(Run(**{**vars(one), "batches": big, "folder": tmp_path / "one"}), Progress(), heard[1])
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
    train(
        Run(**{**vars(run), "config": run.config.model_copy(update={"training": TrainingConfig(max_steps=1)})}),
        Progress(),
        heard,
    )
    before = [weight.clone() for weight in run.model.parameters()]
    with torch.no_grad():
        run.model.vocabulary.embedding.weight[7] = math.nan
    with pytest.raises(
        TrainingError, match=r"not finite in 5 steps in a row, up to step \d+; the last good checkpoint"
    ):
        train(run, Progress(step=1), heard)
    skipped = [line for line in read_journal(tmp_path / "journal.jsonl") if line["loss"] is None]
    assert len(skipped) >= 5
    assert any("so the step was skipped" in note for note in heard.notes)
    assert [path.name for path in checkpoints(tmp_path)][-1] == f"step-{heard.steps[-6].step:08d}"
    after = list(run.model.parameters())
    assert torch.equal(before[1], after[1])


def test_training_stops_when_validation_no_longer_improves_and_keeps_the_best(tmp_path: Path) -> None:
    run = make_run(tmp_path, [3.0, 2.0, 2.5, 2.2, 9.9], validate_every=1, patience=2, max_steps=50, keep_last=1)
    progress = train(run, Progress(), Notes())
    assert (progress.step, progress.best_step, progress.best_loss) == (4, 2, 2.0)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000002", "step-00000004"]
