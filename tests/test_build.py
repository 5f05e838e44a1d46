"""The library of compiled kernels: compiled once, kept, and never loaded if it is damaged or somebody else's."""

import ctypes
import logging
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerbs_fairseq.cli import doctor
from kerbs_fairseq.functional.backends import build

pytestmark = pytest.mark.skipif(build.native().library is None, reason=build.native().reason)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache, and a source that compiles at once."""
    source = tmp_path / "small.cpp"
    source.write_text("".join(f'extern "C" void {name}() {{}}\n' for name in build.FUNCTIONS))
    monkeypatch.setattr(build, "SOURCE", source)
    monkeypatch.setenv("KERBS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    build.native.cache_clear()
    yield tmp_path / "cache"
    monkeypatch.undo()
    build.native.cache_clear()


def again() -> build.Native:
    """As in another process."""
    build.native.cache_clear()
    return build.native()


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_compiled_once_and_kept(cache: Path) -> None:
    assert build.native().library is not None
    (library,) = cache.iterdir()
    written = library.stat().st_mtime_ns
    assert str(library) in again().reason
    assert [path.stat().st_mtime_ns for path in cache.iterdir()] == [written]


def test_several_at_once_leave_one_whole_library(cache: Path) -> None:
    threads = [threading.Thread(target=build.compiled) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(cache.iterdir())) == 1
    assert build.native().library is not None


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "longer"])
def test_a_damaged_library_is_compiled_again(cache: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    cxx, name = build.compiler(), "kernels-0"
    cache.mkdir(mode=0o700)
    path = build.build(cxx, cache, name)  # never loaded: a process knows a library by its path
    whole = path.read_bytes()
    flipped = whole[:1000] + bytes([whole[1000] ^ 255]) + whole[1001:]
    path.write_bytes(
        {"empty": b"", "cut": whole[: len(whole) // 2], "flipped": flipped, "longer": whole + b"x"}[damage]
    )
    again, library = build.library(cxx, cache, name)
    assert again.read_bytes() == whole
    assert isinstance(library, ctypes.CDLL)
    assert warnings_of(caplog) == [f"{path} is damaged: it is compiled again"]


def test_other_processors_and_compilers_have_other_libraries(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, _), cxx = build.compiled(), build.compiler()
    assert "__OPTIMIZE__" in build.processor(cxx)
    monkeypatch.setattr(build, "processor", lambda cxx: "#define __AVX9__ 1")
    (second, _) = build.compiled()
    monkeypatch.setenv("CXX", f"{cxx[0]} -DOTHER")
    (third, _) = build.compiled()
    assert len({first, second, third}) == 3


def test_a_compiler_that_fails_is_named_and_torch_takes_over(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cxx = script(tmp_path / "broken-c++", 'case "$*" in *-c*) echo "cannot find crt1.o" >&2; exit 1; esac')
    monkeypatch.setenv("CXX", str(cxx))
    for _ in range(2):
        assert build.native().library is None
    (line,) = warnings_of(caplog)  # said once
    assert "cannot find crt1.o" in line
    assert "plain torch" in line
    assert list(cache.iterdir()) == []


def test_a_compiler_that_hangs_is_given_up_with_all_that_it_started(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    monkeypatch.setattr(build, "BUILD_SECONDS", 0.5)
    monkeypatch.setenv("CXX", str(script(tmp_path / "slow", 'case "$*" in *-c*) sleep 60; esac')))
    assert "slow was stopped after 0.5 seconds" in build.native().reason
    assert time.monotonic() - began < 30


def test_without_a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build.native().library is None
    assert "install" in build.native().reason


def test_it_can_be_switched_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERBS_NATIVE", "0")
    assert build.native() == (None, "switched off by KERBS_NATIVE=0")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("CXX", "no-such-compiler -O1", "CXX=no-such-compiler -O1 is ignored: there is no program no-such-compiler"),
        ("CXX", 'c++ "', 'CXX=c++ " is ignored'),
        ("KERBS_NATIVE", "yes", "KERBS_NATIVE=yes is ignored: it can be 0 or 1"),
        ("KERBS_CACHE", "{folder}/small.cpp", "small.cpp: File exists"),
        ("KERBS_CACHE", "{folder}/small.cpp/below", "below: Not a directory"),
        ("KERBS_CACHE", "{folder}/open", "open can be written by others"),
        ("KERBS_CACHE", "{folder}/link", "link can be written by others"),
        ("KERBS_CACHE", "{folder}/open/mine", "which mine is in, can be written by others"),
    ],
)
def test_settings_that_are_ignored_are_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, value: str, said: str
) -> None:
    (cache.parent / "open" / "mine").mkdir(parents=True, mode=0o700)
    (cache.parent / "open").chmod(0o777)
    (cache.parent / "link").symlink_to("open")
    monkeypatch.setenv(variable, value.format(folder=cache.parent))
    assert build.native().library is not None
    (line,) = warnings_of(caplog)
    assert said in line
    assert not list((cache.parent / "open").rglob("*.so"))


def test_a_compiler_with_arguments(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "env c++ -DKERBS")
    assert build.compiler() == ["env", "c++", "-DKERBS"]
    assert build.native().library is not None


@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_can_write_is_not_loaded(cache: Path, which: str) -> None:
    assert build.native().library is not None
    (path,) = cache.iterdir()
    (cache if which == "folder" else path).chmod(0o777)
    assert str(cache) not in again().reason


def test_a_user_without_a_home(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.delenv("KERBS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.native().library is not None


def test_the_doctor_tries_the_load_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a whole library that ends the process that loads it, as one for another processor does."""
    python = script(tmp_path / "python", "echo 'KERBS_NATIVE=x is ignored' >&2; kill -SEGV $$")
    monkeypatch.setattr(sys, "executable", str(python))
    doctor.trial.cache_clear()
    assert doctor.trial() == ("unknown, the trial was ended by SIGSEGV", ["KERBS_NATIVE=x is ignored"], True)
    assert "KERBS_NATIVE=x is ignored" in list(doctor.devices())
    assert any("ended by SIGSEGV; remove the cache" in line for line in doctor.problems())
    doctor.trial.cache_clear()


@pytest.mark.e2e
def test_the_trial_is_a_program(tmp_path: Path) -> None:
    env = {**os.environ, "KERBS_NATIVE": "0"}
    done = subprocess.run([sys.executable, build.__file__], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("switched off by KERBS_NATIVE=0\n", "")
