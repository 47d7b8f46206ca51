"""Initial weights of recurrent and convolutional layers; `model.transformer.initialize_weights` has the table."""

import math

import torch
from torch import nn


def initialize_rival(module: nn.LSTM | nn.GRU | nn.Conv1d) -> None:
    """Initialise every weight of a module, drawing from torch's global random state."""
    if isinstance(module, nn.Conv1d):
        fan_in = module.in_channels * module.kernel_size[0]
        nn.init.normal_(module.weight, std=2 / math.sqrt(fan_in))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
        return
    for name, weight in module.named_parameters():
        gates = weight.detach().split(module.hidden_size)
        for index, gate in enumerate(gates):
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(gate)
            elif name.startswith("weight_hh"):
                _orthogonal(gate)
            else:  # both biases of a gate are added: only one of the forget gate's is 1
                is_forget_gate = isinstance(module, nn.LSTM) and index == 1 and name.startswith("bias_ih")
                nn.init.constant_(gate, 1.0 if is_forget_gate else 0.0)


def _orthogonal(weight: torch.Tensor) -> None:
    if not weight.is_meta:  # its QR decomposition takes time, and there are no values
        nn.init.orthogonal_(weight)
