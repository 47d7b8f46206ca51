"""Recall over a distance: a letter read long ago, needed at the end (paper, section 4).

A string has two marked letters among many others, and at its end the mark of the one to output:

    dcxbgayeaax    b        x marks b, y marks e, and the last x asks for b

The letter to recall is as far from the end of the string as from its start, since an encoder's recurrence runs in both
directions. Which mark is meant is known only at the end, and the decoder has a single layer, with one look at the
source: the encoder has to bring the question and the letter together.
"""

import random
from pathlib import Path
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
    "small": (4, 8, 16, 32, 64),
    "full": (4, 8, 16, 32, 64, 128, 256),
}
SIZES: dict[Scale, StringTaskSize] = {
    "smallest": StringTaskSize(pairs=30, tests=2, steps=2, width=8, tokens=64, decoder_layers=1),
    "small": StringTaskSize(pairs=30_000, tests=100, steps=300, width=64, tokens=192, decoder_layers=1),
    "full": StringTaskSize(pairs=100_000, tests=200, steps=1500, width=128, tokens=512, decoder_layers=1),
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


def marked_letter(draw: random.Random, distance: int) -> tuple[str, str]:
    """A string whose letter to recall is so many tokens, 4 or more, from its end; and that letter."""
    asked, other = draw.sample(_MARKS, k=2)
    letters = draw.choices(LETTERS, k=2 * distance)
    mark = distance - 1
    elsewhere = [index for index in range(2 * distance - 1) if abs(index - mark) > 1]
    letters[mark], letters[draw.choice(elsewhere)] = asked, other
    return "".join((*letters, asked)), letters[distance]


def measure(context: Context) -> list[Panel]:
    """The share of letters recalled by distance, and the gradients of the models before and after training."""
    size, distances = SIZES[context.scale], _DISTANCES[context.scale]
    models = train_on_strings(context, marked_letter, MODELS, distances, size)
    recalled = exact_outputs(string_tests(context, marked_letter, models, distances, size))
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
    source = content.tokenizers[0]
    of_distance = [draw_pairs(marked_letter, seed, _STRINGS, [distance]) for distance in distances]
    rows = [source.encode([text for text, _ in pairs]) for pairs in of_distance]
    src = [torch.tensor([[*ids, model.config.eos_id] for ids in of_length]) for of_length in rows]
    trained, random_weights = (
        [_gradient(each, ids, distance, seed) for ids, distance in zip(src, distances, strict=True)]
        for each in (model.eval(), untrained(model, seed))
    )
    return [norm / trained[0] for norm in trained], [norm / random_weights[0] for norm in random_weights]


def _gradient(model: Transformer, src: Tensor, position: int, seed: int) -> float:
    """The mean norm of the gradient of the first output's logits, in a random direction, by one source embedding."""
    embeddings = []

    def keep(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        embeddings.append(inputs[0].detach().requires_grad_())
        return embeddings[0], *inputs[1:]

    device = model.vocabulary.embedding.weight.device
    tgt_in = torch.full((len(src), 1), model.config.bos_id, device=device)
    with cast("nn.Module", model.encoder).register_forward_pre_hook(keep):
        logits = model(src.to(device), tgt_in)
    direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)).to(logits)
    (gradient,) = torch.autograd.grad((logits * direction).sum(), embeddings)
    return gradient[:, position].norm(dim=-1).mean().item()


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
