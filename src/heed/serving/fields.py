"""What a request says, from wherever it says it: JSON, a form, the address; as names and values.

Nothing is believed: JSON must be what the standard calls JSON (no NaN, no name twice, no half of a surrogate pair) with
a bounded number of items and levels, names are given once, files are refused. What values mean is not known here. All
of it runs on the event loop, so it must be quick for any body within the limits; `entrance` has checked its size.
"""

import json
import math
import re
from typing import Any
from urllib.parse import parse_qsl

from starlette.formparsers import MultiPartException
from starlette.requests import Request

from heed.serving.problems import Problem

Fields = dict[str, Any]
_MOST_FIELDS = 100
_MOST_ITEMS = 10_000  # of lists and objects in JSON, together
_DEEPEST = 16  # lists and objects within each other

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # one that does not end goes to the end: never read twice
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def fields_of_query(query: bytes) -> Fields:
    """The names and values of an address."""
    return _from_form(query, "the query string")


async def fields_of_body(request: Request, body: bytes) -> Fields:
    """The names and values of a body, of the kind that the request's head says."""
    content_type = request.headers.get("content-type", "")
    kind, _, parameters = content_type.partition(";")
    match kind.strip().lower():
        case "application/json":
            fields = read_json(body)
        case "application/x-www-form-urlencoded":
            fields = _from_form(body, "the form")
        case "multipart/form-data":
            fields = await _from_parts(request, body)
        case other:
            found = other or "none"
            raise Problem(415, f"Content type {found[:50]} is not supported: send application/json or a form")
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    if charset and charset.partition(";")[0].strip(' "') not in ("utf-8", "utf8"):
        raise Problem(415, f"Character set {charset[:50]} is not supported: send UTF-8")
    return fields


def read_json(body: bytes) -> Fields:
    """A JSON object, strictly."""
    _check_structure(body)
    try:
        found = json.loads(
            body.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_refuse, parse_float=_finite
        )
        if _SURROGATE.search(body):  # only an escape can make half a surrogate pair
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise Problem(400, "Invalid JSON format") from None
    if not isinstance(found, dict):
        raise Problem(400, "Invalid JSON format")
    return found


def _check_structure(body: bytes) -> None:
    """Refuse JSON of too many items or levels before it is parsed: a megabyte of [] would be 100 MB of lists."""
    structure = _STRING.sub(b"", body)
    items = sum(structure.count(sign) for sign in (b",", b"[", b"{"))
    if items > _MOST_ITEMS:
        raise Problem(400, f"Invalid request: JSON of {items} items; the limit is {_MOST_ITEMS}")
    level = 0
    for bracket in _BRACKET.findall(structure):
        level += 1 if bracket in (b"[", b"{") else -1
        if level > _DEEPEST:
            raise Problem(400, f"Invalid request: JSON of more than {_DEEPEST} levels")


def _once_each(pairs: list[tuple[str, Any]]) -> Fields:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("a number is too large")
    return number


def _from_form(content: bytes, where: str) -> Fields:
    try:
        pairs = parse_qsl(content.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:
        raise Problem(400, f"Invalid request: {where} is not a form in UTF-8") from None
    return _named_once(pairs, where)


async def _from_parts(request: Request, body: bytes) -> Fields:
    request._body = body
    try:
        form = await request.form(max_files=0, max_fields=_MOST_FIELDS, max_part_size=len(body))
        pairs = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        return _named_once(pairs, "the form")
    except (MultiPartException, UnicodeError, ValueError, KeyError):
        raise Problem(400, "Invalid request: the form is not a form in UTF-8, or has files") from None


def _named_once(pairs: list[tuple[str, str]], where: str) -> Fields:
    try:
        found = _once_each(pairs)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except ValueError:
        raise Problem(400, f"Invalid request: {where} has a name twice, or is not UTF-8") from None
    return found
