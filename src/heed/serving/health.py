"""Whether the server can do its work: asked of the models themselves, every second, not assumed.

Each model must give a number for a sentence, by the thread that does all translating; each folder must still be there,
for a server whose model is gone would not come back after its next start.
"""

import asyncio
import math
from collections.abc import Callable
from functools import partial

from heed.errors import HeedError
from heed.serving.batcher import Job, Ticket, WorkerGoneError
from heed.serving.models import Served
from heed.serving.service import Service

_EVERY, _PATIENCE = 1.0, 3.5  # seconds; together less than the five in which a fault is to show


class Health:
    """What is wrong, if anything; `watch` keeps it up to date."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._problem: str | None = "The models have not been tried yet"

    @property
    def problem(self) -> str | None:
        """What is wrong with the models or their thread."""
        return self._problem if self._service.batcher.alive else "The thread that translates has ended"

    async def watch(self) -> None:
        """Look after the models for ever."""
        while True:
            self._problem = await self.look()
            await asyncio.sleep(_EVERY)

    async def look(self) -> str | None:
        """Try everything once."""
        for model in self._service.directions.served:
            if not await asyncio.to_thread((model.path / "manifest.json").is_file):
                return f"The folder of {model.name} is gone"
            ticket = Ticket()
            job = Job(ticket, 1, errand=partial(_try, model))
            try:
                self._service.batcher.submit([job])
                score = await asyncio.wait_for(asyncio.wrap_future(job.future), _PATIENCE)
            except TimeoutError:
                return "The thread that translates does not answer"
            except WorkerGoneError:
                return "The thread that translates has ended"
            except Exception as error:
                return f"{model.name} fails: {type(error).__name__}"
            finally:
                ticket.gone = True
            if not math.isfinite(score):
                return f"{model.name} gives {score} for a log-probability: its weights are damaged"
        return None


def _try(model: Served, _between: Callable[[], None]) -> float:
    try:
        return model.translator.score(["a"], ["a"])[0]
    except HeedError:
        return math.nan
