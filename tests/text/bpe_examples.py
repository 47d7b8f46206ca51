"""BPE tokenizers for tests of BPE-dropout: one trained on a few texts, and any list of merges."""

import json
from collections.abc import Iterable

from hypothesis import strategies as st

from heed.text.tokenizer import BYTE_TOKENS, SPECIAL, Tokenizer

TEXTS = [
    "The animal didn't cross the street.",
    "It was too tired.",
    "A dog runs  twice.",
    "naïve café",
    "犬が通りを走る。",
]
TRAINED = Tokenizer.train(TEXTS * 5, "bpe", 500)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))

Merge = tuple[str, str]


def tokenizer_with_merges(merges: Iterable[Merge]) -> Tokenizer:
    """A byte-level BPE tokenizer with exactly these merges, in order of priority."""
    merges = list(merges)
    names = dict.fromkeys((*SPECIAL, *BYTE_TOKENS, *(left + right for left, right in merges)))
    parts = json.loads(TRAINED.to_json())
    parts["model"] |= {"vocab": {name: token for token, name in enumerate(names)}, "merges": merges}
    return Tokenizer.from_json(json.dumps(parts), "bpe")


def parse_merges(text: str) -> list[Merge]:
    return [(left, right) for left, right in (line.split("+") for line in text.split())]


# Merges that compete for the same characters.
OVERLAPPING = parse_merges("Ġ+s t+r e+e Ġs+tr Ġstr+ee Ġstree+t s+t r+e st+re Ġ+a n+a a+n an+an na+na Ġ+an b+an")
