"""Sentence embeddings: whether the mean of an encoder's hidden states tells what a sentence means (paper, section 2).

The encoder is that of models that translate. Four meanings have the same words, and each is told in two forms:

    The old king sees the dog.    The king who sees the dog is old.
    The king sees the old dog.    The dog that the king sees is old.
    The old dog sees the king.    The dog that sees the king is old.
    The dog sees the old king.    The king that the dog sees is old.

Measured are retrieval and a linear probe. Retrieval: how often, for a sentence of the right column, the most similar
embedding (by cosine) among sentences of the left column is that with the same meaning; there are more candidates in
groups of four with other words, and candidates that are equally similar share the point. Probe: how often a linear
classifier, fitted to some embeddings of both columns, finds which of the four meanings a sentence has; no pair of nouns
of its test occurs in training. Baselines are the counts of words, and the same encoder before training.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from heed.claims.claim import Context
from heed.claims.result import Panel, Scale, Series, Verdict, is_less
from heed.claims.translation import train_variants
from heed.inference.classifier import embed
from heed.inference.open import open_folder
from heed.microworld import words
from heed.microworld.grammar import Adjective, Noun, Verb
from heed.model.transformer import Transformer

Vectors: TypeAlias = NDArray[np.float32]  # (texts, D)
Representation: TypeAlias = Callable[[Sequence[str]], Vectors]

TRAINED, UNTRAINED, COUNTS = "encoder that translates", "untrained encoder", "bag of words"
_VERBS = words.verbs("see hear")
_ADJECTIVES = words.adjectives("old beautiful")  # of people and of animals
_RIDGE = 0.01


@dataclass(frozen=True)
class EmbeddingTestSize:
    """How large the experiment is. A group has the four meanings of the same words."""

    groups: tuple[int, ...]  # of candidates
    retrievals: int  # sets of so many groups
    probed: tuple[int, ...]  # groups in the training of a probe
    tested: int  # groups in its test


SIZES: dict[Scale, EmbeddingTestSize] = {
    "smallest": EmbeddingTestSize(groups=(1, 2), retrievals=2, probed=(5, 10), tested=5),
    "small": EmbeddingTestSize(groups=(1, 4, 16), retrievals=50, probed=(25, 50, 100, 200), tested=100),
    "full": EmbeddingTestSize(groups=(1, 4, 16, 64), retrievals=200, probed=(25, 50, 100, 200), tested=100),
}


@dataclass(frozen=True)
class Meaning:
    """Who does what to whom, and which of the two has the adjective."""

    subject: Noun
    verb: Verb
    object: Noun
    adjective: Adjective
    described: Literal["subject", "object"]

    @property
    def clause(self) -> str:
        """The meaning in one clause."""
        subject, goal, adjective = self.subject.english, self.object.english, f"{self.adjective.english} "
        before_subject, before_object = (adjective, "") if self.described == "subject" else ("", adjective)
        return f"The {before_subject}{subject} {self.verb.english_singular} the {before_object}{goal}."

    @property
    def relative(self) -> str:
        """The meaning with a relative clause."""
        subject, verb, goal = self.subject.english, self.verb.english_singular, self.object.english
        if self.described == "object":
            return f"The {goal} that the {subject} {verb} is {self.adjective.english}."
        who = "who" if self.subject in words.PEOPLE.nouns else "that"
        return f"The {subject} {who} {verb} the {goal} is {self.adjective.english}."


def meanings(draw: random.Random, groups: int) -> list[Meaning]:
    """Groups of four meanings of the same words, in a fixed order; each group has another pair of nouns."""
    pairs = [(person, animal) for person in words.PEOPLE.nouns for animal in words.ANIMALS.nouns]
    result = []
    for person, animal in draw.sample(pairs, k=groups):
        verb, adjective = draw.choice(_VERBS), draw.choice(_ADJECTIVES)
        for subject, goal in ((person, animal), (animal, person)):
            result.append(Meaning(subject, verb, goal, adjective, "subject"))
            result.append(Meaning(subject, verb, goal, adjective, "object"))
    return result


def measure(context: Context) -> list[Panel]:
    """Retrieval by number of candidates, and the probe by number of labelled sentences."""
    size = SIZES[context.scale]
    (variant,) = train_variants(context, {"base": {}}).values()
    retrieved: dict[str, list[list[float]]] = {TRAINED: [], UNTRAINED: [], COUNTS: []}
    probed: dict[str, list[list[float]]] = {TRAINED: [], UNTRAINED: [], COUNTS: []}
    for seed, folder in zip(context.seeds, variant.folders, strict=True):
        for name, represent in _representations(folder, seed).items():
            retrieved[name].append([_retrieval(represent, groups, size.retrievals, seed) for groups in size.groups])
            probed[name].append(_probe(represent, size.probed, size.tested, seed))
    return [
        Panel("candidates", "share of sentences found by their meaning", _series(size.groups, retrieved), log="x"),
        Panel("labelled sentences", "accuracy of a linear probe", _series(size.probed, probed), log="x"),
    ]


def _series(groups: Sequence[int], values: dict[str, list[list[float]]]) -> list[Series]:
    """One curve per representation; values: for each seed those by number of groups."""
    x = [4.0 * count for count in groups]
    return [Series.of_runs(name, x, seeds) for name, seeds in values.items()]


def _representations(folder: Path, seed: int) -> dict[str, Representation]:
    """The functions from texts to vectors that are compared."""
    model_folder, trained = open_folder(folder)
    torch.manual_seed(seed)
    untrained = Transformer(trained.config).to(trained.vocabulary.embedding.weight.device).eval()
    tokenizer = model_folder.tokenizers[0]
    return {
        TRAINED: lambda texts: embed(trained, tokenizer, texts),
        UNTRAINED: lambda texts: embed(untrained, tokenizer, texts),
        COUNTS: word_counts,
    }


def word_counts(texts: Sequence[str]) -> Vectors:
    """How often each word occurs in each text; capitals and full stops do not count."""
    tokenized = [text.lower().rstrip(".").split() for text in texts]
    vocabulary = sorted({word for tokens in tokenized for word in tokens})
    return np.array([[tokens.count(word) for word in vocabulary] for tokens in tokenized], np.float32)


def _retrieval(represent: Representation, groups: int, repeats: int, seed: int) -> float:
    """The mean share of sentences for which the most similar candidate has the same meaning."""
    draw, shares = random.Random(seed), []  # noqa: S311 - no secrets
    for _ in range(repeats):
        drawn = meanings(draw, groups)
        vectors = represent([each.relative for each in drawn] + [each.clause for each in drawn])
        shares.append(share_found(vectors[: len(drawn)], vectors[len(drawn) :]))
    return float(np.mean(shares))


def share_found(queries: Vectors, candidates: Vectors) -> float:
    """The share of queries whose most similar candidate is that of the same row; equally similar ones share it."""
    queries, candidates = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (queries, candidates))
    similarities = queries @ candidates.T
    nearest = similarities > similarities.max(1, keepdims=True) - 1e-5
    return float((np.diag(nearest) / nearest.sum(1)).mean())


def _probe(represent: Representation, groups: Sequence[int], tested: int, seed: int) -> list[float]:
    """The accuracy of linear classifiers fitted to the sentences of so many groups."""
    draw = random.Random(seed)  # noqa: S311 - no secrets
    drawn = meanings(draw, max(groups) + tested)
    vectors = represent([draw.choice((each.relative, each.clause)) for each in drawn])
    labels, test = np.arange(len(drawn)) % 4, slice(4 * max(groups), None)
    return [linear_accuracy(vectors[: 4 * count], labels[: 4 * count], vectors[test], labels[test]) for count in groups]


def linear_accuracy(
    train: Vectors, train_labels: NDArray[np.int_], test: Vectors, test_labels: NDArray[np.int_]
) -> float:
    """The accuracy on the test of ridge regression to one-hot labels, of standardised vectors."""
    mean, scale = train.mean(0), train.std(0) + 1e-6
    x, x_test = (np.insert((vectors - mean) / scale, 0, 1.0, axis=1) for vectors in (train, test))
    penalty = _RIDGE * len(x) * np.eye(x.shape[1])
    weights = np.linalg.solve(x.T @ x + penalty, x.T @ np.eye(train_labels.max() + 1)[train_labels])
    return float(((x_test @ weights).argmax(1) == test_labels).mean())


def judge(panels: list[Panel]) -> tuple[Verdict, str]:
    """Whether the trained encoder's embeddings are better than both baselines, in retrieval and in the probe."""
    described, better = [], []
    for panel in panels:
        most = panel.series[0].x[-1]
        trained, *baselines = (panel.named(name) for name in (TRAINED, UNTRAINED, COUNTS))
        described.append([f"{most:.0f}", *(f"{series.at(most):.0%}" for series in (trained, *baselines))])
        better.append(all(is_less(series.values_at(most), trained.values_at(most)) for series in baselines))
    finding = (
        "Among {} candidates the most similar embedding has the same meaning in {} of the cases, with an untrained "
        "encoder in {}, with word counts in {}. ".format(*described[0])
        + "A linear classifier fitted to {} embeddings finds the meaning in {}, with an untrained encoder in {}, with "
        "word counts in {}.".format(*described[1])
    )
    return ("holds" if all(better) else "holds in part" if any(better) else "does not hold here"), finding
