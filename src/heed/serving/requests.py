"""Parses and validates requests: JSON, forms and query strings to fields, and fields to one model per route.

Nothing is trusted. JSON must conform to the standard (no NaN, no duplicate name, no lone surrogate) and has a bounded
number of items and nesting levels; form names must be unique; files are rejected. Parsing runs on the event loop, so it
must be fast for any body within the limits; `request_middleware` has checked the size.

The pydantic models validate a request and describe it in the OpenAPI document. Error texts are LibreTranslate's where
it has one. Form values are strings: numbers, true and false are converted, nothing else is.
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

from heed.search_config import SplitMode
from heed.serving.http_errors import HttpError

Fields = dict[str, Any]
_MAX_FIELDS = 100
_MAX_ITEMS = 10_000  # of lists and objects in JSON, together
_MAX_DEPTH = 16  # nesting levels of lists and objects

# An unterminated string extends to the end, so that nothing is scanned twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def parse_query(query: bytes) -> Fields:
    return _parse_form(query, "the query string")


async def parse_body(request: Request, body: bytes) -> Fields:
    """Parse a body by its content type."""
    content_type = request.headers.get("content-type", "")
    media_type, _, parameters = content_type.partition(";")
    match media_type.strip().lower():
        case "application/json":
            fields = read_json(body)
        case "application/x-www-form-urlencoded":
            fields = _parse_form(body, "the form")
        case "multipart/form-data":
            fields = await _parse_multipart(request, body)
        case other:
            raise HttpError(
                415, f"Content type {(other or 'none')[:50]} is not supported: send application/json or a form"
            )
    charset = parameters.lower().partition("charset=")[2].strip(' "')
    if charset and charset.partition(";")[0].strip(' "') not in ("utf-8", "utf8"):
        raise HttpError(415, f"Character set {charset[:50]} is not supported: send UTF-8")
    return fields


def read_json(body: bytes) -> Fields:
    """Parse a JSON object strictly."""
    _check_structure(body)
    try:
        fields = json.loads(
            body.decode("utf-8"), object_pairs_hook=_unique_names, parse_constant=_reject_constant, parse_float=_finite
        )
        if _SURROGATE.search(body):  # only an escape can produce a lone surrogate
            json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise HttpError(400, "Invalid JSON format") from None
    if not isinstance(fields, dict):
        raise HttpError(400, "Invalid JSON format")
    return fields


def _check_structure(body: bytes) -> None:
    """Reject JSON with too many items or levels before parsing it: a megabyte of [] would become 100 MB of lists."""
    structure = _STRING.sub(b"", body)
    items = sum(structure.count(sign) for sign in (b",", b"[", b"{"))
    if items > _MAX_ITEMS:
        raise HttpError(400, f"Invalid request: JSON with {items} items; the limit is {_MAX_ITEMS}")
    level = 0
    for bracket in _BRACKET.findall(structure):
        level += 1 if bracket in (b"[", b"{") else -1
        if level > _MAX_DEPTH:
            raise HttpError(400, f"Invalid request: JSON nested deeper than {_MAX_DEPTH} levels")


def _unique_names(pairs: list[tuple[str, Any]]) -> Fields:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("duplicate name")
    return fields


def _reject_constant(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("number too large")
    return number


def _parse_form(content: bytes, where: str) -> Fields:
    try:
        pairs = parse_qsl(content.decode("utf-8"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise HttpError(400, f"Invalid request: {where} is not form data in UTF-8") from None
    return _unique_strings(pairs, where)


async def _parse_multipart(request: Request, body: bytes) -> Fields:
    request._body = body
    try:
        form = await request.form(max_files=0, max_fields=_MAX_FIELDS, max_part_size=len(body))
        pairs = [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
        return _unique_strings(pairs, "the form")
    except (MultiPartException, UnicodeError, ValueError, KeyError):
        raise HttpError(400, "Invalid request: the form is not form data in UTF-8, or contains files") from None


def _unique_strings(pairs: list[tuple[str, str]], where: str) -> Fields:
    try:
        fields = _unique_names(pairs)
        json.dumps(fields, ensure_ascii=False).encode("utf-8")
    except ValueError:
        raise HttpError(400, f"Invalid request: {where} repeats a name, or is not UTF-8") from None
    return fields


def _to_integer(value: object) -> object:
    """Convert a string of digits to an integer, as LibreTranslate does."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    return value


def _to_float(value: object) -> object:
    """Convert a string to a float; its limits are checked afterwards."""
    try:
        return float(value) if isinstance(value, str) and value.isascii() and len(value) < 20 else value
    except ValueError:
        return value


def _to_bool(value: object) -> object:
    return {"true": True, "false": False}.get(value, value) if isinstance(value, str) else value


# Limits precede the validator that converts strings: after it OpenAPI would not show them as limits of a number.
CountField = Annotated[int, Field(ge=0), BeforeValidator(_to_integer)]
PositiveIntField = Annotated[int, Field(ge=1), BeforeValidator(_to_integer)]
SeedField = Annotated[int, Field(ge=0, lt=2**53), BeforeValidator(_to_integer)]
TemperatureField = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), BeforeValidator(_to_float)]
TopPField = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), BeforeValidator(_to_float)]
BoolField = Annotated[bool, BeforeValidator(_to_bool)]

# Fields of several routes.
ApiKey = Annotated[str | None, Field(description="API key, if the server requires one.")]
ModelName = Annotated[str | None, Field(description="Name of the model, if several support the route; see /models.")]
TextField = Annotated[str, Field(description="Text.", examples=["A dog runs."])]
TextsField = Annotated[str | list[str], Field(description="Text or list of texts.", examples=["A dog runs."])]
SourceField = Annotated[str, Field(description="Language code of the text, or auto.", examples=["auto"])]
TargetField = Annotated[str, Field(description="Language code to translate to.")]
SplitField = Annotated[
    SplitMode | None,
    Field(
        description="How long texts are split: sentences (at sentence ends, in lines longer than the training lines), "
        "line or none. Default: the setting of the model's folder, normally sentences."
    ),
]


class RequestFields(BaseModel):
    """Base of the request models. Unknown names are ignored, since clients of other servers send them."""

    model_config = ConfigDict(strict=True, frozen=True)

    @classmethod
    def parse(cls, fields: Fields) -> Self:
        """Validate fields; an empty value counts as missing."""
        given = {name: value for name, value in fields.items() if value not in ("", [], None)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise HttpError(400, _error_text(dict(error.errors()[0]))) from None


def _error_text(error: Mapping[str, Any]) -> str:
    name, value = error["loc"][0], error["input"]
    if error["type"] == "missing":
        return f"Invalid request: missing {name} parameter"
    if name == "alternatives":
        return "Invalid request: alternatives parameter is not a number"
    if name == "format" and isinstance(value, str):
        return f"{value[:50]} format is not supported"
    return f"Invalid request: {name} parameter: {error['msg'][0].lower()}{error['msg'][1:]}"


class TranslateRequest(RequestFields):
    """The fields of `POST /translate`."""

    q: TextsField
    source: SourceField
    target: TargetField
    format: Literal["text", "html"] = Field("text", description="html: translates only the text between tags.")
    alternatives: CountField = Field(0, description="Number of alternative translations besides the best.")
    split: SplitField = None
    details: BoolField = Field(default=False, description="Also return score, tokens and alignment; for format text.")
    api_key: ApiKey = None


class DetectRequest(RequestFields):
    """The fields of `POST /detect`."""

    q: TextField
    api_key: ApiKey = None


class StreamRequest(RequestFields):
    """The fields of `POST /translate/stream`."""

    q: TextField
    source: SourceField
    target: TargetField
    split: SplitField = None
    api_key: ApiKey = None


class AlternativesRequest(RequestFields):
    """The fields of `POST /alternatives`."""

    q: str = Field(description="Sentence to translate; it is not split.", examples=["A dog runs."])
    source: SourceField
    target: TargetField
    prefix: str = Field("", description="Forced prefix of the translation; trailing white space is ignored.")
    alternatives: CountField | None = Field(None, description="Number of continuations; default: the server's maximum.")
    details: BoolField = Field(default=False, description="Also return score, tokens and alignment of each.")
    api_key: ApiKey = None


class LookRequest(RequestFields):
    """The fields of `POST /look`."""

    q: TextField
    source: str | None = Field(None, description="Language code of the text, or auto; for translation models.")
    target: str | None = Field(None, description="Language code to translate to; for translation models.")
    translation: str | None = Field(
        None, description="Translation to trace by forced decoding; default: the model's own output."
    )
    model: str | None = Field(None, description="Name of a language model, classifier or encoder; see /models.")
    format: Literal["json", "html"] = Field(
        "json", description="json: the trace as data; html: the report that `heed look` writes."
    )
    parts: list[str] = Field(
        [], description="Names of activations to include in the JSON; `parts` of the response lists all names."
    )
    api_key: ApiKey = None


class GenerateRequest(RequestFields):
    """The fields of `POST /generate`."""

    prompt: str = Field("", description="Prompt; may be empty.", examples=["The old cat"])
    max_length: PositiveIntField | None = Field(
        None, description="Maximum number of tokens, prompt included; default: the maximum training length."
    )
    temperature: TemperatureField | None = Field(
        None, description="Softmax temperature for sampling: below 1 sharpens, above 1 flattens; 0: greedy."
    )
    top_k: PositiveIntField | None = Field(None, description="Top-k sampling: only the k most probable tokens.")
    top_p: TopPField | None = Field(
        None, description="Nucleus sampling: only the most probable tokens with this total probability."
    )
    seed: SeedField | None = Field(None, description="Random seed for sampling; default: a new one per request.")
    stream: BoolField = Field(default=False, description="Stream the text token by token, as server-sent events.")
    model: ModelName = None
    api_key: ApiKey = None


class ClassifyRequest(RequestFields):
    """The fields of `POST /classify`."""

    q: str | list[str] = Field(
        description="Text or list of texts; a text pair is separated by a tab.", examples=["A dog runs."]
    )
    model: ModelName = None
    api_key: ApiKey = None


class EmbedRequest(RequestFields):
    """The fields of `POST /embed`."""

    q: TextsField
    pooling: Literal["mean", "first"] = Field(
        "mean", description="Mean over the tokens' hidden states, or that of the first token."
    )
    model: ModelName = None
    api_key: ApiKey = None


def request_body(request: type[RequestFields], **maxima: int) -> dict[str, Any]:
    """The OpenAPI description of a request body, the same for JSON and forms. maxima: this server's limits by field."""
    schema = request.model_json_schema()
    for name, maximum in maxima.items():
        field = schema["properties"][name]
        number = next(option for option in field.get("anyOf", [field]) if option.get("type") == "integer")
        number["maximum"] = maximum
    types = ("application/json", "application/x-www-form-urlencoded", "multipart/form-data")
    return {"requestBody": {"required": True, "content": {name: {"schema": schema} for name in types}}}
