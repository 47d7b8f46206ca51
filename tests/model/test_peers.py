"""heed's Transformer equals `torch.nn.Transformer` and Hugging Face's MarianMT, given the same weights."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heed import ModelConfig, Transformer
from heed.model.attention import MultiHeadAttention, plain_attention
from tests.model.examples import SHAPE, VOCAB, make, padded, sentences

# ---- torch.nn.Transformer ----


def torch_model(config: ModelConfig) -> nn.Transformer:
    """The same architecture in torch's modules; a final norm only for pre-norm, as in the paper."""
    wide = (config.d_model, config.heads, config.d_ff, 0.0)
    options: dict[str, Any] = {"batch_first": True, "norm_first": config.norm == "pre", "activation": config.activation}
    norms = [nn.LayerNorm(config.d_model) if config.norm == "pre" else None for _ in range(2)]
    return nn.Transformer(
        *wide[:2],
        custom_encoder=nn.TransformerEncoder(
            nn.TransformerEncoderLayer(*wide, **options), config.encoder_layers, norms[0], enable_nested_tensor=False
        ),
        custom_decoder=nn.TransformerDecoder(
            nn.TransformerDecoderLayer(*wide, **options), config.decoder_layers, norms[1]
        ),
        batch_first=True,
    )


def attention_pairs(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> Iterator[tuple[list[Tensor], Tensor]]:
    yield [ours.query.weight, ours.key.weight, ours.value.weight], theirs.in_proj_weight
    yield [ours.query.bias, ours.key.bias, ours.value.bias], theirs.in_proj_bias
    yield [ours.output.weight], theirs.out_proj.weight
    yield [ours.output.bias], theirs.out_proj.bias


def pairs(ours: Transformer, theirs: nn.Transformer) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Each weight of torch's model, and those of ours that are concatenated in it."""

    def same(our_module: nn.Module, their_module: nn.Module) -> Iterator[tuple[list[Tensor], Tensor]]:
        for name, theirs_ in their_module.named_parameters():
            yield [our_module.get_parameter(name)], theirs_

    assert ours.encoder is not None
    assert ours.decoder is not None
    our: Any
    their: Any
    for our, their in zip(ours.encoder.layers, theirs.encoder.layers, strict=True):
        yield from attention_pairs(our.attention, their.self_attn)
        yield from same(our.around_attention.norm, their.norm1)
        yield from same(our.feed_forward.widen, their.linear1)
        yield from same(our.feed_forward.narrow, their.linear2)
        yield from same(our.around_feed_forward.norm, their.norm2)
    for our, their in zip(ours.decoder.layers, theirs.decoder.layers, strict=True):
        yield from attention_pairs(our.attention, their.self_attn)
        yield from same(our.around_attention.norm, their.norm1)
        yield from attention_pairs(our.cross_attention, their.multihead_attn)
        yield from same(our.around_cross_attention.norm, their.norm2)
        yield from same(our.feed_forward.widen, their.linear1)
        yield from same(our.feed_forward.narrow, their.linear2)
        yield from same(our.around_feed_forward.norm, their.norm3)
    if ours.config.norm == "pre":
        yield from same(ours.encoder.norm, theirs.encoder.norm)
        yield from same(ours.decoder.norm, theirs.decoder.norm)


def torch_logits(
    model: Transformer, reference: nn.Transformer, src: Tensor, tgt_in: Tensor, embedding: Tensor
) -> Tensor:
    """Logits of torch's layers, with the paper's embeddings before and the tied output after them."""
    pad = model.config.pad_id

    def embed(ids: Tensor) -> Tensor:
        d = model.config.d_model
        position = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float64)[:, None]
        angle = position / 10000 ** (torch.arange(0, d, 2, device=ids.device, dtype=torch.float64) / d)
        encoding = torch.zeros(ids.shape[1], d, device=ids.device, dtype=torch.float64)
        encoding[:, 0::2], encoding[:, 1::2] = angle.sin(), angle.cos()
        return embedding[ids] * d**0.5 + encoding.to(embedding.dtype)

    future = torch.ones(tgt_in.shape[1], tgt_in.shape[1], device=src.device, dtype=torch.bool).triu(1)
    hidden = reference(
        embed(src),
        embed(tgt_in),
        tgt_mask=future,
        src_key_padding_mask=src == pad,
        tgt_key_padding_mask=tgt_in == pad,
        memory_key_padding_mask=src == pad,
    )
    logits: Tensor = hidden @ embedding.T
    return logits


@pytest.mark.parametrize("attend", ["fused", "plain"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_logits_and_gradients_equal_torch_nn_transformer(
    norm: str, activation: str, dtype: torch.dtype, tolerance: float, attend: str, device: torch.device
) -> None:
    config = ModelConfig.model_validate({**SHAPE, "norm": norm, "activation": activation})
    model = make(config, device, dtype)
    reference = torch_model(config).to(device, dtype).eval()
    with torch.no_grad():
        for ours, theirs in pairs(model, reference):
            theirs.copy_(torch.cat(ours))
    embedding = model.vocabulary.embedding.weight.detach().clone().requires_grad_()

    src, tgt_in = padded(sentences([5, 1, 7], device)), padded(sentences([4, 6, 2], device))
    token_mask = tgt_in != config.pad_id
    options = {"attend": plain_attention} if attend == "plain" else {}
    logits = model(src, tgt_in, **options)[token_mask]
    expected = torch_logits(model, reference, src, tgt_in, embedding)[token_mask]
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)

    direction = torch.randn_like(logits) / logits.numel()
    (logits * direction).sum().backward()
    (expected * direction).sum().backward()
    compared = 0
    for ours, theirs in pairs(model, reference):
        gradient = torch.cat([_gradient(weight) for weight in ours])
        torch.testing.assert_close(gradient, _gradient(theirs), rtol=tolerance, atol=tolerance)
        compared += len(ours)
    torch.testing.assert_close(
        _gradient(model.vocabulary.embedding.weight), _gradient(embedding), rtol=tolerance, atol=tolerance
    )
    assert compared + 1 == len(list(model.parameters()))


def _gradient(weight: Tensor) -> Tensor:
    assert weight.grad is not None
    return weight.grad


# ---- Hugging Face MarianMT ----


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_logits_equal_hugging_face_marian(activation: str, device: torch.device) -> None:
    transformers = pytest.importorskip("transformers", reason="Hugging Face transformers is not installed")
    config = ModelConfig.model_validate({**SHAPE, "activation": activation})
    marian = transformers.MarianMTModel(
        transformers.MarianConfig(
            vocab_size=VOCAB,
            d_model=config.d_model,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.decoder_layers,
            encoder_attention_heads=config.heads,
            decoder_attention_heads=config.heads,
            encoder_ffn_dim=config.d_ff,
            decoder_ffn_dim=config.d_ff,
            activation_function=activation,
            scale_embedding=True,
            max_position_embeddings=config.max_length,
            pad_token_id=config.pad_id,
            eos_token_id=config.eos_id,
            decoder_start_token_id=config.bos_id,
            bos_token_id=config.bos_id,
            forced_eos_token_id=None,
        )
    )
    with torch.no_grad():
        for name, weight in marian.named_parameters():
            if "embed_positions" in name:  # a fixed table, although it is a parameter
                continue
            weight.add_(torch.randn_like(weight) * 0.2)
    marian = marian.to(device).eval()
    model = Transformer(config).to(device).eval()
    copy_from_marian(model, marian)

    src, tgt_in = padded(sentences([5, 1, 7], device)), padded(sentences([4, 6, 2], device))
    with torch.no_grad():
        expected = marian(
            input_ids=src,
            attention_mask=(src != config.pad_id).long(),
            decoder_input_ids=tgt_in,
            decoder_attention_mask=(tgt_in != config.pad_id).long(),
        ).logits
        logits = model(src, tgt_in)
    token_mask = tgt_in != config.pad_id
    assert expected[token_mask].std() > 0.5  # the comparison is not trivial
    torch.testing.assert_close(logits[token_mask], expected[token_mask], rtol=1e-4, atol=1e-4)


def copy_from_marian(model: Transformer, marian: nn.Module) -> None:
    """Marian's sinusoids are all sines, then all cosines; the paper's are interleaved. So the features are permuted."""
    d = model.config.d_model
    permutation = torch.arange(d).view(2, d // 2).T.flatten()  # 0, d/2, 1, d/2 + 1, …
    names = {
        "q_proj": "query",
        "k_proj": "key",
        "v_proj": "value",
        "out_proj": "output",
        "self_attn.": "attention.",
        "encoder_attn.": "cross_attention.",
        "self_attn_layer_norm": "around_attention.norm",
        "encoder_attn_layer_norm": "around_cross_attention.norm",
        "final_layer_norm": "around_feed_forward.norm",
        "fc1": "feed_forward.widen",
        "fc2": "feed_forward.narrow",
    }
    state = {}
    for name, weight in marian.state_dict().items():
        if ".layers." not in name:
            continue
        ours = name.removeprefix("model.")
        for theirs, our in names.items():
            ours = ours.replace(theirs, our)
        reordered = weight
        if any(part in name for part in ("q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight")):
            reordered = weight[:, permutation]  # reads hidden states
        elif any(part in name for part in ("out_proj", "layer_norm", "fc2")):
            reordered = weight[permutation]  # writes hidden states
        state[ours] = reordered
    state["vocabulary.embedding.weight"] = marian.state_dict()["model.shared.weight"][:, permutation]
    model.load_state_dict(state)
    assert isinstance(marian.final_logits_bias, Tensor)
    assert not marian.final_logits_bias.any()
