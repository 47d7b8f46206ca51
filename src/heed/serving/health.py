"""Whether the server can do its work: asked of the models themselves, every second, not assumed.

Each model must give a number for a sentence, by the thread that does all translating; each folder must still be there,
for a server whose model is gone would not come back after its next start. A disk that is full does this server no harm,
since it writes nothing: it is mentioned, and the work goes on.
"""

import asyncio
import math
import shutil
import time
from collections.abc import Callable
from functools import partial

from heed.errors import HeedError
from heed.serving.batcher import Job, Ticket, WorkerGoneError
from heed.serving.halves import Half
from heed.serving.models import Served
from heed.serving.service import Service

_EVERY, _PATIENCE = 1.0, 3.0  # seconds; together less than the five in which a fault is to show
_STALE = 4.5  # seconds after which what was found out is not believed any more
_FULL = 1 << 20  # bytes: with less than that a disk is as good as full


class Health:
    """What is wrong, if anything; `watch` keeps it up to date."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._problem: str | None = "The models have not been tried yet"
        self._tried = time.monotonic()
        self.warning: str | None = None  # what the operator should see to, while all is well

    @property
    def problem(self) -> str | None:
        """What is wrong with the models or their thread."""
        if not self._service.alive:
            return "The thread that translates has ended"
        if self._problem is None and (past := time.monotonic() - self._tried) > _STALE:
            return f"The models have not been tried for {past:.0f} s"
        return self._problem

    async def watch(self) -> None:
        """Look after the models for ever."""
        while True:
            await asyncio.sleep(_EVERY)
            await self.look()

    async def look(self) -> None:
        """Try everything once, and remember what was found."""
        self._problem = await self._found()

    async def _found(self) -> str | None:
        warning = None
        for model in self._service.models:
            try:
                if not await asyncio.to_thread((model.path / "manifest.json").is_file):
                    return f"The folder of {model.name} is gone"
                if (await asyncio.to_thread(shutil.disk_usage, model.path)).free < _FULL:
                    warning = f"The disk of {model.name} is full"
                score = await self._score(model)
            except TimeoutError:
                return "The thread that translates does not answer"
            except WorkerGoneError:
                return "The thread that translates has ended"
            except Exception as error:  # whatever it is, the next look must come
                return f"{model.name} fails: {type(error).__name__}"
            if not math.isfinite(score):
                return f"{model.name} gives {score} for a sentence: its weights are damaged"
            self._tried = time.monotonic()
        self.warning = warning
        return None

    async def _score(self, model: Served | Half) -> float:
        """By the thread that translates, before anything that waits: a busy server is not a broken one."""
        ticket = Ticket()
        job = Job(ticket, 0, errand=partial(_try, model), arrived=-math.inf)
        try:
            self._service.batcher.submit([job])
            return await asyncio.wait_for(asyncio.wrap_future(job.future), _PATIENCE)
        finally:
            ticket.gone = True


def _try(model: Served | Half, _between: Callable[[], None]) -> float:
    try:
        return model.tried()
    except HeedError:
        return math.nan
