"""Files that somebody else may have written, read with care.

Enters: a path. Leaves: its bytes, or the value of its JSON; or an OSError or a ValueError that says what is wrong. Time
and memory are bounded. A folder from elsewhere may have a named pipe where a file should be (opening one waits for
ever), a sparse file of a terabyte, or JSON that is nested ten thousand deep. Knows nothing of models or text.
"""

import json
import math
import os
import stat
from collections import Counter
from io import BufferedReader
from pathlib import Path
from typing import Any

LARGEST_JSON = 64 << 20  # bytes; the tokenizer of a vocabulary of 250,000 tokens has about 20 million
_DEEPEST = 32  # levels of lists and objects; a tokenizer.json has 5


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe, a device, a socket or a folder is refused, at once."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb", closefd=True)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is not a regular file")
    return file


def read_regular(path: Path, limit: int = LARGEST_JSON) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ValueError(f"it has {size:,} bytes, and at most {limit:,} are read")
        content = file.read(size + 1)
    if len(content) != size:
        raise ValueError("it changes while it is read")
    return content


def parse_json(content: bytes | str) -> Any:
    """The value of strict JSON: UTF-8, finite numbers, no key twice, no lone surrogate, no deep nesting."""
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"its lists and objects are nested more than {_DEEPEST} deep") from None
    _check(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {short_repr(twice)} stands twice in one object")
    return found


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def _check(value: Any) -> None:
    """Refuse deep nesting, and strings that no UTF-8 can spell; without recursion."""
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for one in level:
            if isinstance(one, str) and not one.isascii():
                one.encode()  # UnicodeEncodeError is a ValueError
            elif isinstance(one, dict):
                below += one.keys()
                below += one.values()
            elif isinstance(one, list):
                below += one
        if not below:
            return
        level = below
    raise ValueError(f"its lists and objects are nested more than {_DEEPEST} deep")


def short_repr(value: object, most: int = 80) -> str:
    """A value as it is shown in a message: of something long, its beginning."""
    shown = repr(value)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def reason(error: OSError | ValueError) -> str:
    """What was wrong, in one line."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return " ".join(str(error).split())
