"""The application: all routes, over one service.

What stands before it is in `front`: a request's head is checked (`guard`), then its key and its rate, and only then its
body is read (`entrance`). Every route needs a key, where keys are in use, unless `entrance` calls it public: whatever
is added later is guarded from its first day.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Request, Response
from starlette.types import ASGIApp

from heed.serving import half_routes, libretranslate, openapi, own, pages, problems
from heed.serving.admission import HungUpError
from heed.serving.config import ServeConfig
from heed.serving.front import make_front
from heed.serving.health import Health
from heed.serving.limits import Keys
from heed.serving.service import Service
from heed.version import __version__


def make_app(service: Service, config: ServeConfig, keys: Keys | None = None) -> ASGIApp:
    """Everything that is served, as one ASGI application in one process."""
    app = make_routes(service, Health(service), key_required=keys is not None)
    return make_front(app, config, keys, service.admission.busy)


def make_routes(service: Service, health: Health, *, key_required: bool) -> FastAPI:
    """The application without what stands before it: fields are in the state of each request."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await health.look()  # so that who comes first finds it ready
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
            "Translation, by LibreTranslate's interface and by more of our own; with models for it, texts written, "
            "sorted into classes and made into vectors. /models says which there are."
        ),
        openapi_url="/spec",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to whatever the Host header says; `problems` does it
        lifespan=lifespan,
    )
    problems.install(app)
    app.add_exception_handler(HungUpError, _nobody)
    libretranslate.add_routes(app, service, health, key_required=key_required)
    own.add_routes(app, service, health)
    half_routes.add_routes(app, service)
    pages.add_routes(app, translates=bool(service.directions.served))
    openapi.describe(app, key_required=key_required)
    return app


async def _nobody(_: Request, __: Exception) -> Response:
    """For a client that has gone: no defect, and nobody is there to be told; 499 is how others count it."""
    return Response(status_code=499)
