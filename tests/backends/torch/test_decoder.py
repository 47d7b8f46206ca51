import pytest
import torch

from heed import ModelConfig, Transformer
from heed.backends.stepping import why_reference_only
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import prepacked_linear
from tests.backends.decoder_steps import DESIGNS, SEPARATE_VOCABULARIES, decode, design_name
from tests.model.examples import COMBINATIONS, make, padded, sentences
from tests.reference.backends import start_search

CPU = torch.device("cpu")


@pytest.mark.parametrize("config", [*DESIGNS, SEPARATE_VOCABULARIES], ids=design_name)
@torch.no_grad()
def test_torch_decoder_steps_equal_the_models(config: ModelConfig) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU)
    src = padded(sentences([5, 1, 3], CPU))
    for logits, expected in zip(
        decode(TorchDecoder(model, prepacked_linear), src, column=False), decode(model, src, column=True), strict=True
    ):
        torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("config", [*DESIGNS, SEPARATE_VOCABULARIES], ids=design_name)
@torch.no_grad()
def test_torch_decoder_steps_of_a_single_sentence_equal_the_models(config: ModelConfig) -> None:
    model = make(config, CPU)
    decoder, src = TorchDecoder(model, prepacked_linear), padded(sentences([4], CPU))
    state, model_state = decoder.start(src), model.start(src)
    for ids in ([5], [6], [7, 8], [9, 10], [11]):
        if len(ids) != state.beam:
            rows = torch.tensor([[0, 0]] if len(ids) > 1 else [[1]])
            state, model_state = state.select(rows), model_state.select(rows)
        (logits, state), (expected, model_state) = (
            decoder.step(torch.tensor(ids), state),
            model.step(torch.tensor(ids)[:, None], model_state),
        )
        torch.testing.assert_close(logits, expected[:, -1])


@torch.no_grad()
def test_a_step_does_not_change_earlier_states() -> None:
    decoder = TorchDecoder(make(DESIGNS[0], CPU), prepacked_linear)
    _, before = decoder.step(torch.tensor([5, 6]), decoder.start(padded(sentences([4, 2], CPU))))
    expected_first, _ = decoder.step(torch.tensor([7, 8]), before)
    decoder.step(torch.tensor([9, 10]), before)  # would overwrite the first step's cache slot if the state were shared
    _, second_state = decoder.step(torch.tensor([7, 8]), before)
    expected_second, _ = decoder.step(torch.tensor([11, 12]), second_state)
    _, third_state = decoder.step(torch.tensor([7, 8]), before)
    torch.testing.assert_close(decoder.step(torch.tensor([7, 8]), before)[0], expected_first)
    torch.testing.assert_close(decoder.step(torch.tensor([11, 12]), third_state)[0], expected_second)


@torch.no_grad()
def test_two_continuations_of_one_state_do_not_affect_each_other() -> None:
    decoder = TorchDecoder(make(DESIGNS[0], CPU), prepacked_linear)
    _, before = decoder.step(torch.tensor([5, 6]), decoder.start(padded(sentences([4, 2], CPU))))
    _, after = decoder.step(torch.tensor([7, 8]), before)
    expected, _ = decoder.step(torch.tensor([11, 12]), after)
    decoder.step(torch.tensor([9, 10]), before)
    torch.testing.assert_close(decoder.step(torch.tensor([11, 12]), after)[0], expected)


def test_models_in_training_with_hooks_or_of_other_kinds_use_the_reference_only() -> None:
    model = make(DESIGNS[0], CPU)
    assert why_reference_only(model) is None
    assert why_reference_only(model.train()) == "the model is in training mode"
    model.eval()
    hook = model.decoder.layers[0].register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    assert why_reference_only(model) == "the model has forward hooks"
    hook.remove()
    assert why_reference_only(model) is None

    class Changed(Transformer):
        pass

    assert (
        why_reference_only(Changed(DESIGNS[0]).eval())
        == "no faster decoder exists for a Changed with kind = 'encoder-decoder'"
    )
    assert all(why_reference_only(make(config, CPU)) for config in COMBINATIONS if config.kind != "encoder-decoder")


def test_a_search_starts_with_the_fast_decoder_and_the_reference_gives_the_same_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Transformer = make(DESIGNS[0], CPU, torch.float32)
    starts = [start_search([model], [[5, 6, 7], [8]])]
    assert "DecoderState" in repr(type(starts[0].state.states[0]))
    monkeypatch.setattr("heed.backends.stepping.why_reference_only", lambda _: "a test")
    starts.append(start_search([model], [[5, 6, 7], [8]]))
    with torch.no_grad():
        fast, reference = (start.step(start.first, start.state)[0] for start in starts)
    torch.testing.assert_close(fast, reference)
