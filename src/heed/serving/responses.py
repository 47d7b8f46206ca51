"""What each route answers, as the OpenAPI document describes it. What is not there is left out of an answer."""

from typing import Any, Literal, Self

from pydantic import BaseModel, Field

from heed.inference.translation import Translation
from heed.serving.provenance import TrainedOn

_TRUNCATED = "Present where the length limit ended some of it, and not the model: something is missing at its end."


class Error(BaseModel):
    """What went wrong, and how it could be put right."""

    error: str


class Language(BaseModel):
    """A language, and those it can be translated to."""

    code: str
    name: str
    targets: list[str]


class Detected(BaseModel):
    """A language, and how sure that is, from 0 to 100."""

    confidence: float
    language: str


class Segment(BaseModel):
    """A part of a text that was translated by itself: offsets of characters, from and up to."""

    source: tuple[int, int]
    target: tuple[int, int]


class Details(BaseModel):
    """How a translation came about."""

    score: float = Field(description="The log-probability, divided by the length penalty.")
    tokens: list[str]
    source_tokens: list[str]
    alignment: list[tuple[int, int]] = Field(description="(source token, target token), both counted from 0.")
    segments: list[Segment] = Field(description="The parts that were translated one by one, in order.")

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
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815 - likewise
    details: Details | list[Details] | None = None
    truncated: bool | list[bool] | None = Field(None, description=_TRUNCATED)


class Alternative(BaseModel):
    """A translation that goes on with `next` after the prefix."""

    text: str
    next: str
    score: float
    truncated: bool | None = Field(None, description=_TRUNCATED)
    details: Details | None = None


class Offered(BaseModel):
    """Ways to go on, the likeliest first."""

    alternatives: list[Alternative]


class Written(BaseModel):
    """A text, its beginning included."""

    text: str
    log_prob: float = Field(description="Of all of it, its end included.")
    seed: int | None = Field(None, description="What it was drawn with; send it to have the same again.")
    truncated: bool | None = Field(None, description=_TRUNCATED)


class Labelled(BaseModel):
    """What a classifier makes of a text."""

    label: str
    probabilities: dict[str, float] = Field(description="Of all labels.")


class Embedded(BaseModel):
    """A text as a vector."""

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


class Health(BaseModel):
    """That all is well."""

    status: Literal["ok", "ready"]
    warning: str | None = Field(None, description="What the operator should see to.")
    notes: list[str] | None = Field(None, description="Fast code that does not run here, and what runs instead.")


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
