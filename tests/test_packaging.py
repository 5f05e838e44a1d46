"""Wheels, plain and editable: the boot shim is in them, works, and goes away with them."""

import csv
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from commands import PACKAGE

pytestmark = pytest.mark.e2e

ROOT = PACKAGE.parent
HOST_SITE = sysconfig.get_paths()["purelib"]
PIP = "-m pip --disable-pip-version-check --quiet"
START_FAIRSEQ = "import sys; sys.argv[1:] = ['--help']; from fairseq_cli.train import cli_main; cli_main()"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, so that building leaves nothing in the checkout."""
    folder = tmp_path_factory.mktemp("source") / "project"
    ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "demo-out")
    shutil.copytree(ROOT, folder, ignore=ignored)
    return folder


def python(venv: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [str(venv / "bin" / "python"), *arguments], capture_output=True, text=True, check=False, cwd=venv
    )


def pip(venv: Path, arguments: str) -> None:
    done = python(venv, *PIP.split(), *arguments.split())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A new environment that borrows the packages of this one, but none of its .pth files."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "host.pth").write_text(f"{HOST_SITE}\n")
    return folder


def files_of(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "host" not in path.name}


@pytest.mark.parametrize("editable", [False, True], ids=["plain", "editable"])
def test_install_works_and_uninstall_leaves_nothing(source: Path, venv: Path, editable: bool) -> None:
    before = files_of(venv)
    started = python(venv, "-c", START_FAIRSEQ)
    if sys.version_info >= (3, 11):
        assert "mutable default" in started.stderr, "without the shim fairseq must not start"
    pip(
        venv,
        f"install --no-deps --no-build-isolation --ignore-installed {'--editable' if editable else ''} {source}",
    )
    started = python(venv, "-c", START_FAIRSEQ)
    assert started.returncode == 0, started.stderr
    assert "usage:" in started.stdout
    assert python(venv, "-c", "import kerbs_fairseq; print(kerbs_fairseq.__file__)").stdout.startswith(
        str(source if editable else venv)
    )
    pip(venv, "uninstall --yes kerbs-fairseq")
    assert files_of(venv) == before


def test_record_lists_every_file_of_the_wheel(source: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *PIP.split(), "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        listed = [row[0] for row in csv.reader(archive.read(record).decode().splitlines())]
    assert sorted(listed) == sorted(names)
    assert len(set(names)) == len(names)
    assert {"_kerbs_fairseq_boot.py", "kerbs_fairseq.pth", "kerbs_fairseq/py.typed"} <= set(names)
    assert {"kerbs_fairseq/functional/backends/cpu.cpp", "kerbs_fairseq/evaluation/arms.txt"} <= set(names)
    assert {f"kerbs_fairseq/report/page.{kind}" for kind in ("css", "html", "js")} <= set(names)
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "kerbs_fairseq",
        "_kerbs_fairseq_boot.py",
        "kerbs_fairseq.pth",
    }
