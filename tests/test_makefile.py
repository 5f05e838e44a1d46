"""make in places where it cannot work: one clear line."""

import os
import shutil
import subprocess
from pathlib import Path

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


def make(checkout: Path, target: str, python: object) -> subprocess.CompletedProcess:
    command = ["make", target, f"PYTHON={python}"]
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
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


def test_help_names_the_targets(checkout: Path) -> None:
    out = make(checkout, "help", "python3").stdout
    for target in ("make demo", "make test", "make lint", "make setup"):
        assert target in out
    assert "torch first" not in out, "comments of the rules are not part of the help"
