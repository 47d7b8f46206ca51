"""Shutdown by signal: running requests are finished, later ones get 503."""

import asyncio
import os
import signal
import time
from pathlib import Path

import httpx
import pytest
import uvicorn

from heed.serving.config import ServeConfig
from heed.serving.models import Directions
from heed.serving.server import _Server
from heed.serving.service import Service
from tests.serving.conftest import MANY
from tests.serving.running import Running, serving, wait_until

CLIENTS, ENOUGH = 20, 60  # successful responses before the signal is sent


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_sigterm_shuts_down_gracefully_without_losing_a_request(folders: tuple[Path, Path], times: int) -> None:
    for _ in range(times):
        with serving(folders[0], *MANY) as server:
            status_counts = asyncio.run(_request_until_shutdown(server))
            assert server.command.ends_within(30)
            assert server.command.wait()[0] == 0
        # Every client got all its responses, and then 503.
        assert (status_counts["lost"], status_counts["503"]) == (0, CLIENTS)
        assert status_counts["200"] >= ENOUGH


async def _request_until_shutdown(server: Running) -> dict[str, int]:
    """Clients send requests before and after SIGTERM until they get 503; the number of responses by status."""
    status_counts = {"200": 0, "503": 0, "lost": 0}

    async def client(number: int) -> None:
        async with httpx.AsyncClient(verify=False, timeout=60) as connection:  # noqa: S501 - no TLS here
            for count in range(1000):
                fields = {"q": f"{number} dogs {count}", "source": "en", "target": "de"}
                try:
                    answer = await connection.post(f"{server.address}/translate", json=fields)
                except httpx.HTTPError:
                    status_counts["lost"] += 1
                    return
                status_counts[str(answer.status_code)] += 1
                if answer.status_code == 503:
                    assert answer.json() == {"error": "This server is shutting down"}
                    return

    async def send_sigterm() -> None:
        while status_counts["200"] < ENOUGH and not status_counts["lost"]:
            await asyncio.sleep(0.01)
        os.kill(server.process, signal.SIGTERM)

    await asyncio.gather(send_sigterm(), *(client(number) for number in range(CLIENTS)))
    return status_counts


def test_after_sigterm_the_server_is_not_ready_and_connected_clients_get_503(folders: tuple[Path, Path]) -> None:
    with serving(folders[0]) as server, httpx.Client(verify=False, base_url=server.address) as client:  # noqa: S501
        assert client.get("/health/ready").status_code == 200
        os.kill(server.process, signal.SIGTERM)
        wait_until(lambda: client.get("/health/ready").status_code == 503, "not ready", 30)
        assert client.get("/health/ready").json() == {"error": "This server is shutting down"}
        assert client.get("/health").status_code == 200  # models still work
        time.sleep(0.5)  # connected clients are still served
        answer = client.post("/translate", json={"q": "A dog", "source": "en", "target": "de"})
        assert (answer.status_code, answer.headers["connection"]) == (503, "close")
        assert server.command.ends_within(30)
        assert server.command.wait()[0] == 0


@pytest.mark.parametrize(
    ("past", "in_work", "ends"), [(0.1, 0, False), (0.5, 0, True), (5.0, 1, False), (31.0, 1, True)]
)
def test_shutdown_waits_for_active_requests_at_most_until_the_deadline(past: float, in_work: int, ends: bool) -> None:
    service = Service(Directions([]), ServeConfig())
    server = _Server(uvicorn.Config("nothing"), service.admission, lambda: None)
    server.handle_exit(signal.SIGTERM, None)
    service.admission.active, server._signalled_at = in_work, time.monotonic() - past
    assert asyncio.run(server.on_tick(1)) == ends
    service.close()


def test_sigint_exits_with_130(folders: tuple[Path, Path]) -> None:
    with serving(folders[0]) as server:
        assert server.end(signal.SIGINT) == 130
