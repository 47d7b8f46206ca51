"""The settings of a search, as a command's options give them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.cli.settings import from_options
from heed.config import SearchConfig, Split
from heed.errors import ConfigError
from heed.interop.engine_names import EngineName

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from heed.inference.translation import Translation
    from heed.inference.translator import Translator

Set = Annotated[list[str], typer.Option("--set", help="A setting of the search, such as search.beam=5.")]
SplitAt = Annotated[
    Split | None,
    typer.Option(
        "--split",
        help="Where texts are cut before they are translated: sentences (lines that hold more than the training lines "
        "did, where sentences end), line (each line at once) or none; default: the model folder's, sentences.",
    ),
]
Together = Annotated[list[Path], typer.Option("--with", help="Another model folder, to translate together with it.")]
Engine = Annotated[
    EngineName | None, typer.Option(help="What translates; by default heed, or what the folder was exported for.")
]


def search_settings(options: list[str], beam: int | None = None, nbest: int | None = None) -> dict[str, Any]:
    """What was set of the search, by `--set search.beam=5` and by options of its own; found wrong here, if it is."""
    settings = from_options(options)
    for section in settings:
        if section != "search":
            raise ConfigError(f"--set {section}.…: only the search can be set here, such as search.beam=5")
    named = {"beam": beam, "nbest": nbest}
    search = settings.get("search", {}) | {name: value for name, value in named.items() if value is not None}
    SearchConfig.model_validate({"beam": search.get("nbest", 1)} | search)
    return search


def open_translator(
    model: Path, others: list[Path], search: dict[str, Any], engine: EngineName | None = "heed"
) -> "Translator":
    """A model folder at work, with its own settings of the search where none were given.

    engine: what translates; none: whatever the folder is for.
    """
    from heed.inference.engines import open_engine  # noqa: PLC0415
    from heed.inference.translator import load  # noqa: PLC0415 - torch takes seconds to import

    if others and engine not in (None, "heed"):
        raise ConfigError(f"--with {others[0]}: only heed's own engine translates with several models, found {engine}")
    translator = load(model, *others) if others or engine == "heed" else open_engine(model, engine)
    settings = translator.search.model_dump() | search
    if "beam" not in search and not settings["sample"]:
        settings["beam"] = max(settings["beam"], settings["nbest"])
    translator.search = SearchConfig.model_validate(settings)
    return translator


@dataclass
class Translated:
    """Counts what a person should be told after many texts were translated."""

    texts: int = 0
    split: int = 0  # texts that were translated in parts
    parts: int = 0  # of those
    truncated: int = 0  # texts that the length limit cut off

    def add(self, found: "Sequence[Translation]") -> None:
        """Some more translations."""
        for one in found:
            self.texts += 1
            self.truncated += one.truncated or any(other.truncated for other in one.alternatives)
            if len(one.segments) > 1:
                self.split += 1
                self.parts += len(one.segments)

    def notes(self, search: SearchConfig, *, by_default: bool) -> list[str]:
        """What to say. by_default: nobody asked for texts to be split."""
        notes = []
        if self.split and by_default:
            notes.append(
                f"{self.split:,} of {self.texts:,} texts hold more than the model was trained on at once and were "
                f"translated in {self.parts:,} parts; --split line translates each line at once"
            )
        if self.truncated:
            limit = "the source's tokens and 50 more" if search.max_length is None else f"{search.max_length} tokens"
            notes.append(
                f"{self.truncated:,} of {self.texts:,} translations reached the length limit ({limit}) and are cut "
                "off; raise it with --set search.max_length=…"
            )
        return notes


def say(notes: "Iterable[str]") -> None:
    """Notes, on standard error."""
    for note in notes:
        typer.echo(f"note: {note}", err=True)
