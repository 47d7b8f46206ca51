import mmap
import sys

import pytest
import torch

from heed.backends import memory as large_pages
from heed.backends.memory import HugePages
from heed.fallbacks import fallbacks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux only")


def test_what_is_taken_lies_apart_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_MAPPING", 4096)
    pages = HugePages()
    given = [torch.randn(7, 3), torch.arange(5, dtype=torch.int8), torch.randn(40, 50), torch.empty(0), torch.randn(9)]
    taken = [pages.empty_like(numbers).copy_(numbers) for numbers in given]  # one of them larger than a piece
    del pages
    for own, numbers in zip(taken, given, strict=True):
        assert torch.equal(own, numbers)
        assert own.dtype == numbers.dtype
        assert own.data_ptr() % 64 == 0


def test_a_system_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # which no system knows
    assert HugePages().empty_like(torch.ones(8)).fill_(2.0).sum() == 16


def test_where_a_large_mapping_is_not_to_be_had_only_what_is_needed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    pages = HugePages()
    for given in (torch.randn(7, 3), torch.arange(5, dtype=torch.int8)):
        taken = pages.empty_like(given).copy_(given)
        assert torch.equal(taken, given)
        assert taken.dtype == given.dtype
        assert taken.data_ptr() % 64 == 0
    note = "weights are allocated in small memory pages, which are slower to read: [Errno 12] Cannot allocate memory"
    assert note in fallbacks()
