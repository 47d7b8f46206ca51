"""`heed export`: a model folder in another system's format."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.import_model import one_of
from heed.cli.places import out_option
from heed.interop.engine_names import EngineName


def export(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    to: Annotated[
        str, typer.Option(help="The format: marian (Hugging Face's MarianMT), ctranslate2, ctranslate2-int8 or onnx.")
    ],
    out: Annotated[Path, out_option("The folder to write.")],
) -> None:
    """Write a model in the format of another system; half a model as an ONNX graph."""
    write = one_of(_FORMATS, "--to", to)

    from heed.inference.folders import read_translating_folder  # noqa: PLC0415 - torch takes seconds to import

    if to != "onnx":
        read_translating_folder(model)  # no other format here has room for half a model
    write(model, out)
    typer.echo(f"{model} as {to} is in {out}", err=True)


def _marian(model: Path, out: Path) -> None:
    from heed.interop.marian_export import export_marian  # noqa: PLC0415 - torch takes seconds to import

    export_marian(model, out)


def _engine(name: EngineName) -> Callable[[Path, Path], None]:
    def write(model: Path, out: Path) -> None:
        from heed.inference.engines import export_for  # noqa: PLC0415 - torch takes seconds to import

        export_for(name, model, out)

    return write


_FORMATS: dict[str, Callable[[Path, Path], None]] = {
    "marian": _marian,
    "ctranslate2": _engine("ctranslate2"),
    "ctranslate2-int8": _engine("ctranslate2-int8"),
    "onnx": _engine("onnx"),
}
