import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from heed import ConfigError, ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.artifacts.checkpoint import Progress
from heed.backends.select import training_plan
from heed.benchmarking import training as module
from heed.benchmarking.limits import training_flops
from heed.benchmarking.training import measure_training, pair_lengths, random_pairs, training_steps
from heed.training.batches import Batches
from heed.training.gradients import Gradients
from heed.training.optimizer import EMA, make_optimizer
from heed.training.run import Run
from heed.training.steps import PendingStep, launch_steps
from heed.training.trainer import run_training
from tests.training.examples import RecordingListener

CPU = torch.device("cpu")
MODEL = ModelConfig(vocab_size=50, d_model=16, heads=2, encoder_layers=1, decoder_layers=1, d_ff=16)


def settings(**more: object) -> RunConfig:
    training = {"tokens_per_batch": 200, "max_steps": 4, "warmup_steps": 2, **more}
    return RunConfig(model=MODEL, training=TrainingConfig.model_validate(training))


def test_pair_lengths_are_like_those_of_sentences_and_always_the_same() -> None:
    lengths = pair_lengths(5000)
    assert lengths == pair_lengths(5000)
    assert all(2 <= length <= 128 for pair in lengths for length in pair)
    assert [round(statistics.mean(pair[side] for pair in lengths)) for side in (0, 1)] == [28, 30]


def test_random_pairs_have_the_given_lengths_minus_eos() -> None:
    pairs = random_pairs([(3, 5), (9, 2)], MODEL.model_copy(update={"source_vocab_size": 7}))
    assert (pairs.source.lengths().tolist(), pairs.target.lengths().tolist()) == ([2, 8], [4, 1])
    assert 3 <= pairs.source.ids.min() <= pairs.source.ids.max() < 7
    assert pairs.target.ids.max() < 50


def test_benchmarked_steps_have_the_losses_of_the_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, pairs = settings(accumulate=2, ema_decay=0.9), random_pairs(pair_lengths(40), MODEL)
    torch.manual_seed(config.training.seed)
    model = Transformer(MODEL)
    optimizer, batches = make_optimizer(model, config), Batches(pairs, 200, config.training.seed)
    ema, listener = EMA(model, 0.9), RecordingListener()
    run = Run(
        tmp_path, config, model, optimizer, batches, lambda *_: {}, None, CPU, training_plan(config, CPU), ema=ema
    )
    run_training(run, Progress(), listener)

    losses: list[float] = []

    def recording(run: Run, gradients: Gradients, start: Progress) -> Iterator[PendingStep]:
        assert run.ema is not None
        for pending in launch_steps(run, gradients, start):
            losses.append(pending.loss())
            yield pending

    monkeypatch.setattr(module, "launch_steps", recording)
    step = training_steps(config, pairs, CPU)
    tokens = [step() for _ in range(4)]
    assert losses == [report.loss for report in listener.steps]
    assert all(200 < count <= 400 for count in tokens[:2])


def test_the_measured_speed_memory_and_share_of_the_limit_are_consistent(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = iter([2e9, 3e9])
    monkeypatch.setattr(module, "matmul_throughput", lambda *_: next(limits))
    progress: list[str] = []
    speed = measure_training(settings(), CPU, 0.0, progress.append)
    lengths = pair_lengths(1000)
    sources, targets = (sum(pair[side] for pair in lengths) for side in (0, 1))
    flops_per_token = training_flops(MODEL, sources / targets, 1.0)
    assert (speed.steps, speed.limit, speed.arithmetic) == (3, 3e9, "float32")  # the better of both limits
    assert speed.tokens_per_second == pytest.approx(speed.tokens_per_step / speed.seconds_per_step)
    assert speed.operations_per_second == pytest.approx(speed.tokens_per_second * flops_per_token)
    assert speed.share == speed.operations_per_second / speed.limit
    assert speed.parameters == sum(weight.numel() for weight in Transformer(MODEL).parameters())
    assert 100 < speed.tokens_per_step <= 200
    assert speed.peak_memory is not None
    assert progress[-2].startswith("3 steps, ")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"precision": "bfloat16"}, "training.precision = 'bfloat16' needs a GPU"),
        ({"shard": True}, "training.shard = true needs several processes"),
    ],
)
def test_settings_that_cannot_be_measured_here_are_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        measure_training(settings(**setting), CPU, 0.0)
