"""All that a search remembers, in memory that stays where it is: B slots for sentences, W hypotheses in each.

A captured step reads and writes these tensors and no others, so that it can be repeated for any sentences: a slot whose
sentence is over is given to another one. Positions are each slot's own. Keys and values of the past stay in the row
they were written in; `rows` says in which row each hypothesis was at every time, and is all that a beam reorders.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """How much fits in: B sentences of S tokens, W hypotheses each, T tokens long."""

    slots: int
    width: int
    source: int
    target: int

    @property
    def rows(self) -> int:
        """R = B·W."""
        return self.slots * self.width


@dataclass(frozen=True)
class Slots:
    """The state. Times, counts and words are int32, sums of log-probabilities float64."""

    shape: Shape
    past: Float[Tensor, "L 2 R T H K"]  # keys and values of what is written
    memory: Float[Tensor, "L 2 B S H K"]  # keys and values of the source
    lengths: Int[Tensor, "B"]  # of the sources
    ids: Int[Tensor, "B W"]  # int64: the newest token of each hypothesis
    sentences: Int[Tensor, "3 B"]  # `positions`, `over`, `longest`
    sums: Float[Tensor, "3 B W"]  # `totals`, `scores`, `log_probs`
    ended: Int[Tensor, "3 B W"]  # `order`, `lasts`, `truncated`
    written: Int[Tensor, "2 B T W"]  # `tokens`, `parents`
    rows: Int[Tensor, "2 R T"]  # where its keys and values of each time are; for even positions, for odd ones
    penalties: Float[Tensor, "lengths"]  # the length penalty of each length, up to T + 1
    rules: Int[Tensor, "two"]  # the least length; 1 if a sentence is over as soon as enough hypotheses have ended

    @classmethod
    def empty(
        cls, shape: Shape, layers: int, heads: tuple[int, int], dtype: torch.dtype, device: torch.device
    ) -> "Slots":
        """No sentence anywhere."""
        one, each = (shape.slots,), (shape.slots, shape.width)

        def whole(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=device)

        def exact(*size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.float64, device=device)

        return cls(
            shape,
            past=torch.zeros((layers, 2, shape.rows, shape.target, *heads), dtype=dtype, device=device),
            memory=torch.zeros((layers, 2, shape.slots, shape.source, *heads), dtype=dtype, device=device),
            lengths=whole(*one) + 1,
            ids=whole(*each).long(),
            sentences=torch.stack((whole(*one), whole(*one) + 1, whole(*one))),
            sums=exact(3, *each),
            ended=whole(3, *each),
            written=whole(2, shape.slots, shape.target, shape.width),
            rows=whole(2, shape.rows, shape.target),
            penalties=exact(shape.target + 2),
            rules=whole(2),
        )

    @property
    def positions(self) -> Int[Tensor, "B"]:
        """How many tokens are written."""
        return self.sentences[0]

    @property
    def over(self) -> Int[Tensor, "B"]:
        """1 where a search has come to its end, or never began."""
        return self.sentences[1]

    @property
    def longest(self) -> Int[Tensor, "B"]:
        """The most tokens that may be written, the eos not counted."""
        return self.sentences[2]

    @property
    def totals(self) -> Float[Tensor, "B W"]:
        """Log-probabilities of the live hypotheses, best first."""
        return self.sums[0]

    @property
    def scores(self) -> Float[Tensor, "B W"]:
        """Of those that have ended, in no order; -inf: room for one, inf: none wanted here."""
        return self.sums[1]

    @property
    def log_probs(self) -> Float[Tensor, "B W"]:
        """Of those that have ended."""
        return self.sums[2]

    @property
    def order(self) -> Int[Tensor, "B W"]:
        """When they ended: W times their length, and how many were better then."""
        return self.ended[0]

    @property
    def lasts(self) -> Int[Tensor, "B W"]:
        """Which hypothesis they ended as."""
        return self.ended[1]

    @property
    def truncated(self) -> Int[Tensor, "B W"]:
        """1 where the length limit ended them, and not the model."""
        return self.ended[2]

    @property
    def tokens(self) -> Int[Tensor, "B T W"]:
        """The token of each hypothesis at each position."""
        return self.written[0]

    @property
    def parents(self) -> Int[Tensor, "B T W"]:
        """Which hypothesis it continued."""
        return self.written[1]

    def begin(
        self,
        which: Int[Tensor, "N"],
        memory: Float[Tensor, "L 2 N source H K"],
        lengths: Int[Tensor, "2 N"],
        bos_id: int,
        nbest: int,
    ) -> None:
        """Put new sentences into some slots. lengths: of their sources, and the greatest of what is to be written."""
        self.memory[:, :, :, : memory.shape[3]].index_copy_(2, which, memory)
        self.lengths.index_copy_(0, which, lengths[0])
        self.longest.index_copy_(0, which, lengths[1])
        for counter, value in ((self.positions, 0), (self.over, 0), (self.ids, bos_id), (self.order, 0)):
            counter.index_fill_(0, which, value)
        hypothesis = torch.arange(self.shape.width, device=which.device).expand(len(which), -1)
        nothing = torch.full(hypothesis.shape, -torch.inf, dtype=torch.float64, device=which.device)
        self.totals.index_copy_(0, which, nothing.masked_fill(hypothesis == 0, 0.0))  # one, and places for more
        self.scores.index_copy_(0, which, nothing.masked_fill(hypothesis >= nbest, torch.inf))


def affordable(shape: Shape, layers: int, size: int, dtype: torch.dtype, memory: int) -> Shape:
    """The shape, or one of fewer slots whose keys and values take no more bytes than `memory`; one slot at least."""
    tokens = shape.rows * shape.target + shape.slots * shape.source
    if shape.slots == 1 or 2 * layers * tokens * size * dtype.itemsize <= memory:
        return shape
    return affordable(replace(shape, slots=shape.slots // 2), layers, size, dtype, memory)
