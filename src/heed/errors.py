"""The exceptions heed raises on purpose, all of one family.

    HeedError
    ├── ConfigError    a setting is unknown, malformed or cannot be honoured
    ├── DataError      text or a file of it cannot be read as it should
    ├── FolderError    a model folder or checkpoint is missing, damaged or of another format
    ├── TrainingError  a run cannot go on
    └── InputError     ids, shapes or lengths handed to a model are wrong

Each message says what was found, what was expected and, where it is not plain, what to do. The command line prints
one as ``error: …`` and exits with code 2; any other exception is a defect of heed and keeps its traceback.
"""


class HeedError(Exception):
    """Something the caller can put right."""


class ConfigError(HeedError):
    """A setting is unknown, malformed or cannot be honoured."""


class DataError(HeedError):
    """Text or a file of it cannot be read as it should."""


class InputError(HeedError):
    """Ids, shapes or lengths handed to a model are wrong."""


class FolderError(HeedError):
    """A model folder or checkpoint is missing, damaged or of another format."""


class TrainingError(HeedError):
    """A run cannot go on."""
