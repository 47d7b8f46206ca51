"""Pads packed batches to one static shape, as capturing and replaying a CUDA graph requires.

Enters: a packed batch. Leaves: a batch with a fixed number of tokens and sentences. The rest is filled with sentences
of padding, which no real sentence attends to and the loss ignores. A batch that does not fit is split in half.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from heed.model.layout import Packed
from heed.text.tokenizer import PAD
from heed.training.batches import Batch

_MULTIPLE = 128  # tokens are rounded up to it: matmuls are fastest at such sizes
_PADDING_LENGTH = 64  # tokens per sentence of padding: attention's cost is quadratic in it
_MARGIN = 1.02  # capacity, relative to the largest example


@dataclass(frozen=True)
class BucketShape:
    """The static shape of padded batches."""

    src_tokens: int
    tgt_tokens: int
    sentences: int
    longest: int  # maximum tokens per sentence

    @classmethod
    def for_batches_like(cls, examples: Iterable[Batch], longest: int) -> "BucketShape":
        """A shape that fits batches like these, and any single pair of sentences of at most `longest` tokens."""
        sizes = [(len(batch.src), len(batch.tgt_in), len(batch.src_layout.cu_seqlens)) for batch in examples]
        *tokens, sentences = torch.tensor(sizes, device="cpu").max(0).values.tolist()
        src_tokens, tgt_tokens = (_round_up(max(round(_MARGIN * count), longest + 1) + 1) for count in tokens)
        padding = max(src_tokens, tgt_tokens) // _PADDING_LENGTH + 1
        return cls(src_tokens, tgt_tokens, round(sentences * 1.2) + padding, max(longest, _PADDING_LENGTH))

    @property
    def numel(self) -> int:
        """The length of a batch's buffer: all its ids and layouts, concatenated."""
        return sum(self._sections())

    def _sections(self) -> tuple[int, ...]:
        cu_seqlens = self.sentences + 1
        return (self.src_tokens,) * 3 + (cu_seqlens,) + (self.tgt_tokens,) * 4 + (cu_seqlens,)

    def batch(self, buffer: Int[Tensor, "numel"], tokens: int = 0) -> Batch:
        """The batch whose tensors are views of the buffer."""
        src, src_positions, src_ids, src_bounds, tgt_in, tgt_out, tgt_positions, tgt_ids, tgt_bounds = buffer.split(
            self._sections()
        )
        src_layout = Packed(src_positions, src_ids, src_bounds, self.longest)
        tgt_layout = Packed(tgt_positions, tgt_ids, tgt_bounds, self.longest)
        return Batch(src, tgt_in, tgt_out, src_layout, tgt_layout, tokens)

    def fits(self, batch: Batch) -> bool:
        """Whether a batch fits, together with sentences of padding of at least one token on both sides."""
        unused = (self.src_tokens - len(batch.src), self.tgt_tokens - len(batch.tgt_in))
        padding, sentences = _padding_sentences(unused), len(batch.src_layout.cu_seqlens) - 1
        return min(unused) >= padding and sentences + padding <= self.sentences

    def pad(self, batch: Batch) -> Int[Tensor, "numel"]:
        """The buffer of a batch that fits, padded to this shape."""
        padding = _padding_sentences((self.src_tokens - len(batch.src), self.tgt_tokens - len(batch.tgt_in)))
        src_layout = self._pad_layout(batch.src_layout, self.src_tokens, padding)
        tgt_layout = self._pad_layout(batch.tgt_layout, self.tgt_tokens, padding)
        src = _pad_ids(batch.src, self.src_tokens)
        tgt = (_pad_ids(ids, self.tgt_tokens) for ids in (batch.tgt_in, batch.tgt_out))
        return torch.cat((src, *src_layout, *tgt, *tgt_layout))

    def _pad_layout(self, layout: Packed, tokens: int, padding: int) -> tuple[Tensor, Tensor, Tensor]:
        """Positions, sequence ids and cu_seqlens: the batch's, then sentences of padding, then empty sentences."""
        unused, real = tokens - len(layout.sequence_ids), len(layout.cu_seqlens) - 1
        padding_lengths = torch.full((padding,), unused // padding, device="cpu")
        padding_lengths[: unused % padding] += 1
        empty = padding_lengths.new_zeros(self.sentences - real - padding)
        lengths = torch.cat((layout.cu_seqlens.diff(), padding_lengths, empty))
        cu_seqlens = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        sequence_ids = torch.arange(self.sentences, device=lengths.device).repeat_interleave(lengths)
        return torch.arange(tokens, device=lengths.device) - cu_seqlens[sequence_ids], sequence_ids, cu_seqlens


def split_to_fit(batch: Batch, shape: BucketShape) -> Iterator[Batch]:
    """The batch if it fits the shape, else its halves, split again until each fits."""
    if shape.fits(batch):
        yield batch
    else:
        for half in batch.halves():
            yield from split_to_fit(half, shape)


def _padding_sentences(unused: tuple[int, int]) -> int:
    return max(1, -(-max(unused) // _PADDING_LENGTH))


def _pad_ids(ids: Tensor, length: int) -> Tensor:
    return torch.nn.functional.pad(ids, (0, length - len(ids)), value=PAD)


def _round_up(tokens: int) -> int:
    return -(-tokens // _MULTIPLE) * _MULTIPLE
