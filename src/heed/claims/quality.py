"""Attention against what came before it: quality at equal size, equal steps and equal time, and by sentence length.

All models have the same number of parameters within 5 %, without embeddings. Each is trained with several learning
rates and one seed; with the rate of the lowest validation loss it is trained with all seeds.
"""

from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from heed.claims.claim import Context
from heed.claims.parameters import parameters, with_parameters
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.runs import results_of
from heed.claims.translation import EXACT, SIZES, TrainedVariant, Variant, curves, train_variants, with_best_rates
from heed.inference.open import load
from heed.microworld.corpus import corpus
from heed.training.step_log import JOURNAL, read_journal

TRANSFORMER, VECTOR = "Transformer", "LSTM, fixed vector"
MODELS: dict[str, dict[str, Any]] = {
    TRANSFORMER: {},
    "LSTM, attention": {"mixer": "lstm"},
    "GRU, attention": {"mixer": "gru"},
    "convolution": {"mixer": "convolution"},
    VECTOR: {"mixer": "lstm", "source_context": "vector"},
}
_LONGEST = (5, 7, 10, 13)  # words in the source of each group of sentences
_TESTS: dict[Scale, int] = {"smallest": 20, "small": 600, "full": 2000}
_TIMES = 5  # points of the comparison at equal time


def measure(context: Context) -> list[Panel]:
    """Exact translations by steps, by training time and by sentence length, with each model's best learning rate."""
    width = SIZES[context.scale].width
    variants = with_best_rates(context, {model: shape_of(model, width) for model in MODELS})
    trained = train_variants(context, variants)
    if context.jobs > 1:
        context.notes.append(f"times are of models trained side by side, up to {context.jobs} at a time")
    return [curves(trained, EXACT), _by_time(trained), _by_length(context, trained)]


def shape_of(model: str, width: int) -> Variant:
    """The settings of a model with the parameters of a Transformer of this width."""
    base = {"d_model": width, "d_ff": 4 * width, "heads": 4, "encoder_layers": 2, "decoder_layers": 2, "norm": "pre"}
    shape = with_parameters({**base, **MODELS[model]}, parameters(base))
    return {f"model.{name}": value for name, value in shape.items() if name in ("d_model", *MODELS[model])}


def _by_time(trained: dict[str, TrainedVariant]) -> Panel:
    """The share of exact translations after so many seconds of training, interpolated between validations."""
    shortest = min(fmean(variant.seconds()) for variant in trained.values())
    times = [shortest * (number + 1) / _TIMES for number in range(_TIMES)]
    series = []
    for name, variant in trained.items():
        runs = [np.interp(times, *_seconds_and_shares(variant, seed)).tolist() for seed in range(len(variant.folders))]
        series.append(Series.of_runs(name, times, runs))
    return Panel("seconds of training", EXACT, series)


def _seconds_and_shares(variant: TrainedVariant, seed: int) -> tuple[list[float], list[float]]:
    """The training time and the share of exact translations at each validation of one run, from the start on."""
    shares, seconds = {0: 0.0} | {step: values[seed] for step, values in variant.curve(EXACT).items()}, {0: 0.0}
    for entry in read_journal(variant.folders[seed] / JOURNAL):
        if "seconds" in entry:
            seconds[entry["step"]] = seconds[entry["step"] - 1] + entry["seconds"]
    return [seconds[step] for step in shares], list(shares.values())


def _by_length(context: Context, trained: dict[str, TrainedVariant]) -> Panel:
    """The share of exact translations of the test set by the number of words in the source."""
    jobs = {
        f"{name} {index}": (folder, _TESTS[context.scale])
        for name, variant in trained.items()
        for index, folder in enumerate(variant.folders)
    }
    shares = results_of(context, _shares_by_length, jobs)
    series = []
    for name, variant in trained.items():
        runs = [shares[f"{name} {index}"] for index in range(len(variant.folders))]
        series.append(Series.of_runs(name, _LONGEST, runs))
    return Panel("words in the source, at most", EXACT, series)


def _shares_by_length(folder: Path, count: int) -> list[float]:
    """The share of exact translations of one model in each group of sentences."""
    tests = corpus("test", count)
    outputs = load(folder).translate([test.source for test in tests], beam=1, align=False)
    exact = [output.text == test.target for output, test in zip(outputs, tests, strict=True)]
    words = [len(test.source.split()) for test in tests]
    groups = (
        [is_exact for is_exact, length in zip(exact, words, strict=True) if low < length <= high]
        for low, high in zip((0, *_LONGEST), _LONGEST, strict=False)
    )
    return [fmean(group) if group else 0.0 for group in groups]


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the Transformer is ahead of every other model after the same steps and after the same time."""
    by_steps, by_time, by_length = panels
    steps, time = by_steps.series[0].x[-1], by_time.series[0].x[-1]
    parts = [", ".join(f"{series.name} {series.means()[-1]:.0%}" for series in panel.series) for panel in panels[:2]]
    short, long = by_length.series[0].x[0], by_length.series[0].x[-1]
    vector = by_length.named(VECTOR)
    finding = (
        f"Exact translations after {steps:,.0f} steps: {parts[0]}; after {time:.0f} seconds of training: "
        f"{parts[1]}. The fixed vector translates {vector.at(short):.0%} of sentences of up to {short:.0f} words and "
        f"{vector.at(long):.0%} of the longest."
    )
    return transformer_ahead(by_steps, by_time), finding


def transformer_ahead(*panels: Panel) -> Verdict:
    """Whether the Transformer is ahead of all other models at the end of every panel, or of some in one."""
    ahead = [
        is_less(series.values[-1], panel.named(TRANSFORMER).values[-1])
        for panel in panels
        for series in panel.series
        if series.name != TRANSFORMER
    ]
    return "holds" if all(ahead) else "holds in part" if any(ahead) else "does not hold here"
