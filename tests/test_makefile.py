"""make in places where it cannot work: one clear line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import on_device
import pytest
from commands import PACKAGE

ROOT = PACKAGE.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what set-up depends on, without an environment."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("requirements", "boot", "build_support"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


def fake_python(folder: Path, script: str) -> Path:
    path = folder / "fake-python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def make(checkout: Path, target: str, python: object, *more: str) -> subprocess.CompletedProcess:
    command = ["make", target, f"PYTHON={python}", *more]
    unwanted = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", on_device.VARIABLE)
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False, env=env)


@pytest.mark.parametrize("target", ["setup", "test", "demo", "lint"])
def test_without_python(checkout: Path, target: str) -> None:
    done = make(checkout, target, checkout / "no-such-python")
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("make: needs Python 3.10 or newer ")
    assert done.stdout == ""
    assert not (checkout / ".venv").exists()


def test_with_an_old_python(checkout: Path) -> None:
    old = fake_python(checkout, "exit 1")  # what the version check gives on Python 3.9
    done = make(checkout, "setup", old)
    assert done.returncode != 0
    assert "needs Python 3.10 or newer" in done.stderr.splitlines()[0]


def test_without_venv(checkout: Path) -> None:
    bare = fake_python(checkout, 'case "$2" in *ensurepip*) exit 1;; esac')
    done = make(checkout, "setup", bare)
    assert done.returncode != 0
    assert "install its venv package" in done.stderr.splitlines()[0]
    assert not (checkout / ".venv").exists()


@pytest.mark.skipif(on_device.torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu() -> None:
    """With the environment of these tests, taken as it is (-o)."""
    done = make(ROOT, "test-gpu", sys.executable, f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.ready")
    assert done.returncode != 0
    first, second = done.stderr.splitlines()
    assert first.startswith("KERBS_TEST_DEVICE=cuda: torch ")
    assert "finds no GPU here; with KERBS_TEST_DEVICE=cpu the same tests run on a CPU" in first
    assert second.startswith("make: ***")
    assert done.stdout == ""


def test_a_device_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gpu", "mps", "0"):
        monkeypatch.setenv(on_device.VARIABLE, name)
        assert on_device.missing() == f"KERBS_TEST_DEVICE={name}: there are cpu, cuda and cuda:NUMBER"
    monkeypatch.setenv(on_device.VARIABLE, "cuda:7")
    monkeypatch.setattr(on_device.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(on_device.torch.cuda, "device_count", lambda: 2)
    assert on_device.missing() == "KERBS_TEST_DEVICE=cuda:7: torch numbers the GPUs here from 0 to 1"
    monkeypatch.setenv(on_device.VARIABLE, "cuda:1")
    assert not on_device.missing()


def test_help_names_the_targets(checkout: Path) -> None:
    out = make(checkout, "help", "python3").stdout
    for target in ("make demo", "make test", "make lint", "make setup"):
        assert target in out
    assert "torch first" not in out, "comments of the rules are not part of the help"
