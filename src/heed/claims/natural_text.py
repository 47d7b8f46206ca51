"""Attention against what came before it, on natural text that the user gives: BLEU by steps, by time and by length.

All models have the same number of parameters within 5 %, embeddings included. The best settings of each are searched
with one seed (natural_models.py); with them it is trained with all seeds. Times are those of training steps on an
otherwise idle machine, without validation.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from heed.claims.claim import Context
from heed.claims.natural_models import (
    SIZES,
    NaturalTextSize,
    SearchedSettings,
    best_of,
    described,
    neighbours,
    settings,
    start,
)
from heed.claims.natural_runs import FinishedRun, Runs, groups_of, vocabulary
from heed.claims.processes import JobPool
from heed.claims.quality import MODELS, TRANSFORMER, VECTOR, transformer_ahead
from heed.claims.result import Panel, Series, Verdict
from heed.errors import ConfigError, TrainingError

BLEU = "BLEU"
_TIMES = 8  # points of the comparison at equal time


def measure(context: Context) -> list[Panel]:
    """BLEU by steps, by training time and by source length, each model with its best settings."""
    if context.corpus is None:
        raise ConfigError("this claim needs a parallel corpus: give --source, --target, --valid-source, --valid-target")
    size, vocab_size = SIZES[context.scale], vocabulary(context, context.corpus)
    with nullcontext(context.pool) if context.pool else JobPool(context.jobs) as pool:
        runs = Runs(context, context.corpus, pool)
        chosen = _search(runs, size, vocab_size)
        context.notes.extend(described(model, candidate, size, vocab_size) for model, candidate in chosen.items())
        step_seconds = _step_seconds(runs, chosen, size, vocab_size)
        of_models = _trained(runs, chosen, size, vocab_size)
    context.notes.append(
        "seconds per training step, one model at a time: "
        + ", ".join(f"{model} {seconds:.3g}" for model, seconds in step_seconds.items())
    )
    longest = [longest for _, longest in groups_of(context.corpus)]
    by_length = [
        Series.of_runs(model, longest, [run.by_length for run in of_model]) for model, of_model in of_models.items()
    ]
    return [
        Panel("training steps", BLEU, [_by_steps(model, of_model) for model, of_model in of_models.items()]),
        _by_time(of_models, step_seconds),
        Panel("words in the source, at most", BLEU, by_length),
    ]


def _search(runs: Runs, size: NaturalTextSize, vocab_size: int) -> dict[str, SearchedSettings]:
    """The best settings of each model by validation BLEU, with the first seed."""
    scores: dict[str, dict[SearchedSettings, float]] = {model: {} for model in MODELS}
    best = dict.fromkeys(MODELS, start(size))
    for stage in range(size.stages):
        candidates = {
            f"{model}, {candidate}": (model, candidate)
            for model in MODELS
            for candidate in neighbours(best[model], stage, size)
            if candidate not in scores[model]
        }
        runs.context.report(f"search, stage {stage + 1} of {size.stages}: {len(candidates)} settings")
        tried = runs.finished(
            {
                name: _with_steps(settings(model, candidate, size, vocab_size), 1, size.search_steps, size.search_steps)
                for name, (model, candidate) in candidates.items()
            }
        )
        for name, run in tried.items():
            model, candidate = candidates[name]
            scores[model][candidate] = run.final
        best = {model: best_of(of_model) for model, of_model in scores.items() if of_model}
        if missing := MODELS.keys() - best.keys():
            raise TrainingError(f"no run succeeded of: {', '.join(sorted(missing))}")
    return best


def _with_steps(of_model: Mapping[str, Any], seed: int, steps: int, validate_every: int) -> dict[str, Any]:
    """The settings of a run with its seed, number of steps and intervals."""
    intervals = {"max_steps": steps, "validate_every": validate_every, "checkpoint_every": steps, "seed": seed}
    return {**of_model, **{f"training.{name}": value for name, value in intervals.items()}}


def _trained(
    runs: Runs, chosen: Mapping[str, SearchedSettings], size: NaturalTextSize, vocab_size: int
) -> dict[str, list[FinishedRun]]:
    """The runs of each model with all seeds; all models with the first seed come first."""
    names = {
        f"{model}, {candidate}, seed {seed}": (model, seed)
        for seed in runs.context.seeds
        for model, candidate in chosen.items()
    }
    runs.context.report(f"training {len(names)} models with the best settings, {size.steps} steps each")
    done = runs.finished(
        {
            name: _with_steps(settings(model, chosen[model], size, vocab_size), seed, size.steps, size.validate_every)
            for name, (model, seed) in names.items()
        }
    )
    of_models = {model: [run for name, run in done.items() if names[name][0] == model] for model in chosen}
    for model, of_model in of_models.items():
        if not of_model:
            raise TrainingError(f"no run of {model} succeeded")
        if len(of_model) < len(runs.context.seeds):
            runs.context.notes.append(f"{model}: {len(of_model)} of {len(runs.context.seeds)} runs succeeded")
    return of_models


def _step_seconds(
    runs: Runs, chosen: Mapping[str, SearchedSettings], size: NaturalTextSize, vocab_size: int
) -> dict[str, float]:
    """The time of a training step of each model, one after the other."""
    runs.context.report("timing the steps of each model, one model at a time")
    timed = runs.alone().finished(
        {
            f"{model}, time": _with_steps(
                settings(model, candidate, size, vocab_size), 1, size.timed_steps, size.timed_steps
            )
            for model, candidate in chosen.items()
        }
    )
    seconds = {name.removesuffix(", time"): run.seconds_per_step for name, run in timed.items()}
    if missing := chosen.keys() - seconds.keys():
        raise TrainingError(f"the steps were not timed of: {', '.join(sorted(missing))}")
    return seconds


def _by_steps(model: str, runs: list[FinishedRun]) -> Series:
    return Series.of_runs(model, list(runs[0].bleu), [list(run.bleu.values()) for run in runs])


def _by_time(of_models: Mapping[str, list[FinishedRun]], step_seconds: Mapping[str, float]) -> Panel:
    """BLEU after so many seconds of training, interpolated between validations, up to the end of the shortest run."""
    shortest = min(max(runs[0].bleu) * step_seconds[model] for model, runs in of_models.items())
    times = [shortest * (number + 1) / _TIMES for number in range(_TIMES)]
    series = []
    for model, runs in of_models.items():
        seconds = [0.0, *(step * step_seconds[model] for step in runs[0].bleu)]
        curves = [np.interp(times, seconds, [0.0, *run.bleu.values()]).tolist() for run in runs]
        series.append(Series.of_runs(model, times, curves))
    return Panel("seconds of training", BLEU, series)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the Transformer is ahead of every other model after the same steps and after the same time."""
    by_steps, by_time, by_length = panels
    steps, time = by_steps.series[0].x[-1], by_time.series[0].x[-1]
    parts = [", ".join(f"{series.name} {series.means()[-1]:.1f}" for series in panel.series) for panel in panels[:2]]
    short, long = by_length.series[0].x[0], by_length.series[0].x[-1]
    vector, transformer = by_length.named(VECTOR), by_length.named(TRANSFORMER)
    finding = (
        f"BLEU after {steps:,.0f} steps: {parts[0]}; after {time:.3g} seconds of training: {parts[1]}. The fixed "
        f"vector is {transformer.at(short) - vector.at(short):.1f} BLEU behind the Transformer on sentences of up to "
        f"{short:.0f} words and {transformer.at(long) - vector.at(long):.1f} on the longest."
    )
    return transformer_ahead(by_steps, by_time), finding
