"""Outermost ASGI middleware: checks header size, host name and origin, sets security headers, counts metrics.

Every response gets restrictive security headers; exceptions that reach this middleware are answered with 500.

**Host names.** A server that listens on the loopback interface accepts only its own host names, which prevents DNS
rebinding: a web page cannot point its own host name at this server. Behind a proxy it also accepts `allowed_hosts`.

**Proxies.** Clients can forge X-Forwarded-For, so it is used only if it comes from `trusted_proxies`, read from the
right up to the first address that is not a trusted proxy. The standard `Forwarded` header is ignored: a proxy that sets
only one of the two passes the other through as the client sent it.

**Origins (CORS).** A browser lets any web page send a POST to any server, also on the loopback interface, and hides
only the response from the page: the model would run all the same. Browsers send `Sec-Fetch-Site` or at least `Origin`,
which pages cannot forge; other clients send neither.

Knows no model and imports no torch: it runs in the HTTP process, in front of the `WorkerProxy`.
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
from heed.serving.http_errors import HttpError, error_response, log_error
from heed.serving.limits import ApiKeys
from heed.serving.metrics import RequestMetrics, gauge_lines, process_gauges
from heed.serving.request_middleware import RequestMiddleware, route_name

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
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # these run no model
_SAME_ORIGIN = frozenset({b"same-origin", b"none"})  # none: opened by the user, not by a page
_DEFAULT_PORTS = (":80", ":443")


def with_middleware(
    app: ASGIApp,
    config: ServeConfig,
    keys: ApiKeys | None,
    rejection: Callable[[], HttpError | None],
    metrics: RequestMetrics | None = None,
) -> ASGIApp:
    """Wrap an application in its middleware. rejection: returns the error for new requests while busy, else None."""
    inner = RequestMiddleware(app, config, keys, rejection)
    middleware = SecurityMiddleware(inner, metrics or RequestMetrics(), HeadCheck.of(config))
    return behind_proxies(middleware, config.trusted_proxies)


def allowed_host_names(config: ServeConfig) -> frozenset[str] | None:
    """The accepted host names in lower case; None: any, since the server is reachable from other machines."""
    if "*" in config.allowed_hosts or (config.host not in LOOPBACK and not config.allowed_hosts):
        return None
    return LOOPBACK | {config.host.lower(), *(name.lower() for name in config.allowed_hosts)}


def check_addresses(config: ServeConfig) -> None:
    """Raise an error for host names and proxies that can never match, before the models are loaded."""
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


def behind_proxies(app: ASGIApp, trusted: Sequence[str]) -> ASGIApp:
    """Wrap an application so that `scope["client"]` is the client behind trusted proxies."""
    if not trusted:
        return app
    application: Any = app  # uvicorn and starlette type ASGI applications differently
    wrapped: Any = ProxyHeadersMiddleware(application, list(trusted))
    return cast("ASGIApp", wrapped)


@dataclass(frozen=True)
class CorsPolicy:
    """The origins whose web pages may send requests besides the server's own; `*`: all."""

    allowed: tuple[str, ...] = ()

    def rejection(self, scope: Scope) -> HttpError | None:
        """The error for a request from a disallowed origin, else None."""
        headers = dict(scope["headers"])
        if scope["method"] in _SAFE or self._allowed_origin(headers) is not None:
            return None
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if site is not None:
            is_same_origin = site.lower() in _SAME_ORIGIN
        else:
            is_same_origin = origin is None or _origin_host(origin) == _without_port(
                headers.get(b"host", b"").decode("latin-1")
            )
        if is_same_origin:
            return None
        name = (origin or b"another origin").decode("latin-1")[:100]
        return HttpError(
            403, f"Requests from web pages of {name} are not allowed; serve.allowed_origins can allow them"
        )

    def response_headers(self, scope: Scope) -> dict[str, str]:
        """The headers that let a page of an allowed origin read the response."""
        if not self.allowed:
            return {}
        vary = {} if "*" in self.allowed else {"Vary": "Origin"}
        origin = self._allowed_origin(dict(scope["headers"]))
        if origin is None:
            return vary
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": "Retry-After", **vary}

    def preflight(self, scope: Scope) -> dict[str, str] | None:
        """The headers that grant a preflight request; None: it is not a preflight, or not allowed."""
        headers = dict(scope["headers"])
        is_preflight = scope["method"] == "OPTIONS" and b"access-control-request-method" in headers
        if not is_preflight or self._allowed_origin(headers) is None:
            return None
        return {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Max-Age": "600",
        }

    def _allowed_origin(self, headers: dict[bytes, bytes]) -> str | None:
        """The value of Access-Control-Allow-Origin; None: there is no origin, or it is not allowed."""
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if not origin or not self.allowed:
            return None
        return "*" if "*" in self.allowed else origin if origin in self.allowed else None


@dataclass(frozen=True)
class HeadCheck:
    """Checks of request line and headers. hosts: the accepted host names; None: any."""

    header_bytes: int
    hosts: frozenset[str] | None
    cors: CorsPolicy

    @classmethod
    def of(cls, config: ServeConfig) -> "HeadCheck":
        return cls(config.header_bytes, allowed_host_names(config), CorsPolicy(config.allowed_origins))

    def rejection(self, scope: Scope) -> HttpError | None:
        """The error for a rejected request, else None."""
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self.header_bytes:
            return HttpError(431, f"Invalid request: request line and headers exceed {self.header_bytes} bytes")
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts is not None and name.strip("[]").lower() not in self.hosts:
            return HttpError(
                421,
                f"Unknown host name {name[:99]!r}: the server's operator can add it to serve.allowed_hosts",
            )
        return self.cors.rejection(scope)


class SecurityMiddleware:
    """Applies a `HeadCheck`, sets security headers, counts metrics and answers unhandled exceptions."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, head_check: HeadCheck) -> None:
        self._app, self._metrics, self._head_check = app, metrics, head_check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # handled as GET; uvicorn omits the body
            scope = {**scope, "method": "GET"}
        started, status = time.monotonic(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                add_security_headers(MutableHeaders(scope=message), self._head_check.cors.response_headers(scope))
            await send(message)

        try:
            await self._respond(scope, receive, send_with_headers)
        except Exception as error:
            log_error("in the middleware", error)
            if status == 0:
                await error_response(HttpError(500, "Internal server error"))(scope, receive, send_with_headers)
        finally:
            self._metrics.count(route_name(scope["path"]), status, time.monotonic() - started)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (error := self._head_check.rejection(scope)) is not None:
            await error_response(error)(scope, receive, send)
        elif (headers := self._head_check.cors.preflight(scope)) is not None:
            await Response(status_code=204, headers=headers)(scope, receive, send)
        else:
            if scope["path"] == "/metrics":  # request metrics live in this process; the route adds the worker's
                requests = self._metrics.lines() + gauge_lines(process_gauges())
                scope = {**scope, "state": {**scope.get("state", {}), "requests": requests}}
            await self._app(scope, receive, send)


def add_security_headers(headers: MutableHeaders, cors: dict[str, str]) -> None:
    """Add the headers of every response. cors: those that let a page of an allowed origin read it."""
    for name, value in HEADERS.items():
        headers.setdefault(name, value)  # pages set their own content security policy
    headers.setdefault("Cache-Control", "no-store")
    headers.update(cors)


def _origin_host(origin: bytes) -> str:
    try:
        return _without_port(urlsplit(origin.decode("latin-1")).netloc)
    except ValueError:
        return ""


def _without_port(host: str) -> str:
    """The host in lower case, without a default port."""
    host = host.lower()
    return next((host.removesuffix(port) for port in _DEFAULT_PORTS if host.endswith(port)), host)
