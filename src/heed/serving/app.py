"""The application: all routes over one service, and the OpenAPI document that describes them.

Its middleware is in `guard` and `entrance`: a request's head is checked, then its key and its rate, and only then its
body is read. Every route needs a key, where keys are in use, unless `entrance` calls it public.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.types import ASGIApp

from heed.serving import http_errors, libretranslate, lm_and_classifier_routes, native_routes, pages
from heed.serving.config import ServeConfig
from heed.serving.health import HealthMonitor
from heed.serving.limits import ApiKeys, DisconnectedError
from heed.serving.request_middleware import PUBLIC
from heed.serving.security_middleware import with_middleware
from heed.serving.service import Service
from heed.version import __version__

_GROUPS = {
    "translation": ("Texts in other languages, as LibreTranslate has it.", "/translate /detect /languages"),
    "while translating": ("Token by token, and other continuations.", "/translate/stream /alternatives"),
    "other models": ("Text generation, classification and embeddings.", "/generate /classify /embed"),
    "looking inside": ("Attention, hidden states and search of a model.", "/look"),
    "the server": ("Its models, metrics and health.", "/models /metrics /health /health/ready /frontend/settings"),
    "switched off": ("LibreTranslate has these; here they answer 403.", "/suggest /translate_file"),
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key as Authorization: Bearer …"},
    "api_key": {"type": "apiKey", "in": "query", "name": "api_key", "description": "A key in the address or the body."},
}


def make_app(service: Service, config: ServeConfig, keys: ApiKeys | None = None) -> ASGIApp:
    """Routes and middleware as one ASGI application in one process."""
    app = make_routes(service, HealthMonitor(service), key_required=keys is not None)
    return with_middleware(app, config, keys, service.admission.rejection)


def make_routes(service: Service, health: HealthMonitor, *, key_required: bool) -> FastAPI:
    """The application without its middleware, which puts the fields in the state of each request."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await health.look()  # so that it is ready for the first request
        watching = asyncio.ensure_future(health.watch())
        yield
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="heed",
        version=__version__,
        description=(
            "Translation with LibreTranslate's API and routes of our own; with models for it, text generation, "
            "classification and embeddings. /models lists what is served."
        ),
        openapi_url="/spec",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to whatever the Host header says; `problems` does it
        lifespan=lifespan,
    )
    http_errors.install(app)
    app.add_exception_handler(DisconnectedError, _disconnected)
    libretranslate.add_routes(app, service, health, key_required=key_required)
    native_routes.add_routes(app, service, health)
    lm_and_classifier_routes.add_routes(app, service)
    pages.add_routes(app, translates=bool(service.directions.served))
    _describe(app, key_required=key_required)
    return app


async def _disconnected(_: Request, __: Exception) -> Response:
    """Nobody reads this answer; 499 is what nginx counts for a client that has disconnected."""
    return Response(status_code=499)


def _describe(app: FastAPI, *, key_required: bool) -> None:
    """Add groups to the OpenAPI document and, where keys are in use, mark the routes that need one."""
    tags = {path: name for name, (_, paths) in _GROUPS.items() for path in paths.split()}

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            found["tags"] = [{"name": name, "description": text} for name, (text, _) in _GROUPS.items()]
            for path, methods in found["paths"].items():
                for operation in methods.values():
                    operation["tags"] = [tags[path]]
                    if key_required and path not in PUBLIC and tags[path] != "switched off":
                        operation["security"] = [{name: []} for name in _KEYS]
            if key_required:
                found.setdefault("components", {})["securitySchemes"] = _KEYS
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # as FastAPI's documentation has it
