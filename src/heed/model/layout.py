"""How the tokens of a batch are laid out, and which of them may attend to which.

Only attention mixes positions; everything else in the model treats each token on its own and works on any leading
shape. So one model serves three layouts of hidden states:

    Padded    rows of equal length, padded at the end:            (B, T, D)
    Packed    sequences concatenated without padding:             (N, D), N tokens in all
    Beams     W hypotheses of each sentence, a few tokens each:   (B·W, T, D), one row of W·T per sentence

A layout turns hidden states into rows, one sentence each, and back. `Sight`, the attention pattern, joins the layout of
the queries with that of the keys. Knows nothing of vocabularies, weights or heads.
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
    """A property worked out when it is first asked for; functools' own takes a lock, which torch cannot compile."""

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
    """Sentences as rows of equal length, filled up with padding anywhere."""

    real: Bool[Tensor, "B T"]  # False where there is only padding
    positions: Int[Tensor, "B T"]  # each token's place in its sentence, padding not counted

    @classmethod
    def of_ids(cls, ids: Int[Tensor, "B T"], pad_id: int) -> "Padded":
        """The layout of ids in which `pad_id` marks padding."""
        return cls.of_real(ids != pad_id)

    @classmethod
    def of_real(cls, real: Bool[Tensor, "B T"], earlier: Int[Tensor, "B 1"] | int = 0) -> "Padded":
        """The layout of tokens where `real` is True, continuing sentences that have `earlier` tokens already."""
        return cls(real, (earlier + real.cumsum(1) - 1).clamp(min=0))

    def rows(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Vectors as rows: they are rows already."""
        return x

    def mean(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        """The mean of each sentence's hidden states."""
        real = self.real[..., None].to(x.dtype)
        return (x * real).sum(1) / real.sum(1).clamp(min=1)

    def flat(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """The inverse of `rows`."""
        return x


@dataclass(frozen=True)
class Packed:
    """Sentences laid end to end without padding.

    Rows of the longest sentence's length exist only inside attention, and only where it works on rows; memory there
    grows with B·T², never with N².
    """

    positions: Int[Tensor, "N"]  # each token's place in its sentence
    owners: Int[Tensor, "N"]  # the sentence each token belongs to
    offsets: Int[Tensor, "bounds"]  # B + 1 of them: sentence b is tokens offsets[b] up to offsets[b + 1]
    longest: int  # T, the length of the longest sentence

    @classmethod
    def of_lengths(cls, lengths: Sequence[int] | Int[Tensor, "B"]) -> "Packed":
        """The layout of sentences of these lengths."""
        length = torch.as_tensor(lengths)
        if not len(length) or length.min() < 1:
            raise InputError(f"packed sentences need at least one token each, found lengths {length.tolist()}")
        offsets = torch.cat((length.new_zeros(1), length.cumsum(0)))
        owners = torch.arange(len(length), device=length.device).repeat_interleave(length)
        positions = torch.arange(len(owners), device=length.device) - offsets[owners]
        return cls(positions, owners, offsets, int(length.max()))

    def to(self, device: torch.device) -> "Packed":
        """The same layout on another device."""
        positions, owners, offsets = (
            part.to(device, non_blocking=True) for part in (self.positions, self.owners, self.offsets)
        )
        return Packed(positions, owners, offsets, self.longest)

    def twice(self) -> "Packed":
        """The layout of the same sentences a second time, after all of them."""
        owners = torch.cat((self.owners, self.owners + len(self.offsets) - 1))
        offsets = torch.cat((self.offsets, self.offsets[1:] + self.offsets[-1]))
        return Packed(self.positions.repeat(2), owners, offsets, self.longest)

    @_once
    def real(self) -> Bool[Tensor, "B T"]:
        """Which cells of the rows hold a token."""
        return torch.arange(self.longest, device=self.offsets.device) < self.offsets.diff()[:, None]

    @_once
    def cells(self) -> Int[Tensor, "N"]:
        """Each token's cell among the B·T of the rows."""
        return self.owners * self.longest + self.positions

    def rows(self, x: Shaped[Tensor, "N *rest"]) -> Shaped[Tensor, "B T *rest"]:
        """Vectors as rows, with zeros where a sentence is shorter than the longest."""
        cells = x.new_zeros(self.real.numel(), *x.shape[1:])
        return cells.index_copy(0, self.cells, x).unflatten(0, self.real.shape)

    def mean(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "B D"]:
        """The mean of each sentence's hidden states."""
        lengths, exact = self.offsets.diff(), torch.promote_types(x.dtype, torch.float32)
        sums = torch.zeros(len(lengths), x.shape[1], dtype=exact, device=x.device)
        return (sums.index_add(0, self.owners, x.to(exact)) / lengths.clamp(min=1)[:, None]).to(x.dtype)

    def flat(self, x: Shaped[Tensor, "B T *rest"]) -> Shaped[Tensor, "N *rest"]:
        """The inverse of `rows`."""
        return x.flatten(0, 1).index_select(0, self.cells)


@dataclass(frozen=True)
class Beams:
    """Hypotheses grouped by the sentence they translate, so that the sentence is held once for all of them."""

    width: int  # W, hypotheses a sentence
    real: Bool[Tensor, "B WT"]
    positions: Int[Tensor, "BW T"]

    @classmethod
    def of(cls, hypotheses: Padded, width: int) -> "Beams":
        """The same tokens, W rows of them to a sentence."""
        return cls(width, hypotheses.real.unflatten(0, (-1, width)).flatten(1), hypotheses.positions)

    def rows(self, x: Shaped[Tensor, "BW T *rest"]) -> Shaped[Tensor, "B WT *rest"]:
        """The vectors of one sentence's hypotheses one after another."""
        return x.unflatten(0, (-1, self.width)).flatten(1, 2)

    def flat(self, x: Shaped[Tensor, "B WT *rest"]) -> Shaped[Tensor, "BW T *rest"]:
        """The inverse of `rows`."""
        return x.unflatten(1, (self.width, -1)).flatten(0, 1)


Layout: TypeAlias = Padded | Packed | Beams


@dataclass(frozen=True)
class Sight:
    """Which keys each query may see. A mask of it is made when asked for: not every arithmetic needs one."""

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
    ) -> "Sight":
        """Every query sees every key of its own sentence that is no padding.

        causal: and that does not come later. The last query stands level with the last key, so a step's new tokens
        see everything before them. only: and that the caller's own mask allows.
        """
        if _sentences(queries) != _sentences(keys):
            raise InputError(
                f"{_sentences(queries)} target sentences cannot attend to {_sentences(keys)} source sentences"
            )
        if only is not None:
            check_mask(only, (*queries.real.shape, keys.real.shape[1]))
        return cls(queries, keys, causal, only)

    @_once
    def mask(self) -> Bool[Tensor, "B #T S"]:
        """True = may be seen."""
        mask = self.keys.real[:, None, :]
        if self.causal:
            length, span = self.queries.real.shape[1], self.keys.real.shape[1]
            mask = mask & mask.new_ones(length, span).tril(span - length)
        return mask if self.only is None else mask & self.only

    def packed_sides(self) -> tuple[Packed, Packed]:
        """Both layouts, for arithmetic that works on sentences end to end and needs no mask."""
        if not isinstance(self.queries, Packed) or not isinstance(self.keys, Packed) or self.only is not None:
            raise InputError("packed attention is for packed sentences without a mask of the caller's own")
        return self.queries, self.keys

    @_once
    def blind(self) -> Bool[Tensor, "B #T"] | None:
        """Queries that may see nothing; none: every query sees something."""
        # Packed sentences have at least one token each, so there only a caller can leave a query nothing to see.
        return None if isinstance(self.keys, Packed) and self.only is None else ~self.mask.any(-1)


def _sentences(layout: Layout) -> int:
    return len(layout.offsets) - 1 if isinstance(layout, Packed) else len(layout.real)


def check_mask(mask: Tensor, expected: tuple[int, ...]) -> None:
    """A caller's encoder-decoder mask must be bool and have exactly the shape expected."""
    if mask.dtype != torch.bool:
        raise InputError(f"a mask is bool, True = may be seen; found {mask.dtype}")
    if mask.shape != expected:
        raise InputError(
            f"the encoder-decoder mask has shape {tuple(mask.shape)}, expected (sentences, target length, "
            f"source length) = {expected}"
        )
