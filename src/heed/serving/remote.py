"""Requests to another process and its answers back: an ASGI application without models.

The server's process does all of HTTP and no arithmetic; the one that translates does the rest (`worker`). A message
says what a request asks for: its method, its path and its fields. The answer comes as an ASGI application gives it: a
status and headers, then the body, in parts where it is streamed. When a client goes, the other process is told.

The process that translates is started again when it ends. What it was working on is answered with 503.
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
from heed.serving.channel import Channel, Message, received
from heed.serving.config import ServeConfig
from heed.serving.entrance import WORKING
from heed.serving.logs import NAME
from heed.serving.metrics import CONTENT_TYPE, Gauge, gauge_lines
from heed.serving.problems import Problem, answer

_LOG = logging.getLogger(NAME)
_GRACE = 5.0  # seconds after its deadline within which the other process must have answered
_EVERY, _SILENCE = 5.0, 60.0  # seconds: how often it is asked whether it is there, and when it must have answered
_PAUSES = (0.0, 1.0, 5.0, 30.0)  # seconds before a process is started, by how many have failed to
_GONE = "the process that translates has ended and is being started again"


_NOT_READY = Gauge("heed_ready", "1 if the models work.", 0.0)


def _starts(count: int) -> Gauge:
    return Gauge("heed_worker_starts_total", "Starts of the process that translates.", count, "counter")


class Remote:
    """An ASGI application that another process answers for. start: starts one and returns the socket to it."""

    def __init__(self, start: Callable[[], socket], config: ServeConfig) -> None:
        self._start, self._queue, self.deadline = start, config.queue, config.deadline
        self.taken = 0  # requests in work
        self.closed = False  # the server is ending: what is in work is finished, and nothing new is begun
        self.starts = 0
        self._channel: Channel | None = None
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Queue[Message | None]] = {}
        self._process: int | None = None
        self._first = self._start()

    def open(self) -> list[str]:
        """Wait until the models are open, or say why they cannot be; what there is to tell about them."""
        match received(self._first):
            case ({"ready": process, "notes": notes}, _):
                self._process = process
                return list(notes)
            case ({"error": error}, _):
                raise ConfigError(str(error))
            case _:
                raise ConfigError("the process that translates ended while it opened the models; see above")

    def busy(self) -> Problem | None:
        """What to say when there is no place; asked before a request's body is read."""
        if self.closed:
            return Problem(503, "This server is shutting down", {"Retry-After": "5", "Connection": "close"})
        if self.taken >= self._queue:
            return Problem(503, f"Too busy: {self.taken} requests are waiting already", {"Retry-After": "1"})
        return None

    async def keep(self) -> None:
        """Take answers in, and have the process started again whenever it ends."""
        await self._take_answers(await Channel.over(self._first))
        failed = 0
        while not self.closed:
            _LOG.critical(_GONE)
            await asyncio.sleep(_PAUSES[min(failed, len(_PAUSES) - 1)])
            channel = await Channel.over(self._start())
            match await channel.receive():  # which takes as long as opening the models does
                case ({"ready": process}, _):
                    self._process, failed = process, 0
                    await self._take_answers(channel)
                case message:
                    _LOG.critical("it cannot open the models: %s", message and message[0].get("error"))
                    failed += 1
                    channel.close()

    async def _take_answers(self, channel: Channel) -> None:
        """Until the process ends; if it is silent for long, it is ended."""
        self._channel, self.starts = channel, self.starts + 1
        asking = asyncio.ensure_future(_ask_whether_there(channel))
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
            asking.cancel()
            self._channel = None
            channel.close()
            for waiting in self._answers.values():
                waiting.put_nowait(None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        try:
            await self._have_answered(scope, receive, send)
        except Problem as problem:
            await answer(problem)(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        keeping = asyncio.ensure_future(self.keep())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.closed = True
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping
        await send({"type": "lifespan.shutdown.complete"})

    async def _have_answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, working = scope["path"], scope["method"] == "POST" and scope["path"] in WORKING
        if working and (busy := self.busy()) is not None:
            raise busy
        if self.closed and path == "/health/ready":
            raise Problem(503, "This server is shutting down")
        state = dict(scope.get("state", {}))
        if path == "/metrics":
            state["requests"] += gauge_lines([_starts(self.starts)])
        if (channel := self._channel) is None:
            if path == "/metrics":
                await Response(state["requests"] + gauge_lines([_NOT_READY]), media_type=CONTENT_TYPE)(
                    scope, receive, send
                )
                return
            raise Problem(503, f"Out of order: {_GONE}", {"Retry-After": "5"})
        number, answers = next(self._numbers), asyncio.Queue[Message | None]()
        self._answers[number] = answers
        self.taken += working
        channel.send({"number": number, "method": scope["method"], "path": path, "state": state})
        leaving = asyncio.ensure_future(_left(receive))
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
            self.taken -= working

    async def _relay(self, answers: "asyncio.Queue[Message | None]", send: Send) -> None:
        end, started, more = asyncio.get_running_loop().time() + self.deadline + _GRACE, False, True
        while more:
            try:
                async with asyncio.timeout_at(end):
                    message = await answers.get()
            except TimeoutError:
                message = None
            if started and (message is None or "broken" in message[0]):
                return  # which closes the connection: what was sent is not whole
            if message is None:
                raise Problem(503, f"Out of order: {_GONE}", {"Retry-After": "5"})
            head, body = message
            if "status" in head:
                headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in head["headers"]]
                await send({"type": "http.response.start", "status": head["status"], "headers": headers})
                started = True
            more = head["more"]
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _ask_whether_there(channel: Channel) -> None:
    while True:
        channel.send({"number": -1})
        await asyncio.sleep(_EVERY)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
