"""The application: routes and what stands before them.

Every route needs a key, where keys are in use, unless it is in `PUBLIC`; whatever is added later is guarded from its
first day. The order for a request: its head is looked at (`guard`), its fields are read, its key and its rate are
checked; then comes the route.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import Depends, FastAPI, Request, Response
from starlette.types import ASGIApp

from heed.config import ServeConfig
from heed.serving import half_routes, libretranslate, own, pages, problems
from heed.serving.admission import HungUpError
from heed.serving.fields import read_fields
from heed.serving.guard import LOOPBACK, Door, Guard
from heed.serving.health import Health
from heed.serving.limits import Keys, Rates
from heed.serving.metrics import Metrics
from heed.serving.problems import Problem
from heed.serving.service import Service
from heed.version import __version__

# What tells nothing that is not on the door anyway. The page itself is public; what it does is not.
PUBLIC = pages.PUBLIC | {"/spec", "/health", "/health/ready", "/languages", "/frontend/settings"}

# What needs a place.
WORKING = frozenset({"/translate", "/translate/stream", "/alternatives", "/look", "/generate", "/classify", "/embed"})


def make_app(service: Service, config: ServeConfig, keys: Keys | None = None) -> ASGIApp:
    """Everything that is served, as one ASGI application."""
    metrics, health = Metrics(), Health(service)

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
        lifespan=lifespan,
        dependencies=[Depends(_Entrance(config, keys).admit)],
    )
    problems.install(app)
    app.add_exception_handler(HungUpError, _nobody)
    libretranslate.add_routes(app, service, health, key_required=keys is not None)
    own.add_routes(app, service, health, metrics)
    half_routes.add_routes(app, service)
    pages.add_routes(app, translates=bool(service.directions.served))
    hosts = LOOPBACK if config.host in LOOPBACK else None
    return Guard(app, metrics, Door(config.header_bytes, hosts, WORKING, service.admission.busy))


async def _nobody(_: Request, __: Exception) -> Response:
    """For a client that has gone: no defect, and nobody is there to be told; 499 is how others count it."""
    return Response(status_code=499)


class _Entrance:
    """Reads a request and lets it in, or not."""

    def __init__(self, config: ServeConfig, keys: Keys | None) -> None:
        self._config, self._keys = config, keys
        self._rates = Rates(config.requests_per_minute, config.burst)

    async def admit(self, request: Request) -> None:
        """Leaves what the request says in `request.state.fields`; raises what stands against it."""
        config = self._config
        if request.scope["route"].path in libretranslate.CLOSED:
            return
        request.state.fields = await read_fields(request, config.body_bytes, config.read_timeout)
        if request.scope["route"].path in PUBLIC:
            return
        address = request.client.host if request.client else ""
        key = self._key(request) if self._keys is not None else None
        known = self._keys.knows(key) if self._keys is not None and key else None
        wait = self._rates.take(known or f"address {address}", time.monotonic())
        if wait:
            seconds = int(wait) + 1
            raise Problem(
                429,
                f"Slowdown: more than {config.requests_per_minute} requests a minute; try again in {seconds} s",
                {"Retry-After": str(seconds)},
            )
        if self._keys is not None and known is None:
            if not key:
                raise Problem(400, "Please contact the server operator to get an API key")
            raise Problem(403, "Invalid API key")

    def _key(self, request: Request) -> str | None:
        """Where clients put it: among the fields, or in the head."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = request.state.fields.get("api_key") or (token if scheme.lower() == "bearer" else None)
        return given if isinstance(given, str) else None
