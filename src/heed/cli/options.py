"""Command-line options shared by several verbs, and their conversion to settings, paths and a `Translator`.

Enters: strings and paths as typer parsed them. Leaves: settings (`--set section.name=value`), standard input copied to
a file, and a `Translator`. Imports torch only when a model is opened.
"""

import shutil
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from heed.config import RunConfig
from heed.errors import ConfigError, DataError
from heed.interop.engine_names import EngineName
from heed.search_config import SearchConfig, SplitMode, TranslateConfig

if TYPE_CHECKING:
    from heed.inference.translator import Translator
    from heed.training.corpora import TextFiles
    from heed.training.presets import NestedSettings

SourceOption = Annotated[
    list[str], typer.Option(help="Source text, one sentence per line; may be given several times.")
]
TargetOption = Annotated[
    list[str], typer.Option(help="Target text: line n translates line n of the source; once per --source.")
]
PairsOption = Annotated[
    list[str],
    typer.Option(
        help="A .tsv, .csv or .jsonl file of sentence pairs, or of labels and texts; -: TSV from standard input."
    ),
]
TextOption = Annotated[
    list[str], typer.Option(help="Monolingual text, one text per line; for the tasks language-model and masked.")
]
ValidTextOption = Annotated[list[str], typer.Option(help="Monolingual text of the validation set.")]
TaskOption = Annotated[
    str | None, typer.Option(help="Training task: translate, language-model, masked or classify; default: data.task.")
]
WeightOption = Annotated[
    list[float],
    typer.Option(
        help="Weight of a corpus: one of weight 2 is read twice per epoch; once per corpus, in order; default: 1."
    ),
]
ValidSourceOption = Annotated[list[str], typer.Option(help="Source text of the validation set.")]
ValidTargetOption = Annotated[list[str], typer.Option(help="Target text of the validation set.")]
ValidPairsOption = Annotated[list[str], typer.Option(help="Validation set as a .tsv, .csv or .jsonl file.")]
SourceKeyOption = Annotated[
    str, typer.Option(help="Key of the source text in a .jsonl object, such as translation.en.")
]
TargetKeyOption = Annotated[str, typer.Option(help="Key of the target text in a .jsonl object.")]
ColumnsOption = Annotated[
    str | None,
    typer.Option(help="Columns of a .tsv or .csv file, by number or name: 2,3 or en,de or label,text; default: all."),
]
PairsFormatOption = Annotated[
    Literal["tsv", "csv", "jsonl"] | None, typer.Option(help="Format of --pairs; default: by the file name.")
]
SourceLanguageOption = Annotated[
    str | None, typer.Option(help="Source language code, such as en; default: from the file names.")
]
TargetLanguageOption = Annotated[
    str | None, typer.Option(help="Target language code, such as de; default: from the file names.")
]
ConfigOption = Annotated[Path | None, typer.Option(help="TOML file of settings; --set and other options override it.")]
SetOption = Annotated[
    list[str], typer.Option("--set", help="A setting, such as training.max_steps=2000; may be given several times.")
]
PresetOption = Annotated[
    str | None, typer.Option(help="Model size: tiny, small, base or big; default: by the size of the corpus.")
]
CacheOption = Annotated[
    Path | None, typer.Option(help="Cache folder for tokenizers and token ids; default: ~/.cache/heed.")
]
SearchSetOption = Annotated[
    list[str], typer.Option("--set", help="A decoding setting, such as search.beam=5; may be given several times.")
]
TranslateSetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        help="A setting of search or translate, such as search.beam=5 or translate.normalize=false; may be given "
        "several times.",
    ),
]
SplitOption = Annotated[
    SplitMode | None,
    typer.Option(
        "--split",
        help="Split text before translation. sentences: split lines longer than the training lines into sentences; "
        "line: translate each line as a whole; none: translate each text as a whole; "
        "default: the model folder's setting.",
    ),
]
EnsembleOption = Annotated[
    list[Path],
    typer.Option(
        "--with", help="Folder of another model, for an ensemble of their probabilities; may be given several times."
    ),
]
EngineOption = Annotated[
    EngineName | None, typer.Option(help="Inference engine; default: heed, or the one the folder was exported for.")
]

_OLD_SPELLINGS = {"output": "out"}


def out_option(help_text: str) -> Any:
    """The option `--out` or `-o`."""
    return typer.Option("--out", "-o", parser=_path, metavar="PATH", help=help_text)


def current_spelling(name: str) -> str:
    """The current spelling of an option; an old spelling keeps working and prints a note."""
    if name not in _OLD_SPELLINGS:
        return name
    typer.echo(f"note: --{name} is now spelt --{_OLD_SPELLINGS[name]}", err=True)
    return _OLD_SPELLINGS[name]


def _path(text: str) -> Path:
    if not text:  # Path("") is the current folder: a shell's unset variable would fill it
        raise ConfigError("--out is empty: expected a path; perhaps a shell variable is not set")
    return Path(text)


def from_options(options: list[str]) -> "NestedSettings":
    """`["training.max_steps=2000"]` as {"training": {"max_steps": 2000}}; values are read as in TOML, else as text."""
    settings: NestedSettings = {}
    for option in options:
        name, equals, text = option.partition("=")
        section, dot, field = name.partition(".")
        if not (equals and dot and section and field):
            raise ConfigError(f"--set {option}: expected section.name=value, such as {_example(name, text)}")
        settings.setdefault(section, {})[field] = _value(text)
    return settings


def _example(name: str, value: str) -> str:
    """Settings of this name with their sections; an example if there is none."""
    sections: dict[str, Any] = {section: field.annotation for section, field in RunConfig.model_fields.items()}
    named = [section for section, settings in sections.items() if name in settings.model_fields]
    return " or ".join(f"{section}.{name}={value or 'VALUE'}" for section in named) or "training.max_steps=2000"


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def search_settings(set_options: list[str]) -> dict[str, Any]:
    """The search settings of `--set search.beam=5`, validated."""
    return _validated_search(_sections(set_options, "search").get("search", {}))


def _sections(set_options: list[str], *allowed: str) -> "NestedSettings":
    settings = from_options(set_options)
    for section in settings:
        if section not in allowed:
            names = " and ".join(allowed)
            raise ConfigError(f"--set {section}.…: only {names} settings are allowed here, such as search.beam=5")
    return settings


def _validated_search(search: dict[str, Any]) -> dict[str, Any]:
    SearchConfig.model_validate({"beam": search.get("nbest", 1)} | search)
    return search


def decoding_settings(
    set_options: list[str], split: SplitMode | None, beam: int | None = None, nbest: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of search and of translate, from --set, --split, --beam and --nbest, validated."""
    settings = _sections(set_options, "search", "translate")
    options = {"beam": beam, "nbest": nbest}
    given = {name: value for name, value in options.items() if value is not None}
    search = _validated_search(settings.get("search", {}) | given)
    translate = settings.get("translate", {}) | ({} if split is None else {"split": split})
    TranslateConfig.model_validate(translate)
    return search, translate


def open_translator(
    model: Path,
    others: list[Path],
    search: dict[str, Any],
    engine: EngineName | None = "heed",
    translate: Mapping[str, Any] | None = None,
) -> "Translator":
    """A translator of a model folder; settings of search and translate that are not given are the folder's.

    others: folders of the other models of an ensemble. engine: None is the engine the folder was exported for.
    """
    from heed.inference.open import load  # noqa: PLC0415 - slow to import

    translator = load(model, *others, engine=engine)
    settings = translator.search.model_dump() | search
    for name in ("temperature", "top_k", "top_p"):
        if name in search and not settings["sample"]:
            raise ConfigError(
                f"search.{name} = {search[name]} has no effect on beam search: to sample, add --set search.sample=true"
            )
    if "beam" not in search and not settings["sample"]:
        settings["beam"] = max(settings["beam"], settings["nbest"])
    translator.search = SearchConfig.model_validate(settings)
    translator.settings = TranslateConfig.model_validate(translator.settings.model_dump() | dict(translate or {}))
    if translator.settings.correct_spelling and translator.normalizer.spelling is None:
        raise ConfigError(
            f"translate.correct_spelling = true needs the words of the training text, which {model} does not have: "
            "train with --set translate.correct_spelling=true"
        )
    return translator


def spooled(folder: Path, *text_files: "TextFiles") -> "list[TextFiles]":
    """Copy standard input to a file, since text is read several times; paths `-` become that file's path."""
    dashes = sum(paths.count("-") for files in text_files for paths in vars(files).values())
    if not dashes:
        return list(text_files)
    if dashes > 1:
        raise DataError(f"standard input (-) is given {dashes} times and can be read only once")
    file = folder / ("standard-input.tsv" if any("-" in files.pairs for files in text_files) else "standard-input.txt")
    from heed.training.corpora import TextFiles  # noqa: PLC0415 - a verb that reads no corpus needs none of it

    folder.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return [
        TextFiles(
            **{name: [str(file) if path == "-" else path for path in paths] for name, paths in vars(files).items()}
        )
        for files in text_files
    ]
