"""Reading comprehension: a Transformer answers questions with words of the passage (paper, section 2).

Passages are generated from the lexicon of the built-in corpus. The object of one sentence is the subject of another,
the verb is always the same, and the sentences are shuffled:

    My old dog hears the queen. The queen hears this small cat. Who does the queen hear?    this small cat
    My old dog hears the queen. The queen hears this small cat. Who hears the queen?        My old dog

Unless a passage has a single sentence, the noun of the question occurs in two sentences. The baseline chooses one of
the sentences that share the most words with the question and answers with its other noun phrase: it knows where phrases
begin and end, but not who does what to whom, so it is right in half of the cases. No passage of the test occurs in
training.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.runs import results_of, train_runs
from heed.inference.open import load
from heed.microworld import words
from heed.microworld.corpus import DatasetSplit, Example, split_of
from heed.microworld.grammar import Phrase, Verb, english_present, english_sentence, noun_phrase
from heed.microworld.templates import decorated

TRANSFORMER, BASELINE = "Transformer", "most word overlap"
_VERBS = words.verbs("see hear follow avoid")
_SETTINGS = {
    "model.heads": 4,
    "model.encoder_layers": 3,
    "model.decoder_layers": 2,
    "model.norm": "pre",
    "model.positions": "rotary",
    "model.dropout": 0.0,
    "model.attention_dropout": 0.0,
    "training.schedule": "cosine",
    "training.learning_rate": 3e-3,
    "training.warmup_steps": 100,
    "training.clip_norm": 1.0,
    "training.label_smoothing": 0.0,
    "training.ema_decay": None,
    "training.patience": None,
    "training.stop_when_exact": None,
    "training.keep_last": 1,
    "data.tokenizer": "words",
    "data.hold_out": 0,
}


@dataclass(frozen=True)
class ReadingSize:
    """How large the experiment is."""

    exercises: int  # of training
    tests: int  # passages of each length
    sentences: int  # in the longest passage
    steps: int
    width: int
    tokens: int  # of answers per batch; passages are about ten times as long

    def settings(self, seed: int) -> dict[str, Any]:
        """The settings of one run."""
        sizes = {"model.d_model": self.width, "model.d_ff": 4 * self.width, "training.max_steps": self.steps}
        sizes["training.tokens_per_batch"] = self.tokens
        return {**_SETTINGS, **sizes, "training.checkpoint_every": self.steps, "training.seed": seed}


SIZES: dict[Scale, ReadingSize] = {
    "smallest": ReadingSize(exercises=30, tests=2, sentences=2, steps=2, width=8, tokens=128),
    "small": ReadingSize(exercises=50_000, tests=200, sentences=3, steps=3000, width=64, tokens=128),
    "full": ReadingSize(exercises=200_000, tests=500, sentences=6, steps=3000, width=128, tokens=512),
}


@dataclass(frozen=True)
class Event:
    """What one sentence of a passage tells."""

    subject: Phrase
    verb: Verb
    object: Phrase

    @property
    def sentence(self) -> str:
        does = english_present(self.verb, self.subject.number)
        return english_sentence(f"{self.subject.english} {does} {self.object.english}")

    def answer_about(self, asked: Phrase) -> str:
        """The noun phrase beside the one asked about, as it stands in the sentence."""
        return self.object.english if asked == self.subject else self.sentence[: len(self.subject.english)]


@dataclass(frozen=True)
class Exercise:
    """A passage, and a question on what one of its nouns does, or what is done to it."""

    events: list[Event]
    asked: Phrase
    role: Literal["subject", "object"]  # of the noun asked about, in the sentence that has the answer

    @property
    def source(self) -> str:
        """The passage and the question."""
        return f"{self.passage} {self.question}"

    @property
    def passage(self) -> str:
        return " ".join(event.sentence for event in self.events)

    @property
    def question(self) -> str:
        noun, verb = noun_phrase(words.THE, self.asked.noun, self.asked.number).english, self.events[0].verb
        if self.role == "object":
            return f"Who {verb.english_singular} {noun}?"
        return f"Who {'does' if self.asked.number == 'singular' else 'do'} {noun} {verb.english}?"

    @property
    def answer(self) -> str:
        event = next(event for event in self.events if getattr(event, self.role) == self.asked)
        return event.answer_about(self.asked)

    def guess(self, draw: random.Random) -> str:
        """The baseline's answer: all sentences with the noun and the verb of the question share as many words."""
        candidates = [event for event in self.events if self.asked in (event.subject, event.object)]
        return draw.choice(candidates).answer_about(self.asked)


def exercise(draw: random.Random, sentences: int) -> Exercise:
    """A random passage of so many sentences, and a question."""
    kinds = draw.sample((words.PEOPLE, words.ANIMALS), k=2)
    nouns = {kind: draw.sample(kind.nouns, k=sentences + 1) for kind in kinds}
    phrases = []
    for index in range(sentences + 1):
        kind = kinds[index % 2]
        phrases.append(decorated(draw.choice, replace(kind, nouns=(nouns[kind][index],)), words.DEFINITE))
    verb = draw.choice(_VERBS)
    events = [Event(subject, verb, goal) for subject, goal in pairwise(phrases)]
    asked = draw.choice(phrases[1:-1] or phrases)
    roles: list[Literal["subject", "object"]] = ["subject", "object"]
    role = draw.choice([role for role in roles if any(getattr(event, role) == asked for event in events)])
    return Exercise(draw.sample(events, k=sentences), asked, role)


def exercises(split: DatasetSplit, seed: int, lengths: range) -> Iterator[Exercise]:
    """An endless stream of exercises of one split; a passage has as many sentences as one of the lengths."""
    draw = random.Random(f"{split} exercises {seed}")  # noqa: S311 - no secrets
    while True:
        drawn = exercise(draw, draw.choice(lengths))
        if split_of(Example(drawn.passage, drawn.answer, "reading")) == split:
            yield drawn


def measure(context: Context) -> list[Panel]:
    """The share of exact answers by number of sentences in the passage."""
    size = SIZES[context.scale]
    lengths = range(1, size.sentences + 1)
    context.folder.mkdir(parents=True, exist_ok=True)
    pairs = context.folder / "train.jsonl"
    drawn = islice(exercises("train", 0, lengths), size.exercises)
    lines = (json.dumps({"source": each.source, "target": each.answer}) for each in drawn)
    pairs.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    runs = {
        f"seed={seed}": {"pairs": pairs, "preset": "tiny", "settings": size.settings(seed)} for seed in context.seeds
    }
    folders = train_runs(context, runs)
    tests = {
        seed: {
            length: list(islice(exercises("test", seed, range(length, length + 1)), size.tests)) for length in lengths
        }
        for seed in context.seeds
    }
    shares = results_of(
        context, _exact, {str(seed): (folders[f"seed={seed}"], list(tests[seed].values())) for seed in context.seeds}
    )
    guessed = [[_guessed(seed, of_length) for of_length in tests[seed].values()] for seed in context.seeds]
    series = [
        Series.of_runs(TRANSFORMER, lengths, list(shares.values())),
        Series.of_runs(BASELINE, lengths, guessed),
    ]
    return [Panel("sentences in the passage", "share of exact answers", series)]


def _exact(folder: Path, tests: list[list[Exercise]]) -> list[float]:
    """The share of questions that a model answers with exactly the right words, in each of the tests."""
    translator = load(folder)
    shares = []
    for test in tests:
        outputs = translator.translate([each.source for each in test], beam=1, align=False, split="line")
        shares.append(sum(output.text == each.answer for output, each in zip(outputs, test, strict=True)) / len(test))
    return shares


def _guessed(seed: int, tests: list[Exercise]) -> float:
    draw = random.Random(seed)  # noqa: S311 - no secrets
    return sum(test.guess(draw) == test.answer for test in tests) / len(tests)


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether nearly all questions on the longest passages are answered, and more than the baseline answers."""
    (panel,) = panels
    model, baseline = panel.named(TRANSFORMER), panel.named(BASELINE)
    longest = model.x[-1]
    finding = (
        f"Exact answers on passages of {longest:.0f} sentences: {model.at(longest):.0%}, against "
        f"{baseline.at(longest):.0%} for the sentence that shares the most words with the question."
    )
    if not is_less(baseline.values_at(longest), model.values_at(longest)):
        return "does not hold here", finding
    return ("holds" if model.at(longest) > 0.9 else "holds in part"), finding
