"""Folders of untrained models."""

from pathlib import Path

from heed.artifacts.folder import model_files
from heed.artifacts.writing import write_folder
from heed.config import RunConfig
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer


def write_model(path: Path, **settings: object) -> Path:
    """Write the model folder of an untrained model."""
    tokenizer = Tokenizer.train([], "bytes", 259)
    shape = {"d_model": 8, "heads": 2, "d_ff": 8, "encoder_layers": 1, "decoder_layers": 1, **settings}
    run = RunConfig.model_validate(
        {
            "model": {"vocab_size": tokenizer.vocab_size, **shape},
            "data": {"tokenizer": "bytes", "vocab_size": 259},
            "search": {"beam": 1, "max_length": 8},
        }
    )
    files = model_files(Transformer(run.model).state_dict(), run, {}, (tokenizer, tokenizer), "# A model\n")
    write_folder(path, files)
    return path
