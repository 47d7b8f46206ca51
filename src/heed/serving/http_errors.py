"""HTTP errors as JSON, {"error": text}, and the log of internal errors, which contains nothing a client sent.

Only heed's internal errors are logged. Log records of libraries may quote a client's text, so they are dropped. heed's
own go through a bounded queue to a thread that writes to standard error: if nobody reads standard error, records are
lost instead of blocking the server.
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

from heed.serving.batcher import ThreadEndedError

_LOG = logging.getLogger(__name__)
_MAX_QUEUED = 100  # log lines
_STANDARD_ERROR = 2

# LibreTranslate's error texts, which some clients compare.
_TEXTS = {404: "Not found", 405: "Method not allowed", 500: "Internal server error"}


class HttpError(Exception):
    """An error response: status, text and headers."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.headers = status, error, dict(headers or {})


def error_response(error: HttpError) -> JSONResponse:
    return JSONResponse({"error": error.error}, error.status, error.headers)


def install(app: FastAPI) -> None:
    """Answer every exception with {"error": text}."""

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        if error.status_code == 404 and _methods(app, path.removesuffix("/")):
            # a relative redirect: it keeps a proxy's path prefix and does not trust the Host header
            return Response(status_code=307, headers={"Location": f"../{quote(path.split('/')[-2], safe='')}"})
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_methods(app, path))
        text = _TEXTS.get(error.status_code, str(error.detail))
        return error_response(HttpError(error.status_code, text, headers))

    @app.exception_handler(RequestValidationError)
    async def on_validation(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return error_response(HttpError(400, f"Invalid request: {first['loc'][-1]}: {first['msg']}"))

    @app.exception_handler(HttpError)
    @app.exception_handler(ThreadEndedError)
    @app.exception_handler(Exception)
    async def on_any(request: Request, error: Exception) -> JSONResponse:
        return error_response(as_http_error(request.scope["method"], error))


def _methods(app: FastAPI, path: str) -> list[str]:
    """The methods that a path accepts."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    methods = {method for route in routes for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)  # HEAD is answered like GET


def as_http_error(context: str, error: Exception) -> HttpError:
    """The response for an exception; internal errors are logged."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ThreadEndedError):
        return HttpError(503, f"Unavailable: {error}")
    log_error(context, error)
    return HttpError(500, _TEXTS[500])


def log_error(context: str, error: Exception) -> None:
    """Log an internal error, without anything that a client sent."""
    _LOG.error("a request failed: %s", context, exc_info=_without_text(error))


def _without_text(error: Exception) -> Exception:
    """The error with its traceback but without its message, which may quote a client's text."""
    return RuntimeError(f"{type(error).__name__} (message omitted: it may quote a text)").with_traceback(
        error.__traceback__
    )


class _DroppingHandler(logging.Handler):
    """Writes log lines in a separate thread, and drops them while its queue is full."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(queue.Full):
            self._lines.put_nowait(f"{self.format(record)}\n")

    def finish(self) -> None:
        """Write the queued lines, waiting at most a second."""
        with suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(1.0)

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with suppress(OSError):  # a closed pipe or a full disk, which may be temporary
                os.write(_STANDARD_ERROR, line.encode("utf-8", "backslashreplace"))


@contextmanager
def log_only_heed_errors() -> Iterator[None]:
    """Log what `heed.serving` logs, and nothing else, until the block ends."""
    ours, root = logging.getLogger("heed.serving"), logging.getLogger()
    handler, null_handler = _DroppingHandler(), logging.NullHandler()
    before = ours.propagate
    root.addHandler(null_handler)  # without a handler, Python prints warnings itself
    ours.addHandler(handler)
    ours.propagate = False
    try:
        yield
    finally:
        ours.removeHandler(handler)
        root.removeHandler(null_handler)
        ours.propagate = before
        handler.finish()
