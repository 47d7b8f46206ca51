"""A JSON object as its members' own text, so that what nobody changes comes out as it went in.

Enters: the text of a valid JSON object. Leaves: each member verbatim, by key. Python's numbers would turn 1e400 into
Infinity, which is no JSON, 1.10 into 1.1, and lose digits of decimals; here no value is parsed and written again.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_SPACE = re.compile(r"[ \t\n\r]*")


def read_members(text: str) -> dict[str, str]:
    """Key to member, such as ``"id": 1e400``; of members with the same key the last, as parsers do."""
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
    """The object with new values; one whose key is there already takes its place."""
    added = {key: json.dumps({key: value}, ensure_ascii=False)[1:-1] for key, value in new.items()}
    return f"{{{', '.join({**members, **added}.values())}}}"


def _after_space(text: str, start: int) -> int:
    found = _SPACE.match(text, start)
    return found.end() if found else start
