"""Health checks: every second each model runs a short test text, and its folder must still exist.

The test text takes the same code path, in the same thread, as requests do: a translation, generated tokens, a label or
an embedding. Failures of requests count too: several in a row make the server unhealthy, whatever the test text gives.
A missing model folder is unhealthy because the server could not restart. A full disk is only a warning: the server
writes nothing.
"""

import asyncio
import math
import shutil
import time
from typing import Any

from heed.errors import HeedError
from heed.fallbacks import fallbacks
from heed.inference.classifier import Classification
from heed.inference.generator import Generation
from heed.inference.translation import Translation
from heed.search_config import SearchConfig
from heed.serving.batcher import CancelToken, Job, JobType, ThreadEndedError
from heed.serving.jobs import ClassificationJobType, EmbeddingJobType, GenerationJobType, TranslationJobType
from heed.serving.models import ServedModel, ServedTranslator
from heed.serving.service import Service

_INTERVAL, _TIMEOUT = 1.0, 3.0  # seconds; together below 5, the limit for a fault to show
_MAX_AGE = 4.5  # seconds after which a check is out of date
_MAX_FAILURES = 5  # consecutive: then the texts are not to blame
_FAILURE_MEMORY = 30.0  # seconds for which failures count if no further request comes
_MIN_FREE_BYTES = 1 << 20  # below this the disk counts as full


class HealthMonitor:
    """Result of the last check of the models; `check_forever` repeats the check."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._problem: str | None = "The models have not been checked yet"
        self._checked_at = self._worked_at = time.monotonic()
        self.warning: str | None = None  # shown to the operator; the server still works

    @property
    def problem(self) -> str | None:
        """Why the server is unhealthy; None: it is healthy."""
        if not self._service.alive:
            return "An inference thread has ended"
        if self._problem is None and (age := time.monotonic() - self._checked_at) > _MAX_AGE:
            return f"The models have not been checked for {age:.0f} s"
        return self._problem or self._failure_problem()

    @property
    def notes(self) -> list[str]:
        """Fast paths that are unavailable on this machine, with their fallbacks."""
        return fallbacks()

    @property
    def backends(self) -> dict[str, str]:
        """The backend of each model, and why it was chosen."""
        return {model.name: str(model.choice) for model in self._service.models}

    @property
    def seconds_failing(self) -> float:
        """Seconds since the models last worked; infinite if an inference thread has ended."""
        return math.inf if not self._service.alive else time.monotonic() - self._worked_at

    async def check_forever(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL)
            await self.check()

    async def check(self) -> None:
        """Check all models and folders once."""
        self._problem = await self._check_models()

    def _failure_problem(self) -> str | None:
        failures = self._service.batcher.failures
        if failures.in_a_row < _MAX_FAILURES or time.monotonic() - failures.last > _FAILURE_MEMORY:
            return None
        return f"The last {failures.in_a_row} texts failed: {failures.error}"

    async def _check_models(self) -> str | None:
        if self._service.batcher.seconds_without_progress > _TIMEOUT:  # one of several: the others answer
            return "An inference thread does not respond"
        for model in self._service.models:
            try:
                score = await self._score(model)
            except TimeoutError:
                return "An inference thread does not respond"
            except ThreadEndedError:
                return "An inference thread has ended"
            except Exception as error:  # whatever it is, checking must go on
                return f"{model.name} fails: {type(error).__name__}"
            if not math.isfinite(score):
                return f"{model.name} returns {score} for a test sentence: its weights are damaged"
            self._checked_at = time.monotonic()
        if self._failure_problem() is None:
            self._worked_at = time.monotonic()
        return await self._check_folders()

    async def _check_folders(self) -> str | None:
        warning = None
        for model in self._service.models:
            try:
                if not await asyncio.to_thread((model.path / "manifest.json").is_file):
                    return f"The folder of {model.name} does not exist any more"
                if (await asyncio.to_thread(shutil.disk_usage, model.path)).free < _MIN_FREE_BYTES:
                    warning = f"The disk of {model.name} is full"
            except OSError as error:
                return f"The folder of {model.name} cannot be read: {error.strerror or type(error).__name__}"
        self.warning = warning
        return None

    async def _score(self, model: ServedModel) -> float:
        """A number that is finite if the model works; jumps the queue, since a busy server is not unhealthy."""
        cancel_token = CancelToken()
        job: Job[Any] = Job(cancel_token, 0, _probe(model), "a", arrived=-math.inf, counted=False)
        try:
            self._service.batcher.submit([job])
            return _finite_if_sound(await asyncio.wait_for(asyncio.wrap_future(job.future), _TIMEOUT))
        except HeedError:
            return math.nan
        finally:
            cancel_token.cancelled = True


def _probe(model: ServedModel) -> JobType:
    """The job type of this model's requests, limited to a few tokens."""
    if isinstance(model, ServedTranslator):
        return TranslationJobType(model.translator, _few_tokens(model.translator.search))
    if model.generator is not None:
        return GenerationJobType(model.generator, _few_tokens(model.generator.search))
    if model.classifier is not None:
        return ClassificationJobType(model.classifier, model.tokenizer)
    return EmbeddingJobType(model.model, model.tokenizer, model.max_tokens)


def _few_tokens(search: SearchConfig) -> SearchConfig:
    return search.model_copy(update={"max_length": 4, "min_length": 0, "nbest": 1})


def _finite_if_sound(result: Translation | Generation | Classification | list[float]) -> float:
    """A number that is NaN or infinite if a weight behind the result is."""
    if isinstance(result, Translation | Generation):
        return result.log_prob
    return sum(result.probabilities.values() if isinstance(result, Classification) else result)
