"""The training tasks by their name in `data.task`: translate, language-model, masked, classify."""

from heed.config import RunConfig
from heed.training.tasks.base import Task
from heed.training.tasks.classify import ClassificationTask
from heed.training.tasks.language_model import LanguageModelTask
from heed.training.tasks.masked import MaskedLMTask
from heed.training.tasks.translate import TranslationTask


def task_named(name: str, masked_share: float = 0.15) -> Task:
    """The task with this name in `data.task`. masked_share: share of tokens selected by the task `masked`."""
    tasks: dict[str, Task] = {
        "translate": TranslationTask(),
        "language-model": LanguageModelTask(),
        "masked": MaskedLMTask(masked_share),
        "classify": ClassificationTask(),
    }
    return tasks[name]


def task_of(config: RunConfig) -> Task:
    return task_named(config.data.task, config.training.masked_share)
