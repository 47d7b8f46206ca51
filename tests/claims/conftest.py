"""A parallel corpus for the claims on natural text."""

import pytest

from heed.claims.parallel_corpus import ParallelCorpus
from heed.microworld.corpus import DatasetSplit, corpus

_PAIRS: dict[DatasetSplit, int] = {"train": 40, "valid": 12}


@pytest.fixture(scope="package")
def parallel_corpus(tmp_path_factory: pytest.TempPathFactory) -> ParallelCorpus:
    """Pairs of the built-in corpus, in files as a user has them."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, count in _PAIRS.items():
        examples = corpus(split, count)
        for side in ("source", "target"):
            text = "".join(f"{getattr(example, side)}\n" for example in examples)
            (folder / f"{split}.{side}").write_text(text, encoding="utf-8")
    return ParallelCorpus(*(folder / f"{split}.{side}" for split in _PAIRS for side in ("source", "target")))
