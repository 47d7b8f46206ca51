"""The version number of heed."""

__version__ = "0.1.0"
