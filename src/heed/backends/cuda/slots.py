"""Static buffers of a GPU search: B slots for sentences with W hypotheses each, KV cache included.

A captured step reads and writes only these tensors, so it can be replayed for any sentences: the slot of a finished
sentence is given to the next one. Each slot has its own position. Keys and values stay in the row that wrote them;
`kv_rows` holds the row of each hypothesis at every position, and is all that a beam step reorders.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class SlotShape:
    """The capacity of the buffers: B sentences of S tokens, W hypotheses each, T tokens long."""

    slots: int  # B
    beam: int  # W
    source_length: int  # S
    target_length: int  # T

    @property
    def rows(self) -> int:
        """R, the rows of a decoder step: one for each hypothesis of each slot."""
        return self.slots * self.beam


@dataclass(frozen=True)
class Slots:
    """The state of all searches. Positions, counts and token ids are int32, log-probabilities float64."""

    shape: SlotShape
    self_kv: Float[Tensor, "L 2 R T H K"]  # keys and values of the target tokens
    cross_kv: Float[Tensor, "L 2 B S H K"]  # keys and values of the source
    source_lengths: Int[Tensor, "B"]  # source tokens of each sentence
    ids: Int[Tensor, "B W"]  # int64: the newest token of each hypothesis
    slot_state: Int[Tensor, "3 B"]  # `positions`, `finished`, `max_lengths`
    beam_scores: Float[Tensor, "3 B W"]  # `live_log_probs`, `finished_scores`, `finished_log_probs`
    finished_info: Int[Tensor, "3 B W"]  # `finish_order`, `finish_hypothesis`, `truncated`
    history: Int[Tensor, "2 B T W"]  # `tokens`, `parents`
    kv_rows: Int[Tensor, "2 R T"]  # row of its keys and values at each position; double-buffered by parity
    length_penalties: Float[Tensor, "lengths"]  # of each length up to T + 1
    rules: Int[Tensor, "two"]  # minimum length; 1 if a sentence finishes as soon as enough hypotheses have

    @classmethod
    def empty(
        cls, shape: SlotShape, layers: int, heads: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> "Slots":
        """Buffers without any sentence."""
        per_slot, per_hypothesis = (shape.slots,), (shape.slots, shape.beam)

        def int32(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        def float64(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=device)

        return cls(
            shape,
            self_kv=torch.zeros((layers, 2, shape.rows, shape.target_length, *heads), dtype=dtype, device=device),
            cross_kv=torch.zeros((layers, 2, shape.slots, shape.source_length, *heads), dtype=dtype, device=device),
            source_lengths=int32(*per_slot) + 1,
            ids=int32(*per_hypothesis).long(),
            slot_state=torch.stack((int32(*per_slot), int32(*per_slot) + 1, int32(*per_slot))),
            beam_scores=float64(3, *per_hypothesis),
            finished_info=int32(3, *per_hypothesis),
            history=int32(2, shape.slots, shape.target_length, shape.beam),
            kv_rows=int32(2, shape.rows, shape.target_length),
            length_penalties=float64(shape.target_length + 2),
            rules=int32(2),
        )

    @property
    def positions(self) -> Int[Tensor, "B"]:
        """The number of target tokens generated so far."""
        return self.slot_state[0]

    @property
    def finished(self) -> Int[Tensor, "B"]:
        """1 where the slot's search has finished, or the slot is empty."""
        return self.slot_state[1]

    @property
    def max_lengths(self) -> Int[Tensor, "B"]:
        """Maximum number of target tokens, without the eos."""
        return self.slot_state[2]

    @property
    def live_log_probs(self) -> Float[Tensor, "B W"]:
        """Log-probabilities of the unfinished hypotheses, best first."""
        return self.beam_scores[0]

    @property
    def finished_scores(self) -> Float[Tensor, "B W"]:
        """Scores of finished hypotheses, unordered; -inf: a free entry, inf: an entry beyond nbest."""
        return self.beam_scores[1]

    @property
    def finished_log_probs(self) -> Float[Tensor, "B W"]:
        """Log-probabilities of finished hypotheses, in the order of `finished_scores`."""
        return self.beam_scores[2]

    @property
    def finish_order(self) -> Int[Tensor, "B W"]:
        """When they finished: W times their length plus their rank in that step."""
        return self.finished_info[0]

    @property
    def finish_hypothesis(self) -> Int[Tensor, "B W"]:
        """The index in the beam of the hypothesis that finished."""
        return self.finished_info[1]

    @property
    def truncated(self) -> Int[Tensor, "B W"]:
        """1 where the length limit cut off the hypothesis."""
        return self.finished_info[2]

    @property
    def tokens(self) -> Int[Tensor, "B T W"]:
        """The token of each hypothesis at each position, for backtracking."""
        return self.history[0]

    @property
    def parents(self) -> Int[Tensor, "B T W"]:
        """The hypothesis of the previous position that each one extends."""
        return self.history[1]

    def begin(
        self,
        slots: Int[Tensor, "N"],
        memory: Float[Tensor, "L 2 N source H K"],
        lengths: Int[Tensor, "2 N"],
        bos_id: int,
        nbest: int,
    ) -> None:
        """Start new sentences in these slots. lengths: of their sources, and the maximum of their targets."""
        self.cross_kv[:, :, :, : memory.shape[3]].index_copy_(2, slots, memory)
        self.source_lengths.index_copy_(0, slots, lengths[0])
        self.max_lengths.index_copy_(0, slots, lengths[1])
        for counter, value in ((self.positions, 0), (self.finished, 0), (self.ids, bos_id), (self.finish_order, 0)):
            counter.index_fill_(0, slots, value)
        hypothesis = torch.arange(self.shape.beam, device=slots.device).expand(len(slots), -1)
        minus_inf = torch.full(hypothesis.shape, -torch.inf, dtype=torch.float64, device=slots.device)
        # One live hypothesis, and W - 1 free entries.
        self.live_log_probs.index_copy_(0, slots, minus_inf.masked_fill(hypothesis == 0, 0.0))
        self.finished_scores.index_copy_(0, slots, minus_inf.masked_fill(hypothesis >= nbest, torch.inf))


def fit_memory(shape: SlotShape, layers: int, d_model: int, dtype: torch.dtype, memory: int) -> SlotShape:
    """The shape with the slots halved until keys and values fit into `memory` bytes; at least one slot."""
    tokens = shape.rows * shape.target_length + shape.slots * shape.source_length
    if shape.slots == 1 or 2 * layers * tokens * d_model * dtype.itemsize <= memory:
        return shape
    return fit_memory(replace(shape, slots=shape.slots // 2), layers, d_model, dtype, memory)
