"""Builds the FastAPI application: all routes over one `Service`, and the OpenAPI document that describes them.

Its middleware (`security_middleware`, `request_middleware`) checks a request's headers, then its API key and rate, and
only then reads its body. Where API keys are in use, every route needs one unless it is in `PUBLIC`.
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

_TAGS = {
    "translation": (
        "Translate texts and detect languages, with LibreTranslate's API.",
        "/translate /detect /languages",
    ),
    "interactive translation": (
        "Streaming output, and alternatives for a forced prefix.",
        "/translate/stream /alternatives",
    ),
    "other models": ("Text generation, classification and embeddings.", "/generate /classify /embed"),
    "interpretation": ("Trace of a model: attention, hidden states, beam search.", "/look"),
    "the server": (
        "Served models, metrics and health checks.",
        "/models /metrics /health /health/ready /frontend/settings",
    ),
    "disabled": ("LibreTranslate has these routes; this server answers them with 403.", "/suggest /translate_file"),
}
_KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "API key in the header Authorization: Bearer …"},
    "api_key": {
        "type": "apiKey",
        "in": "query",
        "name": "api_key",
        "description": "API key in the query string or the body.",
    },
}


def make_app(service: Service, config: ServeConfig, keys: ApiKeys | None = None) -> ASGIApp:
    """Build the routes and their middleware as one ASGI application in one process."""
    app = make_routes(service, HealthMonitor(service), key_required=keys is not None)
    return with_middleware(app, config, keys, service.admission.rejection)


def make_routes(service: Service, health: HealthMonitor, *, key_required: bool) -> FastAPI:
    """Build the application without its middleware, which puts the parsed fields in `request.state.fields`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await health.check()  # /health/ready is true from the first request on
        checking = asyncio.ensure_future(health.check_forever())
        yield
        checking.cancel()
        with suppress(asyncio.CancelledError):
            await checking
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="heed",
        version=__version__,
        description=(
            "Translation with LibreTranslate's API and heed's own routes; text generation, classification and "
            "embeddings where such models are served. /models lists the models."
        ),
        openapi_url="/spec",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would trust the Host header; `http_errors` redirects instead
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
    """Nobody reads this response; 499 is nginx's status for a client that has disconnected."""
    return Response(status_code=499)


def _describe(app: FastAPI, *, key_required: bool) -> None:
    """Add tags to the OpenAPI document and, where API keys are in use, mark the routes that need one."""
    tag_of = {path: name for name, (_, paths) in _TAGS.items() for path in paths.split()}

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            spec = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            spec["tags"] = [{"name": name, "description": text} for name, (text, _) in _TAGS.items()]
            for path, methods in spec["paths"].items():
                for operation in methods.values():
                    operation["tags"] = [tag_of[path]]
                    if key_required and path not in PUBLIC and tag_of[path] != "disabled":
                        operation["security"] = [{name: []} for name in _KEY_SCHEMES]
            if key_required:
                spec.setdefault("components", {})["securitySchemes"] = _KEY_SCHEMES
            app.openapi_schema = spec
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI documents it this way
