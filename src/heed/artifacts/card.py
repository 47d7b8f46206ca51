"""The scores of a model, in the card of its folder: the section `## Scores` of README.md.

Enters: a model folder, its scores and what they were measured on. Leaves: the folder with a table in its card that has
one row a metric and test set; measured again, a row is replaced. A test set is known by its text, not its name.

Card and manifest are two files, and only one can be replaced at a time. So the manifest first lets go of the card,
then the card is replaced, then the manifest names it again: a crash at any moment leaves a folder that verifies.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.artifacts.manifest import FORMAT, MANIFEST, Listed
from heed.artifacts.writing import as_json, current, finish_publishing, sync, write_and_sync
from heed.errors import FolderError
from heed.evaluation.metrics import Score
from heed.untrusted import read_regular, reason

CARD = "README.md"
_HEADING = "## Scores"
_HEAD = ("| test set | metric | value | 95 % interval | search | date | signature |", "|---|---|---|---|---|---|---|")


@dataclass(frozen=True)
class Evaluation:
    """What stands beside each score: on what, how and when it was measured."""

    test_set: str
    digest: str  # of the test set's text
    search: str
    date: str


def corpus_digest(sources: Sequence[str], references: Sequence[str]) -> str:
    """What tells one test set from another, whatever its files are called."""
    return hashlib.sha256(json.dumps([list(sources), list(references)]).encode()).hexdigest()[:12]


def write_scores(folder: Path, evaluation: Evaluation, scores: Sequence[Score]) -> None:
    """Put scores into a model folder's card, safe from crashes; OSError where the folder cannot be written."""
    finish_publishing(folder)
    listed = Listed.of(folder)
    new = with_scores(read_card(folder), evaluation, scores).encode()
    sums = {name: digest for name, digest in listed.sums.items() if name != CARD}
    _replace(folder / MANIFEST, as_json({"format": FORMAT, "sha256": sums}))
    _replace(folder / CARD, new)
    sums = dict(sorted({**sums, CARD: hashlib.sha256(new).hexdigest()}.items()))
    _replace(folder / MANIFEST, as_json({"format": FORMAT, "sha256": sums}))


def read_card(folder: Path) -> str:
    """The text of a folder's card; empty where it has none.

    The one file that is read without being listed: a crash in `write_scores` leaves it so, and it is text for people.
    """
    try:
        return read_regular(current(folder) / CARD).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder / CARD} cannot be read: {reason(error)}") from None


def with_scores(card: str, evaluation: Evaluation, scores: Sequence[Score]) -> str:
    """A card's text with these scores in the place of older ones on the same test set; all else stays as it is."""
    lines = card.rstrip("\n").split("\n") if card.strip() else []
    start, end = _section(lines)
    section = lines[start:end] or ([""] if lines else []) + [_HEADING]
    mark = f" ({evaluation.digest}) |"
    section = [line for line in section if not (line.startswith("|") and mark in line)]
    if _HEAD[0] not in section:
        section += ["", *_HEAD]
    last = max(place for place, line in enumerate(section) if line.startswith("|"))
    section[last + 1 : last + 1] = [_row(evaluation, score) for score in scores]
    return "\n".join((*lines[:start], *section, *lines[end:])) + "\n"


def without_scores(card: str) -> str:
    """A card's text for another model than the one that was scored."""
    lines = card.rstrip("\n").split("\n")
    start, end = _section(lines)
    return "\n".join((*lines[:start], *lines[end:])).rstrip("\n") + "\n"


def _section(lines: list[str]) -> tuple[int, int]:
    """Where the scores begin, and where the next heading follows; both at the end where there are none yet."""
    if _HEADING not in lines:
        return len(lines), len(lines)
    start = lines.index(_HEADING)
    headings = (place for place in range(start + 1, len(lines)) if lines[place].startswith("#"))
    return start, next(headings, len(lines))


def _row(evaluation: Evaluation, score: Score) -> str:
    cells = (
        f"{evaluation.test_set} ({evaluation.digest})",
        score.metric,
        f"{score.value:.2f}",
        f"{score.mean:.2f} ± {score.half_width:.2f}",
        evaluation.search,
        evaluation.date,
        f"`{score.signature}`",
    )
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)  # in a table | parts cells even in code
    return f"| {' | '.join(escaped)} |"


def _replace(path: Path, content: bytes) -> None:
    """Put a file in another's place: a crash leaves the old or the new one, and the disk has it before this ends."""
    building = path.with_name(f".{path.name}.writing")
    try:
        write_and_sync(building, content)
        building.replace(path)
    finally:
        building.unlink(missing_ok=True)
    sync(path.parent)
