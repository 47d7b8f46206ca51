"""Models that are tables: every sentence and prefix has its own random next-token log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from heed.backends.base import Start

EOS = 1
FIRST = 77  # the start token: outside every vocabulary


@dataclass(frozen=True)
class Prefixes:
    """The state of a search in tables: the prefix of each row, W rows per sentence."""

    rows: tuple[tuple[int, tuple[int, ...]], ...]  # sentence, tokens
    width: int = 1

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "Prefixes":
        order = [sentence for sentence, _ in self.rows[:: self.width]]
        remaining = order if sentences is None else [order[index] for index in sentences.tolist()]
        chosen = tuple(self.rows[row] for row in rows.flatten().tolist())
        assert [sentence for sentence, _ in chosen] == [
            sentence for sentence in remaining for _ in range(rows.shape[1])
        ]
        return Prefixes(chosen, rows.shape[1])


class Tables:
    """log_probs(sentence, tokens) is a fixed random row. With `steps` it has few distinct values: many scores tie."""

    def __init__(self, seed: int, vocabulary: int, *, steps: bool = False, eos_bonus: float = 0.0) -> None:
        self.seed, self.vocabulary, self.steps, self.eos_bonus = seed, vocabulary, steps, eos_bonus
        self.rows_seen: list[int] = []  # rows of each call of `step`
        self._known: dict[tuple[int, tuple[int, ...]], list[float]] = {}

    def log_probs(self, sentence: int, tokens: tuple[int, ...]) -> list[float]:
        key = (sentence, tokens)
        if key not in self._known:
            random = Random(f"{self.seed} {key}")
            if self.steps:
                row = torch.tensor([random.choice((-0.5, -1.0, -1.5)) for _ in range(self.vocabulary)])
            else:
                row = torch.tensor([random.gauss(0, 2) for _ in range(self.vocabulary)])
                row[EOS] += self.eos_bonus
                row = row.log_softmax(-1)
            self._known[key] = row.tolist()
        return self._known[key]

    def step(self, ids: Tensor, state: Prefixes) -> tuple[Tensor, Prefixes]:
        self.rows_seen.append(len(ids))
        rows = tuple(
            (sentence, () if token == FIRST else (*tokens, token))
            for (sentence, tokens), token in zip(state.rows, ids.tolist(), strict=True)
        )
        log_probs = torch.tensor([self.log_probs(*row) for row in rows], device=ids.device)
        return log_probs, Prefixes(rows, state.width)

    def start(self, sentences: Sequence[int], device: torch.device | None = None) -> Start[Prefixes]:
        first = torch.full((len(sentences),), FIRST, device=device)
        return Start(self.step, Prefixes(tuple((number, ()) for number in sentences)), first, EOS)


class EqualTokens(Tables):
    """All tokens of a sentence have the same log-probability."""

    def __init__(self, values: Sequence[float], vocabulary: int) -> None:
        super().__init__(0, vocabulary)
        self.values = values  # one per sentence

    def log_probs(self, sentence: int, tokens: tuple[int, ...]) -> list[float]:  # noqa: ARG002
        return [self.values[sentence]] * self.vocabulary
