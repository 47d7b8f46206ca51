"""The worker process: models, batches and routes, no HTTP. `remote` sends it requests.

It ends when the server's end of its socket closes. It also ends, to be started again, when its models have failed for
so long that they will not recover by themselves.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp, Message

from heed.errors import HeedError
from heed.inference.translator import Translator
from heed.serving.app import make_routes
from heed.serving.config import ServeConfig
from heed.serving.health import HealthMonitor
from heed.serving.http_errors import log_only_own_defects
from heed.serving.models import UNNAMED, Directions, ServedTranslator, open_models
from heed.serving.processes import Channel, Head, packed
from heed.serving.service import Service

_LOG = logging.getLogger(__name__)
_SICK = 60.0  # seconds of failures after which opening the models again is worth it
_LOG_SECONDS = 0.5  # for the last log line to be written


def run_worker(
    connection: socket,
    models: Sequence[Path],
    languages: Sequence[str],
    config: ServeConfig,
    search: Mapping[str, Any],
    open_model: Callable[[Path], Translator],
    *,
    key_required: bool,
) -> None:
    """Open models and answer requests until the socket closes."""
    try:
        translators, others = open_models(models, languages, search, open_model)
    except HeedError as error:
        connection.sendall(packed({"error": str(error)}))
        return
    except OSError as error:  # a path that cannot even be looked at
        connection.sendall(packed({"error": f"{error.filename}: {error.strerror}"}))
        return
    service = Service(Directions(translators), config, others)
    health = HealthMonitor(service)
    app = make_routes(service, health, key_required=key_required)
    with log_only_own_defects():
        asyncio.run(_answer(connection, app, health, _notes(translators, health)))


def _notes(translators: Sequence[ServedTranslator], health: HealthMonitor) -> list[str]:
    chosen = [f"{name}: {backend}" for name, backend in health.backends.items()]
    return chosen + [
        f"note: {one.path} does not name its languages: called {one.source!r} and {one.target!r} here; "
        "--languages en-de names them"
        for one in translators
        if {one.source, one.target} & {*UNNAMED}
    ]


async def _answer(connection: socket, app: FastAPI, health: HealthMonitor, notes: list[str]) -> None:
    channel, gone, tasks = await Channel.over(connection), dict[int, asyncio.Event](), set[asyncio.Task[None]]()
    async with app.router.lifespan_context(app):
        channel.send({"ready": os.getpid(), "notes": notes})
        tasks.add(asyncio.ensure_future(_end_when_sick(health)))
        while (message := await channel.receive()) is not None:
            head, _ = message
            number = head["number"]
            if "gone" in head:
                if number in gone:
                    gone[number].set()
            elif "path" in head:
                gone[number] = asyncio.Event()
                task = asyncio.ensure_future(_answer_one(channel, app, head, gone[number]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(partial(_forget, gone, number))
            else:
                channel.send({"number": number})  # a ping
        os._exit(0)  # the server has ended: nobody waits for anything


def _forget(gone: dict[int, asyncio.Event], number: int, _: "asyncio.Task[None]") -> None:
    del gone[number]


async def _end_when_sick(health: HealthMonitor) -> None:
    """End the process when its models have failed for long, or always will: another is started."""
    while health.sick_for < _SICK:
        await asyncio.sleep(1)
    _LOG.critical("the models do not work: %s", health.problem)
    await asyncio.sleep(_LOG_SECONDS)
    os._exit(1)


async def _answer_one(channel: Channel, app: ASGIApp, request: Head, gone: asyncio.Event) -> None:
    """An ASGI application's answer to one request, as messages."""
    number, path = request["number"], request["path"]
    start, sent, more = dict[str, Any](), False, True
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request["method"],
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [],
        "client": None,
        "server": None,
        "state": request["state"],
    }

    async def receive() -> Message:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal start, sent, more
        if message["type"] == "http.response.start":
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            start = {"status": message["status"], "headers": headers}
            return
        more = message.get("more_body", False)
        channel.send({"number": number, "more": more, **start}, message.get("body", b""))
        start, sent = {}, True
        await channel.drained()

    with contextlib.suppress(Exception):  # it has been logged, and answered with a 500 if nothing was answered before
        await app(scope, receive, send)
    if not sent:
        channel.send({"number": number, "more": False, "status": 500, "headers": []})
    elif more:
        channel.send({"number": number, "broken": True})
