"""The compiled library: which instruction set is chosen, what is refused and reported, and its threads."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from heed.backends.cpu import library
from heed.backends.cpu.csrc import build
from heed.backends.cpu.library import NoEngineError, engine, missing_for_compiled_code, team
from heed.backends.cpu.linear import matmul
from heed.errors import ConfigError
from heed.fallbacks import fallbacks

needs_library = pytest.mark.skipif(missing_for_compiled_code() is not None, reason=str(missing_for_compiled_code()))


@pytest.fixture(autouse=True)
def _chosen_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("heed.fallbacks._noted", {})
    library._engine.cache_clear()
    yield
    library._engine.cache_clear()


def test_where_there_is_a_compiler_the_library_is_built_and_up_to_date() -> None:
    if not any(map(shutil.which, ("gcc", "cc", "clang"))):
        pytest.skip("there is no C compiler")
    assert missing_for_compiled_code() is None, "run make setup"


@needs_library
def test_the_fastest_instruction_set_is_chosen() -> None:
    isas = library._open(library.LIBRARY).heed_isas().decode().split()
    assert isas[-1] == "portable"
    for isa in isas[: isas.index(engine().isa)]:
        assert not library._open(library.LIBRARY).heed_engine(isa.encode())


@needs_library
@pytest.mark.parametrize("isa", ["avx9", "AVX2", "portable "])
def test_an_unknown_instruction_set_is_an_error_that_lists_the_known_ones(
    isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEED_ISA", isa)
    with pytest.raises(ConfigError, match=f"HEED_ISA = '{isa}' is not one of .*portable, which heed was built for"):
        engine()


@needs_library
def test_an_instruction_set_that_the_processor_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = [
        isa
        for isa in library._open(library.LIBRARY).heed_isas().decode().split()
        if not library._open(library.LIBRARY).heed_engine(isa.encode())
    ]
    if not absent:
        pytest.skip("this processor has all instruction sets")
    monkeypatch.setenv("HEED_ISA", absent[0])
    with pytest.raises(ConfigError, match=f"HEED_ISA = '{absent[0]}' cannot be used: this processor does not have it"):
        engine()


@needs_library
def test_an_instruction_set_whose_self_test_fails_is_passed_over_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    fastest, loaded = engine().isa, library._open(library.LIBRARY)
    results = iter([1])
    loaded.heed_self_test = lambda _functions: next(results, 0)  # type: ignore[attr-defined]
    monkeypatch.setattr(library, "_open", lambda _file: loaded)
    library._engine.cache_clear()
    assert engine().isa != fastest
    assert fallbacks() == [f"the compiled code for {fastest} is not used: its self-test failed on this processor"]
    results = iter([1] * 100)
    library._engine.cache_clear()
    assert missing_for_compiled_code() == "the self-tests of the compiled code failed on this processor"


@needs_library
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGILL")
def test_code_that_dies_of_an_illegal_instruction_fails_its_self_test_only(tmp_path: Path) -> None:
    file = tmp_path / "illegal.c"
    file.write_text("int die(void) { __builtin_trap(); }\nint live(void) { return 0; }\n")
    build._run([*build.find_compiler(), "-shared", "-fPIC", "-o", f"{tmp_path}/illegal.so", str(file)])
    illegal, loaded = ctypes.CDLL(f"{tmp_path}/illegal.so"), library._open(library.LIBRARY)
    for name, passes in (("die", False), ("live", True)):
        function = library._FUNCTIONS["self_test"](ctypes.cast(getattr(illegal, name), ctypes.c_void_p).value or 0)
        functions = library._EngineStruct(b"illegal", function)
        assert (loaded.heed_self_test(ctypes.byref(functions)) == 0) is passes


def test_without_the_library_torch_runs_and_a_note_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "LIBRARY", Path("no-such-library"))
    reason = "heed was installed without its C library; install it again where there is a C compiler"
    assert [missing_for_compiled_code() for _ in range(3)] == [reason] * 3
    assert fallbacks() == [f"torch operators are used instead of compiled C, which is faster: {reason}"]
    with pytest.raises(NoEngineError, match=reason):
        engine()


@needs_library
def test_a_library_built_from_other_sources_is_not_used_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "sources_digest", lambda: "of sources that were edited since")
    assert "was built from other sources than those in csrc: run make setup or pip install" in str(
        missing_for_compiled_code()
    )
    assert "other sources" in fallbacks()[0]


def test_the_digest_depends_on_every_source_and_its_name(tmp_path: Path) -> None:
    shutil.copytree(build.SOURCES, tmp_path / "csrc")
    digests = {build.sources_digest(), build.sources_digest(tmp_path / "csrc")}
    assert len(digests) == 1
    for file in (*tmp_path.glob("csrc/*.[ch]"), tmp_path / "csrc" / "build.py"):
        file.write_bytes(file.read_bytes() + b"\n")
        digests.add(build.sources_digest(tmp_path / "csrc"))
    (tmp_path / "csrc" / "heed.c").rename(tmp_path / "csrc" / "other.c")
    digests.add(build.sources_digest(tmp_path / "csrc"))
    assert len(digests) == len([*tmp_path.glob("csrc/*.[ch]")]) + 3


@pytest.mark.parametrize(
    ("compiler", "message"),
    [("no-such-compiler", "no-such-compiler cannot be run"), ("false", "false -dumpmachine failed with exit code 1")],
)
def test_a_compiler_that_fails_is_named(compiler: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=message):
        build.build(tmp_path / "engine.so", [compiler])


def test_the_compiler_is_cc_or_the_first_one_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "ccache gcc -m64")
    assert build.find_compiler() == ["ccache", "gcc", "-m64"]
    monkeypatch.delenv("CC")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name == "clang" else None)
    assert build.find_compiler() == ["/bin/clang"]
    monkeypatch.setattr("shutil.which", lambda _name: None)
    with pytest.raises(build.BuildError, match="there is no C compiler"):
        build.find_compiler()


# ---- threads ---------------------------------------------------------------------------------------------------------


@needs_library
def test_calls_from_several_threads_at_once_share_a_pool_or_start_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    a, b = torch.randn(60, 70), torch.randn(70, 50)
    expected = matmul(a, b)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: matmul(a, b), range(200)))
    assert all(torch.equal(result, expected) for result in results)
    assert team()[0] == team(2)[0]
    assert team(1) == (None, 1)


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="torch for Linux has GNU's OpenMP runtime")
def test_training_uses_the_threads_of_torchs_operators() -> None:
    """A pool beside torch's spinning threads made training with two threads on two cores as slow as with one."""
    script = """
import os, torch
from heed.backends.cpu.linear import matmul
torch.set_num_threads(3)
a, b = torch.rand(300, 200), torch.rand(200, 100)
a.mul_(0.5), a @ b
before = len(os.listdir("/proc/self/task"))
torch.testing.assert_close(matmul(a, b), a @ b)
print(before, len(os.listdir("/proc/self/task")))
torch.set_num_threads(1)
torch.testing.assert_close(matmul(a, b), a @ b)
"""
    before, after = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout.split()
    assert after == before


@needs_library
def test_without_torchs_threads_training_has_a_pool_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 3)
    monkeypatch.setattr(library, "_pools", library._Pools())
    monkeypatch.setattr(library, "_openmp_of_torch", lambda: None)
    a, b = torch.randn(60, 70), torch.randn(70, 50)
    assert library.team_of_torch() == team()
    torch.testing.assert_close(matmul(a, b), a @ b)


@needs_library
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_the_child_of_a_fork_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    a, b = torch.randn(60, 70), torch.randn(70, 50)
    expected, parent = matmul(a, b), team()[0]
    child = os.fork()
    if child == 0:
        has_own = team()[0] is not None and library._pools._opened.keys() == {2}
        os._exit(0 if has_own and torch.equal(matmul(a, b), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert team()[0] == parent
    assert threading.active_count() >= 1
