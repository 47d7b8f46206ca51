"""What a model can be trained to do, by the name in `data.task`; the only place that tells tasks apart."""

from heed.config import RunConfig
from heed.training.tasks.base import Task
from heed.training.tasks.classify import ClassificationTask
from heed.training.tasks.language_model import LanguageModelTask
from heed.training.tasks.masked import MaskedLMTask
from heed.training.tasks.translate import TranslationTask


def task_named(name: str, masked_share: float = 0.15) -> Task:
    """The task of a name in `data.task`."""
    tasks: dict[str, Task] = {
        "translate": TranslationTask(),
        "language-model": LanguageModelTask(),
        "masked": MaskedLMTask(masked_share),
        "classify": ClassificationTask(),
    }
    return tasks[name]


def task_of(config: RunConfig) -> Task:
    """The task of a run."""
    return task_named(config.data.task, config.training.masked_share)
