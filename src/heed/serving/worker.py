"""The worker process: loads the models and answers the requests that `worker_proxy` forwards, without HTTP.

It ends when the HTTP process closes the socket. It also ends, to be restarted, when its models have failed for so long
that they will not recover by themselves.
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
from heed.serving.http_errors import log_only_heed_errors
from heed.serving.models import UNNAMED, Directions, ServedTranslator, open_models
from heed.serving.processes import Channel, MessageHead, exclude_from_collections, pack_message
from heed.serving.service import Service

_LOG = logging.getLogger(__name__)
_MAX_SECONDS_FAILING = 60.0  # then the worker restarts and loads the models again
_LOG_SECONDS = 0.5  # time to write the last log line


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
    """Load the models and answer requests until the socket closes."""
    try:
        translators, lms_and_classifiers = open_models(models, languages, search, open_model)
    except HeedError as error:
        connection.sendall(pack_message({"error": str(error)}))
        return
    except OSError as error:  # a path without access permission
        connection.sendall(pack_message({"error": f"{error.filename}: {error.strerror}"}))
        return
    service = Service(Directions(translators), config, lms_and_classifiers)
    health = HealthMonitor(service)
    app = make_routes(service, health, key_required=key_required)
    with log_only_heed_errors():
        asyncio.run(_handle_requests(connection, app, health, _notes(translators, health)))


def _notes(translators: Sequence[ServedTranslator], health: HealthMonitor) -> list[str]:
    backends = [f"{name}: {backend}" for name, backend in health.backends.items()]
    return backends + [
        f"note: {model.path} does not name its languages: served as {model.source!r} and {model.target!r}; "
        "name them with --languages en-de"
        for model in translators
        if {model.source, model.target} & {*UNNAMED}
    ]


async def _handle_requests(connection: socket, app: FastAPI, health: HealthMonitor, notes: list[str]) -> None:
    channel, disconnected, tasks = await Channel.open(connection), dict[int, asyncio.Event](), set[asyncio.Task[None]]()
    async with app.router.lifespan_context(app):
        exclude_from_collections()
        channel.send({"ready": os.getpid(), "notes": notes})
        tasks.add(asyncio.ensure_future(_exit_when_unhealthy(health)))
        while (message := await channel.receive()) is not None:
            head, _ = message
            number = head["number"]
            if "disconnected" in head:
                if number in disconnected:
                    disconnected[number].set()
            elif "path" in head:
                disconnected[number] = asyncio.Event()
                task = asyncio.ensure_future(_handle_request(channel, app, head, disconnected[number]))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(partial(_forget, disconnected, number))
            else:
                channel.send({"number": number})  # a ping
        os._exit(0)  # the HTTP process has ended


def _forget(disconnected: dict[int, asyncio.Event], number: int, _: "asyncio.Task[None]") -> None:
    del disconnected[number]


async def _exit_when_unhealthy(health: HealthMonitor) -> None:
    """Exit when the models have failed for too long; the HTTP process then starts another worker."""
    while health.seconds_failing < _MAX_SECONDS_FAILING:
        await asyncio.sleep(1)
    _LOG.critical("the models do not work: %s", health.problem)
    await asyncio.sleep(_LOG_SECONDS)
    os._exit(1)


async def _handle_request(channel: Channel, app: ASGIApp, request: MessageHead, disconnected: asyncio.Event) -> None:
    """Run the ASGI application on one request and send its response as messages."""
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
        await disconnected.wait()
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
        await channel.drain()

    with contextlib.suppress(Exception):  # already logged, and answered with a 500 if no response had begun
        await app(scope, receive, send)
    if not sent:
        channel.send({"number": number, "more": False, "status": 500, "headers": []})
    elif more:
        channel.send({"number": number, "broken": True})
