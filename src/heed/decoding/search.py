"""Beam search over a step function, and the constraints every search applies: prefix, lengths, repeated n-grams.

Enters: a `Start`, the maximum length of each sentence, the settings. Leaves: the best hypotheses of each sentence.
Knows neither text nor Transformers: a model is a function from the newest token of each row and a state to the
log-probabilities of the next token and the next state. The beam is an axis of its own, (B, W, …), folded into rows,
R = B·W, only around that function.

At each step all W·V expansions of a sentence's W live hypotheses are ranked by log-probability. Those among the top W
that end in eos are finished; the top W that do not end stay in the beam. A sentence is done when no live hypothesis can
still score better than the worst of its nbest best finished ones: further steps would change nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from heed.backends.base import S, SearchOps, Start
from heed.backends.protocol import Hypothesis, Prefixes, length_penalty
from heed.backends.torch.search_ops import Continuations
from heed.errors import InputError
from heed.search_config import SearchConfig


def score_dtype(device: torch.device) -> torch.dtype:
    """The dtype of summed log-probabilities: over a hundred tokens the error of float32 can exceed 1e-4."""
    return torch.float32 if device.type == "mps" else torch.float64


class Constrained(NamedTuple):
    """Log-probabilities under the constraints, and which hypotheses only the length limit ends."""

    log_probs: Float[Tensor, "B W V"]
    truncated: Bool[Tensor, "B W"] | None  # none: no sentence has reached its limit


@dataclass(frozen=True)
class Constraints:
    """Which tokens may come next, whatever the model predicts.

    A hypothesis begins with its prefix. After that it may not end before `min_length` tokens, must end at its maximum
    length, so that every hypothesis is finished and its score equals that of forced decoding, and may not repeat an
    n-gram.
    """

    eos_id: int
    min_length: int
    no_repeat_ngram: int | None
    max_lengths: Int[Tensor, "B"]
    prefixes: Int[Tensor, "B P"]  # padded with -1
    shortest_limit: int  # the smallest of max_lengths, on the host: no step has to synchronise with the device
    ops: SearchOps

    @classmethod
    def of(cls, start: Start[S], max_lengths: Sequence[int], config: SearchConfig, prefixes: Prefixes) -> "Constraints":
        """The constraints of all sentences of a search; lengths count tokens without eos."""
        prefixes = [()] * len(start.first) if prefixes is None else prefixes
        for name, values in (("maximum lengths", max_lengths), ("prefixes", prefixes)):
            if len(values) != len(start.first):
                raise InputError(f"found {len(values)} {name} for {len(start.first)} sentences: expected one each")
        for sentence, (prefix, max_length) in enumerate(zip(prefixes, max_lengths, strict=True)):
            if max(config.min_length, len(prefix)) > max_length:
                raise InputError(
                    f"sentence {sentence} is limited to {max_length} tokens, fewer than its prefix ({len(prefix)}) or "
                    f"min_length ({config.min_length})"
                )
            if start.eos_id in prefix or min(prefix, default=0) < 0:
                raise InputError(f"the prefix of sentence {sentence} has eos or a negative id: {list(prefix)}")
        rows = [torch.tensor(prefix, dtype=torch.int64, device="cpu") for prefix in prefixes]
        forced = pad_sequence(rows, batch_first=True, padding_value=-1).to(start.first.device)
        lengths = torch.tensor(max_lengths, device="cpu").to(start.first.device)
        return cls(
            start.eos_id, config.min_length, config.no_repeat_ngram, lengths, forced, min(max_lengths), start.ops
        )

    def select(self, sentences: Int[Tensor, "B"]) -> "Constraints":
        return replace(self, max_lengths=self.max_lengths[sentences], prefixes=self.prefixes[sentences])

    def apply(self, log_probs: Float[Tensor, "B W V"], written: Int[Tensor, "B W T"]) -> "Constrained":
        """The log-probabilities after the written tokens, -inf for forbidden tokens; may modify its input."""
        allowed, length, truncated = log_probs, written.shape[-1], None
        if self.no_repeat_ngram is not None:
            allowed = _forbid_repeated_ngrams(allowed, written, self.no_repeat_ngram)
        if length < self.min_length:
            allowed[..., self.eos_id] = -torch.inf
        if length >= self.shortest_limit:
            others = torch.arange(log_probs.shape[-1], device=written.device) != self.eos_id
            must_end = (self.max_lengths <= length)[:, None]
            most_probable = self.ops.argmax(allowed.flatten(0, 1)).unflatten(0, allowed.shape[:2])
            truncated = must_end & (most_probable != self.eos_id)
            allowed = allowed.masked_fill(must_end[..., None] & others, -torch.inf)
        if length < self.prefixes.shape[1]:
            allowed = self._force_prefix(log_probs, allowed, length)
        return Constrained(allowed, truncated)

    def _force_prefix(
        self, log_probs: Float[Tensor, "B W V"], allowed: Float[Tensor, "B W V"], length: int
    ) -> Float[Tensor, "B W V"]:
        vocabulary = log_probs.shape[-1]
        if length == 0 and (largest := int(self.prefixes.max())) >= vocabulary:
            raise InputError(f"a prefix has id {largest}, outside the vocabulary of {vocabulary} tokens")
        forced = self.prefixes[:, length, None, None]
        others = torch.arange(vocabulary, device=forced.device) != forced
        return torch.where(forced < 0, allowed, log_probs.masked_fill(others, -torch.inf))

    def check(self, sentence: int, log_prob: float) -> None:
        """Refuse a result with log-probability -inf or nan."""
        if not log_prob > -torch.inf:
            raise InputError(
                f"sentence {sentence} has log-probability {log_prob}: no sequence satisfies min_length = "
                f"{self.min_length}, no_repeat_ngram = {self.no_repeat_ngram} and the prefix, or the model returns nan"
            )


def _forbid_repeated_ngrams(
    log_probs: Float[Tensor, "B W V"], written: Int[Tensor, "B W T"], size: int
) -> Float[Tensor, "B W V"]:
    """Forbid each token that would complete an n-gram of `size` tokens that is already written."""
    length, vocabulary = written.shape[-1], log_probs.shape[-1]
    if length < size:
        return log_probs
    ngrams = written.unfold(-1, size, 1)  # (B, W, T - size + 1, size)
    newest = written[..., None, length - size + 1 :]
    matches = (ngrams[..., :-1] == newest).all(-1)
    completing = ngrams[..., -1].where(matches, vocabulary)  # `vocabulary`, an extra column, where there is no match
    forbidden = log_probs.new_zeros((*log_probs.shape[:-1], vocabulary + 1), dtype=torch.bool)
    return log_probs.masked_fill(forbidden.scatter(-1, completing, value=True)[..., :-1], -torch.inf)


@dataclass(frozen=True)
class _Hypotheses:
    """N hypotheses of each sentence, best first; an empty slot has log-probability -inf."""

    log_probs: Float[Tensor, "B N"]
    written: Int[Tensor, "B N T"]  # finished ones are padded with eos
    truncated: Bool[Tensor, "B N"]  # finished by the length limit, not by the model

    def select(self, sentences: Int[Tensor, "B"]) -> "_Hypotheses":
        return _Hypotheses(self.log_probs[sentences], self.written[sentences], self.truncated[sentences])

    def extend(self, expansions: Continuations, truncated: Bool[Tensor, "B W"] | None) -> "_Hypotheses":
        """The hypotheses with one more token each. truncated: which of the old ones the length limit ends."""
        rows = expansions.rows.flatten()
        before = self.written.flatten(0, 1).index_select(0, rows).view_as(self.written)
        was_truncated = self.truncated if truncated is None else truncated.flatten()[rows].view_as(self.truncated)
        return _Hypotheses(expansions.log_probs, torch.cat((before, expansions.tokens[..., None]), -1), was_truncated)


@dataclass(frozen=True)
class _Finished:
    """The best finished hypotheses, by score."""

    scores: Float[Tensor, "B N"]
    best: _Hypotheses

    def add(self, ending: _Hypotheses, eos_id: int, penalty: float) -> "_Finished":
        """Merge the hypotheses that end at this step; ties keep the one that finished first."""
        count = self.scores.shape[1]
        scores = torch.cat((self.scores, ending.log_probs / penalty), 1).sort(dim=-1, descending=True, stable=True)
        kept = scores.indices[:, :count]
        log_probs = torch.cat((self.best.log_probs, ending.log_probs), 1).gather(1, kept)
        longer = ending.written.shape[-1] - self.best.written.shape[-1]
        written = torch.cat((pad(self.best.written, (0, longer), value=eos_id), ending.written), 1)
        truncated = torch.cat((self.best.truncated, ending.truncated), 1).gather(1, kept)
        best = _Hypotheses(log_probs, written.take_along_dim(kept[..., None], 1), truncated)
        return _Finished(scores.values[:, :count], best)

    def select(self, sentences: Int[Tensor, "B"]) -> "_Finished":
        """The finished hypotheses of these sentences."""
        return _Finished(self.scores[sentences], self.best.select(sentences))

    def hypotheses(self, row: int, eos_id: int, alpha: float) -> list[Hypothesis]:
        """The finished hypotheses of one sentence."""
        columns = (tensor[row].tolist() for tensor in (self.best.written, self.best.log_probs, self.best.truncated))
        return [
            Hypothesis.of(ids[: ids.index(eos_id)], value, alpha, truncated=truncated)
            for ids, value, truncated in zip(*columns, strict=True)
            if value != -torch.inf
        ]


def _done(
    live: _Hypotheses, finished: _Finished, last_penalty: Float[Tensor, "B"], config: SearchConfig
) -> Bool[Tensor, "B"]:
    """Which sentences are done; last_penalty: the length penalty of a hypothesis of maximum length.

    A log-probability only decreases, and of the lengths still to come the first or the last has the largest penalty,
    whatever the sign of alpha: no live hypothesis can score better than `bound`.
    """
    best, worst = live.log_probs[:, 0], finished.scores[:, -1]
    if config.stop == "first" or config.beam == 1:
        return (worst > -torch.inf) | ~(best > -torch.inf)
    next_penalty = length_penalty(live.written.shape[-1] + 1, config.length_penalty)
    bound = best / last_penalty.clamp(min=next_penalty)
    return ~(bound > worst)  # not `<=`: a sentence with nan must end too


@torch.no_grad()
def beam_search(
    start: Start[S], max_lengths: Sequence[int], config: SearchConfig, prefixes: Prefixes = None
) -> list[list[Hypothesis]]:
    """The `nbest` best hypotheses of each sentence, best first; fewer only where no more exist.

    A beam of 1 is greedy search: it stops when its only hypothesis ends.
    """
    constraints, width, device = Constraints.of(start, max_lengths, config, prefixes), config.beam, start.first.device
    none = torch.full((len(max_lengths), width), -torch.inf, dtype=score_dtype(device), device=device)
    empty = start.first.new_empty(*none.shape, 0)
    whole = torch.zeros_like(none, dtype=torch.bool)
    live = _Hypotheses(none.index_fill(1, start.first.new_zeros(1), 0.0), empty, whole)  # one, and W - 1 empty slots
    finished = _Finished(
        none[:, : config.nbest], _Hypotheses(*(tensor[:, : config.nbest] for tensor in (none, empty, whole)))
    )
    last_penalty = none.new_tensor([length_penalty(length + 1, config.length_penalty) for length in max_lengths])
    sentences, results = list(range(len(max_lengths))), {}
    state = start.state.select(torch.arange(len(sentences), device=device)[:, None].expand(-1, width))
    ids = start.first[:, None].expand(-1, width)
    while sentences:
        log_probs, state = start.step(ids.flatten(), state)
        allowed, truncated = constraints.apply(log_probs.float().unflatten(0, (-1, width)), live.written)
        expansions, ending = start.ops.beam_step(live.log_probs, allowed.flatten(0, 1), start.eos_id)
        if ending is not None:
            penalty = length_penalty(live.written.shape[-1] + 1, config.length_penalty)
            finished = finished.add(live.extend(ending, truncated), start.eos_id, penalty)
        live = live.extend(expansions, None)
        done = _done(live, finished, last_penalty, config).tolist()
        for row, sentence in enumerate(sentences):
            if done[row]:
                results[sentence] = finished.hypotheses(row, start.eos_id, config.length_penalty)
                constraints.check(sentence, results[sentence][0].log_prob if results[sentence] else -torch.inf)
        unfinished = [row for row in range(len(sentences)) if not done[row]]
        if len(unfinished) < len(sentences):
            sentences = [sentences[row] for row in unfinished]
            rows = torch.tensor(unfinished, dtype=torch.int64, device=device)
            live, finished, constraints = live.select(rows), finished.select(rows), constraints.select(rows)
            last_penalty, state = last_penalty[rows], state.select(expansions.rows[rows], rows)
        else:
            state = state.select(expansions.rows)
        ids = live.written[..., -1]
    return [results[sentence] for sentence in range(len(max_lengths))]
