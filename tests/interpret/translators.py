"""Small models with lower-case sources and upper-case targets, so that no token is on both sides."""

from typing import Any

import torch

from heed import ModelConfig, SearchConfig, Transformer, Translator
from heed.interpret.tokens import TextModel
from heed.text.tokenizer import Tokenizer

SOURCE = Tokenizer.train(["a dog runs", "the cat sees a bird", "ü"] * 3, "characters", 280)
TARGET = Tokenizer.train(["EIN HUND LÄUFT", "DIE KATZE SIEHT EINEN VOGEL"] * 3, "words", 300)


def small_translator(**settings: Any) -> Translator:
    of = small_model(**settings)
    return Translator([of.model], of.tokenizers, of.search, of.max_tokens)


def small_model(names: tuple[str, ...] = (), **settings: Any) -> TextModel:
    """An untrained model of any kind; names: the labels of a classifier."""
    torch.manual_seed(0)
    shape = {"d_model": 16, "heads": 2, "encoder_layers": 2, "decoder_layers": 3, "d_ff": 24, "tie_embeddings": False}
    if settings.get("kind", "encoder-decoder") == "encoder-decoder":
        shape["source_vocab_size"] = SOURCE.vocab_size
    size = SOURCE.vocab_size if settings.get("kind") == "encoder" else TARGET.vocab_size
    config = ModelConfig.model_validate({**shape, "vocab_size": size, **settings})
    return TextModel(Transformer(config).eval(), (SOURCE, TARGET), SearchConfig(max_length=9), 40, names)
