"""Run by test_captured in a process of its own, where jaxtyping checks are off, since they cannot be compiled.

Compares captured with eager training steps for each precision, R-Drop and compile setting; prints a line for each.
"""

import sys
from itertools import product

import numpy as np
import torch

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.backends.select import training_plan
from heed.training.bucketing import BucketShape
from heed.training.gradients import EagerGradients, Gradients, make_gradients
from tests.training.examples import VOCABULARY, random_batch

GPU = torch.device("cuda")
CASES = list(product(("float32", "bfloat16"), (0.0, 5.0), (False, True)))


def small_model(dropout: float = 0.0) -> Transformer:
    config = ModelConfig(
        vocab_size=VOCABULARY, d_model=64, heads=2, encoder_layers=2, decoder_layers=2, d_ff=96,
        dropout=dropout, attention_dropout=dropout, activation_dropout=dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    return Transformer(config).to(GPU)


def run_config(model: Transformer, precision: str, r_drop: float, compiled: bool) -> RunConfig:
    settings = {"precision": precision, "r_drop": r_drop, "compile": compiled}
    return RunConfig(model=model.config, training=TrainingConfig.model_validate(settings))


def compute(gradients: Gradients, model: Transformer, seed: int = 3) -> list[torch.Tensor]:
    """The accumulated gradients of three batches, one of which does not fit the shape."""
    for number in range(3):
        batch = random_batch(np.random.default_rng(number), 20 if number else 60)
        gradients.backward(gradients.prepare(batch), 0.01, seed)
    accumulated = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    gradients.zero_grad()
    return accumulated


def shape() -> BucketShape:
    return BucketShape.for_batches_like([random_batch(np.random.default_rng(9), 20)], 40)


def captured(model: Transformer, config: RunConfig) -> Gradients:
    gradients = make_gradients(model, config, training_plan(config, GPU), shape())
    assert not isinstance(gradients, EagerGradients)
    return gradients


def relative_error(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The norm of the difference of two whole-model gradients, relative to that of the second."""
    a, b = (torch.cat([gradient.flatten() for gradient in gradients]) for gradients in (actual, expected))
    return ((a - b).norm() / b.norm()).item()


def same_gradients(precision: str, r_drop: float, compiled: bool) -> bool:
    model = small_model()
    plain = run_config(model, "float32", r_drop, compiled=False)
    expected = compute(EagerGradients(model, plain, training_plan(plain, GPU)), model)
    gradients = captured(model, run_config(model, precision, r_drop, compiled))
    compute(gradients, model)
    replayed = compute(gradients, model)  # a second round: nothing depends on the batches of the capture
    return relative_error(replayed, expected) < (0.03 if precision == "bfloat16" else 1e-3)


def dropout_follows_the_seed(precision: str, r_drop: float, compiled: bool) -> bool:
    model = small_model(dropout=0.2)
    gradients = captured(model, run_config(model, precision, r_drop, compiled))
    first, again, other = (compute(gradients, model, seed) for seed in (3, 3, 4))
    return relative_error(first, again) < 0.01 and relative_error(first, other) > 0.1


if __name__ == "__main__":
    for case in CASES:
        result = f"same gradients {same_gradients(*case)}, seeded dropout {dropout_follows_the_seed(*case)}"
        sys.stdout.write(f"{case}: {result}\n")
