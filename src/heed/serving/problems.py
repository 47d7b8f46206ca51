"""Everything that can go wrong with a request, as the one shape every client reads: {"error": text}."""

import logging
from collections.abc import Mapping
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from heed.serving.batcher import WorkerGoneError
from heed.serving.logs import NAME

_LOG = logging.getLogger(NAME)

# LibreTranslate's texts where it has them; clients show them, and some look for them.
_PLAIN = {404: "Not found", 405: "Method not allowed", 500: "Internal server error"}


class Problem(Exception):  # noqa: N818 - it is an answer, not a defect
    """What to answer instead of what was asked for."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(error)
        self.status, self.error, self.headers = status, error, dict(headers or {})


def answer(problem: Problem) -> JSONResponse:
    """A problem as a response."""
    return JSONResponse({"error": problem.error}, problem.status, problem.headers)


def install(app: FastAPI) -> None:
    """Have every exception answered in the one shape."""

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
        return answer(Problem(error.status_code, text, headers))

    @app.exception_handler(RequestValidationError)
    async def on_validation(_: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return answer(Problem(400, f"Invalid request: {first['loc'][-1]}: {first['msg']}"))

    @app.exception_handler(Problem)
    @app.exception_handler(WorkerGoneError)
    @app.exception_handler(Exception)
    async def on_any(request: Request, error: Exception) -> JSONResponse:
        return answer(as_problem(request.scope["method"], error))


def _methods(app: FastAPI, path: str) -> list[str]:
    """All that a path can be asked by."""
    routes = [route for route in app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    methods = {method for route in routes for method in route.methods or ()}
    return sorted(methods | {"HEAD"} if "GET" in methods else methods)  # HEAD is answered as GET is


def as_problem(what: str, error: Exception) -> Problem:
    """What to say about an error; a defect of ours is noted too."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, WorkerGoneError):
        return Problem(503, f"Out of order: {error}")
    log_defect(what, error)
    return Problem(500, _PLAIN[500])


def log_defect(what: str, error: Exception) -> None:
    """Note a defect of ours, without anything that a client wrote."""
    _LOG.error("a request failed: %s", what, exc_info=_without_text(error))


def _without_text(error: Exception) -> Exception:
    """The same with its traceback and without its message, which may quote what someone wrote."""
    return RuntimeError(f"{type(error).__name__} (message left out: it may quote a text)").with_traceback(
        error.__traceback__
    )
