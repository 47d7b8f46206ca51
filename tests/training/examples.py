"""Corpora, batches, runs and listeners that the tests of several modules share."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.backends.select import training_plan
from heed.text.corpus import Corpus
from heed.text.prepare import Encoders, prepare, survey
from heed.text.prepared import Prepared
from heed.text.tokenizer import Tokenizer
from heed.training.batches import Batch, Batches, collate
from heed.training.optimizer import EMA, make_optimizer
from heed.training.run import Run
from heed.training.step_log import Listener, StepReport, Validation

BYTES = Tokenizer.train([], "bytes", 259)
CPU = torch.device("cpu")
VOCABULARY = 40  # of random batches
MODEL = ModelConfig(
    vocab_size=259, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16, dropout=0.0,
    attention_dropout=0.0, activation_dropout=0.0,
)  # fmt: skip


def prepared(folder: Path, corpora: list[tuple[list[str], list[str], float]], max_tokens: int = 50) -> Prepared:
    """The ids of corpora, each given by its source lines, target lines and weight."""
    surveyed = []
    for number, (sources, targets, weight) in enumerate(corpora):
        for side, lines in (("source", sources), ("target", targets)):
            (folder / f"{number}.{side}").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        corpus = Corpus(str(folder / f"{number}.source"), str(folder / f"{number}.target"), weight=weight)
        surveyed.append((corpus, survey(corpus)))
    return prepare(surveyed, Encoders(BYTES, BYTES), max_tokens, folder / "cache")


def random_lines(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return ["x" * int(length) for length in random.integers(1, 20, count)]


def random_corpus(count: int, weight: float = 1.0) -> tuple[list[str], list[str], float]:
    return random_lines(count), random_lines(count, 1), weight


def random_batch(random: np.random.Generator, sentences: int, longest: int = 30) -> Batch:
    sides = [
        [random.integers(3, VOCABULARY, length).tolist() for length in random.integers(1, longest, sentences)]
        for _ in range(2)
    ]
    return collate(*sides)


class RecordingListener(Listener):
    """Keeps every step and every note; a validation becomes a note."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.notes: list[str] = []

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def validation(self, step: int, result: Validation, best: bool) -> None:
        self.notes.append(f"{step} {result.loss} {best}")

    def note(self, message: str) -> None:
        self.notes.append(message)


def make_run(
    folder: Path,
    validations: Sequence[float | Validation] = (),
    device: torch.device = CPU,
    **settings: object,
) -> Run:
    """A tiny run of six steps that saves no weights; validations: their results, or only their losses."""
    training = {"max_steps": 6, "tokens_per_batch": 60, "warmup_steps": 2, "checkpoint_every": 2, **settings}
    config = RunConfig(model=MODEL, training=TrainingConfig.model_validate(training))
    torch.manual_seed(0)
    model = Transformer(config.model).to(device)
    pairs = prepared(folder, [random_corpus(40)])
    results = (Validation(result) if isinstance(result, float) else result for result in validations)
    return Run(
        folder,
        config,
        model,
        make_optimizer(model, config),
        Batches(pairs, config.training.tokens_per_batch, config.training.seed),
        lambda _progress, _weights: {"model.safetensors": b""},
        (lambda _model, _step: next(results)) if validations else None,
        device,
        training_plan(config, device),
        ema=None if config.training.ema_decay is None else EMA(model, config.training.ema_decay),
    )
