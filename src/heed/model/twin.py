"""Another model of the very same weights: what is changed in its parts leaves the model as it is."""

import copy

from heed.model.transformer import Transformer


def sharing_weights(model: Transformer) -> Transformer:
    """A model with parts of its own, whose weights are the model's own."""
    shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)
