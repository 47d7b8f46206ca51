"""Small Transformers whose translations have different lengths."""

import torch

from heed import ModelConfig, Transformer
from tests.model.examples import SHAPE, make, sentences

SMALL = {**SHAPE, "encoder_layers": 1, "decoder_layers": 1, "norm": "pre", "tie_embeddings": False}


def small_model(seed: int, device: torch.device) -> tuple[Transformer, list[list[int]]]:
    """A model and four sources, the same on every device."""
    torch.manual_seed(seed)
    model = make(ModelConfig.model_validate(SMALL), torch.device("cpu")).to(device)
    return model, [ids.tolist() for ids in sentences([5, 1, 7, 3], torch.device("cpu"))]


def forced_log_probs(model: Transformer, source: list[int], tokens: tuple[int, ...]) -> torch.Tensor:
    """Log-probabilities of every next token after each prefix, in one forward pass without a cache."""
    device = model.device
    with torch.no_grad():
        logits = model(torch.tensor([[*source, 2]], device=device), torch.tensor([[1, *tokens]], device=device))
    return logits[0].float().log_softmax(-1)
