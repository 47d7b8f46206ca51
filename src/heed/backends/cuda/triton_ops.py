"""The operations of a decoder step as GPU kernels: few, because each takes some microseconds to launch.

The Triton programs are in `triton/decoder.py` and `triton/beam.py`. Nothing here reads a value back from the GPU, so
that all of it can be captured.
"""

import math

import torch
import triton
from jaxtyping import Float
from torch import Tensor

from heed.backends.cuda.attention import packed_attention
from heed.backends.cuda.slots import Slots
from heed.backends.cuda.step_ops import Closing, Special, StepOps, Two, Words
from heed.backends.cuda.triton import beam, decoder

_TIMES = 16  # tokens of the past that are looked at together
_COLUMNS = 32  # tokens of the source likewise
_RUN, _RUNS = 512, 4  # words of the vocabulary likewise: runs of them, one to a warp
_FEWEST = 16  # rows of a matrix product


def embed(words: Words, slots: Slots) -> Two:
    """Token embedding, position code and, where the layers are pre-norm, the first layer norm in one kernel."""
    rows, size = slots.shape.rows, words.matrix.shape[1]
    stream = torch.empty(rows, size, dtype=words.matrix.dtype, device=words.matrix.device)
    ready = stream if words.norm is None else torch.empty_like(stream)
    weight, bias, eps = words.norm or (stream, stream, 0.0)
    decoder.embed[(rows,)](
        slots.ids, words.matrix, stream if words.places is None else words.places, slots.positions, weight, bias,
        stream, ready, words.scale, slots.shape.width, size, eps,
        CODE=words.places is not None, NORM=words.norm is not None, ROOM=triton.next_power_of_2(size),
    )  # fmt: skip
    return stream, ready


def add_residual_norm(x: Float[Tensor, "R D"], found: Float[Tensor, "R D"], closing: Closing) -> Two:
    """Bias, residual connection and layer norm of a sublayer in one kernel."""
    ready = torch.empty_like(x)
    stream = ready if closing.post else torch.empty_like(x)
    weight, bias, eps = closing.norm
    outer_weight, outer_bias, _ = closing.outer or closing.norm
    decoder.add_residual_norm[(len(x),)](
        x, found, closing.bias, outer_weight, outer_bias, weight, bias, stream, ready, x.shape[1], eps,
        OUTER=closing.outer is not None, POST=closing.post, ROOM=triton.next_power_of_2(x.shape[1]),
    )  # fmt: skip
    return stream, ready


def self_attention(
    qkv: Float[Tensor, "R qkv"],
    bias: Float[Tensor, "qkv"],
    slots: Slots,
    layer: int,
    turns: Float[Tensor, "2 T half"] | None,
) -> Float[Tensor, "R D"]:
    """One kernel, which puts the new keys and values where they belong on its way."""
    keys, values = slots.past[layer]
    rows, capacity, heads, width = keys.shape
    found = torch.empty(rows, heads * width, dtype=qkv.dtype, device=qkv.device)
    decoder.self_attention[(rows, heads)](
        qkv, bias, keys, values, slots.rows, slots.positions, qkv if turns is None else turns, found,
        rows, heads, capacity, 1 / math.sqrt(width),
        WIDTH=slots.shape.width, TURN=turns is not None, SIZE=width, ROOM=triton.next_power_of_2(width),
        TIMES=_TIMES, num_warps=1,
    )  # fmt: skip
    return found


def cross_attention(
    queries: Float[Tensor, "R D"], bias: Float[Tensor, "D"], slots: Slots, layer: int
) -> Float[Tensor, "R D"]:
    """Attention of each sentence's hypotheses to its source in one kernel, which reads keys and values once."""
    keys, values = slots.memory[layer]
    sentences, capacity, heads, width = keys.shape
    found = torch.empty_like(queries)
    decoder.cross_attention[(sentences, heads)](
        queries, bias, keys, values, slots.lengths, found, heads, capacity, 1 / math.sqrt(width),
        WIDTH=slots.shape.width, SIZE=width, ROOM=max(_FEWEST, triton.next_power_of_2(width)),
        PRECISION="ieee" if keys.dtype == torch.float32 else "tf32",
        ROWS=max(_FEWEST, triton.next_power_of_2(slots.shape.width)), COLUMNS=_COLUMNS, num_warps=2,
    )  # fmt: skip
    return found


def beam_step(logits: Float[Tensor, "R V"], bias: Float[Tensor, "V"] | None, slots: Slots, special: Special) -> None:
    """Three kernels: over all words, over the best of them, and over the hypotheses."""
    (rows, size), width, device = logits.shape, slots.shape.width, logits.device
    runs, best = triton.cdiv(size, _RUN), width + 1  # no more of a hypothesis can matter: W that live, and its end
    scanned = torch.empty(4, rows, runs, dtype=torch.float32, device=device).unbind()
    log_sums = torch.empty(rows, dtype=torch.float32, device=device)
    values = torch.empty(rows, best, dtype=torch.float32, device=device)
    words = torch.empty(rows, best, dtype=torch.int32, device=device)
    cut_off = torch.empty(rows, dtype=torch.int32, device=device)
    seen = (logits, logits if bias is None else bias, slots.positions, slots.over, slots.longest, slots.rules)
    constants = {"WIDTH": width, "BIAS": bias is not None, "RUN": _RUN}
    beam.scan[(rows, triton.cdiv(runs, _RUNS))](
        *seen, *scanned, size, runs, *special, **constants, RUNS=_RUNS, num_warps=_RUNS
    )
    beam.pick[(rows,)](
        *seen, *scanned, log_sums, values, words, cut_off, size, runs, *special,
        **constants, BEST=best, RUNS=triton.next_power_of_2(runs), num_warps=1,
    )  # fmt: skip
    places, choices = triton.next_power_of_2(width), triton.next_power_of_2(best)
    beam.expand[(slots.shape.slots,)](
        log_sums, values, words, cut_off, slots.ids, slots.sentences, slots.sums, slots.ended, slots.written,
        slots.rows, slots.penalties, slots.rules, rows, slots.shape.target, size, special.eos_id,
        WIDTH=width, BEST=best, ROWS=places, CHOICES=choices, TIMES=_TIMES,
        num_warps=1 if places * choices <= 512 else 4,
    )  # fmt: skip


TRITON = StepOps(embed, add_residual_norm, self_attention, cross_attention, beam_step, packed_attention)
