import mmap
import sys

import pytest
import torch

from heed.backends import memory as large_pages
from heed.backends.memory import HugePages
from heed.fallbacks import fallbacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are requested on Linux only")


def test_allocated_tensors_are_aligned_do_not_overlap_and_outlive_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_pages, "_MAPPING", 4096)
    pages = HugePages()
    tensors = [
        torch.randn(7, 3),
        torch.arange(5, dtype=torch.int8),
        torch.randn(40, 50),
        torch.empty(0),
        torch.randn(9),
    ]
    copies = [pages.empty_like(tensor).copy_(tensor) for tensor in tensors]  # one of them is larger than a mapping
    del pages
    for copy, tensor in zip(copies, tensors, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.dtype == tensor.dtype
        assert copy.data_ptr() % 64 == 0


def test_a_system_without_large_pages_uses_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # an advice that no system supports
    assert HugePages().empty_like(torch.ones(8)).fill_(2.0).sum() == 16


@pytest.mark.parametrize("missing", ["MADV_HUGEPAGE", "MAP_PRIVATE"], ids=["macOS", "Windows"])
def test_a_system_without_the_calls_of_linux_allocates_ordinary_memory(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    monkeypatch.delattr(mmap, missing, raising=False)
    assert HugePages().empty_like(torch.ones(8)).fill_(2.0).sum() == 16


def test_a_failed_mapping_falls_back_to_small_pages_and_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    pages = HugePages()
    for tensor in (torch.randn(7, 3), torch.arange(5, dtype=torch.int8)):
        copy = pages.empty_like(tensor).copy_(tensor)
        assert torch.equal(copy, tensor)
        assert copy.dtype == tensor.dtype
        assert copy.data_ptr() % 64 == 0
    note = "weights are allocated in small memory pages, which are slower to read: [Errno 12] Cannot allocate memory"
    assert note in fallbacks()
