"""`heed export`, `heed import`, `heed average`, `heed quantize`: a model folder to or from another form of it.

Enters: a folder. Leaves: another folder, written whole or not at all, and a line on standard error that names it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from heed.cli.options import out_option
from heed.errors import ConfigError
from heed.interop.engine_names import EngineName
from heed.settings import did_you_mean

Format = TypeVar("Format")
Languages = tuple[str, str]


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    to: Annotated[
        str, typer.Option(help="The format: marian (Hugging Face's MarianMT), ctranslate2, ctranslate2-int8 or onnx.")
    ],
    out: Annotated[Path, out_option("The folder to write.")],
) -> None:
    """Write a model in the format of another system; an encoder-only or decoder-only model as an ONNX graph."""
    write = _one_of(_EXPORTS, "--to", to)

    from heed.inference.open import read_translation_folder  # noqa: PLC0415 - torch takes seconds to import

    if to != "onnx":
        read_translation_folder(model)  # no other format here takes a model that does not translate
    write(model, out)
    typer.echo(f"{model} as {to} is in {out}", err=True)


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
    _one_of(_IMPORTS, "--from", from_)(folder, out, weights, (source, target))
    typer.echo(f"{folder} is now the model folder {out}", err=True)


def average(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    out: Annotated[Path, out_option("The model folder to write.")],
    last: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints to take.")] = 5,
) -> None:
    """Average the weights of a run's last checkpoints."""
    from heed.artifacts.checkpoint import average_checkpoints  # noqa: PLC0415 - torch takes seconds to import

    paths = average_checkpoints(run, last, out)
    typer.echo(f"the mean of {', '.join(path.name for path in paths)} is in {out}", err=True)


def quantize(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    out: Annotated[Path, out_option("The model folder to write.")],
) -> None:
    """Quantise a model's weights to int8: a quarter of the size, and translating on a CPU is faster."""
    from heed.artifacts.save import write_quantized  # noqa: PLC0415 - torch takes seconds to import

    before, after = write_quantized(model, out)
    typer.echo(f"{model} in int8 is in {out}: {after / 1e6:.1f} MB instead of {before / 1e6:.1f}", err=True)


def _one_of(formats: Mapping[str, Format], option: str, name: str) -> Format:
    if name not in formats:
        raise ConfigError(f"{option} {name} is not a format that heed knows: {did_you_mean(name, formats)}")
    return formats[name]


def _export_marian(model: Path, out: Path) -> None:
    from heed.interop.marian import export_marian  # noqa: PLC0415 - torch takes seconds to import

    export_marian(model, out)


def _export_for(engine: EngineName) -> Callable[[Path, Path], None]:
    def write(model: Path, out: Path) -> None:
        from heed.interop.folders import export_for  # noqa: PLC0415 - torch takes seconds to import

        export_for(engine, model, out)

    return write


def _import_marian(folder: Path, out: Path, weights: str | None, languages: Languages) -> None:
    from heed.interop.marian import import_marian  # noqa: PLC0415 - torch takes seconds to import

    import_marian(folder, out, weights, languages)


def _import_fairseq(folder: Path, out: Path, weights: str | None, languages: Languages) -> None:
    from heed.interop.fairseq import import_fairseq  # noqa: PLC0415 - torch takes seconds to import

    import_fairseq(folder, out, weights, languages)


_EXPORTS: dict[str, Callable[[Path, Path], None]] = {
    "marian": _export_marian,
    "ctranslate2": _export_for("ctranslate2"),
    "ctranslate2-int8": _export_for("ctranslate2-int8"),
    "onnx": _export_for("onnx"),
}
_IMPORTS: dict[str, Callable[[Path, Path, str | None, Languages], None]] = {
    "marian": _import_marian,
    "fairseq": _import_fairseq,
}
