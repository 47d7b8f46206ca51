"""Around the whole application: what every answer carries, and what is refused before anything is read.

Every answer gets headers that let a browser do as little as possible with it, and is counted. A head that is too large,
that asks for a host this server does not go by, or that a web page of another origin has sent, is refused. Whatever
escapes the application is answered here.
"""

import time
from dataclasses import dataclass

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heed.serving.entrance import route_name
from heed.serving.metrics import Metrics, gauge_lines, process_gauges
from heed.serving.origins import Origins
from heed.serving.problems import Problem, answer, log_defect

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


@dataclass(frozen=True)
class Door:
    """What is not let in.

    hosts: the names this server answers to (`addresses`); none: any.
    """

    header_bytes: int
    hosts: frozenset[str] | None
    origins: Origins

    def refusal(self, scope: Scope) -> Problem | None:
        """What stands against a request, by its head alone."""
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self.header_bytes:
            return Problem(431, f"Invalid request: a head of more than {self.header_bytes} bytes is not accepted")
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts is not None and name.strip("[]").lower() not in self.hosts:
            return Problem(
                421,
                f"This server does not answer to the name {name[:99]!r}: its operator can add it (serve.allowed_hosts)",
            )
        return self.origins.refusal(scope)


class Guard:
    """An ASGI application that stands before another."""

    def __init__(self, app: ASGIApp, metrics: Metrics, door: Door) -> None:
        self._app, self._metrics, self._door = app, metrics, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # as a GET; the server itself leaves the body out
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
                await answer(Problem(500, "Internal server error"))(scope, receive, guarded)
        finally:
            self._metrics.count(route_name(scope["path"]), status, time.monotonic() - started)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (problem := self._door.refusal(scope)) is not None:
            await answer(problem)(scope, receive, send)
        elif (allowed := self._door.origins.preflight(scope)) is not None:
            await Response(status_code=204, headers=allowed)(scope, receive, send)
        else:
            if scope["path"] == "/metrics":  # what was counted here, for the route to answer with
                requests = self._metrics.lines() + gauge_lines(process_gauges())
                scope = {**scope, "state": {**scope.get("state", {}), "requests": requests}}
            await self._app(scope, receive, send)
