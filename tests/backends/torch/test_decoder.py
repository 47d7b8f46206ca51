from typing import Any

import pytest
import torch
from torch import Tensor

from heed import ModelConfig, Transformer
from heed.backends.stepping import why_reference_only
from heed.backends.torch.decoder import TorchDecoder
from heed.backends.torch.linear import prepacked_linear
from tests.model.examples import COMBINATIONS, FIRST_WORD, SHAPE, VOCAB, make, padded, sentences
from tests.reference.backends import start_search

CPU = torch.device("cpu")
DESIGNS = [config for config in COMBINATIONS if config.kind == "encoder-decoder"]
ALONE = [ModelConfig.model_validate({**SHAPE, "tie_embeddings": False, "source_vocab_size": 17})]


def walk(stepper: Any, src: Tensor, *, column: bool) -> list[Tensor]:
    """The logits of a search of sorts: one row a sentence, then three, reordered, then one fewer, then one twice,
    far enough for a buffer to run full. column: the stepper takes a column of ids and gives one of logits."""
    random = torch.Generator().manual_seed(4)
    state, found = stepper.start(src), []
    rows, order = len(src), {3: [[0, 0, 0], [1, 1, 1], [2, 2, 2]], 6: [[2, 0, 1], [4, 4, 3], [8, 6, 6]]}
    for time in range(26 if len(src) > 1 else 5):
        if time in order:
            state, rows = state.select(torch.tensor(order[time])), 9
        if time == 9:
            state, rows = state.select(torch.tensor([[1, 0, 2], [7, 7, 6]]), torch.tensor([0, 2])), 6
        if time == 12:
            rows_of_each = torch.tensor([[3, 4, 5], [2, 0, 1], [5, 3, 3]])
            state, rows = state.select(rows_of_each, torch.tensor([1, 0, 1])), 9
        ids = torch.randint(FIRST_WORD, VOCAB, (rows,), generator=random)
        logits, state = stepper.step(ids[:, None] if column else ids, state)
        found.append(logits[:, -1] if column else logits)
    return found


@pytest.mark.parametrize(
    "config", [*DESIGNS, *ALONE], ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}-{one.tie_embeddings}"
)
@torch.no_grad()
def test_a_lean_step_is_the_models_own_step(config: ModelConfig) -> None:
    model = make(config.model_copy(update={"max_length": 64}), CPU)
    src = padded(sentences([5, 1, 3], CPU))
    for lean, own in zip(
        walk(TorchDecoder(model, prepacked_linear), src, column=False), walk(model, src, column=True), strict=True
    ):
        torch.testing.assert_close(lean, own)


@pytest.mark.parametrize("config", [*DESIGNS, *ALONE], ids=lambda one: f"{one.norm}-{one.positions}-{one.activation}")
@torch.no_grad()
def test_a_sentence_alone_steps_as_the_model_does_and_its_hypotheses_after_it(config: ModelConfig) -> None:
    model = make(config, CPU)
    lean, src = TorchDecoder(model, prepacked_linear), padded(sentences([4], CPU))
    ours, own = lean.start(src), model.start(src)
    for ids in ([5], [6], [7, 8], [9, 10], [11]):
        if len(ids) != ours.beam:
            rows = torch.tensor([[0, 0]] if len(ids) > 1 else [[1]])
            ours, own = ours.select(rows), own.select(rows)
        (found, ours), (expected, own) = lean.step(torch.tensor(ids), ours), model.step(torch.tensor(ids)[:, None], own)
        torch.testing.assert_close(found, expected[:, -1])


@torch.no_grad()
def test_an_older_state_still_means_what_it_meant() -> None:
    lean = TorchDecoder(make(DESIGNS[0], CPU), prepacked_linear)
    _, before = lean.step(torch.tensor([5, 6]), lean.start(padded(sentences([4, 2], CPU))))
    first, _ = lean.step(torch.tensor([7, 8]), before)
    lean.step(torch.tensor([9, 10]), before)  # writes where the first did, unless it notices
    _, once_more = lean.step(torch.tensor([7, 8]), before)
    again, _ = lean.step(torch.tensor([11, 12]), once_more)
    _, straight = lean.step(torch.tensor([7, 8]), before)
    torch.testing.assert_close(lean.step(torch.tensor([7, 8]), before)[0], first)
    torch.testing.assert_close(lean.step(torch.tensor([11, 12]), straight)[0], again)


@torch.no_grad()
def test_two_ways_to_go_on_from_one_state_do_not_disturb_each_other() -> None:
    lean = TorchDecoder(make(DESIGNS[0], CPU), prepacked_linear)
    _, before = lean.step(torch.tensor([5, 6]), lean.start(padded(sentences([4, 2], CPU))))
    _, one = lean.step(torch.tensor([7, 8]), before)
    expected, _ = lean.step(torch.tensor([11, 12]), one)
    lean.step(torch.tensor([9, 10]), before)
    torch.testing.assert_close(lean.step(torch.tensor([11, 12]), one)[0], expected)


def test_the_model_itself_steps_where_somebody_watches_or_it_learns() -> None:
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
        == "no faster decoder exists for a Changed of kind 'encoder-decoder'"
    )
    assert all(why_reference_only(make(config, CPU)) for config in COMBINATIONS if config.kind != "encoder-decoder")


def test_a_search_begins_lean_and_the_same_without(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Transformer = make(DESIGNS[0], CPU, torch.float32)
    starts = [start_search([model], [[5, 6, 7], [8]])]
    assert "DecoderState" in repr(type(starts[0].state.states[0]))
    monkeypatch.setattr("heed.backends.stepping.why_reference_only", lambda _: "a test")
    starts.append(start_search([model], [[5, 6, 7], [8]]))
    with torch.no_grad():
        lean, own = (start.step(start.first, start.state)[0] for start in starts)
    torch.testing.assert_close(lean, own)
