"""What a request says, from wherever it says it: JSON, a form, the address; as names and values.

Nothing is believed: the body's size is counted as it arrives, JSON must be what the standard calls JSON (no NaN, no
name twice, no half of a surrogate pair), names are given once, files are refused. What values mean is not known here.
"""

import asyncio
import json
import math
from typing import Any
from urllib.parse import parse_qsl

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from heed.serving.problems import Problem

Fields = dict[str, Any]
_MOST_FIELDS = 100
_DRAINED = 16  # times the limit: how much of a body too large is read, so that its sender gets to read our answer


async def read_fields(request: Request, body_bytes: int, seconds: float) -> Fields:
    """All names and values of a request; those in the body win over those in the address."""
    in_address = _from_form(request.scope["query_string"], "the query string")
    if request.method in ("GET", "HEAD"):  # some clients send a body with a GET, which means nothing
        return in_address
    body = await _read_body(request, body_bytes, seconds)
    return {**in_address, **(await _from_body(request, body))} if body else in_address


async def _read_body(request: Request, limit: int, seconds: float) -> bytes:
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size <= limit:
                    body += part
                elif size > _DRAINED * limit:
                    break
    except TimeoutError:
        raise Problem(
            408, f"Invalid request: it did not arrive within {seconds:g} s", {"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise Problem(400, "Invalid request: it broke off") from None
    if size > limit:
        raise Problem(
            413, f"Invalid request: a body of more than {limit} bytes is not accepted", {"Connection": "close"}
        )
    return bytes(body)


async def _from_body(request: Request, body: bytes) -> Fields:
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
    try:
        found = json.loads(
            body.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_refuse, parse_float=_finite
        )
        json.dumps(found, ensure_ascii=False).encode("utf-8")  # refuses half a surrogate pair, wherever it hides
    except (ValueError, RecursionError):
        raise Problem(400, "Invalid JSON format") from None
    if not isinstance(found, dict):
        raise Problem(400, "Invalid JSON format")
    return found


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
    except (HTTPException, UnicodeError, ValueError, KeyError):
        raise Problem(400, "Invalid request: the form is not a form in UTF-8, or has files") from None


def _named_once(pairs: list[tuple[str, str]], where: str) -> Fields:
    try:
        found = _once_each(pairs)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except ValueError:
        raise Problem(400, f"Invalid request: {where} has a name twice, or is not UTF-8") from None
    return found
