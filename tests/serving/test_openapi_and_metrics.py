"""The OpenAPI document of a server, its docs page, and its metrics."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from heed.serving.limits import add_key
from heed.serving.metrics import Histogram, RequestMetrics, process_gauges
from tests.serving.running import CLIENT, Running, serving

KEYWORDS = {
    *("$defs", "$ref", "additionalProperties", "allOf", "anyOf", "const", "default", "description", "enum", "examples"),
    *("exclusiveMaximum", "exclusiveMinimum", "format", "items", "maxItems", "maximum", "minItems", "minimum"),
    *("prefixItems", "properties", "required", "title", "type", "oneOf"),
}


def schemas_in(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a part of the document, nested ones included."""
    if isinstance(value, dict):
        if "type" in value or "anyOf" in value:
            yield value
        for name, part in value.items():
            if name == "properties":
                for field in part.values():
                    yield from schemas_in(field)
            elif name not in ("examples", "default", "example"):
                yield from schemas_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from schemas_in(part)


@pytest.fixture(scope="module")
def spec(server: Running) -> dict[str, Any]:
    document: dict[str, Any] = server.get("/spec").json()
    return document


def test_every_schema_keyword_is_standard_openapi(spec: dict[str, Any]) -> None:
    schemas = [*schemas_in(spec["paths"]), *schemas_in(spec["components"]["schemas"])]
    assert len(schemas) > 100
    for schema in schemas:
        assert set(schema) <= KEYWORDS, schema


def field(spec: dict[str, Any], route: str, name: str) -> dict[str, Any]:
    body = spec["paths"][route]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema: dict[str, Any] = body["properties"][name]
    return next(kind for kind in schema.get("anyOf", [schema]) if kind["type"] != "null")


def test_numbers_have_their_limits_in_the_document(spec: dict[str, Any]) -> None:
    limits = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}
    expected = {
        ("/translate", "alternatives"): {"minimum": 0, "maximum": 5},
        ("/alternatives", "alternatives"): {"minimum": 0, "maximum": 5},
        ("/generate", "max_length"): {"minimum": 1},
        ("/generate", "temperature"): {"minimum": 0, "maximum": 100},
        ("/generate", "top_k"): {"minimum": 1},
        ("/generate", "top_p"): {"exclusiveMinimum": 0, "maximum": 1},
        ("/generate", "seed"): {"minimum": 0, "exclusiveMaximum": 2**53},
    }
    for (route, name), expected_limits in expected.items():
        schema = field(spec, route, name)
        assert {key: value for key, value in schema.items() if key in limits} == expected_limits, (route, name)


def test_every_route_has_a_tag_that_is_described(spec: dict[str, Any]) -> None:
    tags = {tag["name"] for tag in spec["tags"]}
    for path, methods in spec["paths"].items():
        for operation in methods.values():
            assert set(operation["tags"]) <= tags, path
            assert len(operation["tags"]) == 1
            assert "security" not in operation  # this server has no keys
    assert "securitySchemes" not in spec["components"]


def test_with_keys_the_document_says_which_routes_need_one(folders: tuple[Path, Path], tmp_path: Path) -> None:
    add_key(tmp_path / "keys.txt")
    with serving(folders[0], "--keys", tmp_path / "keys.txt") as server:
        spec = server.get("/spec").json()
        assert {name: scheme["type"] for name, scheme in spec["components"]["securitySchemes"].items()} == {
            "bearer": "http",
            "api_key": "apiKey",
        }
        for path, methods in spec["paths"].items():
            for method, operation in methods.items():
                status = CLIENT.request(method, server.address + path).status_code
                answers_without = status not in (400, 401) or path in ("/suggest", "/translate_file")
                assert ("security" in operation) != answers_without, (path, status)
        assert "Needs an API key." in server.get("/docs").text


def test_the_docs_page_has_every_route_and_every_limit(server: Running, spec: dict[str, Any]) -> None:
    page = server.get("/docs").text
    for path in spec["paths"]:
        assert f" {path}</code>" in page
    assert "integer ≥ 0 ≤ 5, optional" in page
    assert "sentences | line | none, optional" in page


def test_a_histogram_bucket_counts_values_up_to_its_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.observe(value)
    assert list(histogram.lines("x", 'route="/a"')) == [
        'x_bucket{route="/a",le="0.1"} 2',
        'x_bucket{route="/a",le="1"} 3',
        'x_bucket{route="/a",le="+Inf"} 4',
        'x_sum{route="/a"} 7.650000',
        'x_count{route="/a"} 4',
    ]


def test_response_times_are_counted_by_route() -> None:
    metrics = RequestMetrics()
    metrics.count("/translate", 200, 0.2)
    metrics.count("/health", 200, 0.0004)
    lines = metrics.lines().splitlines()
    assert 'heed_request_seconds_bucket{route="/translate",le="0.1"} 0' in lines
    assert 'heed_request_seconds_bucket{route="/translate",le="0.25"} 1' in lines
    assert 'heed_request_seconds_bucket{route="/health",le="0.001"} 1' in lines


def test_metrics_are_valid_prometheus_text_and_count_requests_and_texts(server: Running) -> None:
    before = metrics_of(server)
    server.post("/translate", q=["A dog", "The cat", "Two men"], source="en", target="de")
    after = metrics_of(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown['heed_request_seconds_count{route="/translate"}'] == 1
    assert grown["heed_queue_seconds_count"] == 3
    assert grown["heed_batch_texts_sum"] == 3
    assert 1 <= grown["heed_batch_texts_count"] <= 3
    assert after["process_cpu_seconds_total"] > 0
    assert after["process_resident_memory_bytes"] > 10_000_000
    assert 3 <= after["process_open_fds"] <= after["process_max_fds"]
    assert after["process_start_time_seconds"] > 1_600_000_000


def families(server: Running) -> dict[str, Metric]:
    """The metrics by name, read by Prometheus's own parser; each must be described once."""
    metrics = list(text_string_to_metric_families(server.get("/metrics").text))
    assert len({family.name for family in metrics}) == len(metrics)
    assert all(family.documentation and family.type != "unknown" for family in metrics)
    return {family.name: family for family in metrics}


def metrics_of(server: Running) -> dict[str, float]:
    """The values of all samples by name and labels."""
    samples = [sample for family in families(server).values() for sample in family.samples]
    labelled = ((sample, ",".join(f'{name}="{value}"' for name, value in sample.labels.items())) for sample in samples)
    return {sample.name + (f"{{{labels}}}" if labels else ""): sample.value for sample, labels in labelled}


def test_the_series_that_dashboards_read_keep_their_names_labels_and_buckets(server: Running) -> None:
    server.post("/translate", q="A dog", source="en", target="de")
    metrics = families(server)
    process = {"cpu_seconds": "counter", "open_fds": "gauge", "max_fds": "gauge", "resident_memory_bytes": "gauge"}
    process["start_time_seconds"] = "gauge"
    assert {name: family.type for name, family in metrics.items()} == {
        "heed_requests": "counter",  # the parser removes _total
        "heed_request_seconds": "histogram",
        "heed_queue_seconds": "histogram",
        "heed_batch_texts": "histogram",
        "heed_batches": "counter",
        "heed_texts": "counter",
        "heed_source_tokens": "counter",
        "heed_worker_starts": "counter",
        "heed_requests_in_work": "gauge",
        "heed_jobs_waiting": "gauge",
        "heed_ready": "gauge",
        **{f"process_{name}": kind for name, kind in process.items()},
        **{f"heed_worker_{name}": kind for name, kind in process.items()},
    }
    assert {tuple(sample.labels) for sample in metrics["heed_requests"].samples} == {("route", "status")}
    seconds = "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 +Inf"
    sizes = "1 2 4 8 16 32 64 128 256 +Inf"
    for name, bounds in {"heed_queue_seconds": seconds, "heed_batch_texts": sizes}.items():
        assert [sample.labels["le"] for sample in metrics[name].samples if "le" in sample.labels] == bounds.split()


def test_process_gauges_include_cpu_memory_and_start_time() -> None:
    names = {gauge.name for gauge in process_gauges()}
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"} <= names
