"""The exceptions that heed raises for errors the user can fix, all subclasses of HeedError.

    HeedError
    ├── ConfigError    a setting is unknown, malformed or cannot be honoured
    ├── DataError      a text, or a file of text, is invalid
    ├── FolderError    a model folder or checkpoint is missing, damaged or of another format
    ├── TrainingError  training cannot continue
    └── InputError     ids, shapes or lengths passed to a model are wrong

Each message says what was found, what was expected and, where it is not obvious, what to do. The command line prints it
as ``error: …`` and exits with code 2; any other exception is a bug in heed and keeps its traceback.
"""


class HeedError(Exception):
    """An error that the caller can fix."""


class ConfigError(HeedError):
    """A setting is unknown, malformed or cannot be honoured."""


class DataError(HeedError):
    """A text, or a file of text, is invalid."""


class InputError(HeedError):
    """Ids, shapes or lengths passed to a model are wrong."""


class FolderError(HeedError):
    """A model folder or checkpoint is missing, damaged or of another format."""


class TrainingError(HeedError):
    """Training cannot continue."""
