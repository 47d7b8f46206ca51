"""Whether the server can do its work: asked of the models themselves, every second, not assumed.

Each model must do with a short text what its requests have done with theirs, by the same code in the same thread: a
translation, the next tokens of a text, a label, an embedding. What really failed counts too: several requests' texts in
a row are a problem, whatever became of the short one. Each folder must still be there, for a server whose model is gone
would not come back after its next start. A disk that is full does this server no harm, since it writes nothing: it is
mentioned, and the work goes on.
"""

import asyncio
import math
import shutil
import time
from typing import Any

from heed.config import SearchConfig
from heed.errors import HeedError
from heed.fallbacks import fallbacks
from heed.inference.classifier import Classified
from heed.inference.generator import Generated
from heed.inference.translation import Translation
from heed.serving.batcher import Job, Kind, Ticket, WorkerGoneError
from heed.serving.halves import Half
from heed.serving.kinds import Classifying, Embedding, Translating, Writing
from heed.serving.models import Served
from heed.serving.service import Service

_EVERY, _PATIENCE = 1.0, 3.0  # seconds; together less than the five in which a fault is to show
_STALE = 4.5  # seconds after which what was found out is not believed any more
_FAILURES = 5  # in a row: then it is not the texts
_REMEMBERED = 30.0  # seconds for which such failures count, if nothing else is asked
_FULL = 1 << 20  # bytes: with less than that a disk is as good as full


class Health:
    """What is wrong, if anything; `watch` keeps it up to date."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._problem: str | None = "The models have not been tried yet"
        self._tried = self._worked = time.monotonic()
        self.warning: str | None = None  # what the operator should see to, while all is well

    @property
    def problem(self) -> str | None:
        """What is wrong with the models or their thread."""
        if not self._service.alive:
            return "The thread that translates has ended"
        if self._problem is None and (past := time.monotonic() - self._tried) > _STALE:
            return f"The models have not been tried for {past:.0f} s"
        return self._problem or self._failing()

    @property
    def notes(self) -> list[str]:
        """What works otherwise than it was meant to: slower code in the place of code that does not run here."""
        return fallbacks()

    @property
    def sick_for(self) -> float:
        """Seconds since the models last worked, as far as opening them again might help."""
        return math.inf if not self._service.alive else time.monotonic() - self._worked

    async def watch(self) -> None:
        """Look after the models for ever."""
        while True:
            await asyncio.sleep(_EVERY)
            await self.look()

    async def look(self) -> None:
        """Try everything once, and remember what was found."""
        self._problem = await self._found()

    def _failing(self) -> str | None:
        failures = self._service.batcher.failures
        if failures.in_a_row < _FAILURES or time.monotonic() - failures.last > _REMEMBERED:
            return None
        return f"The last {failures.in_a_row} texts failed: {failures.error}"

    async def _found(self) -> str | None:
        for model in self._service.models:
            try:
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
        if self._failing() is None:
            self._worked = time.monotonic()
        return await self._found_in_folders()

    async def _found_in_folders(self) -> str | None:
        warning = None
        for model in self._service.models:
            try:
                if not await asyncio.to_thread((model.path / "manifest.json").is_file):
                    return f"The folder of {model.name} is gone"
                if (await asyncio.to_thread(shutil.disk_usage, model.path)).free < _FULL:
                    warning = f"The disk of {model.name} is full"
            except OSError as error:
                return f"The folder of {model.name} cannot be read: {error.strerror or type(error).__name__}"
        self.warning = warning
        return None

    async def _score(self, model: Served | Half) -> float:
        """By the thread that translates, before anything that waits: a busy server is not a broken one."""
        ticket = Ticket()
        job: Job[Any] = Job(ticket, 0, _trial(model), "a", arrived=-math.inf, counts=False)
        try:
            self._service.batcher.submit([job])
            return _number(await asyncio.wait_for(asyncio.wrap_future(job.future), _PATIENCE))
        except HeedError:
            return math.nan
        finally:
            ticket.gone = True


def _trial(model: Served | Half) -> Kind:
    """What is done with texts of requests to this model, made short."""
    if isinstance(model, Served):
        return Translating(model.translator, _short(model.translator.search))
    if model.generator is not None:
        return Writing(model.generator, _short(model.generator.search))
    if model.classifier is not None:
        return Classifying(model.classifier, model.tokenizer)
    return Embedding(model.model, model.tokenizer, model.max_tokens)


def _short(search: SearchConfig) -> SearchConfig:
    return search.model_copy(update={"max_length": 4, "min_length": 0, "nbest": 1})


def _number(found: Translation | Generated | Classified | list[float]) -> float:
    """A number that depends on every weight that the result does."""
    if isinstance(found, Translation | Generated):
        return found.log_prob
    return sum(found.probabilities.values() if isinstance(found, Classified) else found)
