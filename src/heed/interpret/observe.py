"""Record the activations of a forward pass: token ids to named parts, by forward hooks.

    weights = observe(model, src, tgt_in)["encoder.1.self.weights"]        # (B, H, S, S)

The model needs no change and keeps nothing. Inputs and outputs of modules are recorded by forward hooks that exist only
during the pass; queries, keys and weights by the attention function, which is an argument of the call. Names and shapes
are those of `parts`, with a batch axis in front. Knows nothing of text.
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

Activations: TypeAlias = dict[str, Tensor]  # by the name of the part
HookPoints: TypeAlias = Iterator[tuple[str, nn.Module, str]]  # a part, a module, and whether it is its input or output

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
) -> Activations:
    """The named parts of one forward pass over a padded batch, each (B, …); no names: every part.

    attend: computes attention. `weights` are always those of the paper's equation, recomputed.
    """
    if model.training:
        raise InputError("the model is in training mode, with dropout: call model.eval() first")
    encoder, decoder = model.attention_stacks()
    specs = parts(model.config)
    requested = set(specs if names is None else names)
    for name in requested:
        if name not in specs:
            raise InputError(f"this model has no part {name!r}: {did_you_mean(name, specs)}")
    activations: Activations = {}
    with ExitStack() as hooks:
        for name, module, end in _hook_points(model):
            if name in requested:
                heads = model.config.heads if specs[name].axes[0] == "H" else None
                hooks.enter_context(module.register_forward_hook(partial(_record, activations, name, end, heads)))
        logits = model(src, tgt_in, attend=_recording(attend, iter(attentions(model.config)), requested, activations))
    if model.classes is not None:  # a classifier's output has one row
        activations |= {name: activations[name][:, None] for name in ("mean",) if name in activations}
        logits = logits[:, None]
    activations["logits"] = logits
    if "probabilities" in requested:
        activations["probabilities"] = logits.float().softmax(-1)
    for side, stack, ids in (("encoder", encoder, src), ("decoder", decoder, tgt_in)):
        if stack is not None and ids is not None:
            activations |= _positions(side, stack, ids, model)
    return {name: activations[name] for name in specs if name in requested}


def _record(
    activations: Activations,
    name: str,
    end: str,
    heads: int | None,
    _: nn.Module,
    inputs: tuple[Any, ...],
    output: Tensor,
) -> None:
    """A forward hook: record a module's input or output as the part `name`, split into heads if it has any."""
    value: Tensor = inputs[0] if end == IN else output
    activations[name] = value if heads is None else value.unflatten(-1, (heads, -1)).transpose(1, 2)


def _hook_points(model: Transformer) -> HookPoints:
    """The module and the side of it where each part that is an input or output can be recorded."""
    for side, stack in zip(("encoder", "decoder"), model.attention_stacks(), strict=True):
        if stack is None:
            continue
        yield f"{side}.embedding", stack.positions, IN
        yield f"{side}.sum", stack.positions, OUT
        for number, module in enumerate(stack.layers, 1):
            layer = cast("EncoderLayer | DecoderLayer", module)
            path = f"{side}.{number}"
            yield from _attention_points(f"{path}.self", layer.attention, layer.around_attention)
            if isinstance(layer, DecoderLayer) and layer.cross_attention is not None:
                around = cast("Residual", layer.around_cross_attention)
                yield from _attention_points(f"{path}.cross", layer.cross_attention, around)
            yield from _feed_forward_points(f"{path}.feed_forward", layer.feed_forward, layer.around_feed_forward)
        yield f"{side}.output", stack.norm, OUT
    if model.classes is not None:
        yield "mean", model.classes.output, IN


def _attention_points(path: str, attention: MultiHeadAttention, around: Residual) -> HookPoints:
    yield f"{path}.query", attention.query, OUT
    yield f"{path}.key", attention.key, OUT
    yield f"{path}.value", attention.value, OUT
    yield f"{path}.concat", attention.output, IN
    yield f"{path}.output", attention.output, OUT
    yield from _residual_points(path, around)


def _feed_forward_points(path: str, feed_forward: FeedForward, around: Residual) -> HookPoints:
    yield f"{path}.wide", feed_forward.widen, OUT
    if feed_forward.gate is not None:
        yield f"{path}.gate", feed_forward.gate, OUT
    yield f"{path}.hidden", feed_forward.narrow, IN
    yield f"{path}.output", feed_forward.narrow, OUT
    yield from _residual_points(path, around)


def _residual_points(path: str, around: Residual) -> HookPoints:
    yield f"{path}.norm", around.norm, OUT
    if around.outer_norm is not None:
        yield f"{path}.outer_norm", around.outer_norm, OUT
    if around.order == "post":
        yield f"{path}.residual", around.norm, IN
    else:
        yield f"{path}.residual", around, OUT


def _recording(
    attend: AttentionFn, paths: Iterator[str], requested: Collection[str], activations: Activations
) -> AttentionFn:
    """`attend`, recording its parts in `activations`; it is called for one path after another."""

    def attend_and_record(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float) -> Tensor:
        path, output = next(paths), attend(q, k, v, pattern, dropout)
        queries, keys = q.transpose(1, 2), k.transpose(1, 2)  # (B, H, T, K), (B, H, S, K)
        scores = queries @ keys.transpose(-2, -1)
        compute: dict[str, Callable[[], Tensor]] = {
            "turned_query": lambda: queries,
            "turned_key": lambda: keys,
            "scores": lambda: scores,
            "scaled": lambda: scores / math.sqrt(q.shape[-1]),
            "mask": lambda: pattern.mask.expand(-1, q.shape[1], -1),
            "weights": lambda: attention_weights(q, k, pattern),
            "heads": lambda: output.transpose(1, 2),
        }
        activations.update(
            {f"{path}.{name}": part() for name, part in compute.items() if f"{path}.{name}" in requested}
        )
        return output

    return attend_and_record


def _positions(side: str, stack: Encoder | Decoder, ids: Int[Tensor, "B tokens"], model: Transformer) -> Activations:
    """Positional encodings or rotary angles: the only parts that are recomputed, not recorded."""
    positions = Padded.from_ids(ids, model.config.pad_id).positions
    if stack.positions.kind == "rotary":
        return {f"{side}.angles": angles(positions, model.config.head_width)}
    if stack.positions.table is not None:
        return {f"{side}.positions": stack.positions.table(positions)}
    dtype = model.vocabulary.embedding.weight.dtype
    return {f"{side}.positions": sinusoids(positions, model.config.d_model).to(dtype)}
