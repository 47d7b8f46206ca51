"""Routes that LibreTranslate does not have: word by word, other ways to go on, a look inside, how the server is."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from heed.serving.admission import Admission
from heed.serving.batcher import Ticket
from heed.serving.health import Health
from heed.serving.libretranslate import check_alternatives, check_size
from heed.serving.metrics import CONTENT_TYPE, Gauge, Metrics
from heed.serving.models import Served
from heed.serving.problems import Problem, as_problem
from heed.serving.schemas import ERRORS, Alternative, Alternatives, Details, Look, Model, Offered, Stream, body_of
from heed.serving.schemas import Health as Healthy
from heed.serving.service import Service


def add_routes(app: FastAPI, service: Service, health: Health, metrics: Metrics) -> None:
    """Add our own routes."""
    _add_translation(app, service)
    _add_looking(app, service)
    _add_state(app, service, health, metrics)


def _add_translation(app: FastAPI, service: Service) -> None:
    @app.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses={**ERRORS, 200: {"content": {"text/event-stream": {}}, "description": '`data: {"text": …}` …'}},
        openapi_extra=body_of(Stream),
    )
    async def stream(request: Request) -> StreamingResponse:
        """The greedy translation as server-sent events: `{"text"}` as it comes, last `done` with all of it."""
        asked = Stream.of(request.state.fields)
        model = _model(service, asked)
        return _Events(service.admission, lambda ticket: _events(service, asked, model, ticket))

    @app.post(
        "/alternatives",
        response_model=Offered,
        response_model_exclude_none=True,
        responses=ERRORS,
        openapi_extra=body_of(Alternatives),
    )
    async def alternatives(request: Request) -> Offered:
        """Translations that begin alike and go on differently, the likeliest next word first."""
        asked = Alternatives.of(request.state.fields)
        check_alternatives(asked.alternatives, service.config)
        check_size(asked.q + asked.prefix, service.config)
        if (model := _model(service, asked)) is None:
            return Offered(alternatives=[])
        found = await service.admission.work(request.receive, lambda ticket: service.alternatives(asked, model, ticket))
        begun = len(asked.prefix.rstrip())
        offered = [
            Alternative(
                text=one.text,
                next=(one.text[begun:].split() or [""])[0],
                score=one.score,
                details=Details.of(one) if asked.details else None,
            )
            for one in found
        ]
        return Offered(alternatives=offered)


class _Events(StreamingResponse):
    """Server-sent events that have a place for as long as they last, however they end."""

    def __init__(self, admission: Admission, events: Callable[[Ticket], AsyncGenerator[bytes]]) -> None:
        super().__init__((), media_type="text/event-stream")
        self._admission, self._events = admission, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin once there is a place: a refusal comes before anything is sent, and so with its status."""
        async with self._admission.place() as ticket, aclosing(self._events(ticket)) as events:
            self.body_iterator = events
            await super().__call__(scope, receive, send)


async def _events(service: Service, asked: Stream, model: Served | None, ticket: Ticket) -> AsyncGenerator[bytes]:
    """The events of a stream; when its client goes, it is closed at one of its yields."""
    whole = asked.q if model is None else ""
    try:
        if model is not None:
            async with aclosing(service.stream(asked, model, ticket)) as texts:
                async for text in texts:
                    whole += text
                    yield _event(None, {"text": text})
    except Exception as error:
        yield _event("error", {"error": as_problem("POST", error).error})
    else:
        yield _event("done", {"translatedText": whole})


def _event(name: str | None, data: dict[str, str]) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _add_looking(app: FastAPI, service: Service) -> None:
    @app.post("/look", responses=ERRORS, openapi_extra=body_of(Look))
    async def look(request: Request) -> Response:
        """What happens inside the model: attention, likeliest words, search; as `heed look` writes it."""
        asked = Look.of(request.state.fields)
        check_size(asked.q + (asked.translation or ""), service.config)
        if (model := _model(service, asked)) is None:
            raise Problem(400, f"{asked.target} is not available as a target language from {asked.target}")
        found = await service.admission.work(request.receive, lambda ticket: service.look(asked, model, ticket))
        return Response(found, media_type="application/json" if asked.format == "json" else "text/html; charset=utf-8")


def _model(service: Service, asked: Stream) -> Served | None:
    check_size(asked.q, service.config)
    return service.route(asked.q, asked.source, asked.target)[0]


def _add_state(app: FastAPI, service: Service, health: Health, metrics: Metrics) -> None:
    @app.get("/health/ready", response_model=Healthy, response_model_exclude_none=True, responses=ERRORS)
    async def ready() -> Healthy:
        """Whether to send requests here."""
        problem = "This server is shutting down" if service.admission.closed else health.problem
        if problem is not None:
            raise Problem(503, problem)
        return Healthy(status="ready", warning=health.warning)

    @app.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def measured() -> Response:
        """What was done, for Prometheus."""
        batcher = service.batcher
        gauges = [
            Gauge("heed_requests_in_work", "Requests taken in and not yet answered.", service.admission.taken),
            Gauge("heed_jobs_waiting", "Pieces of text that have not begun.", batcher.waiting),
            Gauge("heed_batches_total", "Batches translated.", batcher.batches, "counter"),
            Gauge("heed_texts_total", "Pieces of text translated.", batcher.texts, "counter"),
            Gauge("heed_source_tokens_total", "Their tokens.", batcher.tokens, "counter"),
            Gauge("heed_ready", "1 if the models work.", float(health.problem is None)),
        ]
        return Response(metrics.lines(gauges), media_type=CONTENT_TYPE)

    @app.get("/models", response_model=list[Model], responses=ERRORS)
    async def models() -> list[Model]:
        """The models that are served."""
        return [
            Model(
                name=one.name,
                source=one.source,
                target=one.target,
                parameters=sum(weight.numel() for weight in one.translator.model.parameters()),
                beam=one.translator.search.beam,
                max_tokens=one.translator.max_tokens,
            )
            for one in service.directions.served
        ]
