"""How likely a model finds given translations: a forced pass, every token at once.

Enters: models and pairs of ids without special tokens. Leaves: the log-probability of each target token, its end
included, in the light of the source and of the true tokens before it.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer


def forced_rows(
    model: Transformer, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> tuple[Int[Tensor, "B S"], Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Padded rows: the sources ended, the targets begun, the targets ended."""
    config = model.config

    def rows(ids: list[list[int]]) -> Tensor:
        there = [torch.tensor(row, device="cpu") for row in ids]
        filled = pad_sequence(there, batch_first=True, padding_value=config.pad_id)
        return filled.to(model.vocabulary.embedding.weight.device)

    begun, ended = [[config.bos_id, *ids] for ids in targets], [[*ids, config.eos_id] for ids in targets]
    return rows([[*ids, config.eos_id] for ids in sources]), rows(begun), rows(ended)


@torch_defaults()
@torch.no_grad()
def token_log_probs(
    models: Sequence[Transformer], sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The log-probability of each target token and of the end after them; several models as one, by their mean."""
    each: list[Float[Tensor, "B T"]] = []
    for model in models:
        src, tgt_in, tgt_out = forced_rows(model, sources, targets)
        log_probs = model(src, tgt_in).float().log_softmax(-1)
        each.append(log_probs.gather(-1, tgt_out[..., None])[..., 0])
    together = torch.stack(each).logsumexp(0) - math.log(len(each))
    return [row[: len(target) + 1] for row, target in zip(together.tolist(), targets, strict=True)]
