"""Response models of the routes, for the OpenAPI document, and responses as server-sent events.

A field without a value is omitted from the response. An event stream counts as an active request for as long as it
lasts, and ends when its client disconnects.
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
from heed.serving.http_errors import as_http_error
from heed.serving.limits import Admission
from heed.serving.provenance import TrainedOn

_NORMALIZED = (
    "Present if case, spaces or the final stop of a text were changed before translation, as in the training text."
)
_CORRECTIONS = "Misspelt words of the text and what they were replaced by before translation; present if there are any."
_TRUNCATED = "Present if some output ended at the length limit instead of an end-of-sentence token."


class ErrorBody(BaseModel):
    """The body of every error response."""

    error: str


class Language(BaseModel):
    """A language and the codes of its target languages."""

    code: str
    name: str
    targets: list[str]


class DetectedLanguage(BaseModel):
    """A detected language and its confidence, from 0 to 100."""

    confidence: float
    language: str


class SegmentOffsets(BaseModel):
    """A segment that was translated on its own: start and end offsets in characters, in source and translation."""

    source: tuple[int, int]
    target: tuple[int, int]


class TranslationDetails(BaseModel):
    """Score, tokens, alignment and segments of a translation."""

    score: float = Field(description="Log-probability divided by the length penalty.")
    tokens: list[str]
    source_tokens: list[str]
    alignment: list[tuple[int, int]] = Field(
        description="Pairs of source token index and target token index, both from 0."
    )
    segments: list[SegmentOffsets] = Field(description="The segments that were translated one by one, in order.")

    @classmethod
    def from_translation(cls, translation: Translation) -> Self:
        return cls(
            score=translation.score,
            tokens=list(translation.tokens),
            source_tokens=list(translation.source_tokens),
            alignment=list(translation.alignment),
            segments=[SegmentOffsets(source=part.source, target=part.target) for part in translation.segments],
        )


class WordCorrection(BaseModel):
    """A misspelt word and its replacement."""

    word: str
    replacement: str


class TranslateResponse(BaseModel):
    """For a single text, single values; for a list of texts, lists of the same length."""

    translatedText: str | list[str]  # noqa: N815 - LibreTranslate's name
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: DetectedLanguage | list[DetectedLanguage] | None = None  # noqa: N815 - LibreTranslate's name
    details: TranslationDetails | list[TranslationDetails] | None = None
    truncated: bool | list[bool] | None = Field(None, description=_TRUNCATED)
    normalized: bool | list[bool] | None = Field(None, description=_NORMALIZED)
    corrections: list[WordCorrection] | list[list[WordCorrection]] | None = Field(None, description=_CORRECTIONS)


class Alternative(BaseModel):
    """A translation whose first word after the prefix is `next`."""

    text: str
    next: str
    score: float
    truncated: bool | None = Field(None, description=_TRUNCATED)
    details: TranslationDetails | None = None


class AlternativesResponse(BaseModel):
    """Translations with the forced prefix, the most probable next word first."""

    alternatives: list[Alternative]


class GenerateResponse(BaseModel):
    """A generated text, prompt included."""

    text: str
    log_prob: float = Field(description="Log-probability of the whole text, end-of-sentence token included.")
    seed: int | None = Field(None, description="Seed of a sampled text; the same seed reproduces the text.")
    truncated: bool | None = Field(None, description=_TRUNCATED)


class ClassifyResponse(BaseModel):
    """The most probable label of a text, and the probability of each label."""

    label: str
    probabilities: dict[str, float] = Field(description="Probability of each label.")


class EmbedResponse(BaseModel):
    """The embedding of a text."""

    embedding: list[float]


class ModelInfo(BaseModel):
    """A served model."""

    name: str
    task: str
    source: str | None = None
    target: str | None = None
    labels: list[str] | None = None
    parameters: int
    beam: int | None = None
    max_tokens: int
    trained: TrainedOn | None = Field(None, description="Training data, if recorded in the model's folder.")
    examples: list[str] | None = Field(None, description="Example sentences.")


class HealthStatus(BaseModel):
    """The server is healthy."""

    status: Literal["ok", "ready"]
    warning: str | None = Field(None, description="Warning for the operator.")
    notes: list[str] | None = Field(
        None, description="Fast paths that are unavailable on this machine, with their fallbacks."
    )
    backends: dict[str, str] | None = Field(None, description="Backend of each model, and why it was chosen.")


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in {
        400: "Invalid request, or missing API key.",
        403: "Unknown API key, disallowed origin, or disabled route.",
        404: "Unknown route, or no served model supports it.",
        405: "Wrong method; Allow lists the right ones.",
        408: "The request was not received in time.",
        413: "The body is too large.",
        415: "Unsupported content type.",
        421: "Unknown host name.",
        429: "Too many requests.",
        431: "Request line and headers are too large.",
        500: "Internal error.",
        503: "Busy, shutting down or unhealthy.",
        504: "No result within the time limit.",
    }.items()
}


class EventStream(StreamingResponse):
    """Server-sent events; the stream ends when its client disconnects."""

    def __init__(self, admission: Admission, events: Callable[[CancelToken], AsyncGenerator[bytes]]) -> None:
        super().__init__((), media_type="text/event-stream")
        self._admission, self._events = admission, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Acquire a slot before sending anything, so that a rejection has its own status."""
        async with self._admission.slot() as cancel_token, aclosing(self._events(cancel_token)) as events:
            self.body_iterator = events
            await super().__call__(scope, receive, send)


@dataclass
class StreamOutcome:
    """Facts about a stream that are known only at its end."""

    truncated: bool = False  # it ended at the length limit


async def as_server_sent_events(
    texts: AsyncGenerator[str], name: str, outcome: StreamOutcome, whole: str = ""
) -> AsyncGenerator[bytes]:
    """Each text as an event, then `done` with the concatenation as the field `name`; `whole`: text before the first.

    When the client disconnects, the generator is closed at a yield.
    """
    try:
        async with aclosing(texts):
            async for text in texts:
                whole += text
                yield _event(None, {"text": text})
    except Exception as error:
        yield _event("error", {"error": as_http_error("POST", error).error})
    else:
        yield _event("done", {name: whole, **({"truncated": True} if outcome.truncated else {})})


def _event(name: str | None, data: dict[str, Any]) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
