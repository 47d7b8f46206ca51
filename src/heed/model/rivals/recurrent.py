"""Recurrence: an LSTM (Hochreiter and Schmidhuber 1997) or GRU (Cho et al. 2014) over each sequence.

Enters: hidden states in any layout. Leaves: hidden states in the same layout. An encoder's recurrence runs in both
directions, half of the width each; a decoder's runs forward and can continue from a `RecurrentState`.
"""

from functools import partial
from typing import TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from heed.config import ModelConfig
from heed.model.layout import Layout, Packed
from heed.model.rivals.rows import over_rows

HiddenStates: TypeAlias = tuple[Float[Tensor, "1 R D"], ...]  # of an LSTM hidden state and cell, of a GRU hidden state


class RecurrentState:
    """The state of one decoder layer after the tokens so far: the recurrent counterpart of a layer's KV cache."""

    def __init__(self, states: HiddenStates = ()) -> None:
        self.states = states

    def copy(self) -> "RecurrentState":
        return RecurrentState(self.states)

    def select(self, rows: Int[Tensor, "R"]) -> "RecurrentState":
        """The state of these rows."""
        return RecurrentState(tuple(state.index_select(1, rows) for state in self.states))


class Recurrence(nn.Module):
    """The recurrence of one layer."""

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        super().__init__()
        cell = nn.LSTM if config.mixer == "lstm" else nn.GRU
        width = config.d_model if causal else config.d_model // 2
        self.cell = cell(config.d_model, width, batch_first=True, bidirectional=not causal)

    def train(self, mode: bool = True) -> "Recurrence":
        """The cell stays in training mode, since cuDNN computes gradients in no other; it has no dropout."""
        super().train(mode)
        self.cell.train()
        return self

    def forward(
        self, x: Float[Tensor, "*tokens D"], layout: Layout, past: RecurrentState | None = None
    ) -> Float[Tensor, "*tokens D"]:
        """past: the state after earlier tokens, updated in place; None: all tokens are given at once.

        Autocast, which would run cuDNN's recurrence in float16, whose small gradients are 0, is off here.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(next(self.cell.parameters()).dtype)
            if past is None:
                return over_rows(x, layout, partial(self._whole, layout=layout))
            return layout.from_rows(self._continue(layout.to_rows(x), layout.token_mask, past))

    def _whole(self, rows: Float[Tensor, "B T D"], layout: Layout) -> Float[Tensor, "B T D"]:
        if not self.cell.bidirectional:  # padding comes last and changes no earlier output
            return self.cell(rows)[0]
        lengths = layout.lengths if isinstance(layout, Packed) else layout.token_mask.sum(1).clamp(min=1).cpu()
        packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.cell(packed)[0], batch_first=True, total_length=rows.shape[1])[0]

    def _continue(
        self, rows: Float[Tensor, "R T D"], mask: Bool[Tensor, "R T"], past: RecurrentState
    ) -> Float[Tensor, "R T D"]:
        """One token after the other; padding leaves the state as it is."""
        states = past.states or self._zeros(rows)
        outputs = []
        for x, is_token in zip(rows.split(1, 1), mask.unbind(1), strict=True):
            output, new = self.cell(x, states if len(states) > 1 else states[0])
            keep = is_token[None, :, None]
            states = tuple(
                torch.where(keep, after, before)
                for after, before in zip(new if isinstance(new, tuple) else (new,), states, strict=True)
            )
            outputs.append(output)
        past.states = states
        return torch.cat(outputs, 1)

    def _zeros(self, rows: Float[Tensor, "R T D"]) -> HiddenStates:
        zeros = rows.new_zeros(1, len(rows), self.cell.hidden_size)
        return (zeros, zeros) if isinstance(self.cell, nn.LSTM) else (zeros,)
