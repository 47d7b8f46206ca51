"""Run by test_compile in a subprocess without run-time shape checks, which torch.compile cannot trace.

Compares a training step of a small model under torch.compile(fullgraph=True) with the same step in eager mode. The
argument is the device.
"""

import sys

import torch
from torch import Tensor

from heed import Transformer
from heed.config import ModelConfig
from heed.training.loss import smoothed_cross_entropy
from tests.model.examples import SHAPE, packed, padded, sentences

Batch = tuple[Tensor, Tensor, object, object, Tensor]


def batch(layout: str, source: list[int], target: list[int], device: torch.device) -> Batch:
    src, tgt_in, tgt_out = sentences(source, device), sentences(target, device), sentences(target, device)
    if layout == "padded":
        return padded(src), padded(tgt_in), None, None, padded(tgt_out)
    (ids, src_layout), (ids_in, tgt_layout) = packed(src), packed(tgt_in)
    return ids, ids_in, src_layout, tgt_layout, torch.cat(tgt_out)


def main(layout: str, device: torch.device) -> None:
    torch.manual_seed(0)
    # Dropout off: compiled code draws other random numbers than eager code.
    small = {
        "encoder_layers": 1,
        "decoder_layers": 1,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
    }
    model = Transformer(ModelConfig.model_validate({**SHAPE, **small})).to(device).train()

    def loss(src: Tensor, tgt_in: Tensor, src_layout: object, tgt_layout: object, tgt_out: Tensor) -> Tensor:
        logits = model(src, tgt_in, src_layout, tgt_layout)
        total, tokens = smoothed_cross_entropy(logits, tgt_out, model.config.pad_id, smoothing=0.1)
        return total / tokens

    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for source, target in (([5, 2, 7, 3], [4, 6, 2, 5]), ([9, 4, 6], [3, 8, 5])):  # the second has another shape
        data = batch(layout, source, target, device)
        results = []
        for step in (loss, compiled):
            model.zero_grad()
            value = step(*data)
            value.backward()
            results.append([value, *(weight.grad for weight in model.parameters())])
        for expected, actual in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    sys.stdout.write(f"{layout} training step compiled: same loss and gradients\n")


if __name__ == "__main__":
    for layout in ("padded", "packed"):
        main(layout, torch.device(sys.argv[1]))
