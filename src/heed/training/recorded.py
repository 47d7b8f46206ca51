"""What a run was started with, in its folder, so that `heed train --resume --out RUN` needs no more than that.

It is in a file of its own and not in the model's: where texts lie is nobody's business but the run's. Knows no torch.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from heed.errors import DataError, FolderError
from heed.text.corpus import Corpus
from heed.training.presets import Nested
from heed.untrusted import parse_json, read_regular

_FILE = "run.json"
_PATHS = ("source", "target", "pairs", "text")


@dataclass(frozen=True)
class Recorded:
    """The texts and settings of a run, the model it began with and where its prepared text is kept."""

    training: list[Corpus]
    validation: list[Corpus]
    settings: Nested
    init_from: Path | None
    cache: Path

    def write(self, folder: Path) -> None:
        """Leave it in the run's folder; paths are made absolute, since a run may be resumed from anywhere."""
        what = {
            "training": _described(self.training),
            "validation": _described(self.validation),
            "settings": self.settings,
            "init_from": None if self.init_from is None else str(self.init_from.absolute()),
            "cache": str(self.cache.absolute()),
        }
        new = folder / f".{_FILE}.writing"
        try:
            new.write_text(json.dumps(what, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            new.replace(folder / _FILE)
        except OSError as error:
            raise FolderError(f"{folder / _FILE} cannot be written: {error.strerror}") from None

    @classmethod
    def read(cls, folder: Path) -> "Recorded":
        """What a run's folder says."""
        file = folder / _FILE
        try:
            what = parse_json(read_regular(file))
            training, validation = ([Corpus(**one) for one in what[which]] for which in ("training", "validation"))
            begun = None if what["init_from"] is None else Path(what["init_from"])
            return cls(training, validation, dict(what["settings"]), begun, Path(what["cache"]))
        except OSError as error:
            raise DataError(
                f"there is nothing to learn from: {file}, where a run says what its text was: {error.strerror}. Give "
                "--source and --target, or --pairs, or --text"
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise FolderError(f"{file} is damaged: {error!r}. Give the whole command instead") from None


def _described(corpora: Sequence[Corpus]) -> list[dict[str, object]]:
    return [
        {name: os.path.abspath(value) if name in _PATHS and value else value for name, value in asdict(corpus).items()}
        for corpus in corpora
    ]
