"""The build backend: setuptools, with the boot shim added to the root of every wheel that it builds.

A ``.pth`` file works only in the root of site-packages, and setuptools has no supported way to put a file there, least
of all in an editable install. A wheel is a zip file with a list of its contents (RECORD), so the shim is added to the
finished wheel, plain or editable, and listed there like any other file: pip and uv then install and remove it.
"""

import base64
import csv
import hashlib
import io
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Optional

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  (the hooks that stay as they are)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

ROOT = Path(__file__).resolve().parent.parent
BOOT = ROOT / "boot"
BOOT_FILES = ("_kerbs_fairseq_boot.py", "kerbs_fairseq.pth")
Settings = Optional[dict[str, Any]]


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """PEP 517: build a wheel and return its file name."""
    shutil.rmtree(ROOT / "build" / "lib", ignore_errors=True)  # else deleted modules would be in the wheel
    name = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    add_boot_files(Path(wheel_directory) / name)
    return name


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: Optional[str] = None
) -> str:
    """PEP 660: build an editable wheel and return its file name."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    add_boot_files(Path(wheel_directory) / name)
    return name


def add_boot_files(wheel: Path) -> None:
    """Rewrite ``wheel`` with the boot files in its root and in its RECORD."""
    with tempfile.TemporaryDirectory() as scratch:
        rewritten = Path(scratch) / wheel.name
        with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(rewritten, "w", zipfile.ZIP_DEFLATED) as new:
            record_name = next(n for n in old.namelist() if n.endswith(".dist-info/RECORD"))
            for item in old.infolist():
                if item.filename != record_name:
                    new.writestr(item, old.read(item))
            rows = io.StringIO(old.read(record_name).decode("utf-8"))
            record = [row for row in csv.reader(rows) if row and row[0] != record_name]
            for name in BOOT_FILES:
                content = (BOOT / name).read_bytes()
                new.writestr(name, content)
                digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                record.append([name, f"sha256={digest}", str(len(content))])
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerows([*record, [record_name, "", ""]])
            new.writestr(record_name, out.getvalue())
        shutil.move(str(rewritten), wheel)
