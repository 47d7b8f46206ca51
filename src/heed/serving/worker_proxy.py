"""ASGI application that forwards requests to the worker process and relays its responses.

The HTTP process handles connections and limits; the worker (`worker`) runs routes and models. A message holds a
request's method, path and fields. The response arrives as ASGI messages: status and headers, then the body, in chunks
if it is streamed. When a client disconnects, the worker is notified.

A worker that ends is restarted. Requests that it was processing get 503.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
from collections.abc import Callable
from socket import socket

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from heed.errors import ConfigError
from heed.serving.config import ServeConfig
from heed.serving.http_errors import HttpError, error_response
from heed.serving.limits import Admission, wait_for_disconnect
from heed.serving.metrics import CONTENT_TYPE, Gauge, gauge_lines
from heed.serving.processes import Channel, Message, receive_message
from heed.serving.request_middleware import RUNS_MODEL

_LOG = logging.getLogger(__name__)
_GRACE = 5.0  # seconds after the deadline for the worker to respond
_PING_INTERVAL, _MAX_SILENCE = 5.0, 60.0  # seconds; a worker that sends nothing for longer is killed
_BACKOFF = (0.0, 1.0, 5.0, 30.0)  # seconds before a restart, by the number of failed_starts starts
_RESTARTING = "the worker process has ended and is being restarted"
_NOT_READY = Gauge("heed_ready", "1 if the health check passes.", 0.0)


class WorkerProxy:
    """Forwards requests to a worker process. start: starts a worker and returns the socket to it."""

    def __init__(self, start: Callable[[], socket], config: ServeConfig) -> None:
        self._start, self.admission = start, Admission(config.queue, config.deadline)
        self.starts = 0
        self._channel: Channel | None = None
        self._numbers = itertools.count()
        self._responses: dict[int, asyncio.Queue[Message | None]] = {}
        self._process: int | None = None
        self._first = self._start()

    def open(self) -> list[str]:
        """Wait until the worker has loaded the models; return its notes for the operator, or raise its error."""
        match receive_message(self._first):
            case ({"ready": process, "notes": notes}, _):
                self._process = process
                return list(notes)
            case ({"error": error}, _):
                raise ConfigError(str(error))
            case _:
                raise ConfigError("the worker process ended while loading the models; see the messages above")

    async def supervise(self) -> None:
        """Receive responses, and restart the worker whenever it ends."""
        await self._receive_responses(await Channel.open(self._first))
        failed_starts = 0
        while not self.admission.shutting_down:
            _LOG.critical(_RESTARTING)
            await asyncio.sleep(_BACKOFF[min(failed_starts, len(_BACKOFF) - 1)])
            channel = await Channel.open(self._start())
            match await channel.receive():  # sent once the models are loaded
                case ({"ready": process}, _):
                    self._process, failed_starts = process, 0
                    await self._receive_responses(channel)
                case message:
                    _LOG.critical("the worker process cannot load the models: %s", message and message[0].get("error"))
                    failed_starts += 1
                    channel.close()

    async def _receive_responses(self, channel: Channel) -> None:
        """Dispatch messages until the worker ends; kill it if it sends nothing for too long."""
        self._channel, self.starts = channel, self.starts + 1
        pinging = asyncio.ensure_future(_ping(channel))
        try:
            while True:
                async with asyncio.timeout(_MAX_SILENCE):
                    message = await channel.receive()
                if message is None:
                    return
                if (queue := self._responses.get(message[0]["number"])) is not None:
                    queue.put_nowait(message)
        except TimeoutError:
            _LOG.critical("the worker process does not respond")
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
        finally:
            pinging.cancel()
            self._channel = None
            channel.close()
            for queue in self._responses.values():
                queue.put_nowait(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        runs_model = scope["method"] == "POST" and scope["path"] in RUNS_MODEL
        try:
            async with self.admission.slot() if runs_model else contextlib.nullcontext():
                await self._forward(scope, receive, send)
        except HttpError as error:
            await error_response(error)(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        supervising = asyncio.ensure_future(self.supervise())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.admission.shutting_down = True
        supervising.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await supervising
        await send({"type": "lifespan.shutdown.complete"})

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, state = scope["path"], dict(scope.get("state", {}))
        if self.admission.shutting_down and path == "/health/ready":
            raise HttpError(503, "This server is shutting down")
        if path == "/metrics":
            starts = Gauge("heed_worker_starts_total", "Starts of the worker process.", self.starts, "counter")
            state["requests"] += gauge_lines([starts])
        if (channel := self._channel) is None:
            if path == "/metrics":
                text = state["requests"] + gauge_lines([_NOT_READY])
                await Response(text, media_type=CONTENT_TYPE)(scope, receive, send)
                return
            raise HttpError(503, f"Unavailable: {_RESTARTING}", {"Retry-After": "5"})
        number, responses = next(self._numbers), asyncio.Queue[Message | None]()
        self._responses[number] = responses
        channel.send({"number": number, "method": scope["method"], "path": path, "state": state})
        disconnecting = asyncio.ensure_future(wait_for_disconnect(receive))
        disconnect = {"number": number, "disconnected": True}
        disconnecting.add_done_callback(lambda task: None if task.cancelled() else channel.send(disconnect))
        try:
            await self._relay(responses, send)
        except BaseException:
            channel.send(disconnect)
            raise
        finally:
            disconnecting.cancel()
            del self._responses[number]

    async def _relay(self, responses: "asyncio.Queue[Message | None]", send: Send) -> None:
        end, started, more = asyncio.get_running_loop().time() + self.admission.deadline + _GRACE, False, True
        while more:
            try:
                async with asyncio.timeout_at(end):
                    message = await responses.get()
            except TimeoutError:
                message = None
            if started and (message is None or "broken" in message[0]):
                return  # this closes the connection: the response is incomplete
            if message is None:
                raise HttpError(503, f"Unavailable: {_RESTARTING}", {"Retry-After": "5"})
            head, body = message
            if "status" in head:
                headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
                await send({"type": "http.response.start", "status": head["status"], "headers": headers})
                started = True
            more = head["more"]
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _ping(channel: Channel) -> None:
    while True:
        channel.send({"number": -1})
        await asyncio.sleep(_PING_INTERVAL)
