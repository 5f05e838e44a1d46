"""Disks that are full: a tmpfs where one can be mounted, limits of file sizes elsewhere."""

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import BIN, MOVING, PACKAGE, QUICK, SMALL_LSTM, launch, run, start, twin, weights
from fairseq import checkpoint_utils

from kerbs_fairseq.runs.errors import UserError

SIZE = 3_000_000


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a tmpfs cannot be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, left: int) -> Path:
    """Leave so many bytes."""
    state = os.statvfs(folder)
    path = folder / "filler"
    path.write_bytes(bytes(max(0, state.f_bavail * state.f_frsize - left)))
    return path


@pytest.mark.e2e
def test_a_full_disk_loses_no_checkpoint_and_no_move(small: Path, tmp_path: Path, pairs: Path) -> None:
    command = (
        f"fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_LSTM)} {QUICK} {MOVING} --save-interval 9 --max-update"
    )
    places = f"--save-dir {small} --kerbs-move-log {small}/moves.tsv"
    run(f"{command} 6 {places}")
    before = {path.name: path.read_bytes() for path in small.iterdir()}
    filler = fill(small, 100)
    done = start(f"{command} 12 {places}")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "Training goes on; moves are added to the table when" in done.stdout + done.stderr
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith(f"kerbs_fairseq: cannot write {small}/checkpoint_")
    assert "No space left on device. Checkpoints that were there are whole: make room" in last
    after = {path.name: path.read_bytes() for path in small.iterdir() if path != filler}
    assert after.pop("moves.tsv").startswith(before.pop("moves.tsv"))
    assert after == before
    filler.unlink()
    run(f"{command} 12 {places}")
    run(f"{command} 12 --save-dir {tmp_path}/whole --kerbs-move-log {tmp_path}/moves.tsv")
    assert (small / "moves.tsv").read_bytes() == (tmp_path / "moves.tsv").read_bytes()
    saved, expected = weights(small), weights(tmp_path / "whole")
    assert all(torch.equal(saved[name], value) for name, value in expected.items())


# --- tools that write a model: the checkpoint they were given, their folder, and the rest of their command line

TOOLS = {
    "kerbs-convert": "kerbs-convert {0}/checkpoint_last.pt {1}/out --data {2}",
    "kerbs-export": "kerbs-export {0}/checkpoint_last.pt -o {1}/out --data {2} --beam 2",
    "kerbs-average": "kerbs-average {0}/checkpoint_last.pt {0}/checkpoint_best.pt --output {1}/out",
}
# As root may do everything: without its capabilities it is a user that owns its files.
ORDINARY_USER = """
import ctypes, runpy, sys
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.e2e
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_on_a_full_disk(small: Path, transformer: Path, pairs: Path, tool: str) -> None:
    (small / "out").write_bytes(b"before")
    before = (transformer / "checkpoint_last.pt").read_bytes()
    filler = fill(small, 30_000)
    done = start(TOOLS[tool].format(transformer, small, pairs))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"{tool}: cannot write {small}/out: No space left on device"
    assert sorted(small.iterdir()) == [filler, small / "out"]
    assert (small / "out").read_bytes() == b"before"
    assert (transformer / "checkpoint_last.pt").read_bytes() == before


@pytest.mark.e2e
@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_in_a_folder_of_others(tmp_path: Path, transformer: Path, pairs: Path, tool: str) -> None:
    name, *arguments = TOOLS[tool].format(transformer, tmp_path, pairs).split()
    tmp_path.chmod(0o555)
    done = launch([str(BIN / "python"), "-c", ORDINARY_USER, str(BIN / name), *arguments])
    tmp_path.chmod(0o755)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == f"{tool}: cannot write {tmp_path}/out: Permission denied"
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """No file can become larger than this."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)


def test_a_checkpoint_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    last, best = tmp_path / "checkpoint_last.pt", tmp_path / "checkpoint_best.pt"
    last.write_bytes(b"old")
    best.write_bytes(bytes(5000))
    for write in (
        lambda: checkpoint_utils.torch_persistent_save({"model": torch.zeros(4000)}, str(last)),
        lambda: checkpoint_utils.PathManager.copy(str(best), str(last), overwrite=True),
    ):
        with limited(2000), pytest.raises(UserError, match=r"cannot write .*checkpoint_last\.pt: "):
            write()
        assert {path.name: path.stat().st_size for path in tmp_path.iterdir()} == {last.name: 3, best.name: 5000}
        write()
        assert last.stat().st_size >= 5000
        last.write_bytes(b"old")
