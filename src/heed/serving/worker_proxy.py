"""The worker as an ASGI application: requests to another process, and its answers back.

The process that listens does all of HTTP and no arithmetic; the worker does the rest (`worker`). A message holds a
request's method, path and fields. The answer comes as an ASGI application gives it: a status and headers, then the
body, in parts where it is streamed. When a client disconnects, the worker is told.

A worker that ends is started again. Requests that it was working on are answered with 503.
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
from heed.serving.http_errors import HttpError, answer
from heed.serving.limits import Admission, disconnected
from heed.serving.metrics import CONTENT_TYPE, Gauge, gauge_lines
from heed.serving.processes import Channel, Message, received
from heed.serving.request_middleware import WORKING

_LOG = logging.getLogger(__name__)
_GRACE = 5.0  # seconds after the deadline within which the worker must have answered
_PING_EVERY, _SILENCE = 5.0, 60.0  # seconds: between pings, and without any message until the worker is killed
_PAUSES = (0.0, 1.0, 5.0, 30.0)  # seconds before a worker is started, by how many have failed to start
_GONE = "the process that translates has ended and is being started again"
_NOT_READY = Gauge("heed_ready", "1 if the models work.", 0.0)


class WorkerProxy:
    """An ASGI application that a worker answers for. start: starts a worker and returns the socket to it."""

    def __init__(self, start: Callable[[], socket], config: ServeConfig) -> None:
        self._start, self.admission = start, Admission(config.queue, config.deadline)
        self.starts = 0
        self._channel: Channel | None = None
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Queue[Message | None]] = {}
        self._process: int | None = None
        self._first = self._start()

    def open(self) -> list[str]:
        """Wait until the models are open, or say why they cannot be; notes about them."""
        match received(self._first):
            case ({"ready": process, "notes": notes}, _):
                self._process = process
                return list(notes)
            case ({"error": error}, _):
                raise ConfigError(str(error))
            case _:
                raise ConfigError("the process that translates ended while it opened the models; see above")

    async def keep(self) -> None:
        """Receive answers, and start another worker whenever one ends."""
        await self._receive_answers(await Channel.over(self._first))
        failed = 0
        while not self.admission.closed:
            _LOG.critical(_GONE)
            await asyncio.sleep(_PAUSES[min(failed, len(_PAUSES) - 1)])
            channel = await Channel.over(self._start())
            match await channel.receive():  # which takes as long as opening the models does
                case ({"ready": process}, _):
                    self._process, failed = process, 0
                    await self._receive_answers(channel)
                case message:
                    _LOG.critical("it cannot open the models: %s", message and message[0].get("error"))
                    failed += 1
                    channel.close()

    async def _receive_answers(self, channel: Channel) -> None:
        """Until the worker ends; if it is silent for long, it is killed."""
        self._channel, self.starts = channel, self.starts + 1
        pinging = asyncio.ensure_future(_ping(channel))
        try:
            while True:
                async with asyncio.timeout(_SILENCE):
                    message = await channel.receive()
                if message is None:
                    return
                if (waiting := self._answers.get(message[0]["number"])) is not None:
                    waiting.put_nowait(message)
        except TimeoutError:
            _LOG.critical("the process that translates does not answer")
            if self._process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
        finally:
            pinging.cancel()
            self._channel = None
            channel.close()
            for waiting in self._answers.values():
                waiting.put_nowait(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        is_work = scope["method"] == "POST" and scope["path"] in WORKING
        try:
            async with self.admission.place() if is_work else contextlib.nullcontext():
                await self._forward(scope, receive, send)
        except HttpError as problem:
            await answer(problem)(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        keeping = asyncio.ensure_future(self.keep())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.admission.closed = True
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        await send({"type": "lifespan.shutdown.complete"})

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, state = scope["path"], dict(scope.get("state", {}))
        if self.admission.closed and path == "/health/ready":
            raise HttpError(503, "This server is shutting down")
        if path == "/metrics":
            starts = Gauge("heed_worker_starts_total", "Starts of the process that translates.", self.starts, "counter")
            state["requests"] += gauge_lines([starts])
        if (channel := self._channel) is None:
            if path == "/metrics":
                text = state["requests"] + gauge_lines([_NOT_READY])
                await Response(text, media_type=CONTENT_TYPE)(scope, receive, send)
                return
            raise HttpError(503, f"Out of order: {_GONE}", {"Retry-After": "5"})
        number, answers = next(self._numbers), asyncio.Queue[Message | None]()
        self._answers[number] = answers
        channel.send({"number": number, "method": scope["method"], "path": path, "state": state})
        leaving = asyncio.ensure_future(disconnected(receive))
        gone = {"number": number, "gone": True}
        leaving.add_done_callback(lambda left: None if left.cancelled() else channel.send(gone))
        try:
            await self._relay(answers, send)
        except BaseException:
            channel.send(gone)
            raise
        finally:
            leaving.cancel()
            del self._answers[number]

    async def _relay(self, answers: "asyncio.Queue[Message | None]", send: Send) -> None:
        end, started, more = asyncio.get_running_loop().time() + self.admission.deadline + _GRACE, False, True
        while more:
            try:
                async with asyncio.timeout_at(end):
                    message = await answers.get()
            except TimeoutError:
                message = None
            if started and (message is None or "broken" in message[0]):
                return  # which closes the connection: the answer is incomplete
            if message is None:
                raise HttpError(503, f"Out of order: {_GONE}", {"Retry-After": "5"})
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
        await asyncio.sleep(_PING_EVERY)
