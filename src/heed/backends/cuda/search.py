"""Searches over memory that stays where it is: sentences take slots, and leave them to others that wait.

Enters: a decoder that steps in slots, sources, settings. Leaves: what `beam_search` would find. A step is asked for
before it is known how the last one went, so that a GPU never waits for the host: what is over is seen one step late.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from heed.backends.base import Hypothesis, SearchMonitor, length_penalty
from heed.backends.cuda.slots import Slots
from heed.config import ModelConfig, SearchConfig
from heed.model.embeddings import check_ids
from heed.model.layout import Packed

_TOKENS = 32_768  # of sources that are encoded together
_NOBODY = -1
_SHARE = 8  # new sentences come in when one slot of so many is free


@runtime_checkable
class SlotDecoder(Protocol):
    """What makes a source ready for slots; `StaticDecoder` does."""

    device: torch.device

    @property
    def config(self) -> ModelConfig:
        """The model's settings."""

    def encode(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        """Sources as the encoder sees them."""

    def remember(self, memory: Float[Tensor, "B S D"]) -> Float[Tensor, "L 2 B S H K"]:
        """Its keys and values."""


@dataclass(frozen=True)
class Room:
    """Slots, and what takes every search in them a step further."""

    slots: Slots
    step: Callable[[], None]


@torch.no_grad()
def static_search(
    decoder: SlotDecoder,
    room: Room,
    sources: Sequence[Sequence[int]],
    longest: Sequence[int],
    config: SearchConfig,
    monitor: SearchMonitor | None = None,
) -> list[list[Hypothesis]]:
    """The nbest best hypotheses of each source, best first; none where no sequence keeps the settings.

    longest: how many tokens each may have. The sources take their turns in the order given, by which `monitor` knows
    them; one that nobody waits for has an empty hypothesis.
    """
    search = _Search(decoder, room, sources, longest, config)
    while search.make_room():
        if monitor is not None:
            monitor.before_step()
            search.leave(monitor)
        search.step()
    nothing = [Hypothesis.of((), 0.0, config.length_penalty)]
    return [nothing if number in search.gone else search.found[number] for number in range(len(sources))]


class _Search:
    """One search for many sources."""

    def __init__(
        self,
        decoder: SlotDecoder,
        room: Room,
        sources: Sequence[Sequence[int]],
        longest: Sequence[int],
        config: SearchConfig,
    ) -> None:
        self._decoder, self._room, self._slots = decoder, room, room.slots
        self._encoded, self._longest, self._config = _Encoded.of(decoder, sources), longest, config
        self._waiting, count = deque(range(len(sources))), room.slots.shape.slots
        self._owners = np.full(count, _NOBODY)  # the sentence in each slot
        self._over = np.ones(count, dtype=bool)  # whether its search has been seen to be over
        self._due = np.zeros(count, dtype=int)  # the step after which it is over at the latest
        self._steps, self._looks = 0, deque[_Look]()
        pinned = self._slots.over.is_cuda
        self._flags = [torch.empty(count, dtype=torch.int32, device="cpu", pin_memory=pinned) for _ in range(2)]
        self.found: dict[int, list[Hypothesis]] = {}
        self.gone: set[int] = set()  # those that nobody waits for
        _set_rules(self._slots, config)

    def make_room(self) -> bool:
        """Give slots that are free to sentences that wait, if there are enough; False: nothing is left to do."""
        free = self._over | (self._due <= self._steps)  # seen to be over, or its last step has been asked for
        if free.all() or (self._waiting and free.sum() * _SHARE >= len(free)):
            self._collect(np.flatnonzero(free & (self._owners != _NOBODY)))
            self._owners[free] = _NOBODY
            self._begin(np.flatnonzero(free)[: len(self._waiting)])
        return bool((self._owners != _NOBODY).any())

    def leave(self, monitor: SearchMonitor) -> None:
        """The searches that nobody waits for are over; no rule keeps them here, whatever `cancel_after` says."""
        going = np.flatnonzero(~self._over & (self._owners != _NOBODY)).tolist()
        leaving = [slot for slot in going if monitor.is_cancelled(int(self._owners[slot]))]
        if leaving:
            self._slots.over.index_fill_(0, torch.tensor(leaving, device=self._slots.over.device), 1)
            self._over[leaving] = True
            self.gone |= set(self._owners[leaving].tolist())

    def step(self) -> None:
        """Ask for a step, then see how the one before it went."""
        self._room.step()
        self._looks.append(_Look(self._slots.over, self._owners, self._flags[self._steps % 2]))
        self._steps += 1
        if len(self._looks) > 1:
            owners, over = self._looks.popleft().seen()
            self._over |= over & (owners == self._owners)

    def _begin(self, chosen: NDArray[np.int_]) -> None:
        if not len(chosen):
            return
        numbers = [self._waiting.popleft() for _ in chosen]
        greatest = [self._longest[number] for number in numbers]
        self._owners[chosen], self._over[chosen] = numbers, False
        self._due[chosen] = self._steps + 1 + np.array(greatest)
        rows, lengths = self._encoded.rows(numbers)
        which, *limits = torch.tensor([chosen.tolist(), lengths, greatest], device="cpu").to(rows.device)
        memory = self._decoder.remember(rows)
        self._slots.begin(which, memory, torch.stack(limits).int(), self._decoder.config.bos_id, self._config.nbest)

    def _collect(self, chosen: NDArray[np.int_]) -> None:
        if len(chosen):
            found = _read(self._slots, chosen.tolist(), self._config)
            self.found.update(zip(self._owners[chosen].tolist(), found, strict=True))


@dataclass(frozen=True)
class _Encoded:
    """Sources, encoded, one after the other."""

    tokens: Float[Tensor, "N D"]
    first: list[int]  # where each begins
    lengths: list[int]

    @classmethod
    def of(cls, decoder: SlotDecoder, sources: Sequence[Sequence[int]]) -> "_Encoded":
        """Many at a time."""
        config, lengths, found = decoder.config, [len(ids) + 1 for ids in sources], []
        words = chain.from_iterable((*ids, config.eos_id) for ids in sources)
        flat, size = np.fromiter(words, np.int64, sum(lengths)), config.source_vocab_size or config.vocab_size
        if flat.min() < 0 or flat.max() >= size:
            check_ids("src", torch.from_numpy(flat), size, ("tokens",))  # says what is wrong
        for some in _batches(lengths):
            src, flat = np.split(flat, [sum(some)])
            found.append(decoder.encode(*_packed(src, some, decoder.device)))
        return cls(torch.cat(found), list(accumulate(lengths, initial=0)), lengths)

    def rows(self, numbers: Sequence[int]) -> tuple[Float[Tensor, "B S D"], list[int]]:
        """Some of them as rows, and their lengths; what follows the end of one means nothing."""
        lengths = [self.lengths[number] for number in numbers]
        first = torch.tensor([self.first[number] for number in numbers], device="cpu").to(self.tokens.device)
        place = first[:, None] + torch.arange(max(lengths), device=first.device)
        return self.tokens[place.clamp(max=len(self.tokens) - 1)], lengths


def _packed(src: NDArray[np.int64], lengths: Sequence[int], device: torch.device) -> tuple[Int[Tensor, "N"], Packed]:
    """Tokens and their layout in one transfer; by numpy, since torch would wake all threads for a little of each."""
    offsets = np.cumsum([0, *lengths])
    owners = np.repeat(np.arange(len(lengths)), lengths)
    parts = (src, np.arange(len(src)) - offsets[owners], owners, offsets)
    there = torch.from_numpy(np.concatenate(parts)).to(device).split([len(part) for part in parts])
    return there[0], Packed(there[1], there[2], there[3], max(lengths))


def _batches(lengths: Sequence[int]) -> Iterator[Sequence[int]]:
    start, tokens = 0, 0
    for end, length in enumerate(lengths):
        if end > start and tokens + length > _TOKENS:
            yield lengths[start:end]
            start, tokens = end, 0
        tokens += length
    yield lengths[start:]


class _Look:
    """Which slots were over after a step, and whose they were: asked for now, seen later."""

    def __init__(self, over: Int[Tensor, "B"], owners: NDArray[np.int_], flags: Int[Tensor, "B"]) -> None:
        self._owners, self._flags = owners.copy(), flags.copy_(over, non_blocking=True)
        self._known = torch.cuda.Event() if over.is_cuda else None
        if self._known is not None:
            self._known.record()

    def seen(self) -> tuple[NDArray[np.int_], NDArray[np.bool_]]:
        """Owners, and whether they were over."""
        if self._known is not None:
            self._known.synchronize()
        return self._owners, self._flags.numpy() != 0


def _set_rules(slots: Slots, config: SearchConfig) -> None:
    penalties = [length_penalty(length, config.length_penalty) for length in range(len(slots.penalties))]
    slots.penalties.copy_(torch.tensor(penalties, dtype=torch.float64, device="cpu"))
    slots.rules.copy_(torch.tensor([config.min_length, config.stop == "first" or config.beam == 1], device="cpu"))


def _read(slots: Slots, chosen: Sequence[int], config: SearchConfig) -> Iterator[list[Hypothesis]]:
    """What has been found in some slots: of each hypothesis that has ended, its words, from the last to the first."""
    which = torch.tensor(chosen, device="cpu").to(slots.over.device)
    _, scores, log_probs = slots.sums[:, which].cpu().numpy()
    order, lasts, truncated = slots.ended[:, which].cpu().numpy()
    tokens, parents = slots.written[:, which].cpu().numpy()
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    best = np.lexsort((order, -scores))[:, : config.nbest]  # of equals, who ended first comes first
    scores, log_probs, order, hypothesis, truncated = (
        np.take_along_axis(each, best, 1) for each in (scores, log_probs, order, lasts, truncated != 0)
    )
    lengths, sentence = np.where(np.isfinite(scores), order // slots.shape.width, 0), np.arange(len(chosen))[:, None]
    written = np.empty((*lengths.shape, lengths.max()), dtype=np.int64)
    for time in reversed(range(written.shape[-1])):
        written[..., time] = tokens[sentence, time, hypothesis]
        if slots.shape.width > 1:
            hypothesis = np.where(time < lengths, parents[sentence, time, hypothesis], hypothesis)
    penalties = np.array([length_penalty(length + 1, config.length_penalty) for length in range(written.shape[-1] + 1)])
    rows = (written, lengths, log_probs, log_probs / penalties[lengths], truncated, scores > -np.inf)
    for of_sentence in zip(*(row.tolist() for row in rows), strict=True):
        yield [
            Hypothesis(tuple(ids[:length]), log_prob, score, cut_off)
            for ids, length, log_prob, score, cut_off, has_ended in zip(*of_sentence, strict=True)
            if has_ended
        ]
