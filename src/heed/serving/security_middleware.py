"""ASGI middleware in front of the application: who may reach it, by a request's head alone, and what answers carry.

Refused: a head that is too large, a host name that is not this server's, a web page of another origin. Every answer
is counted and gets headers that let a browser do as little as possible with it; errors that escape are answered.

**Host names.** A server that listens on this machine alone answers to this machine's names, so that no web page can
have its own name point here (DNS rebinding); behind a proxy it answers to the names that `allowed_hosts` adds.

**Proxies.** Anyone can write X-Forwarded-For: it is believed only where it comes from `trusted_proxies`, and then from
the right, up to the first address that is not a trusted proxy. The standard's Forwarded header is not read: a proxy
that writes only one of the two passes the other on as its client wrote it.

**Origins (CORS).** A browser lets any web page send a POST to any server, this machine's too, and only keeps the answer
from the page: the work would be done all the same. Browsers say where a request comes from, in `Sec-Fetch-Site` or at
least in `Origin`, and no page can change that. Programs that are no browsers send neither.

Knows no model and imports no torch: the process that listens has this, and behind it only a socket to the worker.
"""

import ipaddress
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from heed.errors import ConfigError
from heed.serving.config import LOOPBACK, ServeConfig
from heed.serving.http_errors import HttpError, answer, log_defect
from heed.serving.limits import ApiKeys
from heed.serving.metrics import Metrics, gauge_lines, process_gauges
from heed.serving.request_middleware import Entrance, route_name

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # these cost nothing
_OWN_SITES = frozenset({b"same-origin", b"none"})  # none: typed in the address bar
_DEFAULT_PORTS = (":80", ":443")


def with_middleware(
    app: ASGIApp, config: ServeConfig, keys: ApiKeys | None, busy: Callable[[], HttpError | None]
) -> ASGIApp:
    """An application behind its middleware. busy: the refusal while there is no place for another request."""
    door = Door(config.header_bytes, answers_to(config), Origins(config.allowed_origins))
    guard = Guard(Entrance(app, config, keys, busy), Metrics(), door)
    return through_proxies(guard, config.trusted_proxies)


def answers_to(config: ServeConfig) -> frozenset[str] | None:
    """The host names of this server in lower case; None: any, since others reach it by its address."""
    if "*" in config.allowed_hosts or (config.host not in LOOPBACK and not config.allowed_hosts):
        return None
    return LOOPBACK | {config.host.lower(), *(name.lower() for name in config.allowed_hosts)}


def check_addresses(config: ServeConfig) -> None:
    """Refuse host names and proxies that can never match, before anything slow is done."""
    for name in config.allowed_hosts:
        if name != "*" and (not name or name.strip() != name or set(name) & set("/*")):
            raise ConfigError(
                f"serve.allowed_hosts has {name!r}: expected host names without scheme and path, such as mt.example.org"
            )
    for address in config.trusted_proxies:
        try:
            ipaddress.ip_network(address)
        except ValueError as error:
            raise ConfigError(
                f"serve.trusted_proxies has {address!r}: {error}; expected addresses or networks, such as 127.0.0.1 "
                "or 10.0.0.0/8"
            ) from None


def through_proxies(app: ASGIApp, trusted: Sequence[str]) -> ASGIApp:
    """An application that sees who is behind these proxies, instead of the proxies."""
    if not trusted:
        return app
    application: Any = app  # two libraries, two types of ASGI
    behind: Any = ProxyHeadersMiddleware(application, list(trusted))
    return cast("ASGIApp", behind)


@dataclass(frozen=True)
class Origins:
    """The origins whose pages may send requests besides our own; `*`: all of them."""

    allowed: tuple[str, ...] = ()

    def refusal(self, scope: Scope) -> HttpError | None:
        """Why a request is refused, by where it comes from."""
        headers = dict(scope["headers"])
        if scope["method"] in _SAFE or self._allowed_origin(headers) is not None:
            return None
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site is not None:
            ours = site.lower() in _OWN_SITES
        else:
            ours = origin is None or _host_of(origin) == _without_port(headers.get(b"host", b"").decode("latin-1"))
        if ours:
            return None
        found = (origin or b"another origin").decode("latin-1")[:100]
        return HttpError(403, f"Web pages of {found} may not send requests here; serve.allowed_origins can allow it")

    def answers(self, scope: Scope) -> dict[str, str]:
        """The CORS headers of an answer."""
        if not self.allowed:
            return {}
        vary = {} if "*" in self.allowed else {"Vary": "Origin"}
        origin = self._allowed_origin(dict(scope["headers"]))
        if origin is None:
            return vary
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "Retry-After", **vary}

    def preflight(self, scope: Scope) -> dict[str, str] | None:
        """The headers that allow a preflight request; None: it is no preflight, or not allowed."""
        headers = dict(scope["headers"])
        asks = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if not asks or self._allowed_origin(headers) is None:
            return None
        return {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Max-Age": "600",
        }

    def _allowed_origin(self, headers: dict[bytes, bytes]) -> str | None:
        """The origin to allow in an answer; None: it is not allowed, or there is none."""
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if not origin or not self.allowed:
            return None
        return "*" if "*" in self.allowed else origin if origin in self.allowed else None


@dataclass(frozen=True)
class Door:
    """What is refused by a request's head. hosts: the names this server answers to; None: any."""

    header_bytes: int
    hosts: frozenset[str] | None
    origins: Origins

    def refusal(self, scope: Scope) -> HttpError | None:
        """Why a request is refused, or None."""
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self.header_bytes:
            return HttpError(431, f"Invalid request: a head of more than {self.header_bytes} bytes is not accepted")
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts is not None and name.strip("[]").lower() not in self.hosts:
            return HttpError(
                421,
                f"This server does not answer to the name {name[:99]!r}: its operator can add it (serve.allowed_hosts)",
            )
        return self.origins.refusal(scope)


class Guard:
    """The outermost middleware."""

    def __init__(self, app: ASGIApp, metrics: Metrics, door: Door) -> None:
        self._app, self._metrics, self._door = app, metrics, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # as a GET; uvicorn leaves the body out
            scope = {**scope, "method": "GET"}
        started, status = time.monotonic(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)  # a page may have a policy of its own
                headers.setdefault("Cache-Control", "no-store")
                headers.update(self._door.origins.answers(scope))
            await send(message)

        try:
            await self._answer(scope, receive, guarded)
        except Exception as error:
            log_defect("outside the application", error)
            if status == 0:
                await answer(HttpError(500, "Internal server error"))(scope, receive, guarded)
        finally:
            self._metrics.count(route_name(scope["path"]), status, time.monotonic() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (problem := self._door.refusal(scope)) is not None:
            await answer(problem)(scope, receive, send)
        elif (allowed := self._door.origins.preflight(scope)) is not None:
            await Response(status_code=204, headers=allowed)(scope, receive, send)
        else:
            if scope["path"] == "/metrics":  # counted here, and answered by the route
                requests = self._metrics.lines() + gauge_lines(process_gauges())
                scope = {**scope, "state": {**scope.get("state", {}), "requests": requests}}
            await self._app(scope, receive, send)


def _host_of(origin: bytes) -> str:
    try:
        return _without_port(urlsplit(origin.decode("latin-1")).netloc)
    except ValueError:
        return ""


def _without_port(host: str) -> str:
    """In lower case, without a default port."""
    host = host.lower()
    return next((host.removesuffix(port) for port in _DEFAULT_PORTS if host.endswith(port)), host)
