"""A forward pass with every activation on the way: ids to parts.

    seen = observe(model, src, tgt_in)["encoder.1.self.weights"]        # (B, H, S, S)

The model needs no change and keeps nothing. Inputs and outputs of modules are read by forward hooks that exist only
during the pass; the inside of attention is read by the attention function, which is an argument of the call. Names and
shapes are those of `parts`, with a batch axis in front. Knows nothing of text.
"""

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from heed.errors import InputError
from heed.interpret.parts import attentions, parts
from heed.model.attention import AttentionFn, MultiHeadAttention, attention_weights, plain_attention
from heed.model.layers import Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward, Residual
from heed.model.layout import AttentionPattern, Padded
from heed.model.positions import angles, sinusoids
from heed.model.torch_state import torch_defaults
from heed.model.transformer import Transformer
from heed.settings import did_you_mean

Seen: TypeAlias = dict[str, Tensor]
Taps: TypeAlias = Iterator[tuple[str, nn.Module, str]]  # a part, the module it passes, and whether as input or output

IN, OUT = "in", "out"


@torch_defaults()
@torch.no_grad()
def observe(
    model: Transformer,
    src: Int[Tensor, "B S"] | None = None,
    tgt_in: Int[Tensor, "B T"] | None = None,
    *,
    names: Collection[str] | None = None,
    attend: AttentionFn = plain_attention,
) -> Seen:
    """The named parts of one pass over padded rows, each (B, …); no names: every part.

    attend: computes attention. `weights` are always those of the paper's equation, recomputed.
    """
    if model.training:
        raise InputError("a model in training drops out at random: call model.eval() before looking inside")
    known = parts(model.config)
    wanted = set(known if names is None else names)
    for name in wanted:
        if name not in known:
            raise InputError(f"this model has no part {name!r}: {did_you_mean(name, known)}")
    seen: Seen = {}
    with ExitStack() as hooks:
        for name, module, end in _taps(model):
            if name in wanted:
                heads = model.config.heads if known[name].axes[0] == "H" else None
                hooks.enter_context(module.register_forward_hook(partial(_keep, seen, name, end, heads)))
        logits = model(src, tgt_in, attend=_watched(attend, iter(attentions(model.config)), wanted, seen))
    if model.classes is not None:  # a classifier's output has one row
        seen |= {name: seen[name][:, None] for name in ("mean",) if name in seen}
        logits = logits[:, None]
    seen["logits"] = logits
    if "probabilities" in wanted:
        seen["probabilities"] = logits.float().softmax(-1)
    for side, stack, ids in (("encoder", model.encoder, src), ("decoder", model.decoder, tgt_in)):
        if stack is not None and ids is not None:
            seen |= _positions(side, stack, ids, model)
    return {name: seen[name] for name in known if name in wanted}


def _keep(
    seen: Seen, name: str, end: str, heads: int | None, _: nn.Module, taken: tuple[Any, ...], given: Tensor
) -> None:
    """A forward hook: keep a module's input or output as the part of this name, split into heads if it has any."""
    value: Tensor = taken[0] if end == IN else given
    seen[name] = value if heads is None else value.unflatten(-1, (heads, -1)).transpose(1, 2)


def _taps(model: Transformer) -> Taps:
    """Where each part that is the input or output of a module can be read."""
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        yield f"{side}.embedding", stack.positions, IN
        yield f"{side}.sum", stack.positions, OUT
        for number, module in enumerate(stack.layers, 1):
            layer = cast("EncoderLayer | DecoderLayer", module)
            path = f"{side}.{number}"
            yield from _attention_taps(f"{path}.self", layer.attention, layer.around_attention)
            if isinstance(layer, DecoderLayer) and layer.cross_attention is not None:
                around = cast("Residual", layer.around_cross_attention)
                yield from _attention_taps(f"{path}.cross", layer.cross_attention, around)
            yield from _feed_forward_taps(f"{path}.feed_forward", layer.feed_forward, layer.around_feed_forward)
        yield f"{side}.output", stack.norm, OUT
    if model.classes is not None:
        yield "mean", model.classes.output, IN


def _attention_taps(path: str, attention: MultiHeadAttention, around: Residual) -> Taps:
    yield f"{path}.query", attention.query, OUT
    yield f"{path}.key", attention.key, OUT
    yield f"{path}.value", attention.value, OUT
    yield f"{path}.concat", attention.output, IN
    yield f"{path}.output", attention.output, OUT
    yield from _residual_taps(path, around)


def _feed_forward_taps(path: str, feed_forward: FeedForward, around: Residual) -> Taps:
    yield f"{path}.wide", feed_forward.widen, OUT
    if feed_forward.gate is not None:
        yield f"{path}.gate", feed_forward.gate, OUT
    yield f"{path}.hidden", feed_forward.narrow, IN
    yield f"{path}.output", feed_forward.narrow, OUT
    yield from _residual_taps(path, around)


def _residual_taps(path: str, around: Residual) -> Taps:
    yield f"{path}.norm", around.norm, OUT
    if around.outer_norm is not None:
        yield f"{path}.outer_norm", around.outer_norm, OUT
    if around.order == "post":
        yield f"{path}.residual", around.norm, IN
    else:
        yield f"{path}.residual", around, OUT


def _watched(attend: AttentionFn, paths: Iterator[str], wanted: Collection[str], seen: Seen) -> AttentionFn:
    """The attention function, keeping its parts in `seen`; it is called for one path after another."""

    def attend_and_keep(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float) -> Tensor:
        path, gathered = next(paths), attend(q, k, v, pattern, dropout)
        queries, keys = q.transpose(1, 2), k.transpose(1, 2)  # (B, H, T, K), (B, H, S, K)

        scores = queries @ keys.transpose(-2, -1)
        ways: dict[str, Callable[[], Tensor]] = {
            "turned_query": lambda: queries,
            "turned_key": lambda: keys,
            "scores": lambda: scores,
            "scaled": lambda: scores / math.sqrt(q.shape[-1]),
            "mask": lambda: pattern.mask.expand(-1, q.shape[1], -1),
            "weights": lambda: attention_weights(q, k, pattern),
            "heads": lambda: gathered.transpose(1, 2),
        }
        seen.update({f"{path}.{name}": way() for name, way in ways.items() if f"{path}.{name}" in wanted})
        return gathered

    return attend_and_keep


def _positions(side: str, stack: Encoder | Decoder, ids: Int[Tensor, "B tokens"], model: Transformer) -> Seen:
    """Position codes or rotary angles; the only part that is computed a second time."""
    positions = Padded.from_ids(ids, model.config.pad_id).positions
    if stack.positions.kind == "rotary":
        return {f"{side}.angles": angles(positions, model.config.head_width)}
    if stack.positions.table is not None:
        return {f"{side}.positions": stack.positions.table(positions)}
    dtype = model.vocabulary.embedding.weight.dtype
    return {f"{side}.positions": sinusoids(positions, model.config.d_model).to(dtype)}
