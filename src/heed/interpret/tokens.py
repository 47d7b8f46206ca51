"""A text as a model takes it: token by token, each to be shown and to be found in the text.

A token is bytes, and may be a part of a character. It is then shown as �, and its span is that of the whole character:
the span of a token is the shortest stretch of text that holds all its bytes, so tokens that share a character have
overlapping spans. A space that the tokenizer puts before a text is in no span. Special tokens are shown by their names
and have empty spans, at the beginning or the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heed.backends.torch.topk import likeliest
from heed.text.tokenizer import SPECIAL, Tokenizer

Span = tuple[int, int]  # text[start:end]


@dataclass(frozen=True)
class Tokens:
    """One text, or none: then everything is empty."""

    text: str = ""
    ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()  # each token as text to be shown
    spans: tuple[Span, ...] = ()  # where each stands in `text`, in characters

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, ids: Sequence[int], before: tuple[int, ...] = (), after: tuple[int, ...] = ()
    ) -> "Tokens":
        """The text that these ids are, with special tokens before and after."""
        (text,) = tokenizer.decode([ids])
        spans = (*((0, 0) for _ in before), *_spans(tokenizer.pieces(ids), text), *((len(text),) * 2 for _ in after))
        everything = (*before, *ids, *after)
        return cls(text, everything, tuple(shown(tokenizer, everything)), spans)

    def and_then(self, other: "Tokens") -> "Tokens":
        """Two texts that are read together, as one with a tab between them."""
        past = len(self.text) + 1
        spans = ((start + past, end + past) for start, end in other.spans)
        return Tokens(
            f"{self.text}\t{other.text}", self.ids + other.ids, self.tokens + other.tokens, (*self.spans, *spans)
        )


class Candidate(NamedTuple):
    """A token that might come next."""

    token: str
    id: int
    probability: float


def shown(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Each token as text to be shown, special ones by their names."""
    plain = tokenizer.tokens(ids)
    return [SPECIAL[token] if token < len(SPECIAL) else text for token, text in zip(ids, plain, strict=True)]


def candidates(
    log_probs: Float[Tensor, "R V"], count: int, tokenizer: Tokenizer, names: Sequence[str] = ()
) -> list[list[Candidate]]:
    """The likeliest tokens of each row, best first; names: what they are called, if not by the tokenizer."""
    values, ids = likeliest(log_probs, count)

    def called(numbers: list[int]) -> list[str]:
        return [names[number] for number in numbers] if names else shown(tokenizer, numbers)

    return [
        [Candidate(*each) for each in zip(called(numbers), numbers, probabilities, strict=True)]
        for numbers, probabilities in zip(ids.tolist(), values.exp().tolist(), strict=True)
    ]


def _spans(pieces: Sequence[bytes], text: str) -> list[Span]:
    joined = b"".join(pieces)
    characters = _characters(joined)
    put_before = joined.decode(errors="replace").rfind(text)  # 1 where the text begins with a space of the tokenizer's
    spans: list[Span] = []
    for start, end in pairwise(accumulate(map(len, pieces), initial=0)):
        touched = [place - put_before for place in characters[start:end]]
        here = spans[-1][1] if spans else 0
        inside = [min(max(place, 0), len(text)) for place in (touched[0], touched[-1] + 1)] if touched else [here, here]
        spans.append((inside[0], inside[1]))
    return spans


def _characters(data: bytes) -> list[int]:
    """The number of the character that each byte belongs to; bytes that are none belong to the � shown for them."""
    return [len(data[:end].decode(errors="replace")) - 1 for end in range(1, len(data) + 1)]
