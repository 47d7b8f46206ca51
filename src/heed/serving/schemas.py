"""What each route takes: the same classes check a request and describe it in the OpenAPI document.

Texts of errors are LibreTranslate's where it has them. Values that come from forms are text; numbers among them are
read as numbers, true and false as such, and nothing else is converted.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from heed.config import Split
from heed.serving.fields import Fields
from heed.serving.problems import Problem

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


# Limits stand before what reads text: after it they would be no limits of a number, and have other names in OpenAPI.
Count = Annotated[int, Field(ge=0), BeforeValidator(_number)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(_number)]
Seed = Annotated[int, Field(ge=0, lt=2**53), BeforeValidator(_number)]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), BeforeValidator(_decimal)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), BeforeValidator(_decimal)]
Flag = Annotated[bool, BeforeValidator(_truth)]


_SPLIT = (
    "Where texts are cut: sentences (lines that hold more than the training lines did, where sentences end), line, or "
    "none; not given: as the model's folder says, which is sentences unless told otherwise."
)


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
    split: Split | None = Field(None, description=_SPLIT)
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
    split: Split | None = Field(None, description=_SPLIT)
    api_key: str | None = Field(None, description="The key, where one is needed.")


class Alternatives(Asked):
    """Other ways to go on from the beginning of a translation."""

    q: str = Field(description="The sentence to translate, at once.", examples=["A dog runs."])
    source: str = Field(description="The language of the text, or auto.", examples=["auto"])
    target: str = Field(description="The language to translate to.")
    prefix: str = Field("", description="How the translation begins; white space at its end does not count.")
    alternatives: Count | None = Field(None, description="How many ways to offer; none: as many as there may be.")
    details: Flag = Field(default=False, description="Also give scores, tokens and which comes from which, of each.")
    api_key: str | None = Field(None, description="The key, where one is needed.")


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
    temperature: Temperature | None = Field(
        None, description="Draw at random: below 1 bolder, above 1 wilder. 0: always the likeliest token."
    )
    top_k: Positive | None = Field(None, description="Draw at random, only among the k likeliest tokens.")
    top_p: Probability | None = Field(
        None, description="Draw at random, only among the likeliest tokens that together have this probability."
    )
    seed: Seed | None = Field(
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


def body_of(asked: type[Asked], **most: int) -> dict[str, Any]:
    """A request's body in the OpenAPI document: one schema, sent as JSON or as a form. most: limits of this server."""
    schema = asked.model_json_schema()
    for name, maximum in most.items():
        field = schema["properties"][name]
        number = next(kind for kind in field.get("anyOf", [field]) if kind.get("type") == "integer")
        number["maximum"] = maximum
    kinds = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}
