"""`heed export`, `import`, `average` and `quantize`: write a model folder, or another format, from a folder.

A folder is written completely or not at all; a line on standard error names it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from heed.cli.options import out_option
from heed.errors import ConfigError
from heed.interop.engine_names import EngineName
from heed.settings import did_you_mean

Converter = TypeVar("Converter")
Languages = tuple[str, str]


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    to: Annotated[
        str,
        typer.Option(help="Output format: marian (Hugging Face's MarianMT), ctranslate2, ctranslate2-int8 or onnx."),
    ],
    out: Annotated[Path, out_option("The folder to write.")],
) -> None:
    """Export a model to Hugging Face's MarianMT, CTranslate2 or ONNX.

    Encoder-only and decoder-only models can be exported to ONNX only.
    """
    write = _converter(_EXPORTS, "--to", to)

    from heed.inference.open import read_translation_folder  # noqa: PLC0415 - slow to import

    if to != "onnx":
        read_translation_folder(model)  # the other formats are for encoder-decoder models only
    write(model, out)
    typer.echo(f"{model} exported as {to} to {out}", err=True)


def import_model(
    folder: Annotated[Path, typer.Argument(help="The other toolkit's model folder.")],
    from_: Annotated[str, typer.Option("--from", help="Input format: marian (Hugging Face's MarianMT) or fairseq.")],
    out: Annotated[Path, out_option("The model folder to write.")],
    weights: Annotated[
        str | None,
        typer.Option(
            help="Weights file; default: model.safetensors. A pickle (.bin, .pt) is read only if it is named here."
        ),
    ] = None,
    languages: Annotated[
        str | None, typer.Option(help="Source and target language, such as en-de; default: from the files.")
    ] = None,
) -> None:
    """Import a MarianMT or fairseq model as a heed model folder."""
    source, dash, target = (languages or "-").partition("-")
    if languages is not None and not (source and dash and target):
        raise ConfigError(f"--languages {languages}: expected two language codes, such as en-de")
    _converter(_IMPORTS, "--from", from_)(folder, out, weights, (source, target))
    typer.echo(f"{folder} imported to {out}", err=True)


def average(
    run: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    out: Annotated[Path, out_option("The model folder to write.")],
    last: Annotated[int, typer.Option(min=1, help="Number of most recent checkpoints to average.")] = 5,
) -> None:
    """Average the weights of a run's last checkpoints."""
    from heed.artifacts.checkpoint import average_checkpoints  # noqa: PLC0415 - torch takes seconds to import

    paths = average_checkpoints(run, last, out)
    typer.echo(f"average of {', '.join(path.name for path in paths)} written to {out}", err=True)


def quantize(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    out: Annotated[Path, out_option("The model folder to write.")],
) -> None:
    """Quantise a model's weights to int8: a quarter of the size, faster on a CPU."""
    from heed.artifacts.save import write_quantized  # noqa: PLC0415 - torch takes seconds to import

    before, after = write_quantized(model, out)
    typer.echo(f"int8 model written to {out}: {after / 1e6:.1f} MB instead of {before / 1e6:.1f} MB", err=True)


def _converter(converters: Mapping[str, Converter], option: str, name: str) -> Converter:
    if name not in converters:
        raise ConfigError(f"{option} {name} is not a known format: {did_you_mean(name, converters)}")
    return converters[name]


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
