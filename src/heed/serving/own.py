"""Routes that LibreTranslate does not have: word by word, other ways to go on, a look inside, how the server is."""

from collections.abc import AsyncGenerator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response, StreamingResponse

from heed.serving.events import Events, Outcome, as_events
from heed.serving.half_service import half_named
from heed.serving.halves import Half
from heed.serving.health import Health
from heed.serving.libretranslate import check_alternatives, check_size
from heed.serving.metrics import CONTENT_TYPE, Gauge, gauge_lines, histogram_lines, process_gauges
from heed.serving.models import Served
from heed.serving.pieces import has_letters
from heed.serving.problems import Problem
from heed.serving.responses import ERRORS, Alternative, Details, Model, Offered
from heed.serving.responses import Health as Healthy
from heed.serving.schemas import Alternatives, Look, Stream, body_of
from heed.serving.service import Service


def add_routes(app: FastAPI, service: Service, health: Health) -> None:
    """Add our own routes."""
    _add_translation(app, service)
    _add_looking(app, service)
    _add_state(app, service, health)


def _add_translation(app: FastAPI, service: Service) -> None:
    @app.post(
        "/translate/stream",
        response_class=StreamingResponse,
        responses={**ERRORS, 200: {"content": {"text/event-stream": {}}, "description": '`data: {"text": …}` …'}},
        openapi_extra=body_of(Stream),
    )
    async def stream(request: Request) -> StreamingResponse:
        """The greedy translation as server-sent events: `{"text"}` as it comes, last `done` with all of it."""
        service.able("translate")
        asked = Stream.of(request.state.fields)
        model = _model(service, asked)
        if model is None or not has_letters(asked.q):
            return Events(service.admission, lambda _: as_events(_nothing(), "translatedText", Outcome(), asked.q))
        outcome = Outcome()
        return Events(
            service.admission,
            lambda ticket: as_events(service.stream(asked, model, ticket, outcome), "translatedText", outcome),
        )

    @app.post(
        "/alternatives",
        response_model=Offered,
        response_model_exclude_none=True,
        responses=ERRORS,
        openapi_extra=body_of(Alternatives, alternatives=service.config.alternatives),
    )
    async def alternatives(request: Request) -> Offered:
        """Translations that begin alike and go on differently, the likeliest next word first."""
        service.able("translate")
        asked = Alternatives.of(request.state.fields)
        check_alternatives(asked.alternatives, service.config)
        check_size(asked.q + asked.prefix, service.config)
        if (model := _model(service, asked)) is None:
            return Offered(alternatives=[])
        found = await service.admission.work(request.receive, lambda ticket: service.alternatives(asked, model, ticket))
        found = list({one.text: one for one in reversed(found)}.values())[::-1]  # each text once, the best of each
        begun = len(asked.prefix.rstrip())
        offered = [
            Alternative(
                text=one.text,
                next=(one.text[begun:].split() or [""])[0],
                score=one.score,
                truncated=one.truncated or None,
                details=Details.of(one) if asked.details else None,
            )
            for one in found
        ]
        return Offered(alternatives=offered)


async def _nothing() -> AsyncGenerator[str]:
    """The texts of a stream that has none."""
    nothing: tuple[str, ...] = ()
    for text in nothing:
        yield text


def _add_looking(app: FastAPI, service: Service) -> None:
    @app.post("/look", responses=ERRORS, openapi_extra=body_of(Look))
    async def look(request: Request) -> Response:
        """What happens inside the model: attention, likeliest words, search; as `heed look` writes it."""
        asked = Look.of(request.state.fields)
        check_size(asked.q + (asked.translation or ""), service.config)
        model = half_named(service, asked.model) or _translating(service, asked)
        found = await service.admission.work(request.receive, lambda ticket: service.look(asked, model, ticket))
        return Response(found, media_type="application/json" if asked.format == "json" else "text/html; charset=utf-8")


def _translating(service: Service, asked: Look) -> Served:
    for name in ("source", "target"):
        if getattr(asked, name) is None:
            raise Problem(400, f"Invalid request: missing {name} parameter")
    model, _ = service.route(asked.q, str(asked.source), str(asked.target))
    if model is None:
        raise Problem(400, f"{asked.target} is not available as a target language from {asked.target}")
    return model


def _model(service: Service, asked: Stream | Alternatives) -> Served | None:
    check_size(asked.q, service.config)
    return service.route(asked.q, asked.source, asked.target)[0]


def _add_state(app: FastAPI, service: Service, health: Health) -> None:
    @app.get("/health/ready", response_model=Healthy, response_model_exclude_none=True, responses=ERRORS)
    async def ready() -> Healthy:
        """Whether to send requests here."""
        problem = "This server is shutting down" if service.admission.closed else health.problem
        if problem is not None:
            raise Problem(503, problem)
        return Healthy(status="ready", warning=health.warning, notes=health.notes or None)

    @app.get("/metrics", response_class=PlainTextResponse, responses=ERRORS)
    async def measured(request: Request) -> Response:
        """What was done, for Prometheus."""
        batcher = service.batcher
        gauges = [
            Gauge("heed_requests_in_work", "Requests taken in and not yet answered.", service.admission.taken),
            Gauge("heed_jobs_waiting", "Pieces of text that have not begun.", batcher.waiting),
            Gauge("heed_batches_total", "Batches done.", batcher.batches, "counter"),
            Gauge("heed_texts_total", "Pieces of text done.", batcher.texts, "counter"),
            Gauge("heed_source_tokens_total", "Their tokens.", batcher.tokens, "counter"),
            Gauge("heed_ready", "1 if the models work.", float(health.problem is None)),
            *process_gauges("heed_worker"),  # the server's own are with its requests
        ]
        found = request.state.requests + gauge_lines(gauges)
        found += histogram_lines("heed_queue_seconds", "How long a piece of text waited for the models.", batcher.waits)
        found += histogram_lines("heed_batch_texts", "Pieces of text in a batch.", batcher.sizes)
        return Response(found, media_type=CONTENT_TYPE)

    @app.get("/models", response_model=list[Model], response_model_exclude_none=True, responses=ERRORS)
    async def models() -> list[Model]:
        """The models that are served."""
        return [
            Model(
                name=one.name,
                task=one.task,
                parameters=sum(weight.numel() for weight in one.model.parameters()),
                max_tokens=one.max_tokens,
                trained=one.trained,
                **_particulars(one),
            )
            for one in service.models
        ]


def _particulars(model: Served | Half) -> dict[str, Any]:
    """What not every model has."""
    if isinstance(model, Half):
        return {"labels": list(model.labels)} if model.labels else {}
    known = {"source": model.source, "target": model.target, "beam": model.translator.search.beam}
    return known | ({"examples": list(model.examples)} if model.examples else {})
