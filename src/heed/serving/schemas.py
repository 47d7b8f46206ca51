"""What each route takes and gives: the same classes check a request and describe it in the OpenAPI document.

Texts of errors are LibreTranslate's where it has them. Values that come from forms are text; numbers among them are
read as numbers, true and false as such, and nothing else is converted.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from heed.decoding.translation import Translation
from heed.serving.fields import Fields
from heed.serving.problems import Problem
from heed.serving.provenance import TrainedOn

M = TypeVar("M", bound="Asked")


def _number(value: object) -> object:
    """Text that is a number, as LibreTranslate takes it too."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value


def _decimal(value: object) -> object:
    """Text that is a number, with a point in it or not; what else it is, the number's own limits tell."""
    try:
        return float(value) if isinstance(value, str) and value.isascii() and len(value) < 20 else value
    except ValueError:
        return value


def _truth(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Positive = Annotated[int, BeforeValidator(_number), Field(ge=1)]
Decimal = Annotated[float, BeforeValidator(_decimal), Field(allow_inf_nan=False)]
Flag = Annotated[bool, BeforeValidator(_truth)]


class Asked(BaseModel):
    """A request. Names that are not known are passed over: clients of other servers send them."""

    model_config = ConfigDict(strict=True, frozen=True)

    @classmethod
    def of(cls, fields: Fields) -> Self:
        """From names and values; what is empty counts as not given."""
        given = {name: value for name, value in fields.items() if value not in ("", [], None)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise Problem(400, _explained(dict(error.errors()[0]))) from None


def _explained(problem: Mapping[str, Any]) -> str:
    name, found = problem["loc"][0], problem["input"]
    if problem["type"] == "missing":
        return f"Invalid request: missing {name} parameter"
    if name == "alternatives":
        return "Invalid request: alternatives parameter is not a number"
    if name == "format" and isinstance(found, str):
        return f"{found[:50]} format is not supported"
    return f"Invalid request: {name} parameter: {problem['msg'][0].lower()}{problem['msg'][1:]}"


class Translate(Asked):
    """A translation is wanted."""

    q: str | list[str] = Field(description="The text, or texts, to translate.", examples=["A dog runs."])
    source: str = Field(description="The language of the text, or auto.", examples=["auto"])
    target: str = Field(description="The language to translate to.")
    format: Literal["text", "html"] = Field("text", description="Of HTML only what is text is translated.")
    alternatives: Count = Field(0, description="How many other translations to give besides the best.")
    details: Flag = Field(default=False, description="Also give scores, tokens and which comes from which; text only.")
    api_key: str | None = Field(None, description="The key, where one is needed.")


class Detect(Asked):
    """Which language is this?"""

    q: str = Field(description="The text.", examples=["A dog runs."])
    api_key: str | None = Field(None, description="The key, where one is needed.")


class Stream(Asked):
    """A translation is wanted word by word."""

    q: str = Field(description="The text to translate.", examples=["A dog runs."])
    source: str = Field(description="The language of the text, or auto.", examples=["auto"])
    target: str = Field(description="The language to translate to.")
    api_key: str | None = Field(None, description="The key, where one is needed.")


class Alternatives(Stream):
    """Other ways to go on from the beginning of a translation."""

    prefix: str = Field("", description="How the translation begins; white space at its end does not count.")
    alternatives: Count | None = Field(None, description="How many ways to offer; none: as many as there may be.")
    details: Flag = Field(default=False, description="Also give scores, tokens and which comes from which, of each.")


class Look(Asked):
    """What happens inside the model."""

    q: str = Field(description="The text.", examples=["A dog runs."])
    source: str | None = Field(None, description="The language of the text, or auto; for a model that translates.")
    target: str | None = Field(None, description="The language to translate to; likewise.")
    translation: str | None = Field(None, description="The translation to look at; none: the model's own.")
    model: str | None = Field(None, description="The name of a model that does not translate; see /models.")
    format: Literal["json", "html"] = Field("json", description="As numbers, or as the page that `heed look` writes.")
    parts: list[str] = Field([], description="Parts whose numbers to give too, in JSON; the answer's `parts` has all.")
    api_key: str | None = Field(None, description="The key, where one is needed.")


class Generate(Asked):
    """A text is to be written."""

    prompt: str = Field("", description="How the text begins; none: the model begins.", examples=["The old cat"])
    max_length: Positive | None = Field(None, description="Most tokens of the text; none: as many as were learnt from.")
    temperature: Annotated[Decimal, Field(ge=0, le=100)] | None = Field(
        None, description="Draw at random: below 1 bolder, above 1 wilder. 0: always the likeliest token."
    )
    top_k: Positive | None = Field(None, description="Draw at random, only among the k likeliest tokens.")
    top_p: Annotated[Decimal, Field(gt=0, le=1)] | None = Field(
        None, description="Draw at random, only among the likeliest tokens that together have this probability."
    )
    seed: Annotated[Count, Field(lt=2**53)] | None = Field(
        None, description="Draw at random: the same seed draws the same text; none: another every time."
    )
    stream: Flag = Field(default=False, description="Answer piece by piece, as server-sent events.")
    model: str | None = Field(None, description="The name of the model, where several could do it; see /models.")
    api_key: str | None = Field(None, description="The key, where one is needed.")


class Classify(Asked):
    """A label is wanted."""

    q: str | list[str] = Field(
        description="The text, or texts; two that share a label have a tab between them.", examples=["A dog runs."]
    )
    model: str | None = Field(None, description="The name of the model, where several could do it; see /models.")
    api_key: str | None = Field(None, description="The key, where one is needed.")


class Embed(Asked):
    """A vector is wanted."""

    q: str | list[str] = Field(description="The text, or texts.", examples=["A dog runs."])
    pooling: Literal["mean", "first"] = Field("mean", description="The mean of the tokens' vectors, or the first's.")
    model: str | None = Field(None, description="The name of the model, where several could do it; see /models.")
    api_key: str | None = Field(None, description="The key, where one is needed.")


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


class Details(BaseModel):
    """How a translation came about."""

    score: float = Field(description="The log-probability, divided by the length penalty.")
    tokens: list[str]
    source_tokens: list[str]
    alignment: list[tuple[int, int]] = Field(description="(source token, target token), both counted from 0.")

    @classmethod
    def of(cls, one: Translation) -> Self:
        """Of a translation."""
        return cls(
            score=one.score,
            tokens=list(one.tokens),
            source_tokens=list(one.source_tokens),
            alignment=list(one.alignment),
        )


class Translated(BaseModel):
    """One text in, one text out; a list in, a list of the same length out, of everything."""

    translatedText: str | list[str]  # noqa: N815 - LibreTranslate's name
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None  # noqa: N815 - likewise
    details: Details | list[Details] | None = None


class Alternative(BaseModel):
    """A translation that goes on with `next` after the prefix."""

    text: str
    next: str
    score: float
    details: Details | None = None


class Offered(BaseModel):
    """Ways to go on, the likeliest first."""

    alternatives: list[Alternative]


class Written(BaseModel):
    """A text, its beginning included."""

    text: str
    log_prob: float = Field(description="Of all of it, its end included.")
    seed: int | None = Field(None, description="What it was drawn with; send it to have the same again.")


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


def body_of(asked: type[Asked]) -> dict[str, Any]:
    """A request's body in the OpenAPI document: one schema, sent as JSON or as a form."""
    schema = asked.model_json_schema()
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}
