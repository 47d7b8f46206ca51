"""A corpus to the tokenizers for it, learnt once and kept.

Enters: corpora that have been read through, and settings. Leaves: the source's tokenizer and the target's, the same one
unless they are to be separate; from the cache if they were learnt from the same text and settings before.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from heed.config import DataConfig
from heed.text.corpus import Corpus, read_pairs
from heed.text.prepare import Survey
from heed.text.tokenizer import Tokenizer, suitable_vocab_size

_ENOUGH = 1_000_000  # pairs to learn a vocabulary from; of more, every second, third …


def learn_tokenizers(
    corpora: Sequence[tuple[Corpus, Survey]],
    data: DataConfig,
    text: tuple[str, ...],
    cache: Path,
    announce: Callable[[], None],
) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of source and target.

    text: the sides of a pair that are text. announce: called if there is something to learn, which takes a while.
    """
    sides = [(side,) for side in text] if data.separate_vocabularies else [text]
    size = data.vocab_size or suitable_vocab_size(sum(found.pairs for _, found in corpora))
    learnt = []
    for names in sides:
        kept = cache / f"{_key(corpora, data, size, names)}.tokenizer.json"
        if not kept.exists():
            announce()
            tokenizer = Tokenizer.train(_texts(corpora, names), data.tokenizer, size)
            _keep(kept, tokenizer.to_json())
        learnt.append(Tokenizer.load(kept, data.tokenizer))
    return learnt[0], learnt[-1]


def _texts(corpora: Sequence[tuple[Corpus, Survey]], sides: tuple[str, ...]) -> Iterator[str]:
    every = -(-sum(found.pairs for _, found in corpora) // _ENOUGH)
    for corpus, _ in corpora:
        for pair in read_pairs(corpus):
            if pair.line % every == 0:
                yield from (getattr(pair, side) for side in sides)


def _key(corpora: Sequence[tuple[Corpus, Survey]], data: DataConfig, size: int, sides: tuple[str, ...]) -> str:
    what = [data.tokenizer, size, sides, [[found.pairs, found.digest] for _, found in corpora]]
    return hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()


def _keep(path: Path, text: str) -> None:
    """Whole or not at all, also when two runs learn the same at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".building-", delete=False, encoding="utf-8") as file:
        file.write(text)
    Path(file.name).replace(path)
