"""Beam search over a step function, and what every search shares: where it starts, its rules, its hypotheses.

Enters: a `Start`, the greatest length of each sentence, the settings. Leaves: the best hypotheses of each sentence.
Knows neither text nor Transformers: a model is a function from the newest token of each row and a state to the
log-probabilities of the next token and another state. The beam is an axis of its own, (B, W, …), folded into rows,
R = B·W, only around that function.

At each step all W·V continuations of a sentence's W live hypotheses are ranked by log-probability. Those among the best
W that end are set aside, and the W best that do not end live on. A sentence is over when no live hypothesis can any
more score better than the worst of the nbest best that have ended: going on would change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from heed.backends.base import Hypothesis, Prefixes, S, SearchOps, Start, length_penalty
from heed.backends.torch.search_ops import Continuations
from heed.config import SearchConfig
from heed.errors import InputError


def precise(device: torch.device) -> torch.dtype:
    """The type of sums of log-probabilities: in float32 a hundred of them may miss by more than 1e-4."""
    return torch.float32 if device.type == "mps" else torch.float64


class Allowed(NamedTuple):
    """What each hypothesis may be continued with, and which the length limit ends although the model would go on."""

    log_probs: Float[Tensor, "B W V"]
    truncated: Bool[Tensor, "B W"] | None  # none: no sentence has come to its limit


@dataclass(frozen=True)
class Rules:
    """What a hypothesis may say next, whatever its model would like.

    A sentence says its prefix first. Then it may not end before `min_length` tokens, must end after its greatest
    length, so that every hypothesis has ended and its score is one a forced pass would give, and may not repeat itself.
    """

    eos_id: int
    min_length: int
    no_repeat_ngram: int | None
    max_lengths: Int[Tensor, "B"]
    prefixes: Int[Tensor, "B P"]  # -1 after the end of each
    earliest_end: int  # the least of the greatest lengths: known here, so that no step must ask the device
    ops: SearchOps

    @classmethod
    def of(cls, start: Start[S], max_lengths: Sequence[int], config: SearchConfig, prefixes: Prefixes) -> "Rules":
        """The rules for all sentences of a search; lengths count tokens without the eos."""
        prefixes = [()] * len(start.first) if prefixes is None else prefixes
        for name, given in (("greatest lengths", max_lengths), ("prefixes", prefixes)):
            if len(given) != len(start.first):
                raise InputError(f"{len(given)} {name} are given for {len(start.first)} sentences")
        for number, (prefix, longest) in enumerate(zip(prefixes, max_lengths, strict=True)):
            if max(config.min_length, len(prefix)) > longest:
                raise InputError(
                    f"sentence {number} may have at most {longest} tokens, fewer than its prefix ({len(prefix)}) or "
                    f"min_length ({config.min_length})"
                )
            if start.eos_id in prefix or min(prefix, default=0) < 0:
                raise InputError(f"the prefix of sentence {number} holds an id that is no word: {list(prefix)}")
        rows = [torch.tensor(prefix, dtype=torch.int64, device="cpu") for prefix in prefixes]
        forced = pad_sequence(rows, batch_first=True, padding_value=-1).to(start.first.device)
        lengths = torch.tensor(max_lengths, device="cpu").to(start.first.device)
        return cls(
            start.eos_id, config.min_length, config.no_repeat_ngram, lengths, forced, min(max_lengths), start.ops
        )

    def select(self, sentences: Int[Tensor, "B"]) -> "Rules":
        """The rules for the sentences that are left."""
        return replace(self, max_lengths=self.max_lengths[sentences], prefixes=self.prefixes[sentences])

    def allow(self, log_probs: Float[Tensor, "B W V"], written: Int[Tensor, "B W T"]) -> "Allowed":
        """The log-probabilities after what is written, -inf where the rules forbid it; those given may be changed."""
        allowed, length, truncated = log_probs, written.shape[-1], None
        if self.no_repeat_ngram is not None:
            allowed = _without_repeats(allowed, written, self.no_repeat_ngram)
        if length < self.min_length:
            allowed[..., self.eos_id] = -torch.inf
        if length >= self.earliest_end:
            others = torch.arange(log_probs.shape[-1], device=written.device) != self.eos_id
            must_end = (self.max_lengths <= length)[:, None]
            most_probable = self.ops.argmax(allowed.flatten(0, 1)).unflatten(0, allowed.shape[:2])
            truncated = must_end & (most_probable != self.eos_id)
            allowed = allowed.masked_fill(must_end[..., None] & others, -torch.inf)
        if length < self.prefixes.shape[1]:
            allowed = self._say_prefix(log_probs, allowed, length)
        return Allowed(allowed, truncated)

    def _say_prefix(
        self, log_probs: Float[Tensor, "B W V"], allowed: Float[Tensor, "B W V"], length: int
    ) -> Float[Tensor, "B W V"]:
        vocabulary = log_probs.shape[-1]
        if length == 0 and (largest := int(self.prefixes.max())) >= vocabulary:
            raise InputError(f"a prefix holds id {largest}, outside a vocabulary of {vocabulary} tokens")
        forced = self.prefixes[:, length, None, None]
        others = torch.arange(vocabulary, device=forced.device) != forced
        return torch.where(forced < 0, allowed, log_probs.masked_fill(others, -torch.inf))

    def check(self, number: int, log_prob: float) -> None:
        """A sentence of which nothing came is the caller's mistake, or the model's."""
        if not log_prob > -torch.inf:
            raise InputError(
                f"sentence {number} ends with log-probability {log_prob}: no sequence keeps min_length = "
                f"{self.min_length}, no_repeat_ngram = {self.no_repeat_ngram} and the prefix, or the model gives nan"
            )


def _without_repeats(
    log_probs: Float[Tensor, "B W V"], written: Int[Tensor, "B W T"], size: int
) -> Float[Tensor, "B W V"]:
    """Forbids each token that would complete a run of `size` tokens which is written already."""
    length, vocabulary = written.shape[-1], log_probs.shape[-1]
    if length < size:
        return log_probs
    runs = written.unfold(-1, size, 1)  # (B, W, T - size + 1, size)
    newest = written[..., None, length - size + 1 :]
    again = (runs[..., :-1] == newest).all(-1)
    completing = runs[..., -1].where(again, vocabulary)  # one place more than there are words, for those that do not
    forbidden = log_probs.new_zeros((*log_probs.shape[:-1], vocabulary + 1), dtype=torch.bool)
    return log_probs.masked_fill(forbidden.scatter(-1, completing, value=True)[..., :-1], -torch.inf)


@dataclass(frozen=True)
class _Group:
    """N hypotheses of each sentence, best first; where there is none, the log-probability is -inf."""

    log_probs: Float[Tensor, "B N"]
    written: Int[Tensor, "B N T"]  # of those that have ended, padded with eos
    truncated: Bool[Tensor, "B N"]  # of those that have ended: by the length limit, and not by the model

    def select(self, sentences: Int[Tensor, "B"]) -> "_Group":
        """The sentences that are left."""
        return _Group(self.log_probs[sentences], self.written[sentences], self.truncated[sentences])

    def go_on(self, found: Continuations, truncated: Bool[Tensor, "B W"] | None) -> "_Group":
        """Those that continue these, with one token more. truncated: which of these the limit ends."""
        rows = found.rows.flatten()
        before = self.written.flatten(0, 1).index_select(0, rows).view_as(self.written)
        cut_off = self.truncated if truncated is None else truncated.flatten()[rows].view_as(self.truncated)
        return _Group(found.log_probs, torch.cat((before, found.tokens[..., None]), -1), cut_off)


@dataclass(frozen=True)
class _Ended:
    """The best that have ended, by score."""

    scores: Float[Tensor, "B N"]
    best: _Group

    def add(self, ending: _Group, eos_id: int, penalty: float) -> "_Ended":
        """With those that end now; of equals, who ended first comes first."""
        count = self.scores.shape[1]
        scores = torch.cat((self.scores, ending.log_probs / penalty), 1).sort(dim=-1, descending=True, stable=True)
        places = scores.indices[:, :count]
        log_probs = torch.cat((self.best.log_probs, ending.log_probs), 1).gather(1, places)
        longer = ending.written.shape[-1] - self.best.written.shape[-1]
        written = torch.cat((pad(self.best.written, (0, longer), value=eos_id), ending.written), 1)
        truncated = torch.cat((self.best.truncated, ending.truncated), 1).gather(1, places)
        best = _Group(log_probs, written.take_along_dim(places[..., None], 1), truncated)
        return _Ended(scores.values[:, :count], best)

    def select(self, sentences: Int[Tensor, "B"]) -> "_Ended":
        """The sentences that are left."""
        return _Ended(self.scores[sentences], self.best.select(sentences))

    def hypotheses(self, row: int, eos_id: int, alpha: float) -> list[Hypothesis]:
        """Those of one sentence."""
        each = (tensor[row].tolist() for tensor in (self.best.written, self.best.log_probs, self.best.truncated))
        return [
            Hypothesis.of(ids[: ids.index(eos_id)], value, alpha, truncated=truncated)
            for ids, value, truncated in zip(*each, strict=True)
            if value != -torch.inf
        ]


def _over(live: _Group, ended: _Ended, last_penalty: Float[Tensor, "B"], config: SearchConfig) -> Bool[Tensor, "B"]:
    """Which sentences are done; `last_penalty` is that of a hypothesis as long as may be.

    A log-probability only falls, and of the lengths that can still be reached the first or the last has the greatest
    penalty, whatever the sign of alpha: no live hypothesis will score better than `bound`.
    """
    best, worst = live.log_probs[:, 0], ended.scores[:, -1]
    if config.stop == "first" or config.beam == 1:
        return (worst > -torch.inf) | ~(best > -torch.inf)
    next_penalty = length_penalty(live.written.shape[-1] + 1, config.length_penalty)
    bound = best / last_penalty.clamp(min=next_penalty)
    return ~(bound > worst)  # and not `<=`: what is not a number must end too


@torch.no_grad()
def beam_search(
    start: Start[S], max_lengths: Sequence[int], config: SearchConfig, prefixes: Prefixes = None
) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of each sentence, best first; fewer only where no more exist.

    A beam of one is greedy search: it ends where its only hypothesis ends.
    """
    rules, width, device = Rules.of(start, max_lengths, config, prefixes), config.beam, start.first.device
    none = torch.full((len(max_lengths), width), -torch.inf, dtype=precise(device), device=device)
    empty = start.first.new_empty(*none.shape, 0)
    whole = torch.zeros_like(none, dtype=torch.bool)
    live = _Group(
        none.index_fill(1, start.first.new_zeros(1), 0.0), empty, whole
    )  # one hypothesis, and places for more
    ended = _Ended(none[:, : config.nbest], _Group(*(each[:, : config.nbest] for each in (none, empty, whole))))
    last_penalty = none.new_tensor([length_penalty(longest + 1, config.length_penalty) for longest in max_lengths])
    going, found = list(range(len(max_lengths))), {}
    state = start.state.select(torch.arange(len(going), device=device)[:, None].expand(-1, width))
    ids = start.first[:, None].expand(-1, width)
    while going:
        log_probs, state = start.step(ids.flatten(), state)
        allowed, truncated = rules.allow(log_probs.float().unflatten(0, (-1, width)), live.written)
        going_on, ending = start.ops.beam_step(live.log_probs, allowed.flatten(0, 1), start.eos_id)
        if ending is not None:
            penalty = length_penalty(live.written.shape[-1] + 1, config.length_penalty)
            ended = ended.add(live.go_on(ending, truncated), start.eos_id, penalty)
        live = live.go_on(going_on, None)
        over = _over(live, ended, last_penalty, config).tolist()
        for row, number in enumerate(going):
            if over[row]:
                found[number] = ended.hypotheses(row, start.eos_id, config.length_penalty)
                rules.check(number, found[number][0].log_prob if found[number] else -torch.inf)
        stay = [row for row in range(len(going)) if not over[row]]
        if len(stay) < len(going):
            going, left = [going[row] for row in stay], torch.tensor(stay, dtype=torch.int64, device=device)
            live, ended, rules = live.select(left), ended.select(left), rules.select(left)
            last_penalty, state = last_penalty[left], state.select(going_on.rows[left], left)
        else:
            state = state.select(going_on.rows)
        ids = live.written[..., -1]
    return [found[number] for number in range(len(max_lengths))]
