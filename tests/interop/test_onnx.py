from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from heed import ModelConfig, SearchConfig, Transformer
from heed.backends.base import TORCH_OPS, State
from heed.backends.onnx import OnnxBackend, OnnxStepper
from heed.backends.protocol import BackendChoice
from heed.decoding.engine import Engine
from heed.interop.folders import export_for
from heed.interop.onnx_export import onnx_files
from tests.interop.engine_models import CONFIGS, SOURCES, every_model, folder, model_of, model_without_pad_and_bos
from tests.model.examples import SHAPE
from tests.reference.backends import stepwise_engine

SENTENCE_IDS = range(len(SOURCES))


def backend_of(model: Transformer) -> OnnxBackend:
    return OnnxBackend(onnx_files(model), model.config, BackendChoice("onnx", "float32", "cpu", "a test"), TORCH_OPS)


@every_model
def test_decoder_steps_in_onnx_equal_the_models_for_every_model(config: ModelConfig) -> None:
    model = model_of(config)
    stepper = OnnxStepper(onnx_files(model), config)
    rows = torch.tensor([[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]])  # a beam of three
    src = pad_sequence([torch.tensor([*source, config.eos_id]) for source in SOURCES], batch_first=True)
    state, cache = stepper.start(src).select(rows), model.start(src).select(rows)
    ids = torch.full((12,), config.bos_id)
    for step in range(5):
        logits, state = stepper.step(ids, state)
        expected, cache = model.step(ids[:, None], cache)
        torch.testing.assert_close(logits, expected[:, 0], atol=1e-4, rtol=1e-4)
        ids = torch.randint(3, config.vocab_size, ids.shape)
        if step == 2:  # the second sentence is dropped, the others continue with reordered hypotheses
            remaining = torch.tensor([0, 2, 3])
            rows = torch.tensor([[2, 0, 0], [6, 7, 8], [11, 10, 9]])
            state, cache, ids = state.select(rows, remaining), cache.select(rows, remaining), ids[:9]


def model_preferring_pad_and_bos() -> Transformer:
    model = model_without_pad_and_bos()
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
@pytest.mark.parametrize("make", [model_without_pad_and_bos, model_preferring_pad_and_bos])
def test_every_kind_of_search_in_onnx_equals_heeds(search: SearchConfig, make: Callable[[], Transformer]) -> None:
    model = make()
    backend = backend_of(model)
    assert isinstance(backend.start(SOURCES).state, State)
    results = Engine(backend).search(SOURCES, search, SENTENCE_IDS, [[], [4], [], [5, 6]])
    expected = stepwise_engine(model).search(SOURCES, search, SENTENCE_IDS, [[], [4], [], [5, 6]])
    assert [[hypothesis.ids for hypothesis in hypotheses] for hypotheses in results] == [
        [hypothesis.ids for hypothesis in hypotheses] for hypotheses in expected
    ]
    for hypotheses, expected_hypotheses in zip(results, expected, strict=True):
        assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
            [hypothesis.score for hypothesis in expected_hypotheses], abs=1e-4
        )


def test_learned_positions_limit_the_length_in_onnx() -> None:
    model = model_of(ModelConfig.model_validate({**SHAPE, "positions": "learned", "max_length": 8}))
    backend = backend_of(model)
    results = Engine(backend).search(SOURCES, SearchConfig(beam=1), SENTENCE_IDS)
    assert max(len(hypothesis.ids) for [hypothesis] in results) <= 7


def test_padding_at_any_position_does_not_change_the_encoder_output() -> None:
    model = model_of(CONFIGS[0])
    encoder = onnxruntime.InferenceSession(onnx_files(model)["encoder.onnx"], providers=["CPUExecutionProvider"])
    unpadded = encoder.run(None, {"src": np.array([[5, 6, 7, 2]])})
    padded = encoder.run(None, {"src": np.array([[0, 5, 0, 6, 7, 0, 2]])})
    for expected, output in zip(unpadded[1:], padded[1:], strict=True):
        np.testing.assert_allclose(expected, output[:, :, [1, 3, 4, 6]], atol=1e-5)


def test_exported_files_are_valid_onnx_with_dynamic_lengths(tmp_path: Path) -> None:
    path = folder(tmp_path / "model")
    export_for("onnx", path, tmp_path / "out")
    for name in ("encoder", "decoder"):
        graph = onnx.load(tmp_path / "out" / f"{name}.onnx")
        onnx.checker.check_model(graph, full_check=True)
        assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 20)]
        shapes = {
            graph_input.name: [size.dim_param or size.dim_value for size in graph_input.type.tensor_type.shape.dim]
            for graph_input in graph.graph.input
        }
        assert shapes["src" if name == "encoder" else "real"] == ["sentences", "source"]
    assert shapes["ids"] == ["hypotheses"]
    assert shapes["past_keys_1"] == ["hypotheses", 2, "written", 8]
    assert shapes["source_values_0"] == ["sentences", 2, "source", 8]


def test_every_weight_in_the_onnx_files_is_the_models() -> None:
    model = model_of(CONFIGS[0])
    weights, exported = model.state_dict(), set()
    for content in onnx_files(model).values():
        for tensor in onnx.load_from_string(content).graph.initializer:
            if tensor.name in weights:
                np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), weights[tensor.name].numpy())
                exported.add(tensor.name)
    assert exported == set(weights)


DESIGNS = [
    ModelConfig.model_validate({**SHAPE, **design, "tie_embeddings": tied})
    for design in (
        {"norm": "post"},
        {"norm": "pre", "positions": "rotary"},
        {"norm": "sandwich", "positions": "learned"},
    )
    for tied in (True, False)
]


@pytest.mark.parametrize("labels", [None, 3])
@pytest.mark.parametrize("config", DESIGNS, ids=lambda config: f"{config.norm}-{config.tie_embeddings}")
def test_hidden_states_and_logits_of_an_encoder_only_model_in_onnx_equal_heeds(
    config: ModelConfig, labels: int | None
) -> None:
    model = model_of(config.model_copy(update={"kind": "encoder", "labels": labels}))
    files = onnx_files(model)
    assert list(files) == ["encoder.onnx"]
    session = onnxruntime.InferenceSession(files["encoder.onnx"], providers=["CPUExecutionProvider"])
    src = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])
    real, hidden, logits = (torch.from_numpy(array) for array in session.run(None, {"src": src.numpy()}))
    with torch.no_grad():
        expected_hidden, expected_logits = model.encode(src), model(src)
    torch.testing.assert_close(hidden[real], expected_hidden[real], atol=1e-5, rtol=1e-4)
    if labels is None:
        logits, expected_logits = logits[real], expected_logits[real]
    torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("config", DESIGNS, ids=lambda config: f"{config.norm}-{config.tie_embeddings}")
def test_steps_of_a_decoder_only_model_in_onnx_equal_heeds(config: ModelConfig) -> None:
    model = model_of(config.model_copy(update={"kind": "decoder"}))
    files = onnx_files(model)
    assert list(files) == ["decoder.onnx"]
    session = onnxruntime.InferenceSession(files["decoder.onnx"], providers=["CPUExecutionProvider"])
    cache = model.start(rows=3)
    names = [node.name for node in session.get_inputs() if node.name != "ids"]
    past = {name: np.zeros((3, config.heads, 0, config.head_width), np.float32) for name in names}
    for step in range(4):
        ids = torch.randint(3, config.vocab_size, (3,)) if step else torch.full((3,), config.bos_id)
        expected, cache = model.step(ids[:, None], cache)
        logits, *new_past = session.run(["logits", *(f"new_{name}" for name in names)], {"ids": ids.numpy(), **past})
        past = dict(zip(names, new_past, strict=True))
        torch.testing.assert_close(torch.from_numpy(logits), expected[:, 0], atol=1e-4, rtol=1e-4)
