"""Parses rows of TSV, CSV and JSON Lines: selects columns or keys, and edits JSON objects losslessly.

Enters: numbered lines, or one line. Leaves: the texts of a row, or a `DataError` that says what is wrong with it. A
JSON object that is written back keeps its other members byte for byte: a number keeps its digits. Knows nothing of
files.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from heed.errors import DataError
from heed.text.language_codes import is_known_code

RowT = TypeVar("RowT")
_LABEL_COLUMNS = ("label", "labels", "class", "category", "sentiment", "intent")
_COLUMN_NAMES = frozenset(
    """label labels class category sentiment intent source target src tgt trg source_text target_text input output
    translation id idx index text text1 text2 sentence sentence1 sentence2 premise hypothesis question review title
    content score""".split()  # noqa: SIM905 - a list of these would be half a page
)
_JSON_SPACE = re.compile(r"[ \t\n\r]*")


class ColumnSelection:
    """The columns of a TSV or CSV file to read. columns: the --columns option, `2,3` or `en,de`; None: all columns.

    A row of labelled text has a label, then one or two texts; any other row has a source, then a target.
    """

    def __init__(self, columns: str | None, *, labelled: bool) -> None:
        self._columns = [] if columns is None else [column.strip() for column in columns.split(",")]
        self._labelled = labelled
        counts = (2, 3) if labelled else (2,)
        if columns is not None and (len(self._columns) not in counts or "0" in self._columns or "" in self._columns):
            expected = "source and target" if not labelled else "source and target, or of a label and one or two texts"
            raise DataError(
                f"--columns {columns}: expected the columns of {expected}, such as 1,2, or their names in the header "
                "row; the first column is 1"
            )
        self._indices = [] if self.named else [int(column) - 1 for column in self._columns]  # empty: all columns

    @property
    def named(self) -> bool:
        """Whether columns are chosen by name: the first row is then a header, not text."""
        return not all(column.isdecimal() for column in self._columns)

    def resolve(self, header: Sequence[str]) -> None:
        """Look the column names up in the header row."""
        names, self._indices = [name.strip() for name in header], []
        for column in self._columns:
            if column in names:
                self._indices.append(names.index(column))
            elif column.isdecimal():
                self._indices.append(int(column) - 1)
            else:
                shown = ", ".join(repr(name) for name in names)
                raise DataError(f"--columns: no column {column!r} in the header row, which has {shown}")

    def select(self, cells: Sequence[str], *, first: bool) -> tuple[str, str]:
        """Source and target of a row; a blank row is an empty pair. first: whether it may be a header row."""
        if is_blank(cells):
            return "", ""
        if self._indices and max(self._indices) >= len(cells):
            raise DataError(f"expected at least {max(self._indices) + 1} columns, found {len(cells)}")
        chosen = [cells[index] for index in self._indices] if self._indices else cells
        if first and not self.named and all(_is_column_name(cell) for cell in chosen):
            names = ", ".join(cell.strip() for cell in cells)
            raise DataError(
                f"looks like a header row of column names ({names}), not like text: choose columns by these names, "
                f"such as --columns {self._suggestion(cells)}, or remove the line"
            )
        if self._labelled and len(chosen) in (2, 3):
            return "\t".join(text.replace("\t", " ") for text in chosen[1:]), chosen[0]
        if not self._labelled and len(chosen) == 2:
            return chosen[0], chosen[1]
        expected = "2 or 3 columns (label and one or two texts)" if self._labelled else "2 columns (source and target)"
        hint = f": choose with --columns, such as --columns {self._suggestion(cells)}" if len(cells) > 2 else ""
        raise DataError(f"expected {expected}, found {len(cells)}{hint}")

    def _suggestion(self, cells: Sequence[str]) -> str:
        names = [cell.strip() for cell in cells]
        if not all(_is_column_name(name) for name in names):
            return "1,2"
        if self._labelled:  # the label comes first
            names.sort(key=lambda name: name.lower() not in _LABEL_COLUMNS)
        return ",".join([name for name in names if name.lower() not in ("id", "idx", "index", "score")][:2])


def is_blank(cells: Sequence[str]) -> bool:
    return len(cells) < 2 and not "".join(cells).strip()


def _is_column_name(cell: str) -> bool:
    return cell.strip().lower() in _COLUMN_NAMES or is_known_code(cell.strip())


def csv_rows(lines: Iterator[tuple[int, str]], on_error: Callable[[int, str], None]) -> Iterator[tuple[int, list[str]]]:
    """Rows and the numbers of their first lines; a quoted cell may span several lines.

    on_error: called with the first line of a malformed row and the error message.
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
            on_error(first, str(error))
        else:
            yield first, cells


def drop_trailing_blank(rows: Iterator[tuple[int, RowT]], blank: Callable[[RowT], bool]) -> Iterator[tuple[int, RowT]]:
    """Drop an empty last line, which editors leave; other empty lines are rows."""
    last = next(rows, None)
    for row in rows:
        if last is not None:
            yield last
        last = row
    if last is not None and not blank(last[1]):
        yield last


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a line of JSON Lines; `where` names the line in errors."""
    if not text.strip():
        raise DataError(f"{where}: blank line, expected a JSON object; remove the line")
    try:
        row = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not valid JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits; deep nesting
        raise DataError(f"{where}: JSON that cannot be read: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected a JSON object, found {type(row).__name__}")
    return row


def get_text(row: dict[str, Any], key: str, where: str, *, is_label: bool = False) -> str:
    """The text of a JSON object under a key, which may be nested: ``translation.en``.

    is_label: integers and booleans are allowed too, and returned as JSON.
    """
    value: Any = row
    for part in [key] if key in row else key.split("."):
        if not isinstance(value, dict) or part not in value:
            keys = ", ".join(repr(name) for name in _keys(row)) or "none"
            raise DataError(f"{where}: no key {key!r}, the keys are {keys}: choose with --source-key and --target-key")
        value = value[part]
    if is_label and isinstance(value, int):
        return json.dumps(value)
    if not isinstance(value, str):
        expected = "a string or an integer" if is_label else "a string"
        raise DataError(f"{where}: the value of {key!r} must be {expected}, found {type(value).__name__}")
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
    """All keys of an object; nested keys with a dot."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in value)
        else:
            yield name


def read_members(text: str) -> dict[str, str]:
    """The members of a JSON object as source text, by key: ``"id": 1e400``; the last of duplicate keys wins."""
    decode, members = json.JSONDecoder(parse_int=str).raw_decode, {}
    start = _skip_space(text, _skip_space(text, 0) + 1)  # after the opening brace
    while text[start] != "}":
        key, key_end = decode(text, start)
        value_start = _skip_space(text, _skip_space(text, key_end) + 1)  # after the colon
        _, end = decode(text, value_start)
        members[str(key)] = f"{text[start:key_end]}: {text[value_start:end]}"
        start = _skip_space(text, end)
        if text[start] == ",":
            start = _skip_space(text, start + 1)
    return members


def write_members(members: Mapping[str, str], new: Mapping[str, Any]) -> str:
    """A JSON object of `members`, as `read_members` returns them, updated with new values."""
    added = {key: json.dumps({key: value}, ensure_ascii=False)[1:-1] for key, value in new.items()}
    return f"{{{', '.join({**members, **added}.values())}}}"


def _skip_space(text: str, start: int) -> int:
    space = _JSON_SPACE.match(text, start)
    return space.end() if space else start
