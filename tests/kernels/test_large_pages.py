import mmap
import sys

import pytest
import torch

from heed.kernels import large_pages
from heed.kernels.large_pages import LargePages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="large pages are asked for on Linux only")


def test_what_is_taken_lies_apart_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_PIECE", 4096)
    pages = LargePages()
    given = [torch.randn(7, 3), torch.arange(5, dtype=torch.int8), torch.randn(40, 50), torch.empty(0), torch.randn(9)]
    taken = [pages.like(numbers).copy_(numbers) for numbers in given]  # one of them larger than a piece
    del pages
    for own, numbers in zip(taken, given, strict=True):
        assert torch.equal(own, numbers)
        assert own.dtype == numbers.dtype
        assert own.data_ptr() % 64 == 0


def test_a_system_without_large_pages_gives_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # which no system knows
    assert LargePages().like(torch.ones(8)).fill_(2.0).sum() == 16
