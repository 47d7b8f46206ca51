"""Models and threads that fail while they are served: health checks report it, and no request waits forever."""

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import re
import selectors
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from starlette.testclient import TestClient

from heed import ServeConfig
from heed.decoding.engine import Engine
from heed.errors import ConfigError
from heed.fallbacks import note_fallback
from heed.inference.lazy_models import backend_of
from heed.serving.app import make_app
from heed.serving.batcher import CancelToken, Failures, Job, ThreadEndedError
from heed.serving.health import HealthMonitor
from heed.serving.http_errors import HttpError
from heed.serving.limits import DisconnectedError
from heed.serving.models import Directions, open_translators
from heed.serving.requests import TranslateRequest
from heed.serving.service import Service
from tests.serving.folders import make_folder
from tests.serving.running import CLIENT, serving, serving_with_stderr, wait_until

ReadyCheck = Callable[[], tuple[int, dict[str, str]]]
REQUEST = TranslateRequest(q="A dog", source="en", target="de")


@pytest.fixture
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health checks in quick succession; `test_a_fault_shows_within_five_seconds` tests the real intervals."""
    monkeypatch.setattr("heed.serving.health._INTERVAL", 0.05)
    monkeypatch.setattr("heed.serving.health._TIMEOUT", 0.5)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    new_service = Service(
        Directions(open_translators([make_folder(tmp_path / "ende")], [], {})), ServeConfig(deadline=5)
    )
    yield new_service
    if new_service.batcher.alive:
        new_service.close()


@contextmanager
def served(service: Service) -> Iterator[ReadyCheck]:
    """The application in this process, where faults can be injected; yields a function that requests /health/ready."""
    with TestClient(make_app(service, service.config), "http://localhost") as client:

        def ask() -> tuple[int, dict[str, str]]:
            answer = client.get("/health/ready")
            return answer.status_code, answer.json()

        yield ask


def wait_for_problem(ready: ReadyCheck, error: str) -> None:
    wait_until(lambda: ready() == (503, {"error": error}), error, 30)  # long, as the machine may be busy


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop with a simulated clock: instead of waiting for the next timer it advances the clock."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(_NoWaiting(self))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class _NoWaiting(selectors.DefaultSelector):
    def __init__(self, loop: InstantLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0 if timeout else timeout)
        if not events and timeout:
            self.loop.advance(timeout)
        return events


def _hang(_jobs: object) -> None:
    """Accept jobs and never finish them."""


def _fail(jobs: list[Job[str]]) -> None:
    jobs[0].future.set_exception(MemoryError())


@pytest.mark.parametrize("fault", [_hang, _fail, None], ids=["hangs", "fails", "is not checked any more"])
def test_a_fault_shows_within_five_seconds(
    service: Service, monkeypatch: pytest.MonkeyPatch, fault: Callable[[list[Job[str]]], None] | None
) -> None:
    """In simulated time; the fault comes right after a successful check, the worst case."""
    loop = InstantLoop()
    monkeypatch.setattr("heed.serving.health.time", SimpleNamespace(monotonic=loop.time))
    monkeypatch.setattr(service.batcher, "submit", fault)
    health = HealthMonitor(service)
    health._problem = None

    async def seconds_until_problem() -> float:
        watching = asyncio.create_task(health.check_forever() if fault else asyncio.sleep(1000))
        while health.problem is None:
            await asyncio.sleep(0.1)
        watching.cancel()
        return loop.time()

    with contextlib.closing(loop):
        assert 0 < loop.run_until_complete(seconds_until_problem()) < 5


def test_a_healthy_server_reports_its_backends_and_fallbacks(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.fallbacks._noted", {})
    with served(service) as ready:
        healthy = {"status": "ready", "backends": {"ende": str(service.directions.served[0].translator.backend.choice)}}
        assert ready() == (200, healthy)
        note_fallback("int8 kernels do not run here: float32")
        assert ready() == (200, healthy | {"notes": ["int8 kernels do not run here: float32"]})


@pytest.mark.usefixtures("frequent_checks")
def test_weights_that_turn_to_nan_are_reported_and_translation_fails(service: Service) -> None:
    with served(service) as ready:
        translator = service.directions.served[0].translator
        translator.engine = Engine(backend_of(translator.models))  # which notices that a weight has changed
        with torch.no_grad():
            next(translator.model.parameters()).fill_(float("nan"))
        wait_for_problem(ready, "ende returns nan for a test sentence: its weights are damaged")
    with pytest.raises(Exception, match="the model returns nan"):
        asyncio.run(Service(service.directions, service.config).translate(REQUEST, CancelToken()))


@pytest.mark.usefixtures("frequent_checks")
@pytest.mark.parametrize("name", ["translate_segments", "engine"])
def test_health_check_takes_the_code_path_of_requests(
    service: Service, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A check that only scored a sentence would miss this fault of translating."""

    class Failing:
        def __call__(self, *_: object, **__: object) -> None:
            raise RuntimeError("an injected fault")

        search = __call__
        backend = service.directions.served[0].translator.backend

    fail, translator = Failing(), service.directions.served[0].translator
    with served(service) as ready:
        monkeypatch.setattr(translator, name, fail)
        assert translator.score(["a"], ["a"])
        wait_for_problem(ready, "ende fails: RuntimeError")
        monkeypatch.undo()
        wait_until(lambda: ready()[0] == 200, "it recovers", 30)


def test_five_failures_in_a_row_make_the_server_unready_until_a_text_succeeds(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = service.directions.served[0].translator
    translate = translator.translate_segments

    def translate_single_letters(texts: list[str], *arguments: object, **more: object) -> object:
        if any(len(text) > 1 for text in texts):
            raise MemoryError
        return translate(texts, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(translator, "translate_segments", translate_single_letters)
    with TestClient(make_app(service, service.config), "http://localhost", raise_server_exceptions=False) as client:
        fields = {"q": "A dog", "source": "en", "target": "de"}
        for _ in range(5):
            assert client.get("/health/ready").status_code == 200
            assert client.post("/translate", json=fields).status_code == 500
        expected = {"error": "The last 5 texts failed: MemoryError"}
        assert (client.get("/health/ready").status_code, client.get("/health/ready").json()) == (503, expected)
        assert client.post("/translate", json={**fields, "q": "a"}).status_code == 200
        assert client.get("/health/ready").status_code == 200
        service.batcher.failures = Failures(5, time.monotonic() - 31, "MemoryError")
        assert client.get("/health/ready").status_code == 200


def test_seconds_failing_counts_from_the_last_success_and_ignores_missing_folders(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    health = HealthMonitor(service)
    now = time.monotonic()
    monkeypatch.setattr("heed.serving.health.time.monotonic", lambda: now)
    asyncio.run(health.check())
    while service.batcher._progress:  # the thread has delivered its result, but does not wait for the next job yet
        threading.Event().wait(0.01)
    shutil.rmtree(service.directions.served[0].path)
    now += 10
    assert health.seconds_failing == pytest.approx(10)
    asyncio.run(health.check())
    assert (health.problem, health.seconds_failing) == ("The folder of ende does not exist any more", 0)
    while service.batcher._progress:  # the thread has delivered its result, but does not wait for the next job yet
        threading.Event().wait(0.01)
    monkeypatch.setattr(service.directions.served[0].translator, "translate_segments", None)
    now += 70
    asyncio.run(health.check())
    assert health.problem == "ende fails: TypeError"
    assert health.seconds_failing == pytest.approx(70)
    service.close()
    assert health.seconds_failing == float("inf")


@pytest.mark.usefixtures("frequent_checks")
def test_a_deleted_model_folder_is_reported_and_translation_still_works(service: Service) -> None:
    with served(service) as ready:
        shutil.rmtree(service.directions.served[0].path)
        wait_for_problem(ready, "The folder of ende does not exist any more")
    (answer,) = asyncio.run(Service(service.directions, service.config).translate(REQUEST, CancelToken()))
    assert answer.text  # the model in memory still works


@pytest.mark.usefixtures("frequent_checks")
def test_a_killed_thread_is_reported_and_requests_fail_at_once(service: Service) -> None:
    with served(service) as ready:
        identity = ctypes.c_ulong(service.batcher._threads[0].ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))
        wait_for_problem(ready, "An inference thread has ended")
        with pytest.raises(ThreadEndedError, match="an inference thread has ended"):
            asyncio.run(service.translate(REQUEST, CancelToken()))


@pytest.mark.usefixtures("frequent_checks")
def test_a_hanging_thread_is_reported_until_it_recovers(service: Service) -> None:
    released = threading.Event()
    with served(service) as ready:
        service.batcher.submit([Job(CancelToken(), 1, call=lambda _: released.wait(60))])
        wait_for_problem(ready, "An inference thread does not respond")
        released.set()
        wait_until(lambda: ready()[0] == 200, "it recovers", 30)


@pytest.mark.usefixtures("frequent_checks")
def test_a_full_disk_is_a_warning_and_the_server_stays_ready(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(service) as ready:
        monkeypatch.setattr("heed.serving.health.shutil.disk_usage", lambda _: SimpleNamespace(free=0))
        wait_until(lambda: ready()[1].get("warning") == "The disk of ende is full", "it is mentioned", 30)
        assert ready()[0] == 200


def test_fallbacks_to_slower_code_are_reported(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heed.fallbacks._noted", {})
    assert HealthMonitor(service).notes == []
    note_fallback("no large pages here")
    assert HealthMonitor(service).notes == ["no large pages here"]


def test_a_log_on_a_full_disk_does_not_stop_the_server(tmp_path: Path) -> None:
    broken = make_folder(tmp_path / "broken", broken=True)
    # Not even the greeting can be written.
    with open("/dev/full", "w") as full, serving_with_stderr(full.fileno(), broken) as server:
        for _ in range(3):
            assert server.post("/translate", q="A dog", source="en", target="de").status_code == 500
        assert server.end() == 0


def test_a_missing_or_outdated_check_counts_as_unhealthy(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    health = HealthMonitor(service)
    before_check = health.problem
    asyncio.run(health.check())
    assert (before_check, health.problem) == ("The models have not been checked yet", None)
    monkeypatch.setattr("heed.serving.health.time.monotonic", lambda: time.perf_counter() + 1e6)
    assert re.fullmatch(r"The models have not been checked for \d+ s", health.problem or "")
    monkeypatch.undo()
    monkeypatch.setattr("heed.serving.health.shutil.disk_usage", raise_stale)
    asyncio.run(health.check())
    assert health.problem == "The folder of ende cannot be read: Stale file handle"


def raise_stale(_: Path) -> None:
    raise OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.usefixtures("frequent_checks")
def test_a_busy_server_stays_healthy(service: Service) -> None:
    """The health check jumps a queue that takes longer than its timeout."""

    with served(service) as ready:
        jobs: list[Job[None]] = [
            Job(CancelToken(), 50, call=lambda _: time.sleep(0.05), arrived=0.0) for _ in range(300)
        ]
        service.batcher.submit(jobs)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            assert ready()[0] == 200
            time.sleep(0.1)
        for job in jobs:
            job.cancel_token.cancelled = True


def test_a_server_with_damaged_weights_is_unready_and_answers_500(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "broken", broken=True)
    with serving(folder) as server:
        answer = server.post("/translate", q="A dog", source="en", target="de")
        assert (answer.status_code, answer.json()) == (500, {"error": "Internal server error"})
        ready = server.get("/health/ready")
        assert (ready.status_code, ready.json()["error"]) == (
            503,
            "broken returns nan for a test sentence: its weights are damaged",
        )
        assert server.get("/health").status_code == 503


def test_internal_errors_are_logged_without_any_text(tmp_path: Path) -> None:
    broken = make_folder(tmp_path / "broken", broken=True)
    with serving(broken) as server:
        for content_type in ("multipart/form-data; boundary=x", "application/json"):
            CLIENT.post(f"{server.address}/translate", content=b"SECRET", headers={"Content-Type": content_type})
        assert server.post("/translate", q="SECRET", source="en", target="de").status_code == 500
        assert server.end() == 0
        log = server.stderr_text()
    assert "a request failed: POST" in log
    assert "InputError (message omitted: it may quote a text)" in log
    assert "SECRET" not in log


def test_an_unread_log_does_not_block_requests(tmp_path: Path) -> None:
    broken = make_folder(tmp_path / "broken", broken=True)
    reading, writing = os.pipe()  # holds 64 KiB; each traceback has 6 KiB
    with open(reading), open(writing, "w") as unread, serving_with_stderr(unread.fileno(), broken) as server:
        for _ in range(130):  # 11 fit the pipe, 100 the log's queue, the others are dropped
            assert server.post("/translate", q="A dog", source="en", target="de").status_code == 500
        assert server.end() == 0


def test_a_disconnected_client_frees_its_slot(service: Service) -> None:
    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def never(cancel_token: CancelToken) -> None:
        cancel_tokens.append(cancel_token)
        await asyncio.sleep(60)

    cancel_tokens: list[CancelToken] = []
    with pytest.raises(DisconnectedError):
        asyncio.run(service.admission.run(gone, never))
    assert service.admission.active == 0
    assert all(cancel_token.cancelled for cancel_token in cancel_tokens)


def test_a_stream_whose_client_disconnects_early_frees_its_slot(service: Service) -> None:
    body = json.dumps({"q": "A dog", "source": "en", "target": "de"}).encode()
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])
    head = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST"}
    path = {"path": "/translate/stream", "raw_path": b"/translate/stream", "query_string": b"", "headers": head}

    async def receive() -> dict[str, object]:
        return next(messages, {"type": "http.disconnect"})

    async def send(_: object) -> None:
        await asyncio.sleep(0.05)  # as if the client did not read: the send buffer is full

    asyncio.run(make_app(service, service.config)({**scope, **path}, receive, send))  # type: ignore[arg-type]
    assert service.admission.active == 0


def test_conflicting_folders_and_language_options_are_refused(folders: tuple[Path, Path]) -> None:
    ende, deen = folders
    with pytest.raises(ConfigError, match=f"{ende} and {ende} both translate en to de: serve one, or name"):
        open_translators([ende, ende], [], {})
    with pytest.raises(ConfigError, match="--languages en: expected two language codes, such as --languages"):
        open_translators([ende], ["en"], {})
    with pytest.raises(ConfigError, match="--languages is given 1 times for 2 translation models"):
        open_translators([ende, deen], ["en-de"], {})
    (other,) = open_translators([ende], ["xx-yy"], {"beam": 3})
    assert (other.source, other.target, other.translator.search.beam) == ("xx", "yy", 3)


def test_a_model_that_does_not_name_its_languages_is_served_and_they_can_be_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "nameless", "", "")
    for languages, codes in (([], ("source", "target")), (["en-de"], ("en", "de"))):
        (served,) = open_translators([folder], languages, {})
        assert (served.source, served.target) == codes
    other = make_folder(tmp_path / "other", "", "")
    with pytest.raises(ConfigError, match=r"both translate source to target: .* --languages en-de --languages de-en"):
        open_translators([folder, other], [], {})


def test_without_profiles_a_language_is_detected_only_if_there_is_one_candidate(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / name, name, "de") for name in ("xx", "yy")]
    single, double = (Service(Directions(open_translators(folders[:count], [], {})), ServeConfig()) for count in (1, 2))
    assert single.route("hello", "xx", "de")[1] == ("xx", 100.0)
    assert single.directions.detect("hello", ["xx"]) == ("xx", 0.0)
    assert double.directions.detect("hello", ["xx", "yy"]) is None
    with pytest.raises(HttpError, match="yy is not available as a target language from xx"):
        double.route("hello", "xx", "yy")
    single.close()
    double.close()
