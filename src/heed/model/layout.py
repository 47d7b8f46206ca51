"""How the tokens of a batch are laid out, and which of them may attend to which.

Only attention mixes positions; everything else in the model treats each token on its own and works on any leading
shape. So one model serves three layouts of hidden states:

    Padded    sequences padded to one length:                   (B, T, D)
    Packed    sequences concatenated without padding:           (N, D), N tokens in all
    Beams     W hypotheses per sentence, T new tokens each:     (B·W, T, D), one row of W·T tokens per sentence

A layout converts hidden states to rows, one sentence each, and back. `AttentionPattern` combines the layout of the
queries with that of the keys. Knows nothing of vocabularies, weights or heads.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heed.errors import InputError

Value = TypeVar("Value")


class _cached_property(Generic[Value]):  # noqa: N801 - used like functools.cached_property
    """A property computed on first use; functools' own takes a lock, which torch.compile cannot trace."""

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, _owner: type) -> Value:
        value = self._compute(instance)
        instance.__dict__[self._name] = value
        return value


@dataclass(frozen=True)
class Padded:
    """Sequences padded to rows of equal length; padding may be anywhere in a row."""

    token_mask: Bool[Tensor, "B T"]  # False where a row has padding
    positions: Int[Tensor, "B T"]  # each token's index in its sequence, padding not counted

    @classmethod
    def from_ids(cls, ids: Int[Tensor, "B T"], pad_id: int) -> "Padded":
        """The layout of ids in which `pad_id` marks padding."""
        return cls.from_mask(ids != pad_id)

    @classmethod
    def from_mask(cls, token_mask: Bool[Tensor, "B T"], earlier: Int[Tensor, "B 1"] | int = 0) -> "Padded":
        """The layout of tokens where `token_mask` is True, continuing sequences that already have `earlier` tokens."""
        return cls(token_mask, (earlier + token_mask.cumsum(1) - 1).clamp(min=0))

    def to_rows(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Unchanged: padded hidden states are rows already."""
        return x

    def mean(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """Mean pooling over the tokens of each sequence."""
        weight = self.token_mask[..., None].to(x.dtype)
        return (x * weight).sum(1) / weight.sum(1).clamp(min=1)

    def from_rows(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """The inverse of `to_rows`."""
        return x


@dataclass(frozen=True)
class Packed:
    """Sequences concatenated without padding.

    Padded rows exist only inside attention, and only for kernels that need them; attention's memory grows with B·T²,
    never with N².
    """

    positions: Int[Tensor, "N"]  # each token's index in its sequence
    sequence_ids: Int[Tensor, "N"]  # the sequence each token belongs to
    cu_seqlens: Int[Tensor, "bounds"]  # cumulative lengths: sequence b is tokens cu_seqlens[b] to cu_seqlens[b + 1]
    max_seqlen: int  # T, the length of the longest sequence

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Int[Tensor, "B"]) -> "Packed":
        """The layout of sequences of these lengths."""
        length = torch.as_tensor(lengths)
        if not len(length) or length.min() < 1:
            raise InputError(f"packed sequences need at least one token each, found lengths {length.tolist()}")
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
        """The layout of the batch followed by a second copy of itself (R-Drop)."""
        sequence_ids = torch.cat((self.sequence_ids, self.sequence_ids + len(self.cu_seqlens) - 1))
        cu_seqlens = torch.cat((self.cu_seqlens, self.cu_seqlens[1:] + self.cu_seqlens[-1]))
        return Packed(self.positions.repeat(2), sequence_ids, cu_seqlens, self.max_seqlen)

    @_cached_property
    def token_mask(self) -> Bool[Tensor, "B T"]:
        """True where a padded row holds a token."""
        return torch.arange(self.max_seqlen, device=self.cu_seqlens.device) < self.cu_seqlens.diff()[:, None]

    @_cached_property
    def lengths(self) -> Int[Tensor, "B"]:
        """The length of each sequence, in host memory: read once, however many layers need it."""
        return self.cu_seqlens.diff().cpu()

    @_cached_property
    def padded_index(self) -> Int[Tensor, "N"]:
        """Each token's index in the flattened (B·T) padded rows."""
        return self.sequence_ids * self.max_seqlen + self.positions

    def to_rows(self, x: Shaped[Tensor, "N *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Pad: hidden states as rows, with zeros after the end of shorter sequences."""
        rows = x.new_zeros(self.token_mask.numel(), *x.shape[1:])
        return rows.index_copy(0, self.padded_index, x).unflatten(0, self.token_mask.shape)

    def mean(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "B D"]:
        """Mean pooling over the tokens of each sequence."""
        lengths, dtype = self.cu_seqlens.diff(), torch.promote_types(x.dtype, torch.float32)
        sums = torch.zeros(len(lengths), x.shape[1], dtype=dtype, device=x.device)
        return (sums.index_add(0, self.sequence_ids, x.to(dtype)) / lengths.clamp(min=1)[:, None]).to(x.dtype)

    def from_rows(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "N *rest"]:
        """The inverse of `to_rows`."""
        return x.flatten(0, 1).index_select(0, self.padded_index)


@dataclass(frozen=True)
class Beams:
    """Hypotheses grouped by source sentence, so that its keys and values are stored once, not W times."""

    width: int  # W, hypotheses per sentence
    token_mask: Bool[Tensor, "B WT"]
    positions: Int[Tensor, "BW T"]

    @classmethod
    def group(cls, hypotheses: Padded, width: int) -> "Beams":
        """Group rows of hypotheses, W consecutive rows per sentence."""
        return cls(width, hypotheses.token_mask.unflatten(0, (-1, width)).flatten(1), hypotheses.positions)

    def to_rows(self, x: Shaped[Tensor, "BW T *rest"]) -> Shaped[Tensor, "B WT *rest"]:
        """Concatenate the hidden states of each sentence's hypotheses."""
        return x.unflatten(0, (-1, self.width)).flatten(1, 2)

    def from_rows(self, x: Shaped[Tensor, "B WT *rest"]) -> Shaped[Tensor, "BW T *rest"]:
        """The inverse of `to_rows`."""
        return x.unflatten(1, (self.width, -1)).flatten(0, 1)


Layout: TypeAlias = Padded | Packed | Beams


@dataclass(frozen=True)
class AttentionPattern:
    """Which keys each query may attend to. The mask is computed on first use: packed kernels need none."""

    queries: Layout
    keys: Layout
    causal: bool
    extra_mask: Bool[Tensor, "B T S"] | None

    @classmethod
    def between(
        cls,
        queries: Layout,
        keys: Layout,
        *,
        causal: bool = False,
        extra_mask: Bool[Tensor, "B T S"] | None = None,
    ) -> "AttentionPattern":
        """Every query may attend to every key of its own sequence that is not padding.

        causal: but not to later keys. The last query is aligned with the last key, so the new tokens of a decoding
        step attend to the whole prefix. extra_mask: and only to keys where it is True.
        """
        if _batch_size(queries) != _batch_size(keys):
            raise InputError(
                f"{_batch_size(queries)} target sentences cannot attend to {_batch_size(keys)} source sentences"
            )
        if extra_mask is not None:
            check_mask(extra_mask, (*queries.token_mask.shape, keys.token_mask.shape[1]))
        return cls(queries, keys, causal, extra_mask)

    @_cached_property
    def mask(self) -> Bool[Tensor, "B #T S"]:
        """The attention mask: True = may be attended to."""
        mask = self.keys.token_mask[:, None, :]
        if self.causal:
            length, span = self.queries.token_mask.shape[1], self.keys.token_mask.shape[1]
            mask = mask & mask.new_ones(length, span).tril(span - length)
        return mask if self.extra_mask is None else mask & self.extra_mask

    def packed_sides(self) -> tuple[Packed, Packed]:
        """The layouts of queries and keys, for kernels that work on packed sequences and take no mask."""
        if not isinstance(self.queries, Packed) or not isinstance(self.keys, Packed) or self.extra_mask is not None:
            raise InputError("packed attention needs packed queries and keys and takes no extra mask")
        return self.queries, self.keys

    @_cached_property
    def fully_masked(self) -> Bool[Tensor, "B #T"] | None:
        """Queries that may attend to no key; None: there are none."""
        # Packed sequences have at least one token each, so only an extra mask can mask every key of a query.
        return None if isinstance(self.keys, Packed) and self.extra_mask is None else ~self.mask.any(-1)


def _batch_size(layout: Layout) -> int:
    return len(layout.cu_seqlens) - 1 if isinstance(layout, Packed) else len(layout.token_mask)


def pad_rows(rows: Iterable[Sequence[int]], pad_id: int, device: torch.device) -> Int[Tensor, "B T"]:
    """Token ids of several sequences as rows, padded at their ends to the longest."""
    tensors = [torch.tensor(row, dtype=torch.int64, device="cpu") for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=pad_id).to(device)


def check_mask(mask: Tensor, expected: tuple[int, ...]) -> None:
    """Check that a caller's cross-attention mask is bool and has exactly this shape."""
    if mask.dtype != torch.bool:
        raise InputError(f"an attention mask must be bool, True = may be attended to; found {mask.dtype}")
    if mask.shape != expected:
        raise InputError(
            f"cross_mask has shape {tuple(mask.shape)}, expected (sentences, target length, source length) = {expected}"
        )
