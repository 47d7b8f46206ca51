"""Text to text: a model folder at work.

Enters: texts. Leaves: their translations, in the same order. Sentences of like length are translated together; an empty
text stays empty. For now the search is greedy.
"""

from pathlib import Path
from typing import overload

import torch

from heed.decoding.greedy import greedy
from heed.model.folder import read_model_folder
from heed.model.transformer import Transformer
from heed.text.tokenizer import Tokenizer

_AT_ONCE = 64


class Translator:
    """A model and its tokenizers: call it with a text, or with a list of them."""

    def __init__(self, model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
        self.model = model
        self.tokenizers = tokenizers

    @overload
    def __call__(self, texts: str) -> str: ...

    @overload
    def __call__(self, texts: list[str]) -> list[str]: ...

    def __call__(self, texts: str | list[str]) -> str | list[str]:
        """The translation of each text."""
        if isinstance(texts, str):
            return self([texts])[0]
        source, target = self.tokenizers
        ids = source.encode(texts)
        translations = [""] * len(texts)
        by_length = sorted((number for number in range(len(ids)) if ids[number]), key=lambda number: len(ids[number]))
        for start in range(0, len(by_length), _AT_ONCE):
            numbers = by_length[start : start + _AT_ONCE]
            written = greedy(self.model, [ids[number] for number in numbers])
            for number, text in zip(numbers, target.decode(written), strict=True):
                translations[number] = text
        return translations


def load(path: str | Path) -> Translator:
    """Open a model folder: ``heed.load("runs/ende")``. It runs on a GPU where there is one."""
    folder = read_model_folder(Path(path))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Translator(folder.model().to(device), folder.tokenizers)
