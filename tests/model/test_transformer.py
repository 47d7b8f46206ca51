"""Invariants of the Transformer for every kind, norm, positional encoding and activation."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.model.attention import plain_attention
from tests.model.examples import (
    FIRST_WORD,
    VOCAB,
    both_sides,
    covering_combinations,
    covering_combinations_that_decode,
    every_combination,
    lengths_of_output,
    make,
    packed,
    padded,
)


def token_logits(config: ModelConfig, sides: dict[str, list[Tensor]], logits: Tensor) -> Tensor:
    """The logits at the tokens of padded rows, concatenated without padding."""
    return torch.cat([row[:length] for row, length in zip(logits, lengths_of_output(config, sides), strict=True)])


@every_combination
def test_packed_equals_padded(config: ModelConfig, device: torch.device) -> None:
    model, sides = make(config, device), both_sides(config, device)
    rows = model(**{name: padded(side) for name, side in sides.items()})
    packed_sides = {name: packed(side) for name, side in sides.items()}
    layouts = {f"{name.removesuffix('_in')}_layout": layout for name, (_, layout) in packed_sides.items()}
    logits = model(**{name: ids for name, (ids, _) in packed_sides.items()}, **layouts)
    torch.testing.assert_close(logits, token_logits(config, sides, rows), rtol=0, atol=1e-12)


@covering_combinations
def test_a_sentence_alone_has_the_same_logits_as_in_a_batch(config: ModelConfig, device: torch.device) -> None:
    model, sides = make(config, device), both_sides(config, device)
    together = model(**{name: padded(side) for name, side in sides.items()})
    alone = [
        model(**{name: side[number][None] for name, side in sides.items()})[0]
        for number in range(len(lengths_of_output(config, sides)))
    ]
    torch.testing.assert_close(torch.cat(alone), token_logits(config, sides, together), rtol=0, atol=1e-12)


@covering_combinations
@pytest.mark.parametrize("left", [True, False], ids=["padded-left", "padded-right"])
def test_padding_never_changes_a_logit(config: ModelConfig, left: bool, device: torch.device) -> None:
    model, sides = make(config, device), both_sides(config, device)
    batch = {name: padded(side) for name, side in sides.items()}
    pad = (3, 0) if left else (0, 3)
    wider = {name: torch.nn.functional.pad(ids, pad, value=config.pad_id) for name, ids in batch.items()}
    kept = slice(3, None) if left else slice(None, -3)
    before, after = model(**batch), model(**wider)[:, kept]
    torch.testing.assert_close(
        token_logits(config, sides, after), token_logits(config, sides, before), rtol=0, atol=1e-12
    )


@covering_combinations_that_decode
def test_the_future_is_invisible(config: ModelConfig, device: torch.device) -> None:
    model, sides = make(config, device), both_sides(config, device)
    batch = {name: padded(side) for name, side in sides.items()}
    before = model(**batch)
    for position in range(batch["tgt_in"].shape[1]):
        changed = batch["tgt_in"].clone()
        changed[:, position] = FIRST_WORD + (changed[:, position] - FIRST_WORD + 1) % (VOCAB - FIRST_WORD)
        after = model(**{**batch, "tgt_in": changed})
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=0)
        assert (after[0, position] != before[0, position]).any()


@covering_combinations_that_decode
def test_no_gradient_flows_from_a_logit_to_a_later_token(config: ModelConfig, device: torch.device) -> None:
    model = make(config, device)
    sides = {name: padded(side[:1]) for name, side in both_sides(config, device).items()}
    embedded: list[Tensor] = []

    def keep(_module: torch.nn.Module, _args: object, output: Tensor) -> None:
        output.retain_grad()
        embedded.append(output)

    model.vocabulary.embedding.register_forward_hook(keep)
    length = sides["tgt_in"].shape[1]
    for position in range(length):
        embedded.clear()
        model(**sides)[0, position].square().sum().backward()
        target = next(output for output in embedded if output.shape[1] == length)
        has_gradient = (target.grad if target.grad is not None else torch.zeros(1)).abs().sum(-1)[0] > 0
        assert has_gradient.tolist() == [other <= position for other in range(length)]


@covering_combinations
def test_fused_attention_equals_plain_attention(config: ModelConfig, device: torch.device) -> None:
    sides = both_sides(config, device)
    batch = {name: padded(side) for name, side in sides.items()}
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        model = make(config, device, dtype)
        fused, plain = model(**batch), model(**batch, attend=plain_attention)
        torch.testing.assert_close(
            token_logits(config, sides, fused), token_logits(config, sides, plain), rtol=0, atol=tolerance
        )


@covering_combinations
def test_logits_are_equal_after_saving_and_loading(config: ModelConfig, device: torch.device, tmp_path: Path) -> None:
    model, sides = make(config, device), both_sides(config, device)
    batch = {name: padded(side) for name, side in sides.items()}
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    loaded = Transformer(ModelConfig.model_validate_json(config.model_dump_json())).to(device, torch.float64).eval()
    loaded.load_state_dict(load_file(tmp_path / "model.safetensors", device=str(device)))
    assert torch.equal(loaded(**batch), model(**batch))


def test_cross_mask_changes_the_masked_positions_only(device: torch.device) -> None:
    config = ModelConfig(vocab_size=VOCAB, d_model=16, heads=2, d_ff=24, encoder_layers=1, decoder_layers=1)
    model = make(config, device)
    sides = both_sides(config, device)
    src, tgt_in = padded(sides["src"]), padded(sides["tgt_in"])
    mask = torch.ones(*tgt_in.shape, src.shape[1], dtype=torch.bool, device=device)
    assert torch.equal(model(src, tgt_in, cross_mask=mask), model(src, tgt_in))
    mask[:, 2:, 0] = False  # from the third target token on, the first source token is masked
    before, after = model(src, tgt_in), model(src, tgt_in, cross_mask=mask)
    assert torch.equal(after[:, :2], before[:, :2])
    assert (after[0, 2:] != before[0, 2:]).any()


def test_each_dropout_setting_acts_in_training_mode_only(device: torch.device) -> None:
    shape = {"vocab_size": VOCAB, "d_model": 16, "heads": 2, "d_ff": 24, "encoder_layers": 1, "decoder_layers": 1}
    off = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
    src = tgt_in = torch.randint(FIRST_WORD, VOCAB, (2, 5), device=device)
    for setting in off:
        model = Transformer(ModelConfig.model_validate({**shape, **off, setting: 0.5})).to(device)
        assert torch.equal(model.eval()(src, tgt_in), model.eval()(src, tgt_in))
        assert not torch.equal(model.train()(src, tgt_in), model.train()(src, tgt_in))
    without = Transformer(ModelConfig.model_validate({**shape, **off})).to(device)
    assert torch.equal(without.train()(src, tgt_in), without.eval()(src, tgt_in))


def test_forward_and_encode_return_the_documented_shapes(device: torch.device) -> None:
    config = ModelConfig.preset("tiny", vocab_size=50)
    model = Transformer(config).to(device)
    src, tgt_in = torch.randint(3, 50, (2, 7), device=device), torch.randint(3, 50, (2, 5), device=device)
    assert model(src, tgt_in).shape == (2, 5, 50)
    assert model.encode(src).shape == (2, 7, config.d_model)
