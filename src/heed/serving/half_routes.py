"""Routes to models that do not translate: a text to write, a label, a vector."""

from fastapi import FastAPI, Request
from fastapi.responses import Response

from heed.serving.events import Events, Outcome, as_events
from heed.serving.half_service import classifying_for, embedding_for, generator_for, read, search_for, streamed, written
from heed.serving.libretranslate import check_size
from heed.serving.responses import ERRORS, Embedded, Labelled, Written
from heed.serving.schemas import Classify, Embed, Generate, body_of
from heed.serving.service import Service


def add_routes(app: FastAPI, service: Service) -> None:
    """Add them; a server without such a model answers them by saying what it has."""
    _add_writing(app, service)

    @app.post("/classify", response_model=Labelled | list[Labelled], responses=ERRORS, openapi_extra=body_of(Classify))
    async def classify(request: Request) -> Labelled | list[Labelled]:
        """The label of a text, and how likely each is; or of each of a list of texts."""
        service.able("classify")
        asked = Classify.of(request.state.fields)
        check_size(asked.q, service.config)
        kind = classifying_for(service, asked.model)
        found = await service.admission.work(request.receive, lambda ticket: read(service, asked.q, kind, ticket))
        each = [Labelled(label=one.label, probabilities=one.probabilities) for one in found]
        return each[0] if isinstance(asked.q, str) else each

    @app.post("/embed", response_model=Embedded | list[Embedded], responses=ERRORS, openapi_extra=body_of(Embed))
    async def embed(request: Request) -> Embedded | list[Embedded]:
        """A text as a vector, of what the model's last layer makes of it; or each of a list of texts."""
        asked = Embed.of(request.state.fields)
        check_size(asked.q, service.config)
        kind = embedding_for(service, asked.model, asked.pooling)
        found = await service.admission.work(request.receive, lambda ticket: read(service, asked.q, kind, ticket))
        each = [Embedded(embedding=vector) for vector in found]
        return each[0] if isinstance(asked.q, str) else each


def _add_writing(app: FastAPI, service: Service) -> None:
    @app.post(
        "/generate",
        response_model=Written,
        response_model_exclude_none=True,
        responses={**ERRORS, 200: {"model": Written, "content": {"text/event-stream": {}}}},
        openapi_extra=body_of(Generate),
    )
    async def generate(request: Request) -> Written | Response:
        """Write a text. The likeliest token, then the next; drawn at random where temperature, top_k, top_p or seed
        is given. With `stream`, server-sent events: `{"text"}` as it comes, the prompt first, last `done` with all.
        """
        service.able("generate")
        asked = Generate.of(request.state.fields)
        check_size(asked.prompt, service.config)
        generator = generator_for(service, asked.model)
        search = search_for(asked, generator)
        if asked.stream:
            outcome = Outcome()
            return Events(
                service.admission,
                lambda ticket: as_events(streamed(service, asked, generator, search, ticket, outcome), "text", outcome),
            )
        found = await service.admission.work(
            request.receive, lambda ticket: written(service, asked, generator, search, ticket)
        )
        return Written(
            text=found.text,
            log_prob=found.log_prob,
            seed=search.seed if search.sample else None,
            truncated=found.truncated or None,
        )
