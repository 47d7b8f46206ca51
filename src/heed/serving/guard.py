"""Around the whole application: what every answer carries, and what is refused before anything is read.

Every answer gets headers that let a browser do as little as possible with it, and is counted. A head that is too large,
or that asks for a host this server does not go by, is refused. Whatever escapes the application is answered here.
"""

import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heed.serving.admission import HungUpError
from heed.serving.metrics import Metrics
from heed.serving.problems import Problem, answer, log_defect

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class Guard:
    """An ASGI application that stands before another."""

    def __init__(self, app: ASGIApp, metrics: Metrics, *, header_bytes: int, hosts: frozenset[str] | None) -> None:
        """hosts: the names it answers to; none: any. On this machine alone, a web page that had its own name point
        here (DNS rebinding) would otherwise be let in by the browser.
        """
        self._app, self._metrics, self._header_bytes, self._hosts = app, metrics, header_bytes, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            if (problem := self._refusal(scope)) is not None:
                await answer(problem)(scope, receive, guarded)
            else:
                await self._app(scope, receive, guarded)
        except HungUpError:
            status = 499  # nobody is there to be told; as others count it
        except Exception as error:
            if status == 0:
                log_defect("outside the application", error)
                await answer(Problem(500, "Internal server error"))(scope, receive, guarded)
        finally:
            route = scope.get("route")
            self._metrics.count(getattr(route, "path", "other"), status, time.monotonic() - started)

    def _refusal(self, scope: Scope) -> Problem | None:
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._header_bytes:
            return Problem(431, f"Invalid request: a head of more than {self._header_bytes} bytes is not accepted")
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._hosts is not None and name.strip("[]").lower() not in self._hosts:
            return Problem(421, "This server answers to 127.0.0.1 and localhost only")
        return None
