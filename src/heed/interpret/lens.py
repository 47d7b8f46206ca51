"""Questions to a model that attention alone does not answer. Ids to numbers; knows nothing of text.

What would each layer have said?  The logit lens: what leaves a decoder layer goes through the last norm and the output
matrix at once, as if no layer followed. The last layer says what the model says.

Which source tokens does an output depend on?  Each in turn is removed from the source, from encoder and decoder alike:
padding takes its place, nothing sees it, and the tokens after it move up. What the target tokens lose is measured.

Which word would stand here?  Of an encoder that has learnt to find hidden words: each token in turn is hidden, and the
model says what was there.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from heed.errors import InputError
from heed.interpret.observe import observe
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.text.tokenizer import SPECIAL
from heed.training.tasks.masked import MASK

_TOKENS_AT_A_TIME = 2048  # target tokens whose logits are held at once


@torch_defaults()
@torch.no_grad()
def layer_log_probs(
    model: Transformer, src: Int[Tensor, "B S"] | None, tgt_in: Int[Tensor, "B T"] | None
) -> Float[Tensor, "L B T V"]:
    """The log-probabilities of the next token as each decoder layer has them."""
    if model.decoder is None:
        raise InputError("kind = 'encoder' has no decoder layers to ask for the next word")
    leaving = "norm" if model.config.norm == "post" else "residual"
    names = [f"decoder.{layer}.feed_forward.{leaving}" for layer in range(1, model.config.decoder_layers + 1)]
    seen = observe(model, src, tgt_in, names=names)
    hidden = model.decoder.norm(torch.stack([seen[name] for name in names]))
    return model.vocabulary.logits(hidden).float().log_softmax(-1)


@torch_defaults()
@torch.no_grad()
def removal_effects(
    model: Transformer, src: Int[Tensor, "1 S"], tgt_in: Int[Tensor, "1 T"] | None, tgt_out: Int[Tensor, "1 T"]
) -> Float[Tensor, "T S"]:
    """By how much the log-probability of each target token changes when one source token is not there.

    Below zero: the token was of help. In a source of one token nothing is left to see, and that is what is measured.
    A classifier has no target: `tgt_out` is then the one label that is asked about.
    """
    length = src.shape[1]
    missing = torch.eye(length, dtype=torch.bool, device=src.device)
    rows = torch.cat((src, src.masked_fill(missing, model.config.pad_id)))  # whole first, then one missing in each
    found = []
    for some in rows.split(max(1, _TOKENS_AT_A_TIME // tgt_out.shape[1])):
        logits = model(some)[:, None] if tgt_in is None else model(some, tgt_in.expand(len(some), -1))
        log_probs = logits.float().log_softmax(-1)
        found.append(log_probs.gather(-1, tgt_out.expand(len(some), -1)[..., None])[..., 0])
    whole, *without = torch.cat(found)
    return torch.stack(without, 1) - whole[:, None]


@torch_defaults()
@torch.no_grad()
def hole_log_probs(model: Transformer, src: Int[Tensor, "1 S"]) -> Float[Tensor, "S V"]:
    """The log-probabilities of every word at each place, as they are when the token there is hidden."""
    places = torch.arange(src.shape[1], device=src.device)
    rows = src.expand(len(places), -1).clone()
    rows[places, places] = MASK
    found = []
    for start in range(0, len(places), step := max(1, _TOKENS_AT_A_TIME // src.shape[1])):
        some = places[start : start + step]
        logits = model(rows[some])[torch.arange(len(some), device=src.device), some].float()
        logits[:, : len(SPECIAL)] = -torch.inf  # what is hidden is a word
        found.append(logits.log_softmax(-1))
    return torch.cat(found)
