"""What went wrong: to the client as the one shape every client reads, {"error": text}; to the operator as a log line.

Only heed's own defects are logged, and nothing that a client sent. Libraries log what they stumble over, and that may
be a client's text: their lines are dropped. Ours go through a bounded queue to standard error, in a thread of its own:
if nobody reads it, lines are lost, and not the server's time.
"""

import logging
import os
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from heed.serving.batcher import WorkerGoneError

_LOG = logging.getLogger(__name__)
_MAX_WAITING = 100  # lines that wait to be written
_STANDARD_ERROR = 2

# LibreTranslate's texts where it has them; clients show them, and some look for them.
_PLAIN = {404: "Not found", 405: "Method not allowed", 500: "Internal server error"}


class HttpError(Exception):
    """An error answer: status, text, headers."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.headers = status, error, dict(headers or {})


def answer(problem: HttpError) -> JSONResponse:
    """A problem as a response."""
    return JSONResponse({"error": problem.error}, problem.status, problem.headers)


def install(app: FastAPI) -> None:
    """Answer every exception in the one shape."""

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        if error.status_code == 404 and _methods(app, path.removesuffix("/")):
            # relative, so that it leads nowhere else: neither past a proxy's prefix nor to what the Host header says
            return Response(status_code=307, headers={"Location": f"../{quote(path.split('/')[-2], safe='')}"})
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, path))
        text = _PLAIN.get(error.status_code, str(error.detail))
        return answer(HttpError(error.status_code, text, headers))

    @app.exception_handler(RequestValidationError)
    async def on_validation(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return answer(HttpError(400, f"Invalid request: {first['loc'][-1]}: {first['msg']}"))

    @app.exception_handler(HttpError)
    @app.exception_handler(WorkerGoneError)
    @app.exception_handler(Exception)
    async def on_any(request: Request, error: Exception) -> JSONResponse:
        return answer(as_problem(request.scope["method"], error))


def _methods(app: FastAPI, path: str) -> list[str]:
    """The methods that a path takes."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    methods = {method for route in routes for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)  # HEAD is answered as GET is


def as_problem(what: str, error: Exception) -> HttpError:
    """The answer to an error; a defect of ours is logged too."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, WorkerGoneError):
        return HttpError(503, f"Out of order: {error}")
    log_defect(what, error)
    return HttpError(500, _PLAIN[500])


def log_defect(what: str, error: Exception) -> None:
    """Log a defect of ours, without anything that a client wrote."""
    _LOG.error("a request failed: %s", what, exc_info=_without_text(error))


def _without_text(error: Exception) -> Exception:
    """The error with its traceback and without its message, which may quote a client's text."""
    return RuntimeError(f"{type(error).__name__} (message left out: it may quote a text)").with_traceback(
        error.__traceback__
    )


class _DroppingHandler(logging.Handler):
    """Writes lines in a thread of its own, and drops those that find its queue full."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._waiting: queue.Queue[str | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, if there is room."""
        with suppress(queue.Full):
            self._waiting.put_nowait(f"{self.format(record)}\n")

    def finish(self) -> None:
        """Write the queued lines, if someone reads them."""
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(1.0)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            with suppress(OSError):  # whoever read it has gone, or there is no room: that may change
                os.write(_STANDARD_ERROR, line.encode("utf-8", "backslashreplace"))


@contextmanager
def log_only_own_defects() -> Iterator[None]:
    """Log what `heed.serving` logs, and nothing else, until the block ends."""
    own, root = logging.getLogger("heed.serving"), logging.getLogger()
    dropping, nothing = _DroppingHandler(), logging.NullHandler()
    before = own.propagate
    root.addHandler(nothing)  # without any, Python would write warnings itself
    own.addHandler(dropping)
    own.propagate = False
    try:
        yield
    finally:
        own.removeHandler(dropping)
        root.removeHandler(nothing)
        own.propagate = before
        dropping.finish()
