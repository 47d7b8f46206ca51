"""Requests to work: how many at a time, for how long, and only while someone waits for the answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.types import Receive

from heed.serving.batcher import Ticket
from heed.serving.problems import Problem

T = TypeVar("T")


class HungUpError(Exception):
    """The client has gone: there is nobody to answer."""


class Admission:
    """The places for requests. A request that finds none is refused at once, before any work is done for it."""

    def __init__(self, places: int, deadline: float) -> None:
        self._places, self._deadline = places, deadline
        self.taken = 0
        self.closed = False  # the server is ending: what is in work is finished, and nothing new is begun

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Ticket]:
        """A place while the block lasts; after it the ticket is void, and whatever was still being done for it ends."""
        if (busy := self.busy()) is not None:
            raise busy
        self.taken += 1
        ticket = Ticket()
        try:
            yield ticket
        finally:
            ticket.gone = True
            self.taken -= 1

    def busy(self) -> Problem | None:
        """What to say when there is no place; asked before a request's body is read."""
        if self.closed:
            return Problem(503, "This server is shutting down", {"Retry-After": "5", "Connection": "close"})
        if self.taken < self._places:
            return None
        return Problem(503, f"Too busy: {self.taken} requests are waiting already", {"Retry-After": "1"})

    async def work(self, receive: Receive, do: Callable[[Ticket], Awaitable[T]]) -> T:
        """Do something for a request whose body has been read, in the time there is, while its client waits."""
        async with self.place() as ticket:
            working = asyncio.ensure_future(do(ticket))
            leaving = asyncio.ensure_future(_left(receive))
            try:
                await asyncio.wait({working, leaving}, timeout=self._deadline, return_when=asyncio.FIRST_COMPLETED)
                if working.done():
                    return working.result()
                if leaving.done():
                    raise HungUpError
                raise self.late()
            finally:
                working.cancel()
                leaving.cancel()

    def late(self) -> Problem:
        """What to say when the time is up."""
        return Problem(504, f"No answer within {self._deadline:g} s: send less text at a time, or try later")

    @property
    def deadline(self) -> float:
        """Seconds that a request may take."""
        return self._deadline


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
