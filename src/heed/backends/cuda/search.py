"""Continuous batching of a GPU search: sentences occupy slots, and waiting ones take over finished slots.

Enters: a decoder that steps in slots, sources, settings. Leaves: the result of `beam_search`. Each step is launched
before the outcome of the previous one is read, so that the GPU never waits for the host: finished slots are noticed one
step late.
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

from heed.backends.cuda.slots import Slots
from heed.backends.protocol import Hypothesis, SearchMonitor, length_penalty
from heed.config import ModelConfig
from heed.model.embeddings import check_ids
from heed.model.layout import Packed
from heed.search_config import SearchConfig

_ENCODER_TOKENS = 32_768  # source tokens per encoder batch
_EMPTY = -1
_REFILL_SHARE = 8  # slots are refilled when one of so many is free


@runtime_checkable
class SlotDecoder(Protocol):
    """The encoder side of a search in slots, as `StaticDecoder`."""

    device: torch.device

    @property
    def config(self) -> ModelConfig: ...

    def encode(self, src: Int[Tensor, "N"], layout: Packed) -> Float[Tensor, "N D"]:
        """The encoder's output for packed sources."""

    def project_memory(self, memory: Float[Tensor, "B S D"]) -> Float[Tensor, "L 2 B S H K"]:
        """Keys and values of encoded sources, for all layers."""


@dataclass(frozen=True)
class StaticStep:
    """Static buffers, and the step (captured on a GPU) that advances every search in them."""

    slots: Slots
    run: Callable[[], None]


@torch.no_grad()
def static_search(
    decoder: SlotDecoder,
    step: StaticStep,
    sources: Sequence[Sequence[int]],
    max_lengths: Sequence[int],
    config: SearchConfig,
    monitor: SearchMonitor | None = None,
) -> list[list[Hypothesis]]:
    """The nbest best hypotheses of each source, best first; none where no sequence satisfies the settings.

    max_lengths: of each output. Sources are processed in order; `monitor` identifies them by index. Cancelled ones get
    an empty hypothesis.
    """
    search = _SlotSearch(decoder, step, sources, max_lengths, config)
    while search.refill():
        if monitor is not None:
            monitor.before_step()
            search.cancel(monitor)
        search.step()
    empty = [Hypothesis.of((), 0.0, config.length_penalty)]
    return [empty if number in search.cancelled else search.results[number] for number in range(len(sources))]


class _SlotSearch:
    """The search of many sources in a limited number of slots."""

    def __init__(
        self,
        decoder: SlotDecoder,
        step: StaticStep,
        sources: Sequence[Sequence[int]],
        max_lengths: Sequence[int],
        config: SearchConfig,
    ) -> None:
        self._decoder, self._step, self._slots = decoder, step, step.slots
        self._encoded, self._max_lengths, self._config = _EncodedSources.of(decoder, sources), max_lengths, config
        self._waiting, count = deque(range(len(sources))), step.slots.shape.slots
        self._sources = np.full(count, _EMPTY)  # index of the source in each slot
        self._finished = np.ones(count, dtype=bool)  # whether its search is known to have finished
        self._due = np.zeros(count, dtype=int)  # the step after which it has finished at the latest
        self._steps, self._snapshots = 0, deque[_Snapshot]()
        pinned = self._slots.finished.is_cuda
        self._flags = [torch.empty(count, dtype=torch.int32, device="cpu", pin_memory=pinned) for _ in range(2)]
        self.results: dict[int, list[Hypothesis]] = {}
        self.cancelled: set[int] = set()
        _set_rules(self._slots, config)

    def refill(self) -> bool:
        """Start waiting sentences in free slots, if enough are free; False: everything has finished."""
        free = self._finished | (self._due <= self._steps)  # known to have finished, or its last step has been launched
        if free.all() or (self._waiting and free.sum() * _REFILL_SHARE >= len(free)):
            self._collect(np.flatnonzero(free & (self._sources != _EMPTY)))
            self._sources[free] = _EMPTY
            self._start(np.flatnonzero(free)[: len(self._waiting)])
        return bool((self._sources != _EMPTY).any())

    def cancel(self, monitor: SearchMonitor) -> None:
        """Finish the searches of cancelled sentences; slots allow that at any step, whatever `cancel_after`."""
        active = np.flatnonzero(~self._finished & (self._sources != _EMPTY)).tolist()
        cancelled = [slot for slot in active if monitor.is_cancelled(int(self._sources[slot]))]
        if cancelled:
            self._slots.finished.index_fill_(0, torch.tensor(cancelled, device=self._slots.finished.device), 1)
            self._finished[cancelled] = True
            self.cancelled |= set(self._sources[cancelled].tolist())

    def step(self) -> None:
        """Launch a step, then read the outcome of the one before it."""
        self._step.run()
        self._snapshots.append(_Snapshot(self._slots.finished, self._sources, self._flags[self._steps % 2]))
        self._steps += 1
        if len(self._snapshots) > 1:
            sources, finished = self._snapshots.popleft().read()
            self._finished |= finished & (sources == self._sources)

    def _start(self, slots: NDArray[np.int_]) -> None:
        if not len(slots):
            return
        numbers = [self._waiting.popleft() for _ in slots]
        max_lengths = [self._max_lengths[number] for number in numbers]
        self._sources[slots], self._finished[slots] = numbers, False
        self._due[slots] = self._steps + 1 + np.array(max_lengths)
        rows, lengths = self._encoded.rows(numbers)
        index, *limits = torch.tensor([slots.tolist(), lengths, max_lengths], device="cpu").to(rows.device)
        memory = self._decoder.project_memory(rows)
        self._slots.begin(index, memory, torch.stack(limits).int(), self._decoder.config.bos_id, self._config.nbest)

    def _collect(self, slots: NDArray[np.int_]) -> None:
        if len(slots):
            hypotheses = _read_hypotheses(self._slots, slots.tolist(), self._config)
            self.results.update(zip(self._sources[slots].tolist(), hypotheses, strict=True))


@dataclass(frozen=True)
class _EncodedSources:
    """Encoder outputs of all sources, packed."""

    tokens: Float[Tensor, "N D"]
    first: list[int]  # first token of each
    lengths: list[int]

    @classmethod
    def of(cls, decoder: SlotDecoder, sources: Sequence[Sequence[int]]) -> "_EncodedSources":
        """Encode the sources, in batches that bound the memory in use."""
        config, lengths, outputs = decoder.config, [len(ids) + 1 for ids in sources], []
        tokens = chain.from_iterable((*ids, config.eos_id) for ids in sources)
        flat, size = np.fromiter(tokens, np.int64, sum(lengths)), config.source_vocab_size or config.vocab_size
        if flat.min() < 0 or flat.max() >= size:
            check_ids("src", torch.from_numpy(flat), size, ("tokens",))  # raises
        for batch in _batches(lengths):
            src, flat = np.split(flat, [sum(batch)])
            outputs.append(decoder.encode(*_packed(src, batch, decoder.device)))
        return cls(torch.cat(outputs), list(accumulate(lengths, initial=0)), lengths)

    def rows(self, numbers: Sequence[int]) -> tuple[Float[Tensor, "B S D"], list[int]]:
        """Some sources as rows, and their lengths; what follows the end of a source is arbitrary."""
        lengths = [self.lengths[number] for number in numbers]
        first = torch.tensor([self.first[number] for number in numbers], device="cpu").to(self.tokens.device)
        positions = first[:, None] + torch.arange(max(lengths), device=first.device)
        return self.tokens[positions.clamp(max=len(self.tokens) - 1)], lengths


def _packed(src: NDArray[np.int64], lengths: Sequence[int], device: torch.device) -> tuple[Int[Tensor, "N"], Packed]:
    """Tokens and their layout in one transfer; in numpy, since torch would wake all threads for tiny operations."""
    cu_seqlens = np.cumsum([0, *lengths])
    sequence_ids = np.repeat(np.arange(len(lengths)), lengths)
    parts = (src, np.arange(len(src)) - cu_seqlens[sequence_ids], sequence_ids, cu_seqlens)
    moved = torch.from_numpy(np.concatenate(parts)).to(device).split([len(part) for part in parts])
    return moved[0], Packed(moved[1], moved[2], moved[3], max(lengths))


def _batches(lengths: Sequence[int]) -> Iterator[Sequence[int]]:
    start, tokens = 0, 0
    for end, length in enumerate(lengths):
        if end > start and tokens + length > _ENCODER_TOKENS:
            yield lengths[start:end]
            start, tokens = end, 0
        tokens += length
    yield lengths[start:]


class _Snapshot:
    """Which slots had finished after a step, and their sources: copied asynchronously, read later."""

    def __init__(self, finished: Int[Tensor, "B"], sources: NDArray[np.int_], flags: Int[Tensor, "B"]) -> None:
        self._sources, self._flags = sources.copy(), flags.copy_(finished, non_blocking=True)
        self._copied = torch.cuda.Event() if finished.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def read(self) -> tuple[NDArray[np.int_], NDArray[np.bool_]]:
        """Sources, and whether they had finished."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._sources, self._flags.numpy() != 0


def _set_rules(slots: Slots, config: SearchConfig) -> None:
    penalties = [length_penalty(length, config.length_penalty) for length in range(len(slots.length_penalties))]
    slots.length_penalties.copy_(torch.tensor(penalties, dtype=torch.float64, device="cpu"))
    slots.rules.copy_(torch.tensor([config.min_length, config.stop == "first" or config.beam == 1], device="cpu"))


def _read_hypotheses(slots: Slots, slot_indices: Sequence[int], config: SearchConfig) -> Iterator[list[Hypothesis]]:
    """The finished hypotheses of some slots, their tokens backtracked from the last to the first."""
    index = torch.tensor(slot_indices, device="cpu").to(slots.finished.device)
    _, scores, log_probs = slots.beam_scores[:, index].cpu().numpy()
    order, lasts, truncated = slots.finished_info[:, index].cpu().numpy()
    tokens, parents = slots.history[:, index].cpu().numpy()
    scores = np.where(np.isfinite(scores), scores, -np.inf)
    best = np.lexsort((order, -scores))[:, : config.nbest]  # ties go to the one that finished first
    scores, log_probs, order, hypothesis, truncated = (
        np.take_along_axis(values, best, 1) for values in (scores, log_probs, order, lasts, truncated != 0)
    )
    lengths = np.where(np.isfinite(scores), order // slots.shape.beam, 0)
    sentence = np.arange(len(slot_indices))[:, None]
    outputs = np.empty((*lengths.shape, lengths.max()), dtype=np.int64)
    for time in reversed(range(outputs.shape[-1])):
        outputs[..., time] = tokens[sentence, time, hypothesis]
        if slots.shape.beam > 1:
            hypothesis = np.where(time < lengths, parents[sentence, time, hypothesis], hypothesis)
    penalties = np.array([length_penalty(length + 1, config.length_penalty) for length in range(outputs.shape[-1] + 1)])
    rows = (outputs, lengths, log_probs, log_probs / penalties[lengths], truncated, scores > -np.inf)
    for of_sentence in zip(*(row.tolist() for row in rows), strict=True):
        yield [
            Hypothesis(tuple(ids[:length]), log_prob, score, cut_off)
            for ids, length, log_prob, score, cut_off, has_ended in zip(*of_sentence, strict=True)
            if has_ended
        ]
