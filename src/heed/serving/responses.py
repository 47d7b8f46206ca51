"""What each route answers, as the OpenAPI document describes it, and answers as server-sent events.

A field without a value is left out of an answer. A stream of events holds its place among the requests in work for as
long as it lasts, and ends when its client disconnects.
"""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, Self

from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from heed.inference.translation import Translation
from heed.serving.batcher import CancelToken
from heed.serving.http_errors import as_problem
from heed.serving.limits import Admission
from heed.serving.provenance import TrainedOn

_TRUNCATED = "Present if the length limit ended some of it instead of the model: its end is missing."


class Error(BaseModel):
    """What went wrong, and how it could be put right."""

    error: str


class Language(BaseModel):
    """A language, and those it can be translated to."""

    code: str
    name: str
    targets: list[str]


class Detected(BaseModel):
    """A language and its confidence, from 0 to 100."""

    confidence: float
    language: str


class Segment(BaseModel):
    """A piece of a text that was translated on its own: character offsets, from and up to."""

    source: tuple[int, int]
    target: tuple[int, int]


class Details(BaseModel):
    """Score, tokens, alignment and segments of a translation."""

    score: float = Field(description="The log-probability, divided by the length penalty.")
    tokens: list[str]
    source_tokens: list[str]
    alignment: list[tuple[int, int]] = Field(description="(source token, target token), both counted from 0.")
    segments: list[Segment] = Field(description="The pieces that were translated one by one, in order.")

    @classmethod
    def of(cls, one: Translation) -> Self:
        """Of a translation."""
        return cls(
            score=one.score,
            tokens=list(one.tokens),
            source_tokens=list(one.source_tokens),
            alignment=list(one.alignment),
            segments=[Segment(source=part.source, target=part.target) for part in one.segments],
        )


class Translated(BaseModel):
    """One text in, one text out; a list in, a list of the same length out, of everything."""

    translatedText: str | list[str]  # noqa: N815 - LibreTranslate's name
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815 - LibreTranslate's name
    details: Details | list[Details] | None = None
    truncated: bool | list[bool] | None = Field(None, description=_TRUNCATED)


class Alternative(BaseModel):
    """A translation that continues with `next` after the prefix."""

    text: str
    next: str
    score: float
    truncated: bool | None = Field(None, description=_TRUNCATED)
    details: Details | None = None


class Offered(BaseModel):
    """Continuations, the most probable first."""

    alternatives: list[Alternative]


class GeneratedText(BaseModel):
    """A generated text, its prompt included."""

    text: str
    log_prob: float = Field(description="Log-probability of the whole text, end of sentence included.")
    seed: int | None = Field(None, description="Seed of a sampled text; send it to get the same text again.")
    truncated: bool | None = Field(None, description=_TRUNCATED)


class Labelled(BaseModel):
    """A text's most probable label, and the probability of each."""

    label: str
    probabilities: dict[str, float] = Field(description="Of all labels.")


class Embedded(BaseModel):
    """The embedding of a text."""

    embedding: list[float]


class Model(BaseModel):
    """A model that is served."""

    name: str
    task: str
    source: str | None = None
    target: str | None = None
    labels: list[str] | None = None
    parameters: int
    beam: int | None = None
    max_tokens: int
    trained: TrainedOn | None = Field(None, description="What it was trained on, as far as its folder says.")
    examples: list[str] | None = Field(None, description="Sentences to try it with.")


class HealthStatus(BaseModel):
    """The server works."""

    status: Literal["ok", "ready"]
    warning: str | None = Field(None, description="What the operator should see to.")
    notes: list[str] | None = Field(None, description="Fast code that does not run here, and what runs instead.")
    backends: dict[str, str] | None = Field(None, description="Which backend runs each model, and why.")


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error, "description": text}
    for status, text in {
        400: "The request is not as it should be, or a key is needed.",
        403: "The key is not known, or this is switched off here.",
        404: "There is no such thing here.",
        405: "This can be had by another method.",
        408: "The request did not arrive in time.",
        413: "The body is too large.",
        415: "The body is of a kind that is not understood.",
        421: "This server answers to other names.",
        429: "Too many requests.",
        431: "The head is too large.",
        500: "A defect of this server.",
        503: "Busy, ending or out of order.",
        504: "No answer within the time allowed.",
    }.items()
}


class EventStream(StreamingResponse):
    """Server-sent events that end when their client disconnects, however far they are."""

    def __init__(self, admission: Admission, events: Callable[[CancelToken], AsyncGenerator[bytes]]) -> None:
        super().__init__((), media_type="text/event-stream")
        self._admission, self._events = admission, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin once there is a place: a refusal comes before anything is sent, with its own status."""
        async with self._admission.place() as cancel_token, aclosing(self._events(cancel_token)) as events:
            self.body_iterator = events
            await super().__call__(scope, receive, send)


@dataclass
class Outcome:
    """What is known of a stream only at its end."""

    truncated: bool = False  # the length limit ended it


async def as_events(texts: AsyncGenerator[str], name: str, outcome: Outcome, whole: str = "") -> AsyncGenerator[bytes]:
    """Each text as an event, then `done` with all of them as the field `name`; `whole` is what precedes the first text.

    When the client disconnects, the generator is closed at a yield.
    """
    try:
        async with aclosing(texts):
            async for text in texts:
                whole += text
                yield _event(None, {"text": text})
    except Exception as error:
        yield _event("error", {"error": as_problem("POST", error).error})
    else:
        yield _event("done", {name: whole, **({"truncated": True} if outcome.truncated else {})})


def _event(name: str | None, data: dict[str, Any]) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
