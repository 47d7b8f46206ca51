"""Small untrained translation models of every design, and model folders, for tests of engines and exports."""

from pathlib import Path

import pytest
import torch

from heed import ModelConfig, RunConfig, SearchConfig, Transformer
from heed.artifacts.folder import model_files
from heed.artifacts.writing import write_folder
from heed.config import DataConfig
from heed.text.tokenizer import Tokenizer, TokenizerPair
from tests.model.examples import COMBINATIONS, SHAPE, make

CPU = torch.device("cpu")
TEXTS = ["A dog runs.", "Two men sit on a bench in the sun.", "The old cat sees a red bird.", "Why?", "A man, a dog."]
SOURCES = [[5, 6, 7, 8, 9], [11], [3, 4, 5, 6, 7, 8, 12], [10, 9, 3]]

CONFIGS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"] + [
    ModelConfig.model_validate({**SHAPE, **settings})
    for settings in (
        {"tie_embeddings": False},
        {"source_vocab_size": 17},
        {"source_vocab_size": 17, "tie_embeddings": False, "norm": "pre"},
        {"encoder_layers": 1, "decoder_layers": 3, "heads": 4, "norm_eps": 1e-2},
    )
]
every_model = pytest.mark.parametrize(
    "config",
    CONFIGS,
    ids=lambda config: "-".join(
        str(value) for value in config.model_dump(exclude=set(SHAPE), exclude_defaults=True).values()
    ),
)


def model_of(config: ModelConfig) -> Transformer:
    """A model with weights so large that no two tokens are nearly equally probable: rounding changes no choice."""
    model = make(config, CPU, torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


def model_without_pad_and_bos() -> Transformer:
    """A model that never predicts padding or BOS, like a trained one, and predicts EOS now and then."""
    model = model_of(ModelConfig.model_validate({**SHAPE, "output_bias": True}))
    bias = model.get_parameter("vocabulary.bias")
    with torch.no_grad():
        bias[[model.config.pad_id, model.config.bos_id]] = -100.0
        bias[model.config.eos_id] += 2.0
    return model


def tokenizers_of(config: ModelConfig) -> TokenizerPair:
    """Any tokenizers: the tests use ids only."""
    source = Tokenizer.train(["a b"], "bytes", 259)
    return source, Tokenizer.train(["a b"], "bytes", 259) if config.source_vocab_size else source


def folder(path: Path, *, separate: bool = False, **settings: object) -> Path:
    """A model folder with a BPE tokenizer and a maximum length of 9 tokens."""
    torch.manual_seed(1)
    target = Tokenizer.train(TEXTS, "bpe", 290)
    source = Tokenizer.train([text.upper() for text in TEXTS], "bpe", 280) if separate else target
    size = {"vocab_size": target.vocab_size} | ({"source_vocab_size": source.vocab_size} if separate else {})
    model = model_of(ModelConfig.model_validate({**SHAPE, **size, "norm": "pre", **settings}))
    run = RunConfig(
        model=model.config,
        data=DataConfig(source_language="en", target_language="de", max_tokens=60),
        search=SearchConfig(max_length=9),
    )
    write_folder(path, model_files(model.state_dict(), run, {"texts": {}}, (source, target), "# A card\n"))
    return path
