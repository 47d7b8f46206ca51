import mmap
import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from heed.backends import memory as large_pages
from heed.backends.memory import HugePages
from heed.fallbacks import fallbacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are requested on Linux only")


RANDOM = np.random.default_rng(1)


def copied(pages: HugePages, array: NDArray[Any]) -> NDArray[Any]:
    copy = pages.empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def test_allocated_arrays_are_aligned_do_not_overlap_and_outlive_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_pages, "_MAPPING", 4096)
    pages = HugePages()
    arrays: list[NDArray[Any]] = [
        RANDOM.random((7, 3)),
        np.arange(5, dtype=np.int8),
        RANDOM.random((40, 50), np.float32),
        np.empty(0, np.float32),
        RANDOM.random(9, np.float32),
    ]
    copies = [copied(pages, array) for array in arrays]  # one of them is larger than a mapping
    del pages
    for copy, array in zip(copies, arrays, strict=True):
        assert np.array_equal(copy, array)
        assert copy.dtype == array.dtype
        assert copy.ctypes.data % 64 == 0


def test_a_system_without_large_pages_uses_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # an advice that no system supports
    assert copied(HugePages(), np.full(8, 2.0)).sum() == 16


@pytest.mark.parametrize("missing", ["MADV_HUGEPAGE", "MAP_PRIVATE"], ids=["macOS", "Windows"])
def test_a_system_without_the_calls_of_linux_allocates_ordinary_memory(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    monkeypatch.delattr(mmap, missing, raising=False)
    assert copied(HugePages(), np.full(8, 2.0)).sum() == 16


def test_a_failed_mapping_falls_back_to_small_pages_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    pages = HugePages()
    arrays: list[NDArray[Any]] = [RANDOM.random((7, 3)), np.arange(5, dtype=np.int8)]
    for array in arrays:
        copy = copied(pages, array)
        assert np.array_equal(copy, array)
        assert copy.dtype == array.dtype
        assert copy.ctypes.data % 64 == 0
    note = "weights are allocated in small memory pages, which are slower to read: [Errno 12] Cannot allocate memory"
    assert note in fallbacks()
