"""Options that several verbs share, and what they become: settings, an open translator, a path to write to.

Enters: strings and paths as typer parsed them. Leaves: settings (`--set section.name=value`), standard input in a
file, and a `Translator`. Imports torch only where a model is opened.
"""

import shutil
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heed.config import SearchConfig, SplitMode
from heed.errors import ConfigError, DataError
from heed.interop.engine_names import EngineName
from heed.training.corpora import TextFiles
from heed.training.presets import NestedSettings

if TYPE_CHECKING:
    from heed.inference.translator import Translator

Paths = list[str]
Source = Annotated[Paths, typer.Option(help="Source text, one sentence per line; may be given several times.")]
Target = Annotated[Paths, typer.Option(help="Target text: line n translates line n of the source.")]
Pairs = Annotated[
    Paths,
    typer.Option(help="A .tsv, .csv or .jsonl file of pairs, or of labels and texts; -: TSV on standard input."),
]
Text = Annotated[Paths, typer.Option(help="Monolingual text, one text per line: for language-model and masked.")]
ValidText = Annotated[Paths, typer.Option(help="Monolingual text to validate on.")]
Task = Annotated[
    str | None, typer.Option(help="What to train for: translate, language-model, masked or classify (data.task).")
]
Weights = Annotated[
    list[float],
    typer.Option(help="Weight of each corpus, in the order above: 2 is seen twice per epoch."),
]
ValidSource = Annotated[Paths, typer.Option(help="Source text to validate on.")]
ValidTarget = Annotated[Paths, typer.Option(help="Target text to validate on.")]
ValidPairs = Annotated[Paths, typer.Option(help="A .tsv, .csv or .jsonl file to validate on.")]
SourceKey = Annotated[str, typer.Option(help="The key of the source in a .jsonl object, such as translation.en.")]
TargetKey = Annotated[str, typer.Option(help="The key of the target in a .jsonl object.")]
Columns = Annotated[
    str | None, typer.Option(help="Columns of a .tsv or .csv file, by number or name: 2,3 or en,de or label,text.")
]
PairsFormat = Annotated[
    Literal["tsv", "csv", "jsonl"] | None, typer.Option(help="The format of --pairs where file names do not tell.")
]
SourceLanguage = Annotated[
    str | None, typer.Option(help="The source's language code, such as en; default: by the file names.")
]
TargetLanguage = Annotated[
    str | None, typer.Option(help="The target's language code, such as de; default: by file names.")
]
Config = Annotated[Path | None, typer.Option(help="A TOML file of settings.")]
Set = Annotated[list[str], typer.Option("--set", help="One setting, such as training.max_steps=2000.")]
Preset = Annotated[str | None, typer.Option(help="tiny, small, base or big; default: by the size of the corpus.")]
Cache = Annotated[Path | None, typer.Option(help="The folder where prepared text is cached.")]
SearchSet = Annotated[list[str], typer.Option("--set", help="A setting of the search, such as search.beam=5.")]
SplitAt = Annotated[
    SplitMode | None,
    typer.Option(
        "--split",
        help="Where texts are split before they are translated: sentences (where a line holds more sentences than "
        "training lines did), line (each line as a whole) or none; default: the model folder's, sentences.",
    ),
]
Together = Annotated[list[Path], typer.Option("--with", help="Another model folder, to translate with as an ensemble.")]
Engine = Annotated[
    EngineName | None, typer.Option(help="What translates; by default heed, or what the folder was exported for.")
]

_OLD_SPELLINGS = {"output": "out"}


def out_option(what: str) -> Any:
    """The option `--out`, or `-o`, spelt alike in every verb. what: its help text."""
    return typer.Option("--out", "-o", parser=_path, metavar="PATH", help=what)


def current_spelling(name: str) -> str:
    """The name of an option as it is spelt now: an old spelling goes on working, and says the new one."""
    if name not in _OLD_SPELLINGS:
        return name
    typer.echo(f"note: --{name} is now spelt --{_OLD_SPELLINGS[name]}", err=True)
    return _OLD_SPELLINGS[name]


def _path(text: str) -> Path:
    if not text:  # Path("") is the current folder: a shell's unset variable would fill it
        raise ConfigError("--out names no path: it is empty, perhaps a variable of your shell that is not set")
    return Path(text)


def from_options(options: list[str]) -> NestedSettings:
    """`["training.max_steps=2000"]` as {"training": {"max_steps": 2000}}; values are read as in TOML, else as text."""
    settings: NestedSettings = {}
    for option in options:
        name, equals, text = option.partition("=")
        section, dot, field = name.partition(".")
        if not (equals and dot and section and field):
            raise ConfigError(f"--set {option}: expected section.name=value, such as training.max_steps=2000")
        settings.setdefault(section, {})[field] = _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def search_settings(options: list[str], beam: int | None = None, nbest: int | None = None) -> dict[str, Any]:
    """The search settings given by `--set search.beam=5` and by options of their own, validated."""
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
    from heed.inference.open import load  # noqa: PLC0415 - torch takes seconds to import

    translator = load(model, *others, engine=engine)
    settings = translator.search.model_dump() | search
    if "beam" not in search and not settings["sample"]:
        settings["beam"] = max(settings["beam"], settings["nbest"])
    translator.search = SearchConfig.model_validate(settings)
    return translator


def spooled(folder: Path, *given: TextFiles) -> list[TextFiles]:
    """Text is read several times and standard input only once: what comes from there is put into a file."""
    asked = sum(paths.count("-") for one in given for paths in vars(one).values())
    if not asked:
        return list(given)
    if asked > 1:
        raise DataError("standard input (-) was asked for more than once, and can be read only once")
    file = folder / ("standard-input.tsv" if any("-" in one.pairs for one in given) else "standard-input.txt")
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    renamed = {"-": str(file)}
    return [
        TextFiles(**{name: [renamed.get(path, path) for path in paths] for name, paths in vars(one).items()})
        for one in given
    ]
