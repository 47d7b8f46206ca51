"""Run by test_captured in a process of its own, where signatures are not checked: the checks cannot be compiled.

Steps of a small model, captured in every way there is, against plain ones; prints a line for each that agrees.
"""

import sys
from itertools import product

import numpy as np
import torch

from heed import ModelConfig, RunConfig, TrainingConfig, Transformer
from heed.backends.select import training_plan
from heed.training.bucketing import Shape
from heed.training.gradients import EagerGradients, Gradients, make_gradients
from tests.training.test_bucketing import WORDS, random_batch

GPU = torch.device("cuda")
KINDS = list(product(("float32", "bfloat16"), (0.0, 5.0), (False, True)))


def a_model(dropout: float = 0.0) -> Transformer:
    config = ModelConfig(
        vocab_size=WORDS, d_model=64, heads=2, encoder_layers=2, decoder_layers=2, d_ff=96,
        dropout=dropout, attention_dropout=dropout, activation_dropout=dropout,
    )  # fmt: skip
    torch.manual_seed(0)
    return Transformer(config).to(GPU)


def run_config(model: Transformer, precision: str, r_drop: float, compiled: bool) -> RunConfig:
    settings = {"precision": precision, "r_drop": r_drop, "compile": compiled}
    return RunConfig(model=model.config, training=TrainingConfig.model_validate(settings))


def computed(gradients: Gradients, model: Transformer, seed: int = 3) -> list[torch.Tensor]:
    """Those of three batches, one of which does not fit the shape."""
    for number in range(3):
        batch = random_batch(np.random.default_rng(number), 20 if number else 60)
        gradients.backward(gradients.prepare(batch), 0.01, seed)
    found = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    gradients.zero_grad()
    return found


def shape() -> Shape:
    return Shape.for_batches_like([random_batch(np.random.default_rng(9), 20)], 40)


def captured(model: Transformer, config: RunConfig) -> Gradients:
    gradients = make_gradients(model, config, training_plan(config, GPU), shape())
    assert not isinstance(gradients, EagerGradients)
    return gradients


def apart(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """How far two gradients of a whole model lie apart, in lengths of the second."""
    one, other = (torch.cat([part.flatten() for part in parts]) for parts in (some, others))
    return ((one - other).norm() / other.norm()).item()


def same_gradients(precision: str, r_drop: float, compiled: bool) -> bool:
    model = a_model()
    plain = run_config(model, "float32", r_drop, compiled=False)
    wanted = computed(EagerGradients(model, plain, training_plan(plain, GPU)), model)
    gradients = captured(model, run_config(model, precision, r_drop, compiled))
    computed(gradients, model)
    found = computed(gradients, model)  # of a second round: what was captured first is not special
    return apart(found, wanted) < (0.03 if precision == "bfloat16" else 1e-3)


def dropout_follows_from_the_seed(precision: str, r_drop: float, compiled: bool) -> bool:
    model = a_model(dropout=0.2)
    gradients = captured(model, run_config(model, precision, r_drop, compiled))
    first, again, other = (computed(gradients, model, seed) for seed in (3, 3, 4))
    return apart(first, again) < 0.01 and apart(first, other) > 0.1


if __name__ == "__main__":
    for kind in KINDS:
        said = f"same gradients {same_gradients(*kind)}, seeded dropout {dropout_follows_from_the_seed(*kind)}"
        sys.stdout.write(f"{kind}: {said}\n")
