"""Textual entailment: whether a premise entails a hypothesis, contradicts it or does neither (paper, section 2).

Pairs are generated from the lexicon of the built-in corpus. What a sentence affirms or denies is that there is such an
object, so the label follows by logic, and negation turns it around:

    The queen sees an old black cat.     The queen sees a black cat.           entails
    The queen doesn't see a cat.         The queen doesn't see a black cat.    entails
    The queen doesn't see a cat.         The queen sees a black cat.           contradicts
    The queen doesn't see a black cat.   The queen sees a cat.                 neutral

In other neutral pairs the subject, the verb or the object differs, subject and object are swapped, or all is different.
A hypothesis is drawn before its label, so it says nothing about the label, and a model that sees it alone can only
guess. No hypothesis of the test is one of training.

As usual (Devlin et al. 2019) an encoder is pretrained as a masked LM, here on the pairs without their labels, and then
trained as a classifier. Another one is trained as a classifier only, so it has half as many steps in all.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.runs import train_runs
from heed.microworld import words
from heed.microworld.corpus import DatasetSplit, Example, split_of
from heed.microworld.grammar import Adjective, Noun, Verb, english_sentence, noun_phrase
from heed.training.step_log import JOURNAL, read_journal

Label = Literal["entails", "contradicts", "neutral"]
_LABELS: tuple[Label, ...] = ("entails", "contradicts", "neutral")
_CHANGES = (*("none",) * 4, "subject", "verb", "object", "swap", "sentence", "sentence")
PRETRAINED, SCRATCH, HYPOTHESIS, MAJORITY = "pretrained", "not pretrained", "hypothesis only", "most frequent label"
_VERBS = words.verbs("see hear follow avoid")
# None of these includes another, as animal includes cat.
_PEOPLE = frozenset(("king", "prince", "uncle", "knight", "actor", "wizard", "queen", "princess"))
_ANIMALS = frozenset(("cat", "dog", "horse", "rabbit", "wolf", "bear", "owl", "donkey"))
_KINDS = tuple(
    replace(kind, nouns=tuple(noun for noun in kind.nouns if noun.english in _PEOPLE | _ANIMALS))
    for kind in (words.PEOPLE, words.ANIMALS)
)
_SETTINGS = {
    "model.heads": 4,
    "model.encoder_layers": 2,
    "model.norm": "pre",
    "model.positions": "rotary",
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "training.masked_share": 0.3,
    "training.schedule": "cosine",
    "training.learning_rate": 3e-3,
    "training.warmup_steps": 100,
    "training.clip_norm": 1.0,
    "training.ema_decay": None,
    "training.patience": None,
    "training.stop_when_exact": None,
    "training.keep_last": 1,
    "data.tokenizer": "words",
    "data.hold_out": 0,
}


@dataclass(frozen=True)
class EntailmentSize:
    """How large the experiment is."""

    pairs: int
    tests: int
    steps: int  # of the masked LM, and of each classifier
    validations: int
    width: int
    tokens: int  # per batch

    def settings(self, seed: int) -> dict[str, Any]:
        """The settings of one run."""
        sizes = {"model.d_model": self.width, "model.d_ff": 4 * self.width, "training.max_steps": self.steps}
        sizes["training.tokens_per_batch"] = self.tokens
        intervals = {"validate_every": self.steps // self.validations, "checkpoint_every": self.steps}
        return {**_SETTINGS, **sizes, **{f"training.{name}": n for name, n in intervals.items()}, "training.seed": seed}


SIZES: dict[Scale, EntailmentSize] = {
    "smallest": EntailmentSize(pairs=30, tests=6, steps=2, validations=2, width=8, tokens=256),
    "small": EntailmentSize(pairs=50_000, tests=1000, steps=2000, validations=5, width=64, tokens=256),
    "full": EntailmentSize(pairs=200_000, tests=4000, steps=2500, validations=5, width=128, tokens=2048),
}


@dataclass(frozen=True)
class Statement:
    """That the subject does, or does not do, something to an object of this kind, with these adjectives."""

    subject: Noun
    verb: Verb
    object: Noun
    before: Adjective | None
    after: Adjective | None
    negated: bool

    @property
    def text(self) -> str:
        does = f"doesn't {self.verb.english}" if self.negated else self.verb.english_singular
        goal = noun_phrase(words.A, self.object, before=self.before, after=self.after)
        return english_sentence(f"the {self.subject.english} {does} {goal.english}")

    @property
    def adjectives(self) -> set[Adjective]:
        return {adjective for adjective in (self.before, self.after) if adjective is not None}

    @property
    def form(self) -> tuple[bool, set[Adjective]]:
        """The negation and the adjectives."""
        return self.negated, self.adjectives

    @property
    def event(self) -> tuple[Noun, Verb, Noun]:
        """All but the negation and the adjectives."""
        return self.subject, self.verb, self.object


class LabelledPair(NamedTuple):
    """A premise, a hypothesis and their label."""

    label: Label
    premise: Statement
    hypothesis: Statement

    @property
    def text(self) -> str:
        return f"{self.premise.text} {self.hypothesis.text}"


def label_of(premise: Statement, hypothesis: Statement) -> Label:
    """What follows from a premise: a cat from a black cat, and from no cat no black cat."""
    if premise.event != hypothesis.event:
        return "neutral"
    if premise.negated:
        decided = premise.adjectives <= hypothesis.adjectives
    else:
        decided = premise.adjectives >= hypothesis.adjectives
    if not decided:
        return "neutral"
    return "entails" if premise.negated == hypothesis.negated else "contradicts"


def labelled_pairs(split: DatasetSplit) -> Iterator[LabelledPair]:
    """An endless stream of pairs whose hypotheses belong to one split; all labels are equally frequent."""
    draw = random.Random(f"{split} pairs")  # noqa: S311 - no secrets
    while True:
        hypothesis, wanted = _statement(draw), draw.choice(_LABELS)
        only_entailed_by_itself = len(hypothesis.adjectives) == (0 if hypothesis.negated else 2)
        if only_entailed_by_itself or split_of(Example(hypothesis.text, "", "entailment")) != split:
            continue
        premise = _premise(hypothesis, draw)
        # Equal sentences are left out; with them all of equal form, which else would always be neutral.
        while premise.form == hypothesis.form or label_of(premise, hypothesis) != wanted:
            premise = _premise(hypothesis, draw)
        yield LabelledPair(wanted, premise, hypothesis)


def _statement(draw: random.Random) -> Statement:
    """A random sentence about a person and an animal."""
    subjects, objects = draw.sample(_KINDS, k=2)
    subject, goal = draw.choice(subjects.nouns), draw.choice(objects.nouns)
    return Statement(subject, draw.choice(_VERBS), goal, *_adjectives(goal, draw), draw.choice((False, True)))


def _premise(hypothesis: Statement, draw: random.Random) -> Statement:
    """The hypothesis with other adjectives, affirmed or denied; perhaps with another word, or another sentence."""
    (before, after), negated = _adjectives(hypothesis.object, draw), draw.choice((False, True))
    before, after = draw.choice((hypothesis.before, before)), draw.choice((hypothesis.after, after))
    base = replace(hypothesis, before=before, after=after, negated=negated)
    match draw.choice(_CHANGES):
        case "subject":
            return replace(base, subject=draw.choice(_kind_of(base.subject).nouns))
        case "verb":
            return replace(base, verb=draw.choice(_VERBS))
        case "object":
            return replace(base, object=draw.choice(_kind_of(base.object).nouns))
        case "swap":
            return Statement(base.object, base.verb, base.subject, *_adjectives(base.subject, draw), negated)
        case "sentence":
            return _statement(draw)
        case _:
            return base


def _adjectives(noun: Noun, draw: random.Random) -> tuple[Adjective | None, Adjective | None]:
    """Up to two adjectives that apply to a noun."""
    kind = _kind_of(noun)
    return draw.choice((None, draw.choice(kind.before))), draw.choice((None, draw.choice(kind.after)))


def _kind_of(noun: Noun) -> words.NounClass:
    return next(kind for kind in _KINDS if noun in kind.nouns)


def measure(context: Context) -> list[Panel]:
    """The accuracy by training steps of each classifier, and that of the most frequent label."""
    size = SIZES[context.scale]
    train, test = list(islice(labelled_pairs("train"), size.pairs)), list(islice(labelled_pairs("test"), size.tests))
    context.folder.mkdir(parents=True, exist_ok=True)
    folders = train_runs(context, _classifiers(context, size, _masked_lms(context, size, train), train, test))
    series = []
    for name in (PRETRAINED, SCRATCH, HYPOTHESIS):
        curves = [_accuracies(folders[f"{name},seed={seed}"]) for seed in context.seeds]
        steps = list(curves[0])
        series.append(Series(name, [float(step) for step in steps], [[run[step] for run in curves] for step in steps]))
    ((majority, _),) = Counter(pair.label for pair in train).most_common(1)
    share = sum(pair.label == majority for pair in test) / len(test)
    series.append(Series(MAJORITY, series[0].x, [[share for _ in context.seeds] for _ in series[0].x]))
    return [Panel("training steps", "accuracy", series)]


def _masked_lms(context: Context, size: EntailmentSize, train: list[LabelledPair]) -> dict[int, Path]:
    """The pretrained model of each seed."""
    file = context.folder / "texts.txt"
    file.write_text("".join(f"{pair.text}\n" for pair in train), encoding="utf-8")
    arguments = {"text": file, "task": "masked", "preset": "tiny"}
    runs = {f"masked,seed={seed}": {**arguments, "settings": size.settings(seed)} for seed in context.seeds}
    return dict(zip(context.seeds, train_runs(context, runs).values(), strict=True))


def _classifiers(
    context: Context,
    size: EntailmentSize,
    masked_lms: dict[int, Path],
    train: list[LabelledPair],
    test: list[LabelledPair],
) -> dict[str, dict[str, Any]]:
    """The arguments of `heed.train` for each classifier and seed."""
    files: dict[bool, dict[str, Path]] = {}
    for whole in (True, False):
        files[whole] = {}
        for option, pairs in {"pairs": train, "valid_pairs": test}.items():
            files[whole][option] = file = context.folder / f"{option}-{'whole' if whole else 'hypothesis'}.jsonl"
            rows = ({"label": pair.label, "text": pair.text if whole else pair.hypothesis.text} for pair in pairs)
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    runs = {}
    for seed in context.seeds:
        settings = {"task": "classify", "preset": "tiny", "settings": size.settings(seed)}
        for name in (PRETRAINED, SCRATCH, HYPOTHESIS):
            init_from = None if name == SCRATCH else masked_lms[seed]
            runs[f"{name},seed={seed}"] = {**settings, **files[name != HYPOTHESIS], "init_from": init_from}
    return runs


def _accuracies(folder: Path) -> dict[int, float]:
    """The share of right labels at each validation, by step."""
    entries = read_journal(folder / JOURNAL)
    return {entry["step"]: entry["accuracy"] / 100 for entry in entries if "validation_loss" in entry}


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether nearly all labels are right, the hypothesis alone does not tell them, and pretraining helps."""
    (panel,) = panels
    last = panel.series[0].x[-1]
    pretrained, scratch, *baselines = (panel.named(name) for name in (PRETRAINED, SCRATCH, HYPOTHESIS, MAJORITY))
    hypothesis, majority = (baseline.at(last) for baseline in baselines)
    finding = (
        f"Right labels of held-out pairs: {pretrained.at(last):.1%} with pretraining, {scratch.at(last):.1%} without; "
        f"with the hypothesis only {hypothesis:.1%}, with the most frequent label {majority:.1%}."
    )
    if not all(is_less(baseline.values_at(last), pretrained.values_at(last)) for baseline in baselines):
        return "does not hold here", finding
    helps = is_less(scratch.values_at(last), pretrained.values_at(last))
    return ("holds" if helps and pretrained.at(last) > 0.9 else "holds in part"), finding
