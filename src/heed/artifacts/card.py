"""The evaluation scores in a model folder's card: the section `## Scores` of its README.md.

Enters: a model folder, its scores and the test set. Leaves: the folder with a table in its card, one row per metric and
test set; a new evaluation on the same test set replaces its rows. Test sets are identified by a digest of their text,
not by file name.

Card and manifest are two files and cannot be replaced in one atomic step. So the card is first removed from the
manifest, then replaced, then listed again: a crash at any moment leaves a folder that verifies.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from heed.artifacts.manifest import FORMAT, MANIFEST, Manifest
from heed.artifacts.writing import current_version, finish_publishing, fsync, json_bytes, write_and_sync
from heed.errors import FolderError
from heed.evaluation.metrics import Score
from heed.untrusted import read_regular, reason

CARD = "README.md"
_HEADING = "## Scores"
_HEAD = ("| test set | metric | value | 95 % interval | search | date | signature |", "|---|---|---|---|---|---|---|")


@dataclass(frozen=True)
class Evaluation:
    """The test set, search settings and date of a score."""

    test_set: str
    digest: str  # of the test set's text
    search: str
    date: str


def corpus_digest(sources: Sequence[str], references: Sequence[str]) -> str:
    """A short digest of a test set's text, which identifies it independently of file names."""
    return hashlib.sha256(json.dumps([list(sources), list(references)]).encode()).hexdigest()[:12]


def write_scores(folder: Path, evaluation: Evaluation, scores: Sequence[Score]) -> None:
    """Write scores to a model folder's card, crash-safe; raises OSError where the folder is not writable."""
    finish_publishing(folder)
    manifest = Manifest.load(folder)
    card = with_scores(read_card(folder), evaluation, scores).encode()
    sums = {name: digest for name, digest in manifest.sums.items() if name != CARD}
    _replace(folder / MANIFEST, json_bytes({"format": FORMAT, "sha256": sums}))
    _replace(folder / CARD, card)
    sums = dict(sorted({**sums, CARD: hashlib.sha256(card).hexdigest()}.items()))
    _replace(folder / MANIFEST, json_bytes({"format": FORMAT, "sha256": sums}))


def read_card(folder: Path) -> str:
    """The text of a folder's card; empty if it has none.

    The only file that is read although the manifest may not list it, as after a crash in `write_scores`.
    """
    try:
        return read_regular(current_version(folder) / CARD).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise FolderError(f"{folder / CARD} cannot be read: {reason(error)}") from None


def with_scores(card: str, evaluation: Evaluation, scores: Sequence[Score]) -> str:
    """A card's text with these scores, replacing older ones on the same test set."""
    lines = card.rstrip("\n").split("\n") if card.strip() else []
    start, end = _section(lines)
    section = lines[start:end] or ([""] if lines else []) + [_HEADING]
    mark = f" ({evaluation.digest}) |"
    section = [line for line in section if not (line.startswith("|") and mark in line)]
    if _HEAD[0] not in section:
        section += ["", *_HEAD]
    last_row = max(index for index, line in enumerate(section) if line.startswith("|"))
    section[last_row + 1 : last_row + 1] = [_row(evaluation, score) for score in scores]
    return "\n".join((*lines[:start], *section, *lines[end:])) + "\n"


def without_scores(card: str) -> str:
    """A card's text without its scores, for a model derived from the one that was scored."""
    lines = card.rstrip("\n").split("\n")
    start, end = _section(lines)
    return "\n".join((*lines[:start], *lines[end:])).rstrip("\n") + "\n"


def _section(lines: list[str]) -> tuple[int, int]:
    """The lines of the section, from its heading up to the next; empty, at the end, if there is none."""
    if _HEADING not in lines:
        return len(lines), len(lines)
    start = lines.index(_HEADING)
    headings = (index for index in range(start + 1, len(lines)) if lines[index].startswith("#"))
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
    escaped = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)  # | separates cells even in code
    return f"| {' | '.join(escaped)} |"


def _replace(path: Path, content: bytes) -> None:
    """Replace a file atomically and durably: a crash leaves the old or the new file."""
    temporary = path.with_name(f".{path.name}.writing")
    try:
        write_and_sync(temporary, content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    fsync(path.parent)
