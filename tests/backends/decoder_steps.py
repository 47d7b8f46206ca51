"""Model designs that every decoder backend supports, and a fixed sequence of steps to compare their logits over."""

from typing import Any

import torch
from torch import Tensor

from heed import ModelConfig
from tests.model.examples import COMBINATIONS, FIRST_WORD, SHAPE, VOCAB

DESIGNS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]
SEPARATE_VOCABULARIES = ModelConfig.model_validate({**SHAPE, "tie_embeddings": False, "source_vocab_size": 17})


def design_name(config: ModelConfig) -> str:
    return f"{config.norm}-{config.positions}-{config.activation}"


def decode(stepper: Any, src: Tensor, *, column: bool) -> list[Tensor]:
    """The logits of each step while rows are selected as in a beam search: one row per sentence, then three, reordered;
    then one sentence fewer, then one sentence twice. It is long enough to fill the KV cache's buffer once.

    column: the stepper takes a column of ids and returns a column of logits.
    """
    random = torch.Generator().manual_seed(4)
    state, step_logits = stepper.start(src), []
    rows, order = len(src), {3: [[0, 0, 0], [1, 1, 1], [2, 2, 2]], 6: [[2, 0, 1], [4, 4, 3], [8, 6, 6]]}
    for time in range(26 if len(src) > 1 else 5):
        if time in order:
            state, rows = state.select(torch.tensor(order[time])), 9
        if time == 9:
            state, rows = state.select(torch.tensor([[1, 0, 2], [7, 7, 6]]), torch.tensor([0, 2])), 6
        if time == 12:
            rows_of_each = torch.tensor([[3, 4, 5], [2, 0, 1], [5, 3, 3]])
            state, rows = state.select(rows_of_each, torch.tensor([1, 0, 1])), 9
        ids = torch.randint(FIRST_WORD, VOCAB, (rows,), generator=random)
        logits, state = stepper.step(ids[:, None] if column else ids, state)
        step_logits.append(logits[:, -1] if column else logits)
    return step_logits
