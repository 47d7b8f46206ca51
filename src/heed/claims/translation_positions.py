"""Positional encodings in translation: whether they are needed, and whether they carry over to longer texts.

Transformers that differ in `model.positions` only are trained on texts of one or two sentences of the built-in corpus
and tested on texts of up to eight. Sentences of longer texts are no harder than those of training, only later.
"""

import json
import re
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

from heed.claims.claim import Context
from heed.claims.positions import KINDS
from heed.claims.result import Panel, Scale, Series, Verdict
from heed.claims.runs import results_of, train_runs
from heed.claims.translation import SIZES
from heed.inference.open import load
from heed.microworld.corpus import DatasetSplit, Example, corpus

_TRAINING, _TESTED = 2, (1, 2, 3, 4, 8)  # sentences in the longest text of training, and in the texts of the test
_TESTS: dict[Scale, int] = {"smallest": 2, "small": 50, "full": 200}  # texts of each length
_SENTENCE_END = re.compile(r"(?<=[.!?]) ")


def texts(split: DatasetSplit, count: int, sentences: int) -> list[Example]:
    """So many texts of so many sentences each, with their translations."""
    examples = list(corpus(split, count * sentences))
    groups = (examples[start : start + sentences] for start in range(0, len(examples), sentences))
    return [
        Example(" ".join(each.source for each in group), " ".join(each.target for each in group), "text")
        for group in groups
    ]


def measure(context: Context) -> list[Panel]:
    """The share of sentences that are translated exactly, by the number of sentences in the text."""
    size = SIZES[context.scale]
    context.folder.mkdir(parents=True, exist_ok=True)
    files = {
        "pairs": _written(context.folder / "train.jsonl", "train", size.pairs),
        "valid_pairs": _written(context.folder / "valid.jsonl", "valid", size.validation_pairs),
    }
    runs = {
        f"{kind}, seed {seed}": {
            **files,
            "preset": "tiny",
            "settings": {**size.settings(), "model.positions": kind, "training.seed": seed},
        }
        for kind in KINDS
        for seed in context.seeds
    }
    folders = train_runs(context, runs)
    shares = results_of(context, _shares, {name: (folder, _TESTS[context.scale]) for name, folder in folders.items()})
    series = [
        Series.of_runs(kind, _TESTED, [shares[f"{kind}, seed {seed}"] for seed in context.seeds]) for kind in KINDS
    ]
    return [Panel("sentences in the text", "share of exact translations of its sentences", series)]


def _written(path: Path, split: DatasetSplit, pairs: int) -> Path:
    """A file of texts of training lengths, as many of each as there are pairs for."""
    share = pairs // sum(range(1, _TRAINING + 1))
    lines = (
        json.dumps({"source": text.source, "target": text.target})
        for sentences in range(1, _TRAINING + 1)
        for text in texts(split, share, sentences)
    )
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _shares(folder: Path, count: int) -> list[float]:
    """The share of right sentences of one model, in texts of each length."""
    translator, shares = load(folder), []
    for sentences in _TESTED:
        tests = texts("test", count, sentences)
        outputs = translator.translate([test.source for test in tests], beam=1, align=False, split="line")
        right = (share_right(output.text, test.target) for output, test in zip(outputs, tests, strict=True))
        shares.append(fmean(right))
    return shares


def share_right(output: str, target: str) -> float:
    """The share of the target's sentences that stand in the output at the same place."""
    expected = _SENTENCE_END.split(target)
    found = _SENTENCE_END.split(output)
    pairs = zip_longest(found[: len(expected)], expected)
    return fmean(sentence == of_target for sentence, of_target in pairs)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether positions are needed at training lengths, and sinusoidal ones keep half of the share at twice those."""
    (panel,) = panels
    usual, longer = float(_TRAINING), float(2 * _TRAINING)
    described = ", ".join(
        f"{series.name} {series.at(usual):.0%} and {series.at(longer):.0%}" for series in panel.series
    )
    finding = (
        f"Trained on texts of up to {usual:.0f} sentences, exact translations of the sentences of texts of "
        f"{usual:.0f} and {longer:.0f}: {described}."
    )
    sinusoidal = panel.named("sinusoidal")
    needed = max(panel.named(kind).at(usual) for kind in ("index", "none")) < sinusoidal.at(usual) / 2
    carries_over = sinusoidal.at(longer) > sinusoidal.at(usual) / 2
    if needed and carries_over:
        return "holds", finding
    return ("holds in part" if needed or carries_over else "does not hold here"), finding
