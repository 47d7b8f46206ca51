"""ASGI middleware that checks API key, rate limit and body size before it reads a body and parses its fields.

The checks, in order: server busy or shutting down, API key, rate limit, body size, memory for the body. Then the body
is read, within limits, and its fields (`heed.serving.requests`) are put in the scope's state for the route. A key may
also be a field of the body, as LibreTranslate's clients send it: then a short body is read before the key is known, and
a long one first counts against the rate limit of its address.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heed.serving.config import ServeConfig
from heed.serving.http_errors import HttpError, error_response
from heed.serving.limits import ApiKeys, RateLimiter
from heed.serving.requests import Fields, parse_body, parse_query

# Routes that need no API key: the web page is public, the routes it calls are not.
PUBLIC = frozenset(
    {
        "/",
        "/lm-and-classifier",
        "/others",
        "/docs",
        "/docs.css",
        "/spec",
        "/health",
        "/health/ready",
        "/languages",
        "/frontend/settings",
    }
)
PUBLIC_FOLDER = "/page/"

# Routes that run a model, and so count as active requests.
RUNS_MODEL = frozenset(
    {"/translate", "/translate/stream", "/alternatives", "/look", "/generate", "/classify", "/embed"}
)
WITH_FIELDS = RUNS_MODEL | {"/detect"}

# Routes of LibreTranslate that are disabled here, with its error texts.
DISABLED = {
    "/suggest": "Suggestions are disabled on this server.",
    "/translate_file": "Files translation are disabled on this server.",
}

_WITHOUT_FIELDS = frozenset({"/models", "/metrics"})

_SHORT_BODY = 16 << 10  # bytes; the memory of shorter bodies is bounded by the number of connections
_MAX_DISCARDED = 16 << 20  # bytes of a rejected body that are read, so that its sender can read the response


class RequestMiddleware:
    """The inner middleware. rejection: returns the error for new requests while the server is busy, else None."""

    def __init__(
        self, app: ASGIApp, config: ServeConfig, keys: ApiKeys | None, rejection: Callable[[], HttpError | None]
    ) -> None:
        self._app, self._config, self._keys, self._rejection = app, config, keys, rejection
        self._rate_limiter = RateLimiter(config.requests_per_minute, config.burst)
        self._memory = _BodyMemory(max(config.bodies_bytes, config.max_body_bytes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body_ended = body_length(scope) == 0

        async def receive_and_track() -> Message:
            nonlocal body_ended
            message = await receive()
            body_ended = body_ended or message["type"] != "http.request" or not message.get("more_body", False)
            return message

        try:
            fields = await self._admit(Request(scope, receive_and_track))
        except HttpError as error:
            if body_ended:
                await error_response(error)(scope, receive, send)
            else:
                await self._reject_unread(error, scope, receive, send)
        else:
            await self._app({**scope, "state": {**scope.get("state", {}), "fields": fields}}, receive, send)

    async def _admit(self, request: Request) -> Fields:
        """The fields of a request; raises an `HttpError` if it is rejected."""
        path, has_fields = request.scope["path"], request.method == "POST" and request.scope["path"] in WITH_FIELDS
        if request.method == "POST" and path in DISABLED:
            raise HttpError(403, DISABLED[path])
        if request.method == "POST" and path in RUNS_MODEL and (rejection := self._rejection()) is not None:
            raise rejection
        if path in PUBLIC or path.startswith(PUBLIC_FOLDER):
            return {}
        in_query = parse_query(request.scope["query_string"]) if has_fields else {}
        length = body_length(request.scope) if has_fields else 0
        key = in_query.get("api_key") or _bearer(request)
        is_long = length is None or length > _SHORT_BODY
        key_may_be_in_body = self._keys is not None and not key and length != 0
        if not key_may_be_in_body:
            self._check_key_and_rate(request, key)
        elif is_long:
            self._count_against_rate(request, None)
        if length == 0:
            return in_query
        body = await self._read_body(request, length)
        fields = {**in_query, **await parse_body(request, body)} if body else in_query
        if key_may_be_in_body:
            self._check_key_and_rate(request, fields.get("api_key"), address_counted=is_long)
        return fields

    def _check_key_and_rate(self, request: Request, key: object, *, address_counted: bool = False) -> None:
        digest = self._keys.match(key) if self._keys is not None and isinstance(key, str) and key else None
        if digest is not None or not address_counted:
            self._count_against_rate(request, digest)
        if self._keys is not None and digest is None:
            if not key or not isinstance(key, str):
                raise HttpError(400, "Please contact the server operator to get an API key")
            raise HttpError(403, "Invalid API key")

    def _count_against_rate(self, request: Request, key_digest: str | None) -> None:
        address = request.client.host if request.client else ""
        if wait := self._rate_limiter.take(key_digest or f"address {address}", time.monotonic()):
            limit, seconds = self._config.requests_per_minute, int(wait) + 1
            raise HttpError(
                429,
                f"Slowdown: more than {limit} requests per minute; try again in {seconds} s",
                {"Retry-After": str(seconds)},
            )

    async def _read_body(self, request: Request, length: int | None) -> bytes:
        """Read the body within the size limit. length: its Content-Length; None: it is chunked."""
        limit, seconds = self._config.max_body_bytes, self._config.read_timeout
        if length is not None and length > limit:
            raise _too_large(limit)
        body = bytearray()
        with self._memory.reserved(limit if length is None else length if length > _SHORT_BODY else 0):
            try:
                async with asyncio.timeout(seconds):
                    async for chunk in request.stream():
                        if len(body) + len(chunk) > limit:
                            raise _too_large(limit)
                        body += chunk
            except TimeoutError:
                text = f"Invalid request: the body was not received within {seconds:g} s"
                raise HttpError(408, text, {"Connection": "close"}) from None
            except ClientDisconnect:
                raise HttpError(400, "Invalid request: the connection was closed before the end of the body") from None
            return bytes(body)

    async def _reject_unread(self, error: HttpError, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject a request whose body has not been read to its end.

        uvicorn skips a short unread body, and the connection stays open. A long one is read and discarded after the
        response, within limits: closing the connection at once would reset it, and the response would be lost.
        """
        response, length = error_response(error), body_length(scope)
        closing = "Connection" in error.headers or _closes_connection(scope)
        if length is not None and length <= (0 if closing else _SHORT_BODY):
            await response(scope, receive, send)
            return
        response.headers["Connection"] = "close"
        await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
        await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
        remaining = _MAX_DISCARDED
        try:
            async with asyncio.timeout(self._config.read_timeout):
                while (
                    remaining > 0
                    and (message := await receive())["type"] == "http.request"
                    and message.get("more_body", False)
                ):
                    remaining -= len(message["body"])
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _BodyMemory:
    """The memory budget for all long bodies that are being read."""

    def __init__(self, budget: int) -> None:
        self._available = budget

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Reserve this many bytes while the block lasts."""
        if size > self._available:
            raise HttpError(503, "Too busy: too many long requests are being received", {"Retry-After": "1"})
        self._available -= size
        try:
            yield
        finally:
            self._available += size


def route_name(path: str) -> str:
    """The route label of a path in metrics; unknown paths are all `other`."""
    if path.startswith(PUBLIC_FOLDER):
        return f"{PUBLIC_FOLDER}{{name}}"
    return path if path in PUBLIC | WITH_FIELDS | DISABLED.keys() | _WITHOUT_FIELDS else "other"


def body_length(scope: Scope) -> int | None:
    """The Content-Length of a request, 0 without one; None: the body is chunked."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    return int(headers.get(b"content-length", 0))


def _closes_connection(scope: Scope) -> bool:
    """Whether the client closes the connection after this request."""
    connection = dict(scope["headers"]).get(b"connection", b"").lower()
    return scope.get("http_version") == "1.0" or b"close" in connection


def _too_large(limit: int) -> HttpError:
    return HttpError(413, f"Invalid request: the body exceeds {limit} bytes")


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else None
