"""An answer piece by piece: server-sent events, which have a place for as long as they last."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from heed.serving.admission import Admission
from heed.serving.batcher import Ticket
from heed.serving.problems import as_problem


class Events(StreamingResponse):
    """Events that end when their client goes, however far they are."""

    def __init__(self, admission: Admission, events: Callable[[Ticket], AsyncGenerator[bytes]]) -> None:
        super().__init__((), media_type="text/event-stream")
        self._admission, self._events = admission, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Begin once there is a place: a refusal comes before anything is sent, and so with its status."""
        async with self._admission.place() as ticket, aclosing(self._events(ticket)) as events:
            self.body_iterator = events
            await super().__call__(scope, receive, send)


@dataclass
class Outcome:
    """What is known of a stream when it is over."""

    truncated: bool = False  # the length limit ended it


async def as_events(texts: AsyncGenerator[str], name: str, outcome: Outcome, whole: str = "") -> AsyncGenerator[bytes]:
    """Each text as an event, and all of them as the last, by this name; when the client goes, it is closed at a yield.

    whole: what there is before the first text.
    """
    try:
        async with aclosing(texts):
            async for text in texts:
                whole += text
                yield _event(None, {"text": text})
    except Exception as error:
        yield _event("error", {"error": as_problem("POST", error).error})
    else:
        yield _event("done", {name: whole, **({"truncated": True} if outcome.truncated else {})})


def _event(name: str | None, data: dict[str, Any]) -> bytes:
    return (f"event: {name}\n" if name else "").encode() + f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
