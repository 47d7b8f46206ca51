"""A parallel corpus that the user gives to a claim: its files, and a description that tells which text was measured."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from heed.errors import ConfigError
from heed.text.corpus import Corpus, read_pairs
from heed.text.prepare import Survey, survey

_DIGITS = 12  # of a digest: enough to tell texts apart


@dataclass(frozen=True)
class ParallelCorpus:
    """Line n of a target file translates line n of its source file."""

    source: Path
    target: Path
    valid_source: Path
    valid_target: Path

    @classmethod
    def of(
        cls, source: Path | None, target: Path | None, valid_source: Path | None, valid_target: Path | None
    ) -> "ParallelCorpus | None":
        """The corpus of four files; None where none of them is given."""
        files = {"source": source, "target": target, "valid-source": valid_source, "valid-target": valid_target}
        given = [path for path in files.values() if path is not None]
        missing = [f"--{name}" for name, path in files.items() if path is None]
        if not given:
            return None
        if missing:
            raise ConfigError(f"a corpus has four files: {' and '.join(missing)} missing")
        return cls(*given)

    @cached_property
    def description(self) -> str:
        """Names, numbers of pairs and digests of the files."""
        return f"{_described(self._training)}; validation: {_described(self._validation)}"

    @cached_property
    def validation_pairs(self) -> list[tuple[str, str]]:
        """Source and reference of the validation text, without pairs that lack one of them."""
        pairs = ((pair.source, pair.target) for pair in read_pairs(self._validation))
        return [(source, target) for source, target in pairs if source and target]

    def arguments(self) -> dict[str, str]:
        """The arguments of `heed.train` for it."""
        return {name: str(path) for name, path in vars(self).items() if isinstance(path, Path)}

    @property
    def _training(self) -> Corpus:
        return Corpus(str(self.source), str(self.target))

    @property
    def _validation(self) -> Corpus:
        return Corpus(str(self.valid_source), str(self.valid_target))


def length_groups(lengths: list[int], count: int) -> list[tuple[int, int]]:
    """Groups of about equally many texts by length: the longest of the group before (0 at first), and of the group."""
    ordered = sorted(lengths)
    longest = sorted({ordered[len(ordered) * number // count - 1] for number in range(1, count + 1)})
    return list(pairwise([0, *longest]))


def _described(corpus: Corpus) -> str:
    surveyed: Survey = survey(corpus, lambda _done: None)
    names = " and ".join(Path(path).name for path in (corpus.source, corpus.target) if path is not None)
    return f"{names}, {surveyed.pairs:,} pairs, digest {surveyed.digest[:_DIGITS]}"
