"""Texts to labels, and texts to vectors: an encoder at work.

Enters: texts; two that belong together come as one with a tab between. Leaves: the probability of every label, or one
vector a text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heed.errors import InputError
from heed.inference.open import open_folder
from heed.model.layout import Padded
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.labels import TextPairEncoder
from heed.text.prepare import TextEncoder
from heed.text.tokenizer import Tokenizer, check_texts

_TOKENS = 8192  # in work at a time, padding included


@dataclass(frozen=True)
class Classification:
    """What a classifier makes of one text."""

    label: str
    probabilities: dict[str, float]  # of all labels


class Classifier:
    """An encoder that was trained to tell labels, and its tokenizer."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, labels: Sequence[str], max_tokens: int = 256) -> None:
        if model.config.labels != len(labels):
            raise InputError(f"{len(labels)} labels cannot name the {model.config.labels or 0} classes of this model")
        self.model, self.labels, self.max_tokens = model, tuple(labels), max_tokens
        self._encoder = TextPairEncoder(tokenizer)

    @classmethod
    @torch_defaults()
    def open(cls, path: str | Path) -> "Classifier":
        """The classifier of a folder; on a GPU where there is one."""
        folder, model = open_folder(path)
        data = folder.run.data
        if not data.labels:
            raise InputError(f"{path} is no classifier: it was trained with task = {data.task!r}")
        return cls(model, folder.tokenizers[0], data.labels, data.max_tokens)

    @torch_defaults()
    @torch.no_grad()
    def classify(self, texts: Sequence[str]) -> list[Classification]:
        """The likeliest label of each text, and how likely each is."""
        check_texts(texts)
        found: list[Classification | None] = [None] * len(texts)
        for numbers, src in _batches(self._encoder, texts, self.model, self.max_tokens):
            for number, row in zip(numbers, self.model(src).float().softmax(-1).tolist(), strict=True):
                probabilities = dict(zip(self.labels, row, strict=True))
                found[number] = Classification(max(probabilities, key=probabilities.__getitem__), probabilities)
        return [one for one in found if one is not None]


@torch_defaults()
@torch.no_grad()
def embed(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: Literal["mean", "first"] = "mean",
    max_tokens: int = 256,
) -> Float[np.ndarray, "texts D"]:
    """One vector a text: the mean of its tokens' vectors after the last layer, or the first token's.

    A model with an encoder reads the text with that; a decoder alone reads it from its beginning on.
    """
    check_texts(texts)
    if model.encoder is None and pooling == "first":
        raise InputError("pooling = 'first' needs an encoder: in a decoder alone the first token has seen nothing else")
    vectors = np.zeros((len(texts), model.config.d_model), np.float32)
    for numbers, src in _batches(TextPairEncoder(tokenizer), texts, model, max_tokens):
        hidden = model.hidden(tgt_in=src) if model.encoder is None else model.encode(src)
        layout = Padded.from_ids(src, model.config.pad_id)
        vectors[numbers] = (layout.mean(hidden) if pooling == "mean" else hidden[:, 0]).float().cpu().numpy()
    return vectors


def _batches(
    encoder: TextEncoder, texts: Sequence[str], model: Transformer, max_tokens: int
) -> Iterator[tuple[list[int], Tensor]]:
    """Texts of like length as padded rows, with their numbers; a text must have something in it, and not too much."""
    config, device = model.config, model.vocabulary.embedding.weight.device
    encoded = encoder.encode(texts)
    rows = [[*ids, config.eos_id] if model.encoder is not None else [config.bos_id, *ids] for ids in encoded]
    for number, row in enumerate(rows):
        if len(row) == 1:
            raise InputError(f"text {number + 1} is empty, or has an empty part: {texts[number]!r}")
        if len(row) > max_tokens + 1:
            raise InputError(
                f"text {number + 1} has {len(row) - 1} tokens, more than the {max_tokens} that this model learnt from: "
                f"{texts[number][:40]!r} …"
            )
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number]))
    while order:
        count = max(1, _TOKENS // len(rows[order[0]]))
        batch, order = order[:count], order[count:]
        ids = [torch.tensor(rows[number], device="cpu") for number in batch]
        yield batch, pad_sequence(ids, batch_first=True, padding_value=config.pad_id).to(device)
