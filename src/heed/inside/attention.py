"""What a model's heads look at in one sentence.

Looking needs nothing of the model but its argument `attend`: a function that does the arithmetic and keeps the weights.
"""

import torch
from torch import Tensor

from heed.decoding.translator import Translator
from heed.model.attention import attention_weights, plain_attention
from heed.model.layout import Sight


@torch.no_grad()
def encoder_attention(translator: Translator, sentence: str) -> tuple[list[str], list[list[list[list[float]]]]]:
    """The sentence's tokens, and for each layer and head the weights from every token (row) to every token (column)."""
    tokenizer = translator.tokenizers[0]
    (ids,) = tokenizer.encode([sentence])
    seen: list[Tensor] = []

    def attend_and_keep(q: Tensor, k: Tensor, v: Tensor, sight: Sight, dropout: float) -> Tensor:
        seen.append(attention_weights(q, k, sight)[0])
        return plain_attention(q, k, v, sight, dropout)

    end = translator.model.config.eos_id
    device = translator.model.vocabulary.embedding.weight.device
    translator.model.encode(torch.tensor([[*ids, end]], device=device), attend=attend_and_keep)
    tokens = [*(text.strip() for text in tokenizer.decode([[token] for token in ids])), "⏎"]
    return tokens, torch.stack(seen).tolist()
