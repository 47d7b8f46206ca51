"""Refuses requests while the server is busy, before HTTP is parsed and the application is called.

Under ten times the load that a machine serves, nine requests of ten are refused; the usual way of answering them would
take the processor from the models. Only a whole request in plain form is refused here, and it gets the response that
the application would send; for all others the application decides.
"""

import re
import time
from collections.abc import Iterable
from functools import lru_cache
from http import HTTPStatus

from starlette.datastructures import MutableHeaders

from heed.serving.http_errors import HttpError, error_response
from heed.serving.limits import Admission
from heed.serving.metrics import RequestMetrics
from heed.serving.request_middleware import RUNS_MODEL
from heed.serving.security_middleware import HeadCheck, add_security_headers

HeaderTexts = tuple[tuple[str, str], ...]
HeaderBytes = tuple[tuple[bytes, bytes], ...]

_LONGEST = 16 << 10  # bytes
_ROUTES = b"|".join(re.escape(path).encode() for path in sorted(RUNS_MODEL))
_HEAD = re.compile(rb"POST (%s) HTTP/1\.1\r\n((?:[A-Za-z0-9-]+:[ -~]*\r\n)+)\r\n" % _ROUTES)
_NEEDED = (b"host", b"content-length")  # once each
_UNUSUAL = frozenset({b"transfer-encoding", b"connection", b"expect", b"upgrade"})  # they change what a request is
_DIGITS = re.compile(rb"[0-9]{1,9}")


class QuickRefusals:
    """Refusals of an admission control; they are counted in the same metrics as all others."""

    def __init__(self, admission: Admission, head_check: HeadCheck, metrics: RequestMetrics) -> None:
        self._admission, self._head_check, self._metrics = admission, head_check, metrics

    def response(self, received: bytes, server_headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
        """The response to one whole request that the server is too busy for; None: let the application decide.

        received: bytes that begin with a request. server_headers: those that the HTTP server adds, such as the date.
        """
        if self._admission.shutting_down or (error := self._admission.rejection()) is None:
            return None
        began = time.monotonic()
        if (request := _parse(received)) is None:
            return None
        path, headers = request
        scope = {"method": "POST", "raw_path": path, "query_string": b"", "headers": headers}
        if self._head_check.rejection(scope) is not None:
            return None
        cors = tuple(self._head_check.cors.response_headers(scope).items())
        response = _response(error.status, error.error, tuple(error.headers.items()), cors, tuple(server_headers))
        self._metrics.count(path.decode(), error.status, time.monotonic() - began)
        return response


def _parse(received: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
    """Path and headers if the bytes are exactly one request in plain form; else None."""
    if len(received) > _LONGEST or (head := _HEAD.match(received)) is None:
        return None
    lines = [line.partition(b":") for line in head[2].split(b"\r\n")[:-1]]
    headers = [(name.lower(), value.strip(b" ")) for name, _, value in lines]
    names = [name for name, _ in headers]
    if any(names.count(name) != 1 for name in _NEEDED) or not _UNUSUAL.isdisjoint(names):
        return None
    length = dict(headers)[b"content-length"]
    is_whole = _DIGITS.fullmatch(length) is not None and int(length) == len(received) - head.end()
    return (head[1], headers) if is_whole else None


@lru_cache(maxsize=32)
def _response(status: int, error: str, own: HeaderTexts, cors: HeaderTexts, server_headers: HeaderBytes) -> bytes:
    response = error_response(HttpError(status, error, dict(own)))
    headers = MutableHeaders(raw=[*server_headers, *response.raw_headers])
    add_security_headers(headers, dict(cors))
    lines = b"".join(b"%s: %s\r\n" % header for header in headers.raw)
    phrase = HTTPStatus(status).phrase.encode()
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, phrase, lines, response.body)
