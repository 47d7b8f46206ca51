"""How many tokens the texts of a sample have."""

import numpy as np

from heed.config import DataConfig
from heed.text.corpus import Pair
from heed.text.faults import TEXTS, Form, Integers
from heed.text.labels import JoinedTexts
from heed.text.tokenizer import Tokenizer


def count_tokens(sample: list[Pair], form: Form, data: DataConfig, suitable: int) -> tuple[Integers, tuple[int, int]]:
    """How many tokens the texts of a sample have with a tokenizer learnt from it, and how many different ones.

    A label is one token; texts alone have sources of none.
    """
    sides = [[pair.source for pair in sample], [pair.target for pair in sample]]
    size = data.vocab_size or suitable
    if form != "pairs":
        (side,) = TEXTS[form]
        one = Tokenizer.train([part for text in sides[side] for part in text.split("\t")], data.tokenizer, size)
        encoder = JoinedTexts(one) if form == "labelled" else one
        tokens = np.full((len(sample), 2), form == "labelled", np.int64)
        tokens[:, side] = [len(ids) for ids in encoder.encode(sides[side])]
        return tokens, (one.vocab_size, one.vocab_size)
    if data.separate_vocabularies:
        source, target = (Tokenizer.train(texts, data.tokenizer, size) for texts in sides)
    else:
        source = target = Tokenizer.train(sides[0] + sides[1], data.tokenizer, size)
    lengths = [[len(ids) for ids in one.encode(texts)] for one, texts in zip((source, target), sides, strict=True)]
    return np.array(lengths).T, (source.vocab_size, target.vocab_size)
