"""The HTTP process and the worker process: either may end, and no request waits forever."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heed import ServeConfig
from heed.errors import ConfigError
from heed.serving.processes import Channel, Message, pack_message, receive_message
from heed.serving.worker_proxy import WorkerProxy
from tests.serving.clients import start, wait_for_active_requests
from tests.serving.conftest import MANY
from tests.serving.folders import make_folder
from tests.serving.running import Running, serving, wait_until


def children(process: int) -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except FileNotFoundError:
        return []


def workers(server: Running) -> list[int]:
    return [worker for supervisor in children(server.process) for worker in children(supervisor)]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_worker_is_restarted_and_its_requests_get_503(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "ende", max_length=2000)
    with serving(folder, *MANY, "--set", "search.min_length=1500", "--set", "search.no_repeat_ngram=1500") as server:
        (worker,) = workers(server)
        with start(server) as client:
            wait_for_active_requests(server, 1)
            os.kill(worker, signal.SIGKILL)
            assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
        wait_until(lambda: server.get("/health").status_code == 200, "another worker is ready")
        assert workers(server) not in ([], [worker])
        metrics = server.get("/metrics").text
        assert "heed_worker_starts_total 2\n" in metrics
        assert "heed_requests_in_work 0\n" in metrics
        assert "the worker process has ended and is being restarted" in server.stderr_text()
        (worker,) = workers(server)
        assert server.end() == 0
        wait_until(lambda: not is_running(worker), "the worker ends")


def test_a_server_that_is_killed_leaves_no_process_behind(folders: tuple[Path, Path]) -> None:
    with serving(folders[0]) as server:
        descendants = [*children(server.process), *workers(server)]
        assert len(descendants) == 2
        os.kill(server.process, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, descendants)), "all processes end")


def test_child_processes_ignore_sigint_and_sigterm(folders: tuple[Path, Path]) -> None:
    with serving(folders[0]) as server:
        for process in (*children(server.process), *workers(server)):
            os.kill(process, signal.SIGINT)
            os.kill(process, signal.SIGTERM)
        assert server.post("/translate", q="A dog", source="en", target="de").status_code == 200
        assert server.end(signal.SIGINT) == 130


def test_the_http_process_does_not_import_torch() -> None:
    imports = ", ".join(
        f"heed.serving.{name}" for name in ("processes", "security_middleware", "server", "worker_proxy")
    )
    code = f"import sys, heed.cli.serve, {imports}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def send_request(worker: WorkerProxy, path: str = "/translate") -> tuple[int, bytes]:
    """The response to a request while the worker is supervised."""
    sent: list[dict[str, object]] = []

    async def receive() -> dict[str, object]:
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    async def run_request() -> None:
        supervision = asyncio.ensure_future(worker.supervise())
        await asyncio.sleep(0.01)
        scope = {"type": "http", "method": "POST", "path": path, "state": {"fields": {}}, "headers": []}
        await worker(scope, receive, send)  # type: ignore[arg-type]
        worker.admission.shutting_down = True
        supervision.cancel()

    asyncio.run(run_request())
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)  # type: ignore[return-value, misc]


@contextmanager
def worker_that_sends(*messages: bytes) -> Iterator[WorkerProxy]:
    """A worker that sends these messages and then nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"".join(messages))
        yield WorkerProxy(lambda: ours, ServeConfig(deadline=0.1))


def test_an_unresponsive_worker_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("heed.serving.worker_proxy._MAX_SILENCE", 0.2)
    monkeypatch.setattr("heed.serving.worker_proxy.os.kill", lambda *process: killed.append(process))
    with worker_that_sends(pack_message({"ready": 12345, "notes": ["note: a"]})) as worker:
        assert worker.open() == ["note: a"]
        status, body = send_request(worker)
    assert (status, b"Unavailable: the worker process" in body) == (503, True)
    assert killed == [(12345, signal.SIGKILL)]


def test_models_that_cannot_be_opened_are_a_config_error() -> None:
    with (
        worker_that_sends(pack_message({"error": "there is no folder"})) as worker,
        pytest.raises(ConfigError, match="no folder"),
    ):
        worker.open()
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(ConfigError, match="the worker process ended while loading the models"):
        WorkerProxy(lambda: ours, ServeConfig()).open()


def test_messages_of_any_content_arrive_complete() -> None:
    ours, theirs = socket.socketpair()
    messages: list[Message] = [({"a": "\0ä😀"}, b"\0\xff" * 100_000), ({}, b""), ({"b": [1, None, 2.5]}, b"x")]

    async def send() -> None:
        channel = await Channel.open(theirs)
        for head, body in messages:
            channel.send(head, body)
        await channel.drain()
        channel.close()

    sending = threading.Thread(target=lambda: asyncio.run(send()))
    sending.start()
    assert [receive_message(ours) for _ in range(4)] == [*messages, None]
    sending.join(60)
    ours.close()


def test_what_stays_until_the_end_is_not_collected_again() -> None:
    code = "import gc; from heed.serving.processes import exclude_from_collections; exclude_from_collections(); "
    code += "print(gc.get_freeze_count() > 0, len(gc.get_objects(2)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert shown[0] == "True"
    assert int(shown[1]) < 100
