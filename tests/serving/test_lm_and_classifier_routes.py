"""Language models, masked LMs and classifiers, served: responses equal the models' output, other routes get 404."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heed.artifacts.folder import read_model_folder
from heed.inference.classifier import Classifier, embed
from heed.inference.generator import Generator
from heed.inference.open import look_into
from heed.interpret.report import html_report
from heed.interpret.saving import trace_document
from heed.search_config import SearchConfig
from tests.serving.conftest import MANY
from tests.serving.folders import LABELS, Task, make_folder, make_lm_or_classifier
from tests.serving.fuzzing import fuzz
from tests.serving.running import CLIENT, Running, refused, serving, wait_until

OFFERED = "Supported: lm: /generate, /embed, /look; c: /classify, /embed, /look; m: /embed, /look"


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    tasks: dict[str, Task] = {"lm": "language-model", "c": "classify", "m": "masked"}
    return {name: make_lm_or_classifier(folder / name, task) for name, task in tasks.items()}


@pytest.fixture(scope="module")
def site(by_name: dict[str, Path]) -> Iterator[Running]:
    with serving(*by_name.values(), *MANY) as running:
        yield running


@pytest.fixture(scope="module")
def generator(by_name: dict[str, Path]) -> Generator:
    return Generator.open(by_name["lm"])


def greedy(**settings: Any) -> SearchConfig:
    return SearchConfig(beam=1, no_repeat_ngram=1, max_length=60).model_copy(update=settings)


def test_generate_equals_the_generator_without_a_server(site: Running, generator: Generator) -> None:
    for prompt in ("", "The cat", "17 dogs"):
        ((expected,),) = generator.generate([prompt], greedy())
        answer = site.post("/generate", prompt=prompt).json()
        assert answer == {"text": expected.text, "log_prob": pytest.approx(expected.log_prob)}
        assert answer["text"].startswith(prompt)
    short = site.post("/generate", prompt="The cat", max_length=9).json()["text"]
    assert len(short) <= 9
    form_response = CLIENT.post(f"{site.address}/generate", data={"prompt": "The cat", "max_length": "9"})
    assert form_response.json()["text"] == short


def test_a_seed_reproduces_a_sample_and_without_one_samples_differ(site: Running, generator: Generator) -> None:
    fields = {"prompt": "A dog", "temperature": 5.0, "top_k": 30, "top_p": 0.99}
    sampling = greedy(sample=True, seed=7, temperature=5.0, top_k=30, top_p=0.99)
    ((expected,),) = generator.generate(["A dog"], sampling)
    assert site.post("/generate", **fields, seed=7).json()["text"] == expected.text
    answers = [site.post("/generate", **fields).json() for _ in range(4)]
    assert len({answer["seed"] for answer in answers}) == 4
    assert len({answer["text"] for answer in answers}) > 1
    assert site.post("/generate", **fields, seed=answers[0]["seed"]).json() == answers[0]


def test_temperature_0_is_greedy(site: Running) -> None:
    answer = site.post("/generate", prompt="A dog", temperature=0, seed=3).json()
    assert answer == site.post("/generate", prompt="A dog").json()
    assert "seed" not in answer


@pytest.mark.parametrize("how", [{}, {"temperature": 5.0, "seed": 3}])
def test_a_streamed_text_equals_the_unstreamed_one(site: Running, how: dict[str, Any]) -> None:
    fields = {"prompt": "The cat sees", **how}
    with CLIENT.stream("POST", f"{site.address}/generate", json={**fields, "stream": True}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *pieces, last = answer.read().decode().split("\n\n")[:-1]
    unstreamed = site.post("/generate", **fields).json()["text"]
    assert json.loads(last.removeprefix("event: done\ndata: ")) == {"text": unstreamed}
    texts = [json.loads(piece.removeprefix("data: "))["text"] for piece in pieces]
    assert "".join(texts) == unstreamed
    assert texts[0].startswith("The cat sees")
    assert len(texts) > 3


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"max_length": 61}, "Invalid request: max_length parameter must be <= 60"),
        ({"max_length": 0}, "Invalid request: max_length parameter: input should be greater than or equal to 1"),
        ({"temperature": -1}, "Invalid request: temperature parameter: input should be greater than or equal to 0"),
        ({"temperature": "hot"}, "Invalid request: temperature parameter: input should be a valid number"),
        ({"top_p": 1.5}, "Invalid request: top_p parameter: input should be less than or equal to 1"),
        ({"seed": 2**53}, "Invalid request: seed parameter: input should be less than 9007199254740992"),
        ({"prompt": ["a"]}, "Invalid request: prompt parameter: input should be a valid string"),
        ({"prompt": "a" * 61}, "Invalid request: the prompt has 61 tokens, more than the limit of 60 for a text"),
        ({"prompt": "a" * 5001}, "Invalid request: request (5001) exceeds text limit (5000)"),
    ],
)
def test_invalid_generate_requests_say_why(site: Running, fields: dict[str, Any], error: str) -> None:
    answer = site.post("/generate", **fields)
    assert (answer.status_code, answer.json()) == (400, {"error": error})


def test_an_overlong_prompt_of_a_stream_is_an_error_event(site: Running) -> None:
    answer = site.post("/generate", prompt="a" * 61, stream=True)
    assert answer.text.startswith('event: error\ndata: {"error": "Invalid request: the prompt has 61 tokens')


def test_classify_equals_the_classifier_without_a_server(site: Running, by_name: dict[str, Path]) -> None:
    texts = ["A dog runs.", "The cat\tand the dog", "house"]
    expected = [
        {"label": result.label, "probabilities": pytest.approx(result.probabilities, abs=1e-6)}
        for result in Classifier.open(by_name["c"]).classify(texts)
    ]
    assert site.post("/classify", q=texts).json() == expected
    assert site.post("/classify", q=texts[0]).json() == expected[0]
    assert site.post("/classify", q=texts[:1], model="c").json() == expected[:1]
    assert site.post("/classify", q=texts[0]).json()["probabilities"].keys() == set(LABELS)


@pytest.mark.parametrize("name", ["lm", "c", "m"])
def test_embed_equals_the_model_without_a_server(site: Running, by_name: dict[str, Path], name: str) -> None:
    folder = read_model_folder(by_name[name])
    texts = ["A dog runs.", "The cat"]
    vectors = embed(folder.model(), folder.tokenizers[1], texts)
    answer = site.post("/embed", q=texts, model=name).json()
    assert [item["embedding"] for item in answer] == [pytest.approx(vector, abs=1e-4) for vector in vectors.tolist()]
    single = site.post("/embed", q=texts[1], model=name).json()
    assert single == {"embedding": pytest.approx(answer[1]["embedding"], abs=1e-4)}
    first = site.post("/embed", q=texts[0], model=name, pooling="first")
    if name == "lm":
        assert first.json()["error"].startswith("Invalid request: pooling = 'first' needs an encoder")
    else:
        expected = embed(folder.model(), folder.tokenizers[1], texts[:1], "first")[0].tolist()
        assert first.json()["embedding"] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("route", "fields", "status", "error"),
    [
        ("/classify", {}, 400, "Invalid request: missing q parameter"),
        ("/classify", {"q": ["a", "\t"]}, 400, "Invalid request: text 2 is empty, or has an empty part"),
        ("/classify", {"q": ["a", "b\t"]}, 400, "Invalid request: text 2 is empty, or has an empty part"),
        ("/classify", {"q": ["a", "b" * 61]}, 400, "Invalid request: text 2 has 61 tokens; the model takes at most 60"),
        ("/classify", {"q": ["a"] * 65}, 400, "Invalid request: request (65) exceeds text limit (64)"),
        ("/classify", {"q": "a", "model": "lm"}, 404, f"No model named lm supports /classify. {OFFERED}"),
        ("/embed", {"q": "a"}, 400, "Invalid request: several models support /embed: choose one with model: lm, c, m"),
        ("/embed", {"q": "a", "model": "x"}, 404, f"No model named x supports /embed. {OFFERED}"),
        ("/look", {"q": "a"}, 400, "Invalid request: several models support /look: choose one with model: lm, c, m"),
        ("/translate", {}, 404, f"No served model supports /translate. {OFFERED}"),
        ("/translate/stream", {"q": "a"}, 404, f"No served model supports /translate. {OFFERED}"),
        ("/alternatives", {"q": "a"}, 404, f"No served model supports /translate. {OFFERED}"),
        ("/detect", {"q": "a"}, 404, f"No served model supports /translate. {OFFERED}"),
    ],
)
def test_rejections_say_why_and_list_the_supported_routes(
    site: Running, route: str, fields: dict[str, Any], status: int, error: str
) -> None:
    answer = site.post(route, **fields)
    assert (answer.status_code, answer.json()) == (status, {"error": error})


def test_routes_that_no_model_supports_get_404_with_the_supported_ones(server: Running) -> None:
    for route in ("/generate", "/classify"):
        answer = server.post(route, q="a")
        offered = "Supported: ende: /translate, /embed, /look; deen: /translate, /embed, /look"
        assert (answer.status_code, answer.json()) == (404, {"error": f"No served model supports {route}. {offered}"})


def test_all_models_are_ready_and_listed_and_there_are_no_languages(site: Running) -> None:
    assert site.get("/health/ready").json()["status"] == "ready"
    assert site.get("/languages").json() == []
    assert site.get("/frontend/settings").json()["language"]["source"] == {"code": "", "name": ""}
    models = site.get("/models").json()
    assert [(model["name"], model["task"]) for model in models] == [
        ("lm", "language-model"),
        ("c", "classify"),
        ("m", "masked"),
    ]
    assert models[1]["labels"] == list(LABELS)
    assert all("source" not in model and model["max_tokens"] == 60 for model in models)
    described = site.get("/docs").text
    assert all(f"POST /{route}" in described for route in ("generate", "classify", "embed"))
    assert site.get("/").text == site.get("/lm-and-classifier").text == site.get("/others").text
    assert "heed <span>models</span>" in site.get("/").text


@pytest.mark.parametrize("name", ["lm", "c", "m"])
def test_look_equals_the_trace_without_a_server(site: Running, by_name: dict[str, Path], name: str) -> None:
    trace = look_into(by_name[name], "A dog")
    answer = site.post("/look", q="A dog", model=name)
    assert answer.json() == json.loads(json.dumps(trace_document(trace)))
    assert site.post("/look", q="A dog", model=name, format="html").content == html_report(trace, trace_document(trace))
    long = site.post("/look", q="dogs " * 13, model=name)
    assert long.json() == {"error": "Invalid request: 65 tokens exceed the limit of 64 for a trace"}


def test_all_kinds_of_models_are_served_side_by_side(by_name: dict[str, Path], tmp_path: Path) -> None:
    ende = make_folder(tmp_path / "ende")
    with serving(by_name["c"], ende, by_name["lm"], "--languages", "en-de", *MANY) as mixed:
        assert "translatedText" in mixed.post("/translate", q="A dog", source="en", target="de").json()
        assert mixed.post("/generate", prompt="A").json()["text"].startswith("A")
        assert mixed.post("/classify", q="A").json()["label"] in LABELS
        folder = read_model_folder(ende)
        expected = embed(folder.model(), folder.tokenizers[0], ["A dog"])[0].tolist()
        assert mixed.post("/embed", q="A dog", model="ende").json()["embedding"] == pytest.approx(expected, abs=1e-4)
        assert mixed.post("/look", q="A", model="c").json()["labels"] == list(LABELS)
        assert mixed.post("/look", q="A", source="en", target="de").json()["model"]["kind"] == "encoder-decoder"
        assert mixed.post("/look", q="A").json() == {"error": "Invalid request: missing source parameter"}
        assert "heed <span>translate</span>" in mixed.get("/").text
        assert mixed.end() == 0


def test_two_models_of_the_same_name_are_refused(by_name: dict[str, Path], tmp_path: Path) -> None:
    code, message = refused(by_name["lm"], make_lm_or_classifier(tmp_path / "lm", "masked"))
    assert code == 2
    error = f"{by_name['lm']} and {tmp_path / 'lm'} are both named lm, and requests select models by name: rename one"
    assert message == f"error: {error}\n"


@pytest.mark.parametrize("task", ["language-model", "classify", "masked"])
def test_weights_that_give_nan_make_the_server_unready(tmp_path: Path, task: Task) -> None:
    with serving(make_lm_or_classifier(tmp_path / "x", task, broken=True)) as broken:
        answer = broken.get("/health/ready")
        assert answer.status_code == 503
        assert answer.json() == {"error": "x returns nan for a test sentence: its weights are damaged"}


def test_a_request_past_its_deadline_gets_504_and_the_next_succeeds(tmp_path: Path, by_name: dict[str, Path]) -> None:
    endless = make_lm_or_classifier(tmp_path / "endless", "language-model", max_tokens=10_000, ends=False)
    with serving(endless, by_name["c"], "--set", "serve.deadline=0.5") as slow:
        late = {"error": "No result within 0.5 s: send less text per request, or try again later"}
        answer = slow.post("/generate", prompt="A")
        assert (answer.status_code, answer.json()) == (504, late)
        stream = slow.post("/generate", prompt="A", stream=True)
        assert stream.text.rpartition("event: ")[2] == f"error\ndata: {json.dumps(late)}\n\n"
        wait_until(lambda: slow.post("/classify", q="A dog").status_code == 200, "an answer", 10)


def test_random_requests_get_json_and_never_a_server_error(site: Running) -> None:
    fuzz(site, 200, ("/generate", "/classify", "/embed", "/look", "/translate"))
    assert site.get("/health/ready").status_code == 200
    assert site.log_lines() == []
