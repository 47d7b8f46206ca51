"""What every way of trying a model shares: passes over held-out text, shared out among the processes of a team.

The processes share the work, unless they share the weights: then all must take part in every pass.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from heed.config import RunConfig
from heed.model.attention import fused_attention
from heed.model.transformer import Transformer
from heed.text.prepared import Prepared
from heed.training.batches import Batch, in_order
from heed.training.distributed import Team
from heed.training.task import HeldOut, Task, Validation


def team_for(config: RunConfig, team: Team) -> Team:
    """Those who share the work."""
    return Team() if config.training.shard else team


def summed(
    measure: Callable[[Batch], Sequence[float]],
    count: int,
    task: Task,
    config: RunConfig,
    pairs: Prepared,
    team: Team,
) -> list[float]:
    """The sums, over all batches of held-out text, of the `count` numbers that are measured of each."""
    sums, device = [0.0] * count, team.device()
    for number, batch in enumerate(in_order(pairs, config.training.tokens_per_batch, task.collate, task.sizes)):
        if number % team.size == team.rank:
            sums = [before + one for before, one in zip(sums, measure(batch.to(device)), strict=True)]
    return list(team.add_up(*sums))


def mean_loss(model: Transformer, task: Task, config: RunConfig, pairs: Prepared, team: Team) -> float:
    """The loss a token, without label smoothing or R-Drop."""

    def measure(batch: Batch) -> tuple[float, float]:
        return exact_loss(model, task, config, batch), batch.tokens

    total, tokens = summed(measure, 2, task, config, pairs, team)
    return total / tokens


def exact_loss(model: Transformer, task: Task, config: RunConfig, batch: Batch) -> float:
    """The loss of a batch, summed, without label smoothing or R-Drop."""
    plain = config.training.model_copy(update={"label_smoothing": 0.0, "r_drop": 0.0})
    return task.loss(model, batch, config.model_copy(update={"training": plain}), fused_attention).item()


class AnswerValidator:
    """Tries a model on text whose every question has one right answer: loss, and how many are right.

    said: a model's answers, to be compared with `tgt_out`; what is padding there is no question.
    """

    def __init__(
        self,
        task: Task,
        said: Callable[[Transformer, Batch], Int[Tensor, "any"]],
        config: RunConfig,
        held_out: HeldOut,
        team: Team,
    ) -> None:
        self._task, self._said, self._config, self._held_out = task, said, config, held_out
        self._team = team_for(config, team)

    @torch.no_grad()
    def __call__(self, model: Transformer, _step: int) -> Validation:
        """Loss a question, and the share of right answers in percent."""
        model.eval()

        def measure(batch: Batch) -> tuple[float, ...]:
            right = int((self._said(model, batch) == batch.tgt_out).sum())
            return exact_loss(model, self._task, self._config, batch), right, batch.tokens

        loss, right, asked = summed(measure, 3, self._task, self._config, self._held_out.pairs, self._team)
        return Validation(loss / asked, 100 * right / asked, None, self._task.metric)


def in_shares(given: Sequence[str], work: Callable[[list[str]], list[Any]], team: Team) -> list[Any]:
    """What becomes of each text, as JSON has it, in the same order; every process of the team works on some."""
    written = team.gather(json.dumps(work(list(given[team.rank :: team.size]))).encode())
    found: list[Any] = [None] * len(given)
    for rank, texts in enumerate(written):
        found[rank :: team.size] = json.loads(texts)
    return found


def number_of_sample(step: int, samples: Sequence[object]) -> int:
    """Which sample to show: another at every step, and always the same at the same step."""
    return zlib.crc32(str(step).encode()) % len(samples)
