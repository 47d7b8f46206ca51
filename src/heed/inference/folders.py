"""Model folders that are to translate. One that was taught something else says so, and what it is for."""

from pathlib import Path

from heed.artifacts.folder import ModelFolder, read_model_folder
from heed.errors import InputError

# By what a model was taught: the verbs for it, and the same in Python.
_FOR = {
    "language-model": ("heed generate, evaluate, look and serve", "heed.Generator.open"),
    "masked": ("heed embed, look, serve and train --init-from", "heed.inference.classifier.embed"),
    "classify": ("heed classify, embed, evaluate, look and serve", "heed.Classifier.open"),
}


def read_translating_folder(path: str | Path) -> ModelFolder:
    """A model folder whose model translates."""
    folder = read_model_folder(Path(path))
    kind, task = folder.run.model.kind, folder.run.data.task
    if kind != "encoder-decoder":
        verbs, python = _FOR.get(task, ("heed look", "heed.look_into"))
        raise InputError(
            f"{path} is {'a' if kind == 'decoder' else 'an'} {kind} alone, trained with task = {task!r}, and does not "
            f"translate: it is for {verbs}; in Python, {python}"
        )
    return folder
