"""Searches over memory that stays where it is: sentences take slots, and leave them to others that wait.

Enters: a decoder that steps in slots, sources, settings. Leaves: what `beam_search` would find. A step is asked for
before it is known how the last one went, so that a GPU never waits for the host: what is over is seen one step late.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.config import ModelConfig, SearchConfig
from heed.decoding.search import Hypothesis, length_penalty
from heed.kernels.slots import Slots

_TOKENS = 32_768  # of sources, padding included, that are encoded together
_SHARE = 8  # new sentences come in when one slot of so many is free


@runtime_checkable
class SlotDecoder(Protocol):
    """What makes a source ready for slots; `StaticDecoder` does."""

    device: torch.device

    @property
    def config(self) -> ModelConfig:
        """The model's settings."""

    def encode(self, src: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """The source as the encoder sees it."""

    def remember(self, memory: Float[Tensor, "B S D"]) -> Float[Tensor, "L 2 B S H K"]:
        """Its keys and values."""


@dataclass(frozen=True)
class Room:
    """Slots, and what takes every search in them a step further."""

    slots: Slots
    step: Callable[[], None]


@torch.no_grad()
def static_search(
    decoder: SlotDecoder, room: Room, sources: Sequence[Sequence[int]], longest: Sequence[int], config: SearchConfig
) -> list[list[Hypothesis]]:
    """The nbest best hypotheses of each source, best first; none where no sequence keeps the settings.

    longest: how many tokens each may have. The sources take their turns in the order given.
    """
    search = _Search(decoder, room, sources, longest, config)
    while search.make_room():
        search.step()
    return [search.found[number] for number in range(len(sources))]


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
        self._waiting = deque(range(len(sources)))
        self._owners: list[int | None] = [None] * room.slots.shape.slots  # the sentence in each slot
        self._over: set[int | None] = {None}  # those of them that have been seen to be over
        self._due: dict[int | None, int] = {}  # the step after which each is over at the latest
        self._steps, self._looks = 0, deque[_Look]()
        self.found: dict[int, list[Hypothesis]] = {}
        _set_rules(self._slots, config)

    def make_room(self) -> bool:
        """Give slots that are free to sentences that wait, if there are enough; False: nothing is left to do."""
        free = [slot for slot, owner in enumerate(self._owners) if self._is_over(owner)]
        all_free = len(free) == len(self._owners)
        if all_free or (self._waiting and len(free) * _SHARE >= len(self._owners)):
            self._collect([slot for slot in free if self._owners[slot] is not None])
            for slot in free:
                self._owners[slot] = self._waiting.popleft() if self._waiting else None
            self._begin([slot for slot in free if self._owners[slot] is not None])
        return any(owner is not None for owner in self._owners)

    def step(self) -> None:
        """Ask for a step, then see how the one before it went."""
        self._room.step()
        self._steps += 1
        self._looks.append(_Look(self._slots.over, self._owners))
        if len(self._looks) > 1:
            self._over |= self._looks.popleft().over()

    def _is_over(self, owner: int | None) -> bool:
        """Whether this has been seen, or needs not be: its last step has been asked for."""
        return owner in self._over or self._due[owner] <= self._steps

    def _begin(self, chosen: Sequence[int]) -> None:
        if not chosen:
            return
        numbers = [number for slot in chosen if (number := self._owners[slot]) is not None]
        greatest = [self._longest[number] for number in numbers]
        for number, longest in zip(numbers, greatest, strict=True):
            self._due[number] = self._steps + longest + 1
        rows, lengths = self._encoded.rows(numbers)
        which, *limits = torch.tensor([chosen, lengths, greatest], device="cpu").to(rows.device)
        memory = self._decoder.remember(rows)
        self._slots.begin(which, memory, torch.stack(limits).int(), self._decoder.config.bos_id, self._config.nbest)

    def _collect(self, chosen: Sequence[int]) -> None:
        if chosen:
            numbers = [number for slot in chosen if (number := self._owners[slot]) is not None]
            self.found.update(zip(numbers, _read(self._slots, chosen, self._config), strict=True))


@dataclass(frozen=True)
class _Encoded:
    """Sources, encoded, one after the other."""

    tokens: Float[Tensor, "N D"]
    first: list[int]  # where each begins
    lengths: list[int]

    @classmethod
    def of(cls, decoder: SlotDecoder, sources: Sequence[Sequence[int]]) -> "_Encoded":
        """Many at a time, in rows filled up with padding."""
        found, before = [], 0
        first: list[int] = []
        for batch in _batches(sources):
            ends = np.array([[len(ids)] for ids in batch])
            src = np.full((len(batch), ends.max() + 1), decoder.config.pad_id)
            src[np.arange(src.shape[1]) < ends] = np.fromiter(chain.from_iterable(batch), np.int64)
            src[np.arange(src.shape[1]) == ends] = decoder.config.eos_id
            found.append(decoder.encode(torch.from_numpy(src).to(decoder.device)).flatten(0, 1))
            first += range(before, before + src.size, src.shape[1])
            before += src.size
        return cls(torch.cat(found), first, [len(ids) + 1 for ids in sources])

    def rows(self, numbers: Sequence[int]) -> tuple[Float[Tensor, "B S D"], list[int]]:
        """Some of them as rows, and their lengths; what follows the end of one means nothing."""
        lengths = [self.lengths[number] for number in numbers]
        first = torch.tensor([self.first[number] for number in numbers]).to(self.tokens.device)
        place = first[:, None] + torch.arange(max(lengths), device=first.device)
        return self.tokens[place.clamp(max=len(self.tokens) - 1)], lengths


def _batches(sources: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
    start, longest = 0, 0
    for end, ids in enumerate(sources):
        longest = max(longest, len(ids) + 1)
        if end > start and longest * (end + 1 - start) > _TOKENS:
            yield sources[start:end]
            start, longest = end, len(ids) + 1
    yield sources[start:]


class _Look:
    """Which sentences were over after a step: asked for now, read later."""

    def __init__(self, over: Int[Tensor, "B"], owners: Sequence[int | None]) -> None:
        self._owners = list(owners)
        self._flags = torch.empty(over.shape, dtype=over.dtype, pin_memory=over.is_cuda)
        self._flags.copy_(over, non_blocking=True)
        self._known = torch.cuda.Event() if over.is_cuda else None
        if self._known is not None:
            self._known.record()

    def over(self) -> set[int | None]:
        """The numbers of these sentences."""
        if self._known is not None:
            self._known.synchronize()
        return {owner for owner, flag in zip(self._owners, self._flags.tolist(), strict=True) if flag}


def _set_rules(slots: Slots, config: SearchConfig) -> None:
    penalties = [length_penalty(length, config.length_penalty) for length in range(len(slots.penalties))]
    slots.penalties.copy_(torch.tensor(penalties, dtype=torch.float64))
    slots.rules.copy_(torch.tensor([config.min_length, config.stop == "first" or config.beam == 1]))


def _read(slots: Slots, chosen: Sequence[int], config: SearchConfig) -> Iterator[list[Hypothesis]]:
    """What has been found in some slots: of each hypothesis that has ended, its words, from the last to the first."""
    which = torch.tensor(chosen).to(slots.over.device)
    names = ("scores", "log_probs", "order", "lasts", "tokens", "parents")
    scores, log_probs, order, lasts, tokens, parents = (getattr(slots, name)[which].cpu().numpy() for name in names)
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    best = np.lexsort((order, -scores))[:, : config.nbest]  # of equals, who ended first comes first
    scores, log_probs, order, hypothesis = (
        np.take_along_axis(each, best, 1) for each in (scores, log_probs, order, lasts)
    )
    lengths, sentence = np.where(np.isfinite(scores), order // slots.shape.width, 0), np.arange(len(chosen))[:, None]
    written = np.zeros((*lengths.shape, lengths.max()), dtype=np.int64)
    for time in reversed(range(written.shape[-1])):
        written[..., time] = tokens[sentence, time, hypothesis]
        hypothesis = np.where(time < lengths, parents[sentence, time, hypothesis], hypothesis)
    rows = zip(written.tolist(), lengths.tolist(), log_probs.tolist(), scores.tolist(), strict=True)
    for row in rows:
        yield [
            Hypothesis.of(ids[:length], log_prob, config.length_penalty)
            for ids, length, log_prob, score in zip(*row, strict=True)
            if score > -np.inf
        ]
