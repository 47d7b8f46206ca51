"""Text classification and text embeddings with an encoder.

Enters: texts; a pair of texts is one string with a tab between them. Leaves: the probability of every label, or one
embedding per text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from heed.errors import InputError
from heed.inference.batching import batches_by_length
from heed.inference.open import open_folder
from heed.model.layout import Padded, pad_rows
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.labels import TextPairEncoder
from heed.text.prepare import TextEncoder
from heed.text.tokenizer import Tokenizer, check_texts

_TOKENS = 8192  # per batch, padding included


@dataclass(frozen=True)
class Classification:
    """The most probable label of one text, and the probability of every label."""

    label: str
    probabilities: dict[str, float]


class Classifier:
    """An encoder trained to classify texts, and its tokenizer."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, labels: Sequence[str], max_tokens: int = 256) -> None:
        if model.config.labels != len(labels):
            raise InputError(f"found {len(labels)} labels for a model of {model.config.labels or 0} classes")
        self.model, self.labels, self.max_tokens = model, tuple(labels), max_tokens
        self._encoder = TextPairEncoder(tokenizer)

    @classmethod
    @torch_defaults()
    def open(cls, path: str | Path) -> "Classifier":
        """Load the classifier of a model folder, onto a GPU if there is one."""
        folder, model = open_folder(path)
        data = folder.run.data
        if not data.labels:
            raise InputError(f"{path} is not a classifier: it was trained with task = {data.task!r}")
        return cls(model, folder.tokenizers[0], data.labels, data.max_tokens)

    @torch_defaults()
    @torch.no_grad()
    def classify(self, texts: Sequence[str]) -> list[Classification]:
        """The most probable label of each text, and the probability of every label."""
        check_texts(texts)
        results: list[Classification | None] = [None] * len(texts)
        for indices, src in _batches(self._encoder, texts, self.model, self.max_tokens):
            for index, row in zip(indices, self.model(src).float().softmax(-1).tolist(), strict=True):
                probabilities = dict(zip(self.labels, row, strict=True))
                results[index] = Classification(max(probabilities, key=probabilities.__getitem__), probabilities)
        return [result for result in results if result is not None]


@torch_defaults()
@torch.no_grad()
def embed(
    model: Transformer,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pooling: Literal["mean", "first"] = "mean",
    max_tokens: int = 256,
) -> Float[np.ndarray, "texts D"]:
    """One embedding per text: the mean of its tokens' last hidden states, or the first token's.

    The hidden states are those of the encoder; a decoder-only model uses its decoder's.
    """
    check_texts(texts)
    if model.encoder is None and pooling == "first":
        raise InputError("pooling = 'first' needs an encoder: in a decoder the first token attends only to itself")
    embeddings = np.zeros((len(texts), model.config.d_model), np.float32)
    for indices, src in _batches(TextPairEncoder(tokenizer), texts, model, max_tokens):
        hidden = model.hidden(tgt_in=src) if model.encoder is None else model.encode(src)
        layout = Padded.from_ids(src, model.config.pad_id)
        embeddings[indices] = (layout.mean(hidden) if pooling == "mean" else hidden[:, 0]).float().cpu().numpy()
    return embeddings


def _batches(
    encoder: TextEncoder, texts: Sequence[str], model: Transformer, max_tokens: int
) -> Iterator[tuple[list[int], Tensor]]:
    """Padded batches of texts of similar length, with their indices; empty and overlong texts are refused."""
    config = model.config
    encoded = encoder.encode(texts)
    rows = [[*ids, config.eos_id] if model.encoder is not None else [config.bos_id, *ids] for ids in encoded]
    for index, row in enumerate(rows):
        if len(row) == 1:
            raise InputError(f"text {index + 1} is empty, or has an empty part: {texts[index]!r}")
        if len(row) > max_tokens + 1:
            raise InputError(
                f"text {index + 1} has {len(row) - 1} tokens, more than the maximum of {max_tokens} that this model "
                f"was trained with: {texts[index][:40]!r} …"
            )
    for indices in batches_by_length([len(row) for row in rows], _TOKENS):
        yield indices, pad_rows((rows[index] for index in indices), config.pad_id, model.device)
