"""What a request holds: bytes of JSON, a form or the query string to fields, and fields to what each route takes.

Nothing is trusted. JSON must be what the standard calls JSON (no NaN, no name twice, no lone surrogate), with a
bounded number of items and levels; names are given once; files are refused. All of it runs on the event loop, so it
must be fast for any body within the limits; `entrance` has checked the size.

The classes of the routes check a request and describe it in the OpenAPI document. Error texts are LibreTranslate's
where it has them. Values in forms are text: numbers, true and false are converted, and nothing else is.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qsl

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from heed.config import SplitMode
from heed.serving.http_errors import HttpError

Fields = dict[str, Any]
_MAX_FIELDS = 100
_MAX_ITEMS = 10_000  # of lists and objects in JSON, together
_MAX_DEPTH = 16  # lists and objects within each other

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # one that does not end goes to the end: never read twice
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def fields_of_query(query: bytes) -> Fields:
    """The fields of a query string."""
    return _from_form(query, "the query string")


async def fields_of_body(request: Request, body: bytes) -> Fields:
    """The fields of a body, by its content type."""
    content_type = request.headers.get("content-type", "")
    kind, _, parameters = content_type.partition(";")
    match kind.strip().lower():
        case "application/json":
            fields = read_json(body)
        case "application/x-www-form-urlencoded":
            fields = _from_form(body, "the form")
        case "multipart/form-data":
            fields = await _from_parts(request, body)
        case other:
            found = other or "none"
            raise HttpError(415, f"Content type {found[:50]} is not supported: send application/json or a form")
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    if charset and charset.partition(";")[0].strip(' "') not in ("utf-8", "utf8"):
        raise HttpError(415, f"Character set {charset[:50]} is not supported: send UTF-8")
    return fields


def read_json(body: bytes) -> Fields:
    """A JSON object, strictly."""
    _check_structure(body)
    try:
        found = json.loads(
            body.decode("utf-8"), object_pairs_hook=_once_each, parse_constant=_refuse, parse_float=_finite
        )
        if _SURROGATE.search(body):  # only an escape can make half a surrogate pair
            json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise HttpError(400, "Invalid JSON format") from None
    if not isinstance(found, dict):
        raise HttpError(400, "Invalid JSON format")
    return found


def _check_structure(body: bytes) -> None:
    """Refuse JSON of too many items or levels before it is parsed: a megabyte of [] would be 100 MB of lists."""
    structure = _STRING.sub(b"", body)
    items = sum(structure.count(sign) for sign in (b",", b"[", b"{"))
    if items > _MAX_ITEMS:
        raise HttpError(400, f"Invalid request: JSON of {items} items; the limit is {_MAX_ITEMS}")
    level = 0
    for bracket in _BRACKET.findall(structure):
        level += 1 if bracket in (b"[", b"{") else -1
        if level > _MAX_DEPTH:
            raise HttpError(400, f"Invalid request: JSON of more than {_MAX_DEPTH} levels")


def _once_each(pairs: list[tuple[str, Any]]) -> Fields:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("a number is too large")
    return number


def _from_form(content: bytes, where: str) -> Fields:
    try:
        pairs = parse_qsl(content.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise HttpError(400, f"Invalid request: {where} is not a form in UTF-8") from None
    return _named_once(pairs, where)


async def _from_parts(request: Request, body: bytes) -> Fields:
    request._body = body
    try:
        form = await request.form(max_files=0, max_fields=_MAX_FIELDS, max_part_size=len(body))
        pairs = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        return _named_once(pairs, "the form")
    except (MultiPartException, UnicodeError, ValueError, KeyError):
        raise HttpError(400, "Invalid request: the form is not a form in UTF-8, or has files") from None


def _named_once(pairs: list[tuple[str, str]], where: str) -> Fields:
    try:
        found = _once_each(pairs)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except ValueError:
        raise HttpError(400, f"Invalid request: {where} has a name twice, or is not UTF-8") from None
    return found


def _number(value: object) -> object:
    """Text that is a whole number, as LibreTranslate takes it too."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value


def _decimal(value: object) -> object:
    """Text that is a number; its limits are checked afterwards."""
    try:
        return float(value) if isinstance(value, str) and value.isascii() and len(value) < 20 else value
    except ValueError:
        return value


def _truth(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


# Limits come before the validator that reads text: after it they would not be limits of a number in OpenAPI.
Count = Annotated[int, Field(ge=0), BeforeValidator(_number)]
Positive = Annotated[int, Field(ge=1), BeforeValidator(_number)]
Seed = Annotated[int, Field(ge=0, lt=2**53), BeforeValidator(_number)]
Temperature = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), BeforeValidator(_decimal)]
Probability = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), BeforeValidator(_decimal)]
Flag = Annotated[bool, BeforeValidator(_truth)]

# Fields that several routes have.
ApiKey = Annotated[str | None, Field(description="The API key, where one is needed.")]
ModelName = Annotated[str | None, Field(description="Name of the model, where several could do it; see /models.")]
Text = Annotated[str, Field(description="The text.", examples=["A dog runs."])]
Texts = Annotated[str | list[str], Field(description="The text, or a list of texts.", examples=["A dog runs."])]
Source = Annotated[str, Field(description="Language of the text, or auto.", examples=["auto"])]
Target = Annotated[str, Field(description="Language to translate to.")]
SplitAt = Annotated[
    SplitMode | None,
    Field(
        description="Where texts are split: sentences (where one ends, in lines longer than training lines), line or "
        "none. Default: the setting of the model's folder, which is sentences unless it says otherwise."
    ),
]


class RequestFields(BaseModel):
    """The fields of a request. Unknown names are ignored: clients of other servers send them."""

    model_config = ConfigDict(strict=True, frozen=True)

    @classmethod
    def of(cls, fields: Fields) -> Self:
        """From names and values; an empty value counts as not given."""
        given = {name: value for name, value in fields.items() if value not in ("", [], None)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise HttpError(400, _explained(dict(error.errors()[0]))) from None


def _explained(problem: Mapping[str, Any]) -> str:
    name, found = problem["loc"][0], problem["input"]
    if problem["type"] == "missing":
        return f"Invalid request: missing {name} parameter"
    if name == "alternatives":
        return "Invalid request: alternatives parameter is not a number"
    if name == "format" and isinstance(found, str):
        return f"{found[:50]} format is not supported"
    return f"Invalid request: {name} parameter: {problem['msg'][0].lower()}{problem['msg'][1:]}"


class Translate(RequestFields):
    """The fields of `POST /translate`."""

    q: Texts
    source: Source
    target: Target
    format: Literal["text", "html"] = Field("text", description="html: only the text between tags is translated.")
    alternatives: Count = Field(0, description="Number of further translations besides the best.")
    split: SplitAt = None
    details: Flag = Field(default=False, description="Also give scores, tokens and alignment; for plain text.")
    api_key: ApiKey = None


class Detect(RequestFields):
    """The fields of `POST /detect`."""

    q: Text
    api_key: ApiKey = None


class Stream(RequestFields):
    """The fields of `POST /translate/stream`."""

    q: Text
    source: Source
    target: Target
    split: SplitAt = None
    api_key: ApiKey = None


class Alternatives(RequestFields):
    """The fields of `POST /alternatives`."""

    q: str = Field(description="The sentence to translate; it is not split.", examples=["A dog runs."])
    source: Source
    target: Target
    prefix: str = Field("", description="Forced beginning of the translation; white space at its end is ignored.")
    alternatives: Count | None = Field(None, description="Number of continuations; default: the server's maximum.")
    details: Flag = Field(default=False, description="Also give scores, tokens and alignment of each.")
    api_key: ApiKey = None


class Look(RequestFields):
    """The fields of `POST /look`."""

    q: Text
    source: str | None = Field(None, description="Language of the text, or auto; for a model that translates.")
    target: str | None = Field(None, description="Language to translate to; for a model that translates.")
    translation: str | None = Field(None, description="The translation to trace; default: the model's own.")
    model: str | None = Field(None, description="Name of a model that does not translate; see /models.")
    format: Literal["json", "html"] = Field("json", description="Numbers, or the page that `heed look` writes.")
    parts: list[str] = Field([], description="Parts whose numbers to include in JSON; the answer's `parts` lists all.")
    api_key: ApiKey = None


class Generate(RequestFields):
    """The fields of `POST /generate`."""

    prompt: str = Field("", description="Beginning of the text; may be empty.", examples=["The old cat"])
    max_length: Positive | None = Field(None, description="Maximum number of tokens; default: the training length.")
    temperature: Temperature | None = Field(
        None, description="Sample with this softmax temperature: below 1 sharpens, above 1 flattens; 0: greedy."
    )
    top_k: Positive | None = Field(None, description="Sample among the k most probable tokens.")
    top_p: Probability | None = Field(
        None, description="Sample among the most probable tokens that together have this probability."
    )
    seed: Seed | None = Field(None, description="Sample with this seed; default: a new one each time.")
    stream: Flag = Field(default=False, description="Answer token by token, as server-sent events.")
    model: ModelName = None
    api_key: ApiKey = None


class Classify(RequestFields):
    """The fields of `POST /classify`."""

    q: str | list[str] = Field(
        description="The text, or a list of texts; a pair of texts has a tab between them.", examples=["A dog runs."]
    )
    model: ModelName = None
    api_key: ApiKey = None


class Embed(RequestFields):
    """The fields of `POST /embed`."""

    q: Texts
    pooling: Literal["mean", "first"] = Field("mean", description="Mean of the tokens' hidden states, or the first.")
    model: ModelName = None
    api_key: ApiKey = None


def body_of(request: type[RequestFields], **most: int) -> dict[str, Any]:
    """A request body in the OpenAPI document: one schema, for JSON and forms. most: this server's limits by field."""
    schema = request.model_json_schema()
    for name, maximum in most.items():
        field = schema["properties"][name]
        number = next(option for option in field.get("anyOf", [field]) if option.get("type") == "integer")
        number["maximum"] = maximum
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": {name: {"schema": schema} for name in types}}}
