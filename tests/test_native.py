"""How the compiled kernels come about: built once, kept in a cache, never taken from others, or done without."""

import logging
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kerbs_fairseq.functional.backends import build as native
from kerbs_fairseq.functional.backends.cpu import is_compiled
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex

needs_compiler = pytest.mark.skipif(native.native().library is None, reason=native.native().reason)


# --- compiling


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty cache."""
    monkeypatch.setenv("KERBS_CACHE", str(tmp_path / "cache"))
    native.native.cache_clear()
    yield tmp_path / "cache"
    monkeypatch.undo()
    native.native.cache_clear()


def small_loss() -> Tensor:
    torch.manual_seed(0)
    senses = Senses(torch.randn(6, 4), torch.randn(6), torch.randn(6), SenseIndex(torch.arange(6) % 2, 2))
    return chunked_loss(torch.randn(2, 4), senses, torch.tensor([0, 1])).loss


@needs_compiler
def test_compiled_once_and_kept(fresh: Path) -> None:
    small_loss()
    (library,) = fresh.iterdir()
    written = library.stat().st_mtime_ns
    native.native.cache_clear()
    small_loss()
    assert [path.stat().st_mtime_ns for path in fresh.iterdir()] == [written]


@needs_compiler
def test_several_at_once_leave_one_whole_library(fresh: Path) -> None:
    threads = [threading.Thread(target=native.compiled) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(list(fresh.iterdir())) == 1
    assert native.native().library is not None


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return path


def test_a_compiler_that_fails_is_named_and_torch_takes_over(
    fresh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = small_loss()
    cxx = script(tmp_path / "broken-c++", '[ "$1" = --version ] && exit 0; echo "cannot find crt1.o" >&2; exit 1')
    monkeypatch.setenv("CXX", str(cxx))
    native.native.cache_clear()
    with caplog.at_level(logging.WARNING):
        torch.testing.assert_close(small_loss(), expected)
        small_loss()
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)  # said once
    assert "cannot find crt1.o" in record.getMessage()
    assert "plain torch" in record.getMessage()
    assert not list(fresh.glob("*/*.o"))


def test_without_a_compiler_torch_takes_over(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    native.native.cache_clear()
    assert native.native().library is None
    assert "install" in native.native().reason
    assert small_loss().isfinite()


def test_it_can_be_switched_off(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERBS_NATIVE", "0")
    native.native.cache_clear()
    assert not is_compiled(torch.zeros(1))
    assert small_loss().isfinite()
    assert not fresh.exists()


@needs_compiler
def test_a_cache_that_cannot_be_written_is_replaced(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.parent.joinpath("file").write_text("")
    monkeypatch.setenv("KERBS_CACHE", str(fresh.parent / "file" / "below"))
    native.native.cache_clear()
    assert native.native().library is not None


@needs_compiler
def test_a_broken_library_is_built_again(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_loss()
    (path,) = fresh.iterdir()
    broken = fresh.parent / "another" / path.name  # the path is what a process knows a library by
    broken.parent.mkdir(mode=0o700)
    broken.write_bytes(b"")
    monkeypatch.setenv("KERBS_CACHE", str(broken.parent))
    native.native.cache_clear()
    assert native.native().library is not None
    assert broken.stat().st_size == path.stat().st_size


@needs_compiler
@pytest.mark.parametrize("which", ["folder", "file"])
def test_what_others_can_write_is_not_loaded(fresh: Path, which: str) -> None:
    small_loss()
    (path,) = fresh.iterdir()
    (fresh if which == "folder" else path).chmod(0o777)
    native.native.cache_clear()
    assert str(fresh) not in native.native().reason


@needs_compiler
def test_a_user_without_a_home(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.delenv("KERBS_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    native.native.cache_clear()
    assert native.native().library is not None
