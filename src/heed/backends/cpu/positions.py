"""Positional encodings for compiled code: `HeedPositions` of `csrc/heed.h`, as tables of the first positions.

Enters: a model's settings and, for learned positions, their weights. Leaves: structures that C reads. The reference is
`model/positions.py`. Knows nothing of torch.
"""

import ctypes
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heed.backends.cpu.pointers import array_pointer
from heed.config import ModelConfig
from heed.model.limits import check_length

_FIRST_POSITIONS = 256


class PositionsStruct(ctypes.Structure):
    """`HeedPositions` in C: the encodings of the first positions; it keeps their arrays alive."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("embedding", "cos", "sin")),
        ("count", ctypes.c_int64),
    ]
    kept: tuple[NDArray[Any], ...]


class PositionTables(NamedTuple):
    """The encodings of positions 0, 1, …: embeddings to add, or rotations of a head."""

    embedding: NDArray[np.float32] | None  # (count, D)
    cos: NDArray[np.float32] | None = None  # (count, K / 2)
    sin: NDArray[np.float32] | None = None


class EncodedPositions:
    """Positional encodings, computed for more positions as they are needed. learned: the weights of learned ones."""

    def __init__(self, config: ModelConfig, learned: NDArray[np.float32] | None) -> None:
        self._config = config
        self._tables = PositionTables(learned) if learned is not None else position_tables(config, _FIRST_POSITIONS)

    def struct(self, count: int) -> PositionsStruct:
        """The encodings of positions 0 to at least `count` - 1."""
        check_length(self._config, count)
        tables = self._tables
        if count > len(next(table for table in tables if table is not None)):
            tables = self._tables = position_tables(self._config, 2 * count)
        kept = [table for table in tables if table is not None]
        addresses = (None if table is None else array_pointer(table, np.float32, *table.shape) for table in tables)
        struct = PositionsStruct(*addresses, len(kept[0]))
        struct.kept = tuple(kept)
        return struct


def position_tables(config: ModelConfig, count: int) -> PositionTables:
    """Sinusoidal or rotary encodings of the first positions; the angles are computed in float64."""
    is_rotary = config.positions == "rotary"
    width = config.head_width if is_rotary else config.d_model
    angles = np.arange(count)[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)
    cos, sin = np.cos(angles), np.sin(angles)
    if is_rotary:
        return PositionTables(None, cos.astype(np.float32), sin.astype(np.float32))
    return PositionTables(np.stack((sin, cos), -1).reshape(count, width).astype(np.float32))
