"""What an encoder alone says of a whole text: a logit for every class.

logits = W x̄ + b, where x̄ is the mean of the text's vectors after the last layer
"""

from jaxtyping import Float
from torch import Tensor, nn

from heed.config import ModelConfig
from heed.model.layout import Packed, Padded


class Classes(nn.Module):
    """The mean of a text's vectors to logits."""

    def __init__(self, config: ModelConfig, labels: int) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.d_model, labels)

    def forward(self, hidden: Float[Tensor, "*tokens D"], layout: Padded | Packed) -> Float[Tensor, "B labels"]:
        """One row of logits a text."""
        return self.output(self.dropout(layout.mean(hidden)))
