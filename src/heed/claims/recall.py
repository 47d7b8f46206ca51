"""Recall over a distance: a letter read long ago, needed at the end (paper, section 4).

A string has two marked letters among many others, and at its end the mark of the one to output:

    cfehdefxfchycjjiy    c        x marks f, y marks c, and the last y asks for c

The distance of a letter is that to the end of the string; from the start it is at least as far, since an encoder's
recurrence runs in both directions. The other letter has another of the distances, so that nothing but the last token
tells which one is meant. The decoder has a single layer, with one look at the source: the encoder has to bring the
question and the letter together.
"""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor, nn

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.runs import results_of
from heed.claims.strings import LETTERS, StringTaskSize, draw_pairs, exact_outputs, string_tests, train_on_strings
from heed.inference.open import open_folder
from heed.interpret.pronouns import untrained
from heed.model.transformer import Transformer

_DISTANCES: dict[Scale, tuple[int, ...]] = {
    "smallest": (4, 8),
    "small": (4, 8, 16, 32),
    "full": (4, 8, 16, 32, 64, 128, 256),
}
SIZES: dict[Scale, StringTaskSize] = {
    "smallest": StringTaskSize(pairs=30, tests=2, steps=2, width=8, tokens=64, decoder_layers=1),
    "small": StringTaskSize(pairs=30_000, tests=100, steps=600, width=64, tokens=160, decoder_layers=1, rate=1.5e-3),
    "full": StringTaskSize(
        pairs=100_000, tests=200, steps=1500, width=128, tokens=512, decoder_layers=1, max_tokens=1024, rate=1.5e-3
    ),
}
TRANSFORMER = "Transformer"
FIXED = ("LSTM, fixed vector", "GRU, fixed vector")
MODELS: dict[str, dict[str, Any]] = {
    FIXED[0]: {"mixer": "lstm", "source_context": "vector", "heads": 1},
    FIXED[1]: {"mixer": "gru", "source_context": "vector", "heads": 1},
    "LSTM, attention": {"mixer": "lstm", "heads": 1},
    "convolution, attention": {"mixer": "convolution", "heads": 1},
    TRANSFORMER: {"positions": "rotary"},
}
_MARKS = "xy"
_STRINGS = 32  # whose gradients are averaged


def marked_letter(draw: random.Random, distance: int, distances: Sequence[int]) -> tuple[str, str]:
    """A string whose letter to recall is so many tokens from its end, and that letter.

    distances: of letters that are asked for.
    """
    asked, other = draw.sample(_MARKS, k=2)
    elsewhere = draw.choice([another for another in distances if another != distance])
    length = 2 * max(distance, elsewhere)
    letters = draw.choices(LETTERS, k=length)
    letters[length - distance - 1], letters[length - elsewhere - 1] = asked, other
    return "".join((*letters, asked)), letters[length - distance]


def measure(context: Context) -> list[Panel]:
    """The share of letters recalled by distance, and the gradients of the models before and after training."""
    size, distances = SIZES[context.scale], _DISTANCES[context.scale]
    task = partial(marked_letter, distances=distances)
    models = train_on_strings(context, task, MODELS, distances, size)
    recalled = exact_outputs(string_tests(context, task, models, distances, size))
    jobs = {
        f"{name}, gradient {seed}": (folder, distances, seed)
        for name, folders in models.items()
        for folder, seed in zip(folders, context.seeds, strict=True)
    }
    gradients = results_of(context, _gradients, jobs)
    x_label, panels = "tokens from the letter to the end", []
    for index, state in enumerate(("trained", "untrained")):
        runs = {name: [gradients[f"{name}, gradient {seed}"][index] for seed in context.seeds] for name in models}
        series = [Series.of_runs(name, distances, of_model) for name, of_model in runs.items()]
        label = f"gradient of the output by the letter, {state}, relative to distance {distances[0]}"
        panels.append(Panel(x_label, label, series, log="xy"))
    return [Panel(x_label, "share of letters recalled", recalled, log="x"), *panels]


def _gradients(folder: Path, distances: tuple[int, ...], seed: int) -> tuple[list[float], list[float]]:
    """The gradients by distance of a trained model, and of one of the same shape with random weights."""
    content, model = open_folder(folder)
    model.cpu()  # cuDNN computes no gradients of a recurrence outside of training mode
    source = content.tokenizers[0]
    task = partial(marked_letter, distances=distances)
    norms: tuple[list[float], list[float]] = [], []
    for distance in distances:
        texts = [text for text, _ in draw_pairs(task, seed, _STRINGS, [distance])]
        src = [torch.tensor([*ids, model.config.eos_id]) for ids in source.encode(texts)]
        positions = [len(text) - 1 - distance for text in texts]
        for of_state, each in zip(norms, (model.eval(), untrained(model, seed)), strict=True):
            of_state.append(fmean(_gradient(each, *row, seed) for row in zip(src, positions, strict=True)))
    trained, random_weights = ([norm / of_state[0] for norm in of_state] for of_state in norms)
    return trained, random_weights


def _gradient(model: Transformer, ids: Tensor, position: int, seed: int) -> float:
    """The norm of the gradient of the first output's logits, in a random direction, by one source embedding."""
    embeddings = []

    def keep(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        embeddings.append(inputs[0].detach().requires_grad_())
        return embeddings[0], *inputs[1:]

    src = ids[None].to(model.vocabulary.embedding.weight.device)
    with cast("nn.Module", model.encoder).register_forward_pre_hook(keep):
        logits = model(src, torch.full_like(src[:, :1], model.config.bos_id))
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)).to(logits)
    (gradient,) = torch.autograd.grad((logits * direction).sum(), embeddings)
    return gradient[0, position].norm().item()


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the Transformer recalls the farthest letters, and recurrence with a fixed vector loses them."""
    recalled, trained, before = panels
    near, far = recalled.series[0].x[0], recalled.series[0].x[-1]
    shares = ", ".join(f"{series.name} {series.at(near):.0%} and {series.at(far):.0%}" for series in recalled.series)
    left = ", ".join(
        f"{series.name} {_share(series.at(far))} (before training {_share(before.named(series.name).at(far))})"
        for series in trained.series
    )
    finding = (
        f"Letters recalled over {near:.0f} and over {far:.0f} tokens: {shares}. Of the gradient over {near:.0f} tokens "
        f"this much is left over {far:.0f}: {left}."
    )
    transformer = recalled.named(TRANSFORMER)
    behind = [is_less(recalled.named(name).values_at(far), transformer.values_at(far)) for name in FIXED]
    if transformer.at(far) > 0.9 and all(behind):
        return "holds", finding
    return ("holds in part" if any(behind) else "does not hold here"), finding


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.0e}" if share else "nothing"
