"""Whether the server can do its work: the models are run every second, nothing is assumed.

Each model runs a short text through the same code, in the same thread, as requests do: a translation, the next tokens
of a text, a label, an embedding. Real failures count too: several texts of requests in a row are a problem, whatever
the short text gave. Each folder must still be there, for a server whose model is gone would not start again. A full
disk does no harm to this server, which writes nothing: it is a warning.
"""

import asyncio
import math
import shutil
import time
from typing import Any

from heed.config import SearchConfig
from heed.errors import HeedError
from heed.fallbacks import fallbacks
from heed.inference.classifier import Classification
from heed.inference.generator import Generation
from heed.inference.translation import Translation
from heed.serving.batcher import CancelToken, Job, JobType, WorkerGoneError
from heed.serving.jobs import ClassificationJobType, EmbeddingJobType, GenerationJobType, TranslationJobType
from heed.serving.models import ServedModel, ServedTranslator
from heed.serving.service import Service

_EVERY, _PATIENCE = 1.0, 3.0  # seconds; together less than the five within which a fault must show
_STALE = 4.5  # seconds after which a result is out of date
_FAILURES = 5  # in a row: then it is not the texts' fault
_REMEMBERED = 30.0  # seconds for which failures count if no other request comes
_FULL = 1 << 20  # bytes free: less is a full disk


class HealthMonitor:
    """The last check of the models; `watch` repeats it."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._problem: str | None = "The models have not been tried yet"
        self._tried = self._worked = time.monotonic()
        self.warning: str | None = None  # for the operator; the server still works

    @property
    def problem(self) -> str | None:
        """Why the server cannot work; None: it can."""
        if not self._service.alive:
            return "The thread that translates has ended"
        if self._problem is None and (past := time.monotonic() - self._tried) > _STALE:
            return f"The models have not been tried for {past:.0f} s"
        return self._problem or self._failing()

    @property
    def notes(self) -> list[str]:
        """Fast code that does not run here, and what runs instead."""
        return fallbacks()

    @property
    def backends(self) -> dict[str, str]:
        """Which backend runs each model, and why."""
        return {model.name: str(model.choice) for model in self._service.models}

    @property
    def sick_for(self) -> float:
        """Seconds since the models last worked, where opening them again may help."""
        return math.inf if not self._service.alive else time.monotonic() - self._worked

    async def watch(self) -> None:
        """Check for ever."""
        while True:
            await asyncio.sleep(_EVERY)
            await self.look()

    async def look(self) -> None:
        """Check every model and folder once."""
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

    async def _score(self, model: ServedModel) -> float:
        """In the thread that translates, ahead of its queue: a busy server is not a broken one."""
        cancel_token = CancelToken()
        job: Job[Any] = Job(cancel_token, 0, _trial(model), "a", arrived=-math.inf, counts=False)
        try:
            self._service.batcher.submit([job])
            return _number(await asyncio.wait_for(asyncio.wrap_future(job.future), _PATIENCE))
        except HeedError:
            return math.nan
        finally:
            cancel_token.cancelled = True


def _trial(model: ServedModel) -> JobType:
    """The job type of this model's requests, with a short search."""
    if isinstance(model, ServedTranslator):
        return TranslationJobType(model.translator, _short(model.translator.search))
    if model.generator is not None:
        return GenerationJobType(model.generator, _short(model.generator.search))
    if model.classifier is not None:
        return ClassificationJobType(model.classifier, model.tokenizer)
    return EmbeddingJobType(model.model, model.tokenizer, model.max_tokens)


def _short(search: SearchConfig) -> SearchConfig:
    return search.model_copy(update={"max_length": 4, "min_length": 0, "nbest": 1})


def _number(found: Translation | Generation | Classification | list[float]) -> float:
    """A number that is not finite if a weight behind the result is not."""
    if isinstance(found, Translation | Generation):
        return found.log_prob
    return sum(found.probabilities.values() if isinstance(found, Classification) else found)
