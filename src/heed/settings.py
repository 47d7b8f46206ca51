"""The base class of all settings: immutable, no unknown names, and errors that name the field and its value.

Enters: a mapping. Leaves: an instance of the subclass, or a `ConfigError`.
"""

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from heed.errors import ConfigError
from heed.untrusted import short_repr

PositiveInt = Annotated[int, Field(gt=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
NameList = Annotated[  # a list, or comma-separated on the command line
    tuple[str, ...],
    BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value),
    Field(strict=False),
]
_MAX_SHOWN = 3  # errors in one message


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message about an unknown name: the closest known name, or all of them."""
    names = list(known)
    closest = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {closest[0]!r}?" if closest else f"expected one of {', '.join(names)}"


def format_setting(value: Any) -> str:
    """A setting's value as it is written after `--set section.name=`: none, true, 0.1, post, []."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple():
            return str(list(value))
        case "":
            return '""'
        case _:
            return str(value)


class Settings(BaseModel):
    """The base class of all settings: no unknown names, no silent conversions, immutable."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _raise_config_error(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(cls._parse_none(data))
        except ValidationError as error:
            problems = [cls._explain(dict(problem)) for problem in error.errors()]
            more = f"; and {len(problems) - _MAX_SHOWN} more" if len(problems) > _MAX_SHOWN else ""
            raise ConfigError("; ".join(problems[:_MAX_SHOWN]) + more) from None

    @classmethod
    def check_each(cls, data: Mapping[str, Any]) -> None:
        """Raise where one of these settings is unknown or has an invalid value, whatever the others are."""
        for name, value in cls._parse_none(data).items():
            if name not in cls.model_fields:
                raise ConfigError(cls._explain({"type": "extra_forbidden", "loc": (name,)}))
            rules = ConfigDict(strict=True, allow_inf_nan=False)  # those of model_config that concern a value
            try:
                TypeAdapter(cls.model_fields[name].rebuild_annotation(), config=rules).validate_python(value)
            except ValidationError as error:
                problem = dict(error.errors()[0])
                raise ConfigError(cls._explain({**problem, "loc": (name,)})) from None

    @classmethod
    def _parse_none(cls, data: Any) -> Any:
        """TOML and `--set` have no null: the string "none" stands for it in settings whose default is None."""
        if not isinstance(data, Mapping) or "none" not in data.values():
            return data
        optional = {name for name, field in cls.model_fields.items() if field.default is None}
        return {name: None if value == "none" and name in optional else value for name, value in data.items()}

    @classmethod
    def _explain(cls, problem: Mapping[str, Any]) -> str:
        name = ".".join(str(part) for part in problem["loc"]) or cls.__name__
        match problem["type"]:
            case "extra_forbidden":
                return f"unknown setting {name!r} in {cls.__name__}: {did_you_mean(name, cls.model_fields)}"
            case "missing":
                return f"{cls.__name__} needs {name!r}: {cls.model_fields[name].description}"
            case _:
                return f"{name} = {short_repr(problem['input'])}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
