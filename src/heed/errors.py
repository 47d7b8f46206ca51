"""The exceptions heed raises on purpose, all of one family.

    HeedError
    ├── ConfigError    a setting is unknown, malformed or cannot be honoured
    └── InputError     ids, shapes or lengths handed to a model are wrong

Each message says what was found, what was expected and, where it is not plain, what to do. The command line prints
one as ``error: …`` and exits with code 2; any other exception is a defect of heed and keeps its traceback.
"""


class HeedError(Exception):
    """Something the caller can put right."""


class ConfigError(HeedError):
    """A setting is unknown, malformed or cannot be honoured."""


class InputError(HeedError):
    """Ids, shapes or lengths handed to a model are wrong."""
