"""How the tokens of a batch are laid out, and which of them may attend to which.

Only attention mixes positions; everything else in the model treats each token on its own and works on any leading
shape. So one model serves three layouts of hidden states:

    Padded    rows of equal length, padded at the end:            (B, T, D)
    Packed    sequences concatenated without padding:             (N, D), N tokens in all
    Beams     W hypotheses of each sentence, a few tokens each:   (B·W, T, D), one row of W·T per sentence

A layout turns hidden states into rows, one sentence each, and back. `AttentionPattern` joins the layout of the queries
with that of the keys. Knows nothing of vocabularies, weights or heads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from heed.errors import InputError

Value = TypeVar("Value")


class _once(Generic[Value]):  # noqa: N801 - used like a property
    """A property computed on first use; functools' own takes a lock, which torch cannot compile."""

    def __init__(self, work_out: Callable[[Any], Value]) -> None:
        self._work_out = work_out

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _kind: type) -> Value:
        found = self._work_out(owner)
        owner.__dict__[self._name] = found
        return found


@dataclass(frozen=True)
class Padded:
    """Sequences as rows of equal length; padding may stand anywhere."""

    token_mask: Bool[Tensor, "B T"]  # False where there is only padding
    positions: Int[Tensor, "B T"]  # each token's position in its sequence, padding not counted

    @classmethod
    def from_ids(cls, ids: Int[Tensor, "B T"], pad_id: int) -> "Padded":
        """The layout of ids in which `pad_id` marks padding."""
        return cls.from_mask(ids != pad_id)

    @classmethod
    def from_mask(cls, token_mask: Bool[Tensor, "B T"], earlier: Int[Tensor, "B 1"] | int = 0) -> "Padded":
        """The layout of tokens where `token_mask` is True, continuing sentences that have `earlier` tokens already."""
        return cls(token_mask, (earlier + token_mask.cumsum(1) - 1).clamp(min=0))

    def to_rows(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Hidden states as rows: they are rows already."""
        return x

    def mean(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """The mean of each sentence's hidden states."""
        weight = self.token_mask[..., None].to(x.dtype)
        return (x * weight).sum(1) / weight.sum(1).clamp(min=1)

    def from_rows(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """The inverse of `to_rows`."""
        return x


@dataclass(frozen=True)
class Packed:
    """Sequences concatenated without padding.

    Rows of the longest sentence's length exist only inside attention, and only where it works on rows; memory there
    grows with B·T², never with N².
    """

    positions: Int[Tensor, "N"]  # each token's position in its sequence
    sequence_ids: Int[Tensor, "N"]  # the sequence each token belongs to
    cu_seqlens: Int[Tensor, "bounds"]  # cumulative lengths: sequence b is tokens [b] to [b + 1]
    max_seqlen: int  # T, the length of the longest sentence

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Int[Tensor, "B"]) -> "Packed":
        """The layout of sentences of these lengths."""
        length = torch.as_tensor(lengths)
        if not len(length) or length.min() < 1:
            raise InputError(f"packed sentences need at least one token each, found lengths {length.tolist()}")
        cu_seqlens = torch.cat((length.new_zeros(1), length.cumsum(0)))
        sequence_ids = torch.arange(len(length), device=length.device).repeat_interleave(length)
        positions = torch.arange(len(sequence_ids), device=length.device) - cu_seqlens[sequence_ids]
        return cls(positions, sequence_ids, cu_seqlens, int(length.max()))

    def to(self, device: torch.device) -> "Packed":
        """The same layout on another device."""
        positions, sequence_ids, cu_seqlens = (
            part.to(device, non_blocking=True) for part in (self.positions, self.sequence_ids, self.cu_seqlens)
        )
        return Packed(positions, sequence_ids, cu_seqlens, self.max_seqlen)

    def twice(self) -> "Packed":
        """The layout of the same sentences a second time, after all of them."""
        sequence_ids = torch.cat((self.sequence_ids, self.sequence_ids + len(self.cu_seqlens) - 1))
        cu_seqlens = torch.cat((self.cu_seqlens, self.cu_seqlens[1:] + self.cu_seqlens[-1]))
        return Packed(self.positions.repeat(2), sequence_ids, cu_seqlens, self.max_seqlen)

    @_once
    def token_mask(self) -> Bool[Tensor, "B T"]:
        """Which cells of the rows hold a token."""
        return torch.arange(self.max_seqlen, device=self.cu_seqlens.device) < self.cu_seqlens.diff()[:, None]

    @_once
    def cells(self) -> Int[Tensor, "N"]:
        """Each token's cell among the B·T of the rows."""
        return self.sequence_ids * self.max_seqlen + self.positions

    def to_rows(self, x: Shaped[Tensor, "N *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Hidden states as rows, with zeros where a sequence is shorter than the longest."""
        cells = x.new_zeros(self.token_mask.numel(), *x.shape[1:])
        return cells.index_copy(0, self.cells, x).unflatten(0, self.token_mask.shape)

    def mean(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "B D"]:
        """The mean of each sentence's hidden states."""
        lengths, exact = self.cu_seqlens.diff(), torch.promote_types(x.dtype, torch.float32)
        sums = torch.zeros(len(lengths), x.shape[1], dtype=exact, device=x.device)
        return (sums.index_add(0, self.sequence_ids, x.to(exact)) / lengths.clamp(min=1)[:, None]).to(x.dtype)

    def from_rows(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "N *rest"]:
        """The inverse of `to_rows`."""
        return x.flatten(0, 1).index_select(0, self.cells)


@dataclass(frozen=True)
class Beams:
    """Hypotheses grouped by the sentence they translate, so that the sentence is held once for all of them."""

    width: int  # W, hypotheses a sentence
    token_mask: Bool[Tensor, "B WT"]
    positions: Int[Tensor, "BW T"]

    @classmethod
    def of(cls, hypotheses: Padded, width: int) -> "Beams":
        """The same tokens, W rows of them to a sentence."""
        return cls(width, hypotheses.token_mask.unflatten(0, (-1, width)).flatten(1), hypotheses.positions)

    def to_rows(self, x: Shaped[Tensor, "BW T *rest"]) -> Shaped[Tensor, "B WT *rest"]:
        """The hidden states of one sentence's hypotheses, concatenated."""
        return x.unflatten(0, (-1, self.width)).flatten(1, 2)

    def from_rows(self, x: Shaped[Tensor, "B WT *rest"]) -> Shaped[Tensor, "BW T *rest"]:
        """The inverse of `to_rows`."""
        return x.unflatten(1, (self.width, -1)).flatten(0, 1)


Layout: TypeAlias = Padded | Packed | Beams


@dataclass(frozen=True)
class AttentionPattern:
    """Which keys each query may attend to. The mask is made on first use: kernels for packed sequences need none."""

    queries: Layout
    keys: Layout
    causal: bool
    only: Bool[Tensor, "B T S"] | None

    @classmethod
    def between(
        cls,
        queries: Layout,
        keys: Layout,
        *,
        causal: bool = False,
        only: Bool[Tensor, "B T S"] | None = None,
    ) -> "AttentionPattern":
        """Every query attends to every key of its own sentence that is no padding.

        causal: and that does not come later. The last query is aligned with the last key, so a step's new tokens
        attend to everything before them. only: and that the caller's own mask allows.
        """
        if _sentences(queries) != _sentences(keys):
            raise InputError(
                f"{_sentences(queries)} target sentences cannot attend to {_sentences(keys)} source sentences"
            )
        if only is not None:
            check_mask(only, (*queries.token_mask.shape, keys.token_mask.shape[1]))
        return cls(queries, keys, causal, only)

    @_once
    def mask(self) -> Bool[Tensor, "B #T S"]:
        """The attention mask: True = may be attended to."""
        mask = self.keys.token_mask[:, None, :]
        if self.causal:
            length, span = self.queries.token_mask.shape[1], self.keys.token_mask.shape[1]
            mask = mask & mask.new_ones(length, span).tril(span - length)
        return mask if self.only is None else mask & self.only

    def packed_sides(self) -> tuple[Packed, Packed]:
        """Both layouts, for kernels that work on packed sequences and need no mask."""
        if not isinstance(self.queries, Packed) or not isinstance(self.keys, Packed) or self.only is not None:
            raise InputError("packed attention is for packed sentences without a mask of the caller's own")
        return self.queries, self.keys

    @_once
    def fully_masked(self) -> Bool[Tensor, "B #T"] | None:
        """Queries whose every key is masked; None: no query is."""
        # Packed sentences have at least one token each, so there only a caller can mask every key of a query.
        return None if isinstance(self.keys, Packed) and self.only is None else ~self.mask.any(-1)


def _sentences(layout: Layout) -> int:
    return len(layout.cu_seqlens) - 1 if isinstance(layout, Packed) else len(layout.token_mask)


def check_mask(mask: Tensor, expected: tuple[int, ...]) -> None:
    """A caller's encoder-decoder mask must be bool and have exactly the shape expected."""
    if mask.dtype != torch.bool:
        raise InputError(f"a mask is bool, True = may be seen; found {mask.dtype}")
    if mask.shape != expected:
        raise InputError(
            f"the encoder-decoder mask has shape {tuple(mask.shape)}, expected (sentences, target length, "
            f"source length) = {expected}"
        )
