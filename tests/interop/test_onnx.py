from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from heed import ModelConfig, SearchConfig, Transformer
from heed.backends.base import TORCH_OPS, BackendChoice, State
from heed.backends.onnx import OnnxBackend
from heed.decoding.engine import Engine
from heed.interop.folders import export_for
from heed.interop.onnx_export import onnx_files
from tests.interop.engine_models import CONFIGS, SOURCES, every_model, folder, model_of, sensible_model
from tests.model.examples import SHAPE
from tests.reference.backends import stepwise_engine

NUMBERS = range(len(SOURCES))


def opened(model: Transformer) -> OnnxBackend:
    return OnnxBackend(onnx_files(model), model.config, BackendChoice("onnx", "float32", "cpu", "a test"), TORCH_OPS)


@every_model
def test_every_step_of_every_model_gives_our_logits_in_onnx(config: ModelConfig) -> None:
    model = model_of(config)
    graphs = opened(model)
    rows = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]])  # a beam of three
    src = pad_sequence([torch.tensor([*source, config.eos_id]) for source in SOURCES], batch_first=True)
    theirs, cache = graphs.start(SOURCES).state.select(rows), model.start(src).select(rows)
    ids = torch.full((12,), config.bos_id)
    for step in range(5):
        logits, theirs = graphs.logits(ids, theirs)
        expected, cache = model.step(ids[:, None], cache)
        torch.testing.assert_close(logits, expected[:, 0], atol=1e-4, rtol=1e-4)
        ids = torch.randint(3, config.vocab_size, ids.shape)
        if step == 2:  # the second sentence leaves, the others go on with other hypotheses
            left = torch.tensor([0, 2, 3])
            rows = torch.tensor([[2, 0, 0], [6, 7, 8], [11, 10, 9]])
            theirs, cache, ids = theirs.select(rows, left), cache.select(rows, left), ids[:9]


def fond_of_padding() -> Transformer:
    model = sensible_model()
    with torch.no_grad():
        model.get_parameter("vocabulary.bias")[[model.config.pad_id, model.config.bos_id]] = 20.0
    return model


@pytest.mark.parametrize(
    "search",
    [
        SearchConfig(beam=1, max_length=9),
        SearchConfig(beam=4, nbest=3, max_length=9),
        SearchConfig(sample=True, nbest=2, max_length=9, top_k=5, seed=3),
    ],
    ids=["greedy", "beam", "sampling"],
)
@pytest.mark.parametrize("make", [sensible_model, fond_of_padding])
def test_every_search_of_ours_finds_the_same_in_onnx(search: SearchConfig, make: Callable[[], Transformer]) -> None:
    model = make()
    graphs = opened(model)
    assert isinstance(graphs.start(SOURCES).state, State)
    theirs = Engine(graphs).search(SOURCES, search, NUMBERS, [[], [4], [], [5, 6]])
    ours = stepwise_engine(model).search(SOURCES, search, NUMBERS, [[], [4], [], [5, 6]])
    assert [[one.ids for one in found] for found in theirs] == [[one.ids for one in found] for found in ours]
    for found, expected in zip(theirs, ours, strict=True):
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)


def test_learned_positions_end_a_translation_in_onnx_too() -> None:
    model = model_of(ModelConfig.model_validate({**SHAPE, "positions": "learned", "max_length": 8}))
    graphs = opened(model)
    found = Engine(graphs).search(SOURCES, SearchConfig(beam=1), NUMBERS)
    assert max(len(one.ids) for [one] in found) <= 7


def test_padding_anywhere_is_not_seen_nor_counted() -> None:
    model = model_of(CONFIGS[0])
    encoder = onnxruntime.InferenceSession(onnx_files(model)["encoder.onnx"], providers=["CPUExecutionProvider"])
    plain = encoder.run(None, {"src": np.array([[5, 6, 7, 2]])})
    holed = encoder.run(None, {"src": np.array([[0, 5, 0, 6, 7, 0, 2]])})
    for one, other in zip(plain[1:], holed[1:], strict=True):
        np.testing.assert_allclose(one, other[:, :, [1, 3, 4, 6]], atol=1e-5)


def test_the_files_are_plain_onnx_with_lengths_left_open(tmp_path: Path) -> None:
    path = folder(tmp_path / "model")
    export_for("onnx", path, tmp_path / "out")
    for name in ("encoder", "decoder"):
        graph = onnx.load(tmp_path / "out" / f"{name}.onnx")
        onnx.checker.check_model(graph, full_check=True)
        assert [(one.domain, one.version) for one in graph.opset_import] == [("", 20)]
        shapes = {
            one.name: [size.dim_param or size.dim_value for size in one.type.tensor_type.shape.dim]
            for one in graph.graph.input
        }
        assert shapes["src" if name == "encoder" else "real"] == ["sentences", "source"]
    assert shapes["ids"] == ["hypotheses"]
    assert shapes["past_keys_1"] == ["hypotheses", 2, "written", 8]
    assert shapes["source_values_0"] == ["sentences", 2, "source", 8]


def test_a_weight_in_the_file_is_the_weight_of_the_model() -> None:
    model = model_of(CONFIGS[0])
    weights, found = model.state_dict(), set()
    for content in onnx_files(model).values():
        for tensor in onnx.load_from_string(content).graph.initializer:
            if tensor.name in weights:
                np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), weights[tensor.name].numpy())
                found.add(tensor.name)
    assert found == set(weights)


HALVES = [
    ModelConfig.model_validate({**SHAPE, **design, "tie_embeddings": tied})
    for design in (
        {"norm": "post"},
        {"norm": "pre", "positions": "rotary"},
        {"norm": "sandwich", "positions": "learned"},
    )
    for tied in (True, False)
]


@pytest.mark.parametrize("labels", [None, 3])
@pytest.mark.parametrize("config", HALVES, ids=lambda one: f"{one.norm}-{one.tie_embeddings}")
def test_an_encoder_alone_gives_our_vectors_and_logits_in_onnx(config: ModelConfig, labels: int | None) -> None:
    model = model_of(config.model_copy(update={"kind": "encoder", "labels": labels}))
    files = onnx_files(model)
    assert list(files) == ["encoder.onnx"]
    session = onnxruntime.InferenceSession(files["encoder.onnx"], providers=["CPUExecutionProvider"])
    src = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    real, vectors, logits = (torch.from_numpy(one) for one in session.run(None, {"src": src.numpy()}))
    with torch.no_grad():
        wanted, said = model.encode(src), model(src)
    torch.testing.assert_close(vectors[real], wanted[real], atol=1e-5, rtol=1e-4)
    if labels is None:
        logits, said = logits[real], said[real]
    torch.testing.assert_close(logits, said, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("config", HALVES, ids=lambda one: f"{one.norm}-{one.tie_embeddings}")
def test_a_decoder_alone_steps_in_onnx_as_ours_does(config: ModelConfig) -> None:
    model = model_of(config.model_copy(update={"kind": "decoder"}))
    files = onnx_files(model)
    assert list(files) == ["decoder.onnx"]
    session = onnxruntime.InferenceSession(files["decoder.onnx"], providers=["CPUExecutionProvider"])
    cache = model.start(rows=3)
    names = [one.name for one in session.get_inputs() if one.name != "ids"]
    past = {name: np.zeros((3, config.heads, 0, config.head_width), np.float32) for name in names}
    for step in range(4):
        ids = torch.randint(3, config.vocab_size, (3,)) if step else torch.full((3,), config.bos_id)
        expected, cache = model.step(ids[:, None], cache)
        logits, *grown = session.run(["logits", *(f"new_{name}" for name in names)], {"ids": ids.numpy(), **past})
        past = dict(zip(names, grown, strict=True))
        torch.testing.assert_close(torch.from_numpy(logits), expected[:, 0], atol=1e-4, rtol=1e-4)
