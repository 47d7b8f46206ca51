"""Logit lens, occlusion and masked-token predictions: token ids to log-probabilities.

Logit lens: the hidden states after a decoder layer go through the final norm and the output projection at once, as if
no layer followed. Those of the last layer are the model's own predictions.

Occlusion (leave-one-out): each source token in turn is replaced by padding, which nothing attends to, in encoder and
cross-attention alike; the tokens after it move up one position. The change of the target's log-probabilities is the
attribution of that token.

Masked LM: each token in turn is replaced by the mask, and the model predicts the token that was there. Knows nothing of
text.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.errors import InputError
from heed.interpret.observe import observe
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import MASK, SPECIAL

_TOKENS_PER_CHUNK = 2048  # tokens whose logits are in memory at once


@torch_defaults()
@torch.no_grad()
def layer_log_probs(
    model: Transformer, src: Int[Tensor, "B S"] | None, tgt_in: Int[Tensor, "B T"] | None
) -> Float[Tensor, "L B T V"]:
    """The logit lens: log-probabilities of the next token, read off after each decoder layer."""
    if model.decoder is None:
        raise InputError("the logit lens needs decoder layers, and kind = 'encoder' has none")
    layer_output = "norm" if model.config.norm == "post" else "residual"
    names = [f"decoder.{layer}.feed_forward.{layer_output}" for layer in range(1, model.config.decoder_layers + 1)]
    activations = observe(model, src, tgt_in, names=names)
    hidden = model.decoder.norm(torch.stack([activations[name] for name in names]))
    return model.vocabulary.logits(hidden).float().log_softmax(-1)


@torch_defaults()
@torch.no_grad()
def occlusion_effects(
    model: Transformer, src: Int[Tensor, "1 S"], tgt_in: Int[Tensor, "1 T"] | None, tgt_out: Int[Tensor, "1 T"]
) -> Float[Tensor, "T S"]:
    """Occlusion: the change of each target token's log-probability without one source token.

    Below zero: the source token helped. If it is the only token, cross-attention is fully masked, and that is measured.
    A classifier has no target: `tgt_out` is then the label whose log-probability is compared.
    """
    length = src.shape[1]
    missing = torch.eye(length, dtype=torch.bool, device=src.device)
    rows = torch.cat((src, src.masked_fill(missing, model.config.pad_id)))  # the source, then without each token
    chunks = []
    for chunk in rows.split(max(1, _TOKENS_PER_CHUNK // tgt_out.shape[1])):
        logits = model(chunk)[:, None] if tgt_in is None else model(chunk, tgt_in.expand(len(chunk), -1))
        log_probs = logits.float().log_softmax(-1)
        chunks.append(log_probs.gather(-1, tgt_out.expand(len(chunk), -1)[..., None])[..., 0])
    whole, *without = torch.cat(chunks)
    return torch.stack(without, 1) - whole[:, None]


@torch_defaults()
@torch.no_grad()
def masked_log_probs(model: Transformer, src: Int[Tensor, "1 S"]) -> Float[Tensor, "S V"]:
    """The log-probabilities of the vocabulary at each position when the token there is masked."""
    positions = torch.arange(src.shape[1], device=src.device)
    rows = src.expand(len(positions), -1).clone()
    rows[positions, positions] = MASK
    chunks = []
    for start in range(0, len(positions), step := max(1, _TOKENS_PER_CHUNK // src.shape[1])):
        chunk = positions[start : start + step]
        logits = model(rows[chunk])[torch.arange(len(chunk), device=src.device), chunk].float()
        logits[:, : len(SPECIAL)] = -torch.inf  # no special token is ever masked
        chunks.append(logits.log_softmax(-1))
    return torch.cat(chunks)
