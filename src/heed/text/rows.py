"""Rows of TSV, CSV and JSON Lines files: which columns or keys hold the texts, and JSON objects with more members.

Enters: numbered lines, or one line. Leaves: the texts of a row, or a `DataError` that says what is wrong with it. An
object that is written back keeps all it had, to the letter: a number stays as long and as precise as it was written.
Knows nothing of files.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from heed.errors import DataError
from heed.text.language_codes import is_known_code

Row = TypeVar("Row")
_LABELS = ("label", "labels", "class", "category", "sentiment", "intent")
_HEADER = frozenset(
    """label labels class category sentiment intent source target src tgt trg source_text target_text input output
    translation id idx index text text1 text2 sentence sentence1 sentence2 premise hypothesis question review title
    content score""".split()  # noqa: SIM905 - a list of these would be half a page
)
_JSON_SPACE = re.compile(r"[ \t\n\r]*")


class ColumnSelection:
    """The columns that are read. wanted: as a person gave them, `2,3` or `en,de`; none: all there are.

    A row of labelled text has a label, then one text or two; any other row has a source, then a target.
    """

    def __init__(self, wanted: str | None, *, labelled: bool) -> None:
        self._wanted = None if wanted is None else [column.strip() for column in wanted.split(",")]
        self._labelled = labelled
        counts = (2, 3) if labelled else (2,)
        if self._wanted is not None and (len(self._wanted) not in counts or "0" in self._wanted or "" in self._wanted):
            what = "a label and one or two texts, such as 1,2" if labelled else "source and target, such as 1,2"
            raise DataError(f"--columns {wanted}: expected the columns of {what}, or their names in the first row")
        self._numbers = None if self._wanted is None or self.are_named else [int(column) - 1 for column in self._wanted]

    @property
    def are_named(self) -> bool:
        """Whether the first row is needed to know which columns these are; it is then no text."""
        return self._wanted is not None and not all(column.isdecimal() for column in self._wanted)

    def find(self, header: Sequence[str]) -> None:
        """Look the names up in the first row."""
        names, numbers = [name.strip() for name in header], []
        for wanted in self._wanted or ():
            if wanted in names:
                numbers.append(names.index(wanted))
            elif wanted.isdecimal():
                numbers.append(int(wanted) - 1)
            else:
                shown = ", ".join(repr(name) for name in names)
                raise DataError(f"--columns: no column {wanted!r} in the first row, which has {shown}")
        self._numbers = numbers

    def take(self, cells: Sequence[str], *, first: bool) -> tuple[str, str]:
        """Source and target of a row; a blank one is an empty pair. first: it may be a row of names."""
        if is_blank(cells):
            return "", ""
        chosen = cells if self._numbers is None else self._chosen(cells)
        if first and not self.are_named and all(_is_name(cell) for cell in chosen):
            names = ", ".join(cell.strip() for cell in cells)
            raise DataError(
                f"looks like a row of column names ({names}), not like text: choose columns by these names, such as "
                f"--columns {self._suggested(cells)}, or remove the line"
            )
        if self._labelled and len(chosen) in (2, 3):
            return "\t".join(text.replace("\t", " ") for text in chosen[1:]), chosen[0]
        if not self._labelled and len(chosen) == 2:
            return chosen[0], chosen[1]
        wanted = "a label and one or two texts, tabs between" if self._labelled else "2 columns, one tab between them"
        choose = f": choose with --columns, such as --columns {self._suggested(cells)}" if len(cells) > 2 else ""
        raise DataError(f"expected {wanted}, found {len(cells)}{choose}")

    def _chosen(self, cells: Sequence[str]) -> list[str]:
        numbers = self._numbers or []
        if max(numbers) >= len(cells):
            raise DataError(f"expected at least {max(numbers) + 1} columns, found {len(cells)}")
        return [cells[number] for number in numbers]

    def _suggested(self, cells: Sequence[str]) -> str:
        names = [cell.strip() for cell in cells]
        if not all(_is_name(name) for name in names):
            return "1,2"
        if self._labelled:  # the label comes first
            names.sort(key=lambda name: name.lower() not in _LABELS)
        return ",".join([name for name in names if name.lower() not in ("id", "idx", "index", "score")][:2])


def is_blank(cells: Sequence[str]) -> bool:
    """Whether a row is an empty line."""
    return len(cells) < 2 and not "".join(cells).strip()


def _is_name(cell: str) -> bool:
    return cell.strip().lower() in _HEADER or is_known_code(cell.strip())


def csv_rows(lines: Iterator[tuple[int, str]], refuse: Callable[[int, str], None]) -> Iterator[tuple[int, list[str]]]:
    """Rows and the lines they begin on; a cell in quotes may go on over several lines.

    refuse: called with the line of a row that cannot be read, and why.
    """
    first = 0

    def texts() -> Iterator[str]:
        nonlocal first
        for line, text in lines:
            first = first or line
            yield f"{text}\n"

    reader = csv.reader(texts(), strict=True)
    while True:
        first = 0
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            refuse(first, str(error))
        else:
            yield first, cells


def drop_trailing_blank(rows: Iterator[tuple[int, Row]], blank: Callable[[Row], bool]) -> Iterator[tuple[int, Row]]:
    """An empty line at the very end is a habit of editors, not a row; any other is one."""
    last = next(rows, None)
    for row in rows:
        if last is not None:
            yield last
        last = row
    if last is not None and not blank(last[1]):
        yield last


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The JSON object that a line is."""
    if not text.strip():
        raise DataError(f"{where}: blank line, expected a JSON object; remove the line")
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits; thousands of brackets
        raise DataError(f"{where}: JSON that cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(row).__name__}")
    return row


def get_text(row: dict[str, Any], key: str, where: str, *, is_label: bool = False) -> str:
    """The text that a JSON object has under a key, ``translation.en`` also inside another object.

    is_label: an integer or a truth value will do, as JSON writes it.
    """
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, dict) or part not in value:
            found = ", ".join(repr(name) for name in _keys(row)) or "none"
            raise DataError(
                f"{where}: no key {key!r}, the keys are {found}: say which with --source-key and --target-key"
            )
        value = value[part]
    if is_label and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        wanted = "a string or an integer" if is_label else "a string"
        raise DataError(f"{where}: the value of {key!r} must be {wanted}, found {type(value).__name__}")
    text = value
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: the value of {key!r} has the unpaired surrogate {text[error.start]!r} "
            f"at character {error.start + 1}, which is not valid text"
        ) from None
    if "\0" in text:
        raise DataError(f"{where}: the value of {key!r} has a NUL at character {text.index(chr(0)) + 1}")
    return text


def _keys(row: dict[str, Any]) -> Iterator[str]:
    """All keys of an object; those inside another object with a dot."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value)
        else:
            yield name


def read_members(text: str) -> dict[str, str]:
    """The members of a JSON object as they are written, by key: ``"id": 1e400``; of two with one key the last."""
    decode, members = json.JSONDecoder(parse_int=str).raw_decode, {}
    at = _after_space(text, _after_space(text, 0) + 1)  # behind the brace
    while text[at] != "}":
        key, after_key = decode(text, at)
        value = _after_space(text, _after_space(text, after_key) + 1)  # behind the colon
        _, end = decode(text, value)
        members[str(key)] = f"{text[at:after_key]}: {text[value:end]}"
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)
    return members


def write_members(members: Mapping[str, str], new: Mapping[str, Any]) -> str:
    """A JSON object of these members and new values; a new value replaces the member of its key."""
    added = {key: json.dumps({key: value}, ensure_ascii=False)[1:-1] for key, value in new.items()}
    return f"{{{', '.join({**members, **added}.values())}}}"


def _after_space(text: str, start: int) -> int:
    space = _JSON_SPACE.match(text, start)
    return space.end() if space else start
