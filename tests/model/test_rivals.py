"""Recurrent and convolutional layers equal models put together by hand from torch's own modules, sentence by sentence.

That they obey the invariants of the Transformer (packed = padded, cached = full, no future, …) is tested with it: their
settings are among the combinations of examples.py.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heed import ModelConfig, Transformer
from heed.errors import ConfigError, InputError
from heed.interop.onnx_export import onnx_files
from heed.interpret.observe import observe
from heed.model.rivals.recurrent import RecurrentState
from tests.model.examples import RIVALS, SHAPE, both_sides, make, padded, sentences

CPU = torch.device("cpu")


def hand_made_mixer(module: Any, x: Tensor, *, causal: bool) -> Tensor:
    """The recurrence or convolution of one sentence (T, D), with the weights of a rival's layer."""
    if hasattr(module, "convolution"):
        weight, bias = module.convolution.weight, module.convolution.bias  # (2D, D, k)
        size = weight.shape[2]
        before = size - 1 if causal else size // 2
        neighbours = torch.cat((x.new_zeros(before, x.shape[1]), x, x.new_zeros(size - 1 - before, x.shape[1])))
        rows = [torch.einsum("kd,odk->o", neighbours[t : t + size], weight) + bias for t in range(len(x))]
        values, gates = torch.stack(rows).chunk(2, -1)
        return values * gates.sigmoid()
    cell = type(module.cell)(x.shape[1], module.cell.hidden_size, bidirectional=not causal).to(x.dtype)
    cell.load_state_dict(module.cell.state_dict())
    return cell(x)[0]


def hand_made_context(module: Any, x: Tensor, memory: Tensor) -> Tensor:
    """What each target position of one sentence reads of the source: torch's attention, or the fixed vector."""
    if isinstance(module.output, nn.Linear) and not hasattr(module, "query"):
        vector = module.output(torch.cat((memory[0], memory[-1])))
        return vector.expand(len(x), -1)
    projections = (module.query, module.key, module.value)
    attention = nn.MultiheadAttention(x.shape[1], module.split[0], dtype=x.dtype)
    attention.in_proj_weight.data = torch.cat([projection.weight for projection in projections])
    attention.in_proj_bias.data = torch.cat([projection.bias for projection in projections])
    attention.out_proj.load_state_dict(module.output.state_dict())
    return attention(x, memory, memory)[0]


def residual(around: Any, x: Tensor, sublayer: Any) -> Tensor:
    match around.order:
        case "post":
            return around.norm(x + sublayer(x))
        case "pre":
            return x + sublayer(around.norm(x))
        case _:
            return x + around.outer_norm(sublayer(around.norm(x)))


def embedded(model: Transformer, stack: Any, ids: Tensor) -> Tensor:
    x = model.vocabulary.embedding(ids) * model.config.d_model**0.5
    if stack.positions is None:
        return x
    if stack.positions.table is not None:
        return x + stack.positions.table.weight[: len(ids)]
    angles = torch.arange(len(ids))[:, None] / 10_000 ** (torch.arange(0, x.shape[1], 2) / x.shape[1])
    return x + torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


def hand_made_logits(model: Any, src: Tensor, tgt_in: Tensor) -> Tensor:
    memory = embedded(model, model.encoder, src)
    for layer in model.encoder.layers:
        mixer, around = layer.mixer, layer.around_mixer
        memory = residual(around, memory, lambda x, mixer=mixer: hand_made_mixer(mixer, x, causal=False))
    memory = model.encoder.norm(memory)
    y = embedded(model, model.decoder, tgt_in)
    for layer in model.decoder.layers:
        y = residual(layer.around_mixer, y, lambda x, layer=layer: hand_made_mixer(layer.mixer, x, causal=True))
        y = residual(layer.around_context, y, lambda x, layer=layer: hand_made_context(layer.context, x, memory))
    return functional.linear(model.decoder.norm(y), model.vocabulary.embedding.weight)


@pytest.mark.parametrize(
    "rival", [rival for rival in RIVALS if "mixer" in rival], ids=lambda rival: "-".join(map(str, rival.values()))
)
@torch.no_grad()
def test_logits_equal_a_model_of_torchs_own_modules(rival: dict[str, Any]) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **rival}), CPU)
    sides = both_sides(model.config, CPU)
    logits = model(padded(sides["src"]), padded(sides["tgt_in"]))
    for row, src, tgt_in in zip(logits, sides["src"], sides["tgt_in"], strict=True):
        expected = hand_made_logits(model, src, tgt_in)
        torch.testing.assert_close(row[: len(tgt_in)], expected, rtol=0, atol=1e-6)  # float32 angles


@torch.no_grad()
def test_with_a_fixed_vector_the_decoder_reads_only_the_ends_of_the_memory() -> None:
    model = make(ModelConfig(**SHAPE, mixer="gru", source_context="vector"), CPU)
    (src,), (tgt_in,) = sentences([6], CPU), sentences([4], CPU)
    encode, replaced = model.encoder.forward, []  # type: ignore[union-attr]

    def middle_replaced(*arguments: Any) -> Tensor:
        memory = encode(*arguments)
        replaced.append(memory)
        return torch.cat((memory[:, :1], torch.randn_like(memory[:, 1:-1]), memory[:, -1:]), 1)

    before = model(src[None], tgt_in[None])
    model.encoder.forward = middle_replaced  # type: ignore[union-attr, method-assign]
    assert torch.equal(model(src[None], tgt_in[None]), before)
    assert replaced


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixer": "lstm", "kind": "decoder"}, "mixer = 'lstm' needs kind = 'encoder-decoder', found 'decoder'"),
        ({"source_context": "vector"}, "source_context = 'vector' needs mixer = 'lstm' or 'gru', found 'attention'"),
        ({"mixer": "gru", "d_model": 15, "heads": 1, "positions": "rotary"}, "is odd"),
        (
            {"mixer": "lstm", "d_model": 15, "heads": 1, "positions": "learned"},
            "d_model = 15 is odd: an encoder's lstm",
        ),
        ({"mixer": "convolution", "kernel_size": 4}, "kernel_size = 4 is even: a convolution is centred"),
    ],
)
def test_settings_that_no_rival_has_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig.model_validate({**SHAPE, **settings})


def test_what_needs_attention_layers_is_refused_by_name() -> None:
    model = make(ModelConfig(**SHAPE, mixer="lstm"), CPU)
    message = "this does not support models with mixer = 'lstm', which exist for comparison"
    (src,), (tgt_in,) = sentences([3], CPU), sentences([2], CPU)
    with pytest.raises(InputError, match=message):
        observe(model, src[None], tgt_in[None])
    with pytest.raises(InputError, match=message):
        onnx_files(model)


def test_the_forget_gate_is_open_and_recurrent_weights_are_orthogonal_at_first() -> None:
    model: Any = Transformer(ModelConfig(**SHAPE, mixer="lstm"))
    cell = model.decoder.layers[0].mixer.cell
    forget = cell.bias_ih_l0.chunk(4)[1] + cell.bias_hh_l0.chunk(4)[1]
    assert torch.equal(forget, torch.ones_like(forget))
    for gate in cell.weight_hh_l0.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)), rtol=0, atol=1e-5)


@torch.no_grad()
def test_pre_norm_removes_an_index_that_is_added_to_every_dimension() -> None:
    """So in pre-norm `index` is as good as `none` (docs/claims.md); in post-norm it is not."""
    sides = both_sides(ModelConfig(**SHAPE), CPU)
    batch = {name: padded(side) for name, side in sides.items()}
    for norm, is_same in (("pre", True), ("post", False)):
        with_index, without = (seeded_logits({"norm": norm, "positions": kind}, batch) for kind in ("index", "none"))
        assert torch.allclose(with_index, without, rtol=0, atol=1e-9) == is_same


def seeded_logits(settings: dict[str, Any], batch: dict[str, Tensor]) -> Tensor:
    """The logits of a model whose initial weights do not depend on the settings."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig.model_validate({**SHAPE, **settings})).double().eval()
    return model(batch["src"], batch["tgt_in"])


@pytest.mark.parametrize(
    "rival", [rival for rival in RIVALS if "mixer" in rival], ids=lambda rival: "-".join(map(str, rival.values()))
)
def test_autocast_leaves_recurrence_in_float32_and_small_gradients_as_they_are(
    rival: dict[str, Any], device: torch.device
) -> None:
    model = make(ModelConfig.model_validate({**SHAPE, **rival}), device, torch.float32).train()
    sides = {name: padded(rows) for name, rows in both_sides(model.config, device).items()}
    weights = [weight for name, weight in model.named_parameters() if not name.endswith("key.bias")]  # gradient 0

    def gradient(*, autocast: bool) -> Tensor:
        torch.manual_seed(1)
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            loss = model(**sides).float().logsumexp(-1).sum() * 2.0**-20  # float16 would lose its gradients
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])

    exact, rounded = gradient(autocast=False), gradient(autocast=True)
    assert (exact - rounded).norm() < 0.5 * exact.norm()  # with lost gradients it would be all of it


def test_the_state_of_a_decoding_step_is_float32_under_autocast(device: torch.device) -> None:
    model = make(ModelConfig(**SHAPE, mixer="lstm", norm="pre"), device, torch.float32)
    src, tgt_in = (padded(sentences(lengths, device)) for lengths in ([5, 1, 7], [4, 6, 5]))
    expected = model(src, tgt_in[:, :2])
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        _, cache = model.step(tgt_in[:, :1], model.start(src))
        logits, cache = model.step(tgt_in[:, 1:2], cache)
    for layer in cache.past:
        assert isinstance(layer, RecurrentState)
        assert all(state.dtype == torch.float32 for state in layer.states)
    assert (logits[:, 0].float() - expected[:, 1]).norm() < 0.1 * expected[:, 1].norm()
