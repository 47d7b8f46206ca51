"""A model with its tokenizers, and a text as token ids, token texts and character spans.

A token is bytes, and may be part of a character. It is then shown as �, and its span is that of the whole character:
the span of a token is the shortest stretch of text that holds all its bytes, so tokens that share a character have
overlapping spans. A space that the tokenizer puts before a text is in no span. Special tokens are shown by their names
and have empty spans, at the beginning or the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from heed.backends.torch.search_ops import topk
from heed.config import ModelConfig
from heed.errors import InputError
from heed.model.transformer import Transformer
from heed.search_config import SearchConfig
from heed.text.tokenizer import SPECIAL, Tokenizer, TokenizerPair

Span = tuple[int, int]  # text[start:end]


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model of any kind with its tokenizers and settings."""

    model: Transformer
    tokenizers: TokenizerPair  # of source and target; the same twice where a model has one
    search: SearchConfig = field(default_factory=SearchConfig)
    max_tokens: int = 256  # the maximum length of a traced text
    labels: tuple[str, ...] = ()  # names of a classifier's labels, in the order of its logits; none: numbers from 1

    @classmethod
    def only(
        cls,
        models: Sequence[Transformer],
        tokenizers: TokenizerPair,
        search: SearchConfig,
        max_tokens: int,
    ) -> "TextModel":
        """The one model of a translator; an ensemble is refused."""
        if len(models) > 1:
            raise InputError(f"look shows one model at a time, found an ensemble of {len(models)}")
        return cls(models[0], tokenizers, search, max_tokens)

    @property
    def config(self) -> ModelConfig:
        return self.model.config

    @property
    def label_names(self) -> tuple[str, ...]:
        """A name for each of a classifier's labels; empty for any other model."""
        return self.labels or tuple(str(number) for number in range(1, (self.config.labels or 0) + 1))

    @property
    def output_tokenizer(self) -> Tokenizer:
        """The tokenizer of the vocabulary that the logits are over."""
        return self.tokenizers[1 if self.config.has_decoder else 0]


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of one text; empty for a side that a model does not have."""

    text: str = ""
    ids: tuple[int, ...] = ()
    tokens: tuple[str, ...] = ()  # the text of each token
    spans: tuple[Span, ...] = ()  # start and end of each token in `text`, in characters

    @classmethod
    def of(
        cls, tokenizer: Tokenizer, ids: Sequence[int], before: tuple[int, ...] = (), after: tuple[int, ...] = ()
    ) -> "TokenizedText":
        """The text that these ids decode to, with special tokens before and after."""
        (text,) = tokenizer.decode([ids])
        spans = (*((0, 0) for _ in before), *_spans(tokenizer.pieces(ids), text), *((len(text),) * 2 for _ in after))
        all_ids = (*before, *ids, *after)
        return cls(text, all_ids, tuple(shown(tokenizer, all_ids)), spans)

    def and_then(self, other: "TokenizedText") -> "TokenizedText":
        """Two texts of one input, as one with a tab between them."""
        offset = len(self.text) + 1
        spans = ((start + offset, end + offset) for start, end in other.spans)
        return TokenizedText(
            f"{self.text}\t{other.text}", self.ids + other.ids, self.tokens + other.tokens, (*self.spans, *spans)
        )


class Candidate(NamedTuple):
    """A token or label with its probability."""

    token: str
    id: int
    probability: float


def shown(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; of special tokens, their names."""
    texts = tokenizer.tokens(ids)
    return [SPECIAL[token] if token < len(SPECIAL) else text for token, text in zip(ids, texts, strict=True)]


def candidates(
    log_probs: Float[Tensor, "R V"], count: int, tokenizer: Tokenizer, names: Sequence[str] = ()
) -> list[list[Candidate]]:
    """The top-k tokens of each row, most probable first; names: of the columns, where they are not the vocabulary."""
    values, ids = topk(log_probs, count)

    def texts(columns: list[int]) -> list[str]:
        return [names[column] for column in columns] if names else shown(tokenizer, columns)

    return [
        [Candidate(*values) for values in zip(texts(columns), columns, probabilities, strict=True)]
        for columns, probabilities in zip(ids.tolist(), values.exp().tolist(), strict=True)
    ]


def _spans(pieces: Sequence[bytes], text: str) -> list[Span]:
    joined = b"".join(pieces)
    characters = _characters(joined)
    offset = joined.decode(errors="replace").rfind(text)  # 1 where the tokenizer puts a space before the text
    spans: list[Span] = []
    for start, end in pairwise(accumulate(map(len, pieces), initial=0)):
        covered = [index - offset for index in characters[start:end]]
        previous_end = spans[-1][1] if spans else 0
        bounds = (
            [min(max(index, 0), len(text)) for index in (covered[0], covered[-1] + 1)]
            if covered
            else [previous_end, previous_end]
        )
        spans.append((bounds[0], bounds[1]))
    return spans


def _characters(data: bytes) -> list[int]:
    """The index of the character that each byte belongs to; of invalid bytes, that of the � shown for them."""
    return [len(data[:end].decode(errors="replace")) - 1 for end in range(1, len(data) + 1)]
