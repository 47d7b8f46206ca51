"""A model folder to another with its weights in integers of 8 bits: what `heed quantize` does."""

from pathlib import Path

from safetensors.torch import save

from heed.errors import FolderError
from heed.model.card import read_card, without_scores
from heed.model.folder import WEIGHTS, model_files, read_model_folder
from heed.model.rounded import in_integers
from heed.model.writing import ROUNDED, write_folder


def write_rounded(path: Path, out: Path) -> tuple[int, int]:
    """Round the weights of the model folder `path` into the folder `out`; returns the bytes of both."""
    if out.exists():
        raise FolderError(f"{out} is already there: choose another --out")
    folder = read_model_folder(path)
    kind = folder.run.model.kind
    if kind != "encoder-decoder":
        raise FolderError(f"{path} has kind = {kind!r}: integers of 8 bits are for models that translate")
    weights = folder.weights()
    card = without_scores(read_card(path))
    card += (
        "\nIts weights were rounded to integers of 8 bits by `heed quantize`; scores measured before that may differ.\n"
    )
    files = model_files(weights, folder.run, {**folder.trained, "quantized": "int8"}, folder.tokenizers, card)
    whole = len(files.pop(WEIGHTS))
    files[ROUNDED] = save({name: weight.contiguous() for name, weight in in_integers(weights).items()})
    write_folder(out, files)
    return whole, len(files[ROUNDED])
