"""What all settings share: closed, frozen, and whatever is wrong with them is said in one sentence.

Enters: a mapping. Leaves: a value of the subclass, or a `ConfigError` that names the field and what was found.
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
    ValidationError,
    model_validator,
)

from heed.errors import ConfigError
from heed.untrusted import short_repr

NameList = Annotated[  # a list, or on the command line a text with commas
    tuple[str, ...],
    BeforeValidator(lambda given: given.split(",") if isinstance(given, str) else given),
    Field(strict=False),
]
_SHOWN = 3  # of what is wrong, at most this many are told at once


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """What to say beside a name that is not known: the one probably meant, or all there are."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"


class Settings(BaseModel):
    """What all settings share: no unknown names, no silent conversions, no changes once made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="wrap")
    @classmethod
    def _explain_what_is_wrong(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(cls._with_none(data))
        except ValidationError as error:
            problems = [cls._explain(dict(problem)) for problem in error.errors()]
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise ConfigError("; ".join(problems[:_SHOWN]) + more) from None

    @classmethod
    def _with_none(cls, data: Any) -> Any:
        """TOML and `--set` have no null: where a setting is none by default, the word says so."""
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
