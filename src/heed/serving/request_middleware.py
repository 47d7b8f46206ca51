"""ASGI middleware from requests to fields: whatever can be refused by its head is refused before its body is read.

In this order: a server that is busy or shutting down, the key, the rate, the size of the body, memory for it; then the
body is read, within limits, and its fields (`heed.serving.requests`) are put in the scope's state for the route. A key
may also be a field of the body, as LibreTranslate's clients send it: then a short body is read before the key is known,
and a long one counts against the rate of its address first.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heed.serving.config import ServeConfig
from heed.serving.http_errors import HttpError, answer
from heed.serving.limits import ApiKeys, Rates
from heed.serving.requests import Fields, fields_of_body, fields_of_query

# Routes without a key: the page itself is public, what it does is not.
PUBLIC = frozenset(
    {"/", "/others", "/docs", "/docs.css", "/spec", "/health", "/health/ready", "/languages", "/frontend/settings"}
)
PUBLIC_FOLDER = "/page/"

# Routes that run a model, and so need a place among the requests in work.
WORKING = frozenset({"/translate", "/translate/stream", "/alternatives", "/look", "/generate", "/classify", "/embed"})
TAKING_FIELDS = WORKING | {"/detect"}

# Routes that LibreTranslate has and this server refuses.
CLOSED = {
    "/suggest": "Suggestions are disabled on this server.",
    "/translate_file": "Files translation are disabled on this server.",
}

_OTHERS = frozenset({"/models", "/metrics"})

_SHORT_BODY = 16 << 10  # bytes; shorter bodies are bounded by the number of connections alone
_DISCARDED = 16 << 20  # bytes of a refused body that are read, so that its sender can read the answer


class Entrance:
    """The inner middleware. busy: the refusal while there is no place for another request."""

    def __init__(
        self, app: ASGIApp, config: ServeConfig, keys: ApiKeys | None, busy: Callable[[], HttpError | None]
    ) -> None:
        self._app, self._config, self._keys, self._busy = app, config, keys, busy
        self._rates = Rates(config.requests_per_minute, config.burst)
        self._memory = _Memory(max(config.bodies_bytes, config.largest_body))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body_ended = body_length(scope) == 0

        async def watched() -> Message:
            nonlocal body_ended
            message = await receive()
            body_ended = body_ended or message["type"] != "http.request" or not message.get("more_body", False)
            return message

        try:
            fields = await self._admit(Request(scope, watched))
        except HttpError as problem:
            if body_ended:
                await answer(problem)(scope, receive, send)
            else:
                await self._refuse(problem, scope, receive, send)
        else:
            await self._app({**scope, "state": {**scope.get("state", {}), "fields": fields}}, receive, send)

    async def _admit(self, request: Request) -> Fields:
        """The fields of a request; raises the `HttpError` it is refused with."""
        path, has_fields = request.scope["path"], request.method == "POST" and request.scope["path"] in TAKING_FIELDS
        if request.method == "POST" and path in CLOSED:
            raise HttpError(403, CLOSED[path])
        if request.method == "POST" and path in WORKING and (busy := self._busy()) is not None:
            raise busy
        if path in PUBLIC or path.startswith(PUBLIC_FOLDER):
            return {}
        in_query = fields_of_query(request.scope["query_string"]) if has_fields else {}
        length = body_length(request.scope) if has_fields else 0
        given = in_query.get("api_key") or _bearer(request)
        is_long = length is None or length > _SHORT_BODY
        maybe_in_body = self._keys is not None and not given and length != 0
        if not maybe_in_body:
            self._check(request, given)
        elif is_long:
            self._take_from_rate(request, None)
        if length == 0:
            return in_query
        body = await self._body(request, length)
        fields = {**in_query, **await fields_of_body(request, body)} if body else in_query
        if maybe_in_body:
            self._check(request, fields.get("api_key"), address_has_paid=is_long)
        return fields

    def _check(self, request: Request, key: object, *, address_has_paid: bool = False) -> None:
        """Check a request's key and rate."""
        known = self._keys.knows(key) if self._keys is not None and isinstance(key, str) and key else None
        if known is not None or not address_has_paid:
            self._take_from_rate(request, known)
        if self._keys is not None and known is None:
            if not key or not isinstance(key, str):
                raise HttpError(400, "Please contact the server operator to get an API key")
            raise HttpError(403, "Invalid API key")

    def _take_from_rate(self, request: Request, known: str | None) -> None:
        address = request.client.host if request.client else ""
        if wait := self._rates.take(known or f"address {address}", time.monotonic()):
            limit, seconds = self._config.requests_per_minute, int(wait) + 1
            raise HttpError(
                429,
                f"Slowdown: more than {limit} requests a minute; try again in {seconds} s",
                {"Retry-After": str(seconds)},
            )

    async def _body(self, request: Request, length: int | None) -> bytes:
        """The body, if it is not too large. length: as the head says; None: it does not say."""
        limit, seconds = self._config.largest_body, self._config.read_timeout
        if length is not None and length > limit:
            raise _too_large(limit)
        body = bytearray()
        with self._memory.reserved(limit if length is None else length if length > _SHORT_BODY else 0):
            try:
                async with asyncio.timeout(seconds):
                    async for part in request.stream():
                        if len(body) + len(part) > limit:
                            raise _too_large(limit)
                        body += part
            except TimeoutError:
                text = f"Invalid request: it did not arrive within {seconds:g} s"
                raise HttpError(408, text, {"Connection": "close"}) from None
            except ClientDisconnect:
                raise HttpError(400, "Invalid request: it broke off") from None
            return bytes(body)

    async def _refuse(self, problem: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body has not been read, or not to its end.

        A short body that nobody reads is passed over by the server, and the connection stays. A long one is read and
        thrown away after the answer, within limits: if the connection were closed at once, the system would reset it,
        and the answer would be lost with it.
        """
        response, length = answer(problem), body_length(scope)
        closing = "Connection" in problem.headers or _is_last(scope)
        if length is not None and length <= (0 if closing else _SHORT_BODY):
            await response(scope, receive, send)
            return
        response.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        left = _DISCARDED
        try:
            async with asyncio.timeout(self._config.read_timeout):
                while (
                    left > 0
                    and (message := await receive())["type"] == "http.request"
                    and message.get("more_body", False)
                ):
                    left -= len(message["body"])
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Memory:
    """The memory for all bodies that are being read."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Hold so many bytes while the block lasts."""
        if size > self._left:
            raise HttpError(503, "Too busy: too many long requests are being read already", {"Retry-After": "1"})
        self._left -= size
        try:
            yield
        finally:
            self._left += size


def route_name(path: str) -> str:
    """A path as metrics name it: paths that a client made up are all `other`."""
    if path.startswith(PUBLIC_FOLDER):
        return f"{PUBLIC_FOLDER}{{name}}"
    return path if path in PUBLIC | TAKING_FIELDS | CLOSED.keys() | _OTHERS else "other"


def body_length(scope: Scope) -> int | None:
    """The length of the body by a request's head; None: it comes in chunks."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    return int(headers.get(b"content-length", 0))


def _is_last(scope: Scope) -> bool:
    """Whether the connection ends with this request."""
    asked = dict(scope["headers"]).get(b"connection", b"").lower()
    return scope.get("http_version") == "1.0" or b"close" in asked


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"Invalid request: a body of more than {limit} bytes is not accepted")


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None
