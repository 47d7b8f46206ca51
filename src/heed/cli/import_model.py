"""`heed import`: another system's model as a model folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from heed.cli.places import out_option
from heed.errors import ConfigError
from heed.settings import nearest

Format = TypeVar("Format")


def import_model(
    folder: Annotated[Path, typer.Argument(help="The folder that the other system wrote.")],
    from_: Annotated[str, typer.Option("--from", help="Its format: marian (Hugging Face's MarianMT) or fairseq.")],
    out: Annotated[Path, out_option("The model folder to write.")],
    weights: Annotated[
        str | None, typer.Option(help="The file of weights to read; for a pickle this must be said.")
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="Source and target language, such as en-de, if the files do not say.")
    ] = None,
) -> None:
    """Make a model folder of a model that another system trained."""
    source, dash, target = (languages or "-").partition("-")
    if languages is not None and not (source and dash and target):
        raise ConfigError(f"--languages {languages}: expected two language codes, such as en-de")
    one_of(_FORMATS, "--from", from_)(folder, out, weights, (source, target))
    typer.echo(f"{folder} is now the model folder {out}", err=True)


def one_of(formats: Mapping[str, Format], option: str, name: str) -> Format:
    """The format of that name."""
    if name not in formats:
        raise ConfigError(f"{option} {name} is not a format that heed knows: {nearest(name, formats)}")
    return formats[name]


def _marian(folder: Path, out: Path, weights: str | None, languages: tuple[str, str]) -> None:
    from heed.interop.marian_import import import_marian  # noqa: PLC0415 - torch takes seconds to import

    import_marian(folder, out, weights, languages)


def _fairseq(folder: Path, out: Path, weights: str | None, languages: tuple[str, str]) -> None:
    from heed.interop.fairseq import import_fairseq  # noqa: PLC0415 - torch takes seconds to import

    import_fairseq(folder, out, weights, languages)


_FORMATS: dict[str, Callable[[Path, Path, str | None, tuple[str, str]], None]] = {
    "marian": _marian,
    "fairseq": _fairseq,
}
