"""Reads untrusted files and JSON with bounded time and memory.

Enters: a path. Leaves: its bytes, or its parsed JSON; or an OSError or ValueError that says what is wrong. A downloaded
model folder may contain a named pipe (opening it blocks for ever), a sparse file of a terabyte, or JSON that is nested
ten thousand levels deep. Knows nothing of models or text.
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
_MAX_SHOWN = 80  # characters of a value in a message
_MAX_DEPTH = 32  # nested lists and objects; a tokenizer.json has 5 levels


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe, device, socket or folder is a ValueError, without blocking."""
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
            raise ValueError(f"it has {size:,} bytes, more than the limit of {limit:,}")
        content = file.read(size + 1)
    if len(content) != size:
        raise ValueError("it changed while it was read")
    return content


def parse_json(content: bytes | str) -> Any:
    """Parse strict JSON: UTF-8, finite numbers, no duplicate keys, no lone surrogates, no deep nesting."""
    try:
        text = content.decode("utf-8") if isinstance(content, bytes) else content
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError(f"its lists and objects are nested more than {_MAX_DEPTH} deep") from None
    _check_nesting_and_strings(value)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((duplicate, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {short_repr(duplicate)} in an object")
    return members


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text[:40]} is not a finite number")
    return number


def _check_nesting_and_strings(value: Any) -> None:
    """Raise on deep nesting and on strings that cannot be encoded as UTF-8; without recursion."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        children: list[Any] = []
        for node in level:
            if isinstance(node, str) and not node.isascii():
                node.encode()  # UnicodeEncodeError is a ValueError
            elif isinstance(node, dict):
                children += node.keys()
                children += node.values()
            elif isinstance(node, list):
                children += node
        if not children:
            return
        level = children
    raise ValueError(f"its lists and objects are nested more than {_MAX_DEPTH} deep")


def short_repr(value: object) -> str:
    """The repr of a value for a message, truncated."""
    shown = repr(value)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 1]}…"


def reason(error: OSError | ValueError) -> str:
    """The message of an error, in one line."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return " ".join(str(error).split())
