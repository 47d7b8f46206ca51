"""Models that are tables: each sentence and everything that can be said of it has its own random log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from heed.backends.base import Start

EOS = 1
FIRST = 77  # what a sentence begins with: no word of any table


@dataclass(frozen=True)
class Said:
    """The state of a table: what each row has said, W rows a sentence."""

    rows: tuple[tuple[int, tuple[int, ...]], ...]  # number of the sentence, words
    width: int = 1

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> "Said":
        order = [number for number, _ in self.rows[:: self.width]]
        staying = order if sentences is None else [order[at] for at in sentences.tolist()]
        chosen = tuple(self.rows[row] for row in rows.flatten().tolist())
        assert [number for number, _ in chosen] == [number for number in staying for _ in range(rows.shape[1])]
        return Said(chosen, rows.shape[1])


class Tables:
    """log_probs(sentence, words) is a fixed random row. With `steps` its values are few, and many sums are equal."""

    def __init__(self, seed: int, vocabulary: int, *, steps: bool = False, eos_bonus: float = 0.0) -> None:
        self.seed, self.vocabulary, self.steps, self.eos_bonus = seed, vocabulary, steps, eos_bonus
        self.rows_seen: list[int] = []  # one a call of `step`
        self._known: dict[tuple[int, tuple[int, ...]], list[float]] = {}

    def log_probs(self, sentence: int, words: tuple[int, ...]) -> list[float]:
        key = (sentence, words)
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

    def step(self, ids: Tensor, state: Said) -> tuple[Tensor, Said]:
        self.rows_seen.append(len(ids))
        rows = tuple(
            (number, () if word == FIRST else (*words, word))
            for (number, words), word in zip(state.rows, ids.tolist(), strict=True)
        )
        log_probs = torch.tensor([self.log_probs(*row) for row in rows], device=ids.device)
        return log_probs, Said(rows, state.width)

    def start(self, sentences: Sequence[int], device: torch.device | None = None) -> Start[Said]:
        first = torch.full((len(sentences),), FIRST, device=device)
        return Start(self.step, Said(tuple((number, ()) for number in sentences)), first, EOS)


class Level(Tables):
    """All words of a sentence are alike."""

    def __init__(self, values: Sequence[float], vocabulary: int) -> None:
        super().__init__(0, vocabulary)
        self.values = values  # one a sentence

    def log_probs(self, sentence: int, words: tuple[int, ...]) -> list[float]:  # noqa: ARG002
        return [self.values[sentence]] * self.vocabulary
