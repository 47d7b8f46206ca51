"""Calibration: whether a model is right as often as it is sure (Guo et al. 2017)."""

from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

from heed.inference.open import load
from heed.microworld.corpus import Example

_BINS = 10


@torch.no_grad()
def calibration_error(folder: Path, examples: list[Example]) -> float:
    """The expected calibration error of a translation model's next-token predictions, given the reference so far."""
    translator = load(folder)
    (model,), (source, target) = translator.models, translator.tokenizers
    config, device = model.config, model.vocabulary.embedding.weight.device
    rows = [[*ids, config.eos_id] for ids in source.encode([example.source for example in examples])]
    tgt = [[config.bos_id, *ids, config.eos_id] for ids in target.encode([example.target for example in examples])]
    src, tgt_ids = (
        pad_sequence([torch.tensor(ids) for ids in side], batch_first=True, padding_value=config.pad_id).to(device)
        for side in (rows, tgt)
    )
    probabilities = model(src, tgt_ids[:, :-1]).float().softmax(-1)
    confidence, predicted = probabilities.max(-1)
    gold = tgt_ids[:, 1:]
    mask = gold != config.pad_id
    return expected_calibration_error(confidence[mask], (predicted == gold)[mask])


def expected_calibration_error(confidence: torch.Tensor, is_right: torch.Tensor) -> float:
    """The mean distance between confidence and accuracy over bins of equal width, weighted by their sizes."""
    bins = (confidence * _BINS).long().clamp(max=_BINS - 1)
    sizes = torch.bincount(bins, minlength=_BINS)
    gaps = torch.bincount(bins, confidence - is_right.to(confidence.dtype), _BINS).abs()
    return (gaps.sum() / sizes.sum()).item()
