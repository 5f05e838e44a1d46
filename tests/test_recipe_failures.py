"""Recipes that are stopped, that save elsewhere, and archives that want more than to be unpacked."""

import io
import os
import signal
import stat
import subprocess
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Callable

import pytest
from recipe_scripts import FAKE_TRAINING, copied, fake, started

from kerbs_fairseq.corpora import command as corpus

WAITING = 'echo $$ >"$CALLS"; exec sleep 60'


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out" / "binary").mkdir(parents=True)
    return tmp_path / "out"


def until(condition: Callable[[], object]) -> None:
    """Wait for something that must happen soon."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(n, marks=pytest.mark.thorough) for n in (signal.SIGINT, signal.SIGHUP))]
)
def test_a_recipe_that_is_ended_ends_its_training(tmp_path: Path, out: Path, number: signal.Signals) -> None:
    calls = tmp_path / "calls"
    environment = {**fake(tmp_path / "bin", "fairseq-train", WAITING), "CALLS": str(calls)}
    train = copied(tmp_path) / "lm_1b" / "train.sh"
    command = ["bash", str(train), "gru-kerbs", "--out", str(out)]
    # signals that are ignored when a shell starts stay ignored, and tests may run in the background
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # fmt: skip  # noqa: PLW1509
    until(lambda: calls.is_file() and calls.read_text())
    training = int(calls.read_text())
    lock = out / "runs" / "gru-kerbs" / "seed_1" / ".lock"
    until(lambda: lock.read_text().split() == [str(process.pid), str(training)])
    if number == signal.SIGTERM:  # a second one waits for some seconds
        second = started(train, "gru-kerbs", "--out", out, **environment)
        assert second.returncode == 1
        assert f"wait for it, or stop it: kill {process.pid} {training}" in second.stderr
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 143
    until(lambda: not is_running(training))
    assert not (lock.parent / "trained").exists()


@pytest.mark.parametrize(
    ("options", "unsaved", "message"),
    [
        (["--save-dir", "elsewhere"], "", "-- --save-dir: the recipe itself says where"),
        pytest.param(
            ["--save-dir=elsewhere"], "", "-- --save-dir: the recipe itself says where", marks=pytest.mark.thorough
        ),
        (["--lr", "1", "--no-save"], "", "-- --no-save: the recipe itself says where"),
        (["--disable-validation"], "yes", "fairseq-train has left no checkpoint_best.pt in"),
        (["--no-save-optimizer-state"], "", ""),
    ],
)
def test_only_a_model_that_is_there_has_been_trained(
    tmp_path: Path, out: Path, options: list[str], unsaved: str, message: str
) -> None:
    environment = fake(tmp_path / "bin", "fairseq-train", FAKE_TRAINING)
    environment |= {"CALLS": str(tmp_path / "calls"), "FAIL": "", "UNSAVED": unsaved}
    train = copied(tmp_path) / "lm_1b" / "train.sh"
    done = started(train, "gru-kerbs", "--out", out, "--", *options, **environment)
    assert (done.returncode == 0) == (not message), done.stderr
    assert message in done.stderr
    assert (out / "runs" / "gru-kerbs" / "seed_1" / "trained").exists() == (not message)


# --- archives


def tarred(path: Path, *infos: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for info in infos:
            data = b"text\n" if info.isfile() else b""
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def entry(name: str, kind: bytes = tarfile.REGTYPE, **more: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.uid, info.gid = kind, 0o6777, 4321, 4321
    for key, value in more.items():
        setattr(info, key, value)
    return info


def unpack(archive: Path, to: Path, *options: str) -> str:
    """What the command ends with: "" if all went well."""
    try:
        corpus.main(["unpack", str(archive), str(to), *options])
    except SystemExit as stopped:
        return str(stopped.code)
    return ""


def test_files_of_archives_are_ours_and_nothing_but_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = [entry("link", tarfile.SYMTYPE, linkname="/etc"), entry("hard", tarfile.LNKTYPE, linkname="../x")]
    devices = [entry("pipe", tarfile.FIFOTYPE), entry("device", tarfile.CHRTYPE, devmajor=1, devminor=3)]
    archive = tarred(tmp_path / "a.tgz", entry("a", tarfile.DIRTYPE), entry("a/b.txt"), *links, *devices)
    assert unpack(archive, tmp_path / "out") == ""
    (file,) = (path for path in (tmp_path / "out").rglob("*") if not path.is_dir())
    assert file.read_text() == "text\n"
    state = file.stat()
    assert stat.S_IMODE(state.st_mode) & 0o6111 == 0
    assert state.st_uid == os.getuid()
    assert '"files": 1, "left_out": 4' in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "..", "a\\..\\..\\evil"])
@pytest.mark.parametrize("kind", ["tar", "zip", "inner"])
def test_a_path_that_leads_outside_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "zip":
        archive = tmp_path / "a.zip"
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("fine.txt", "text")
            file.writestr(name, "text")
    else:
        archive = tarred(tmp_path / "a.tgz", entry("fine.txt"), entry(name))
    if kind == "inner":
        with zipfile.ZipFile(tmp_path / "b.zip", "w") as file:
            file.write(archive, "a.tgz")
        archive = tmp_path / "b.zip"
    before = sorted(tmp_path.rglob("*"))
    message = unpack(archive, tmp_path / "out")
    assert "leads outside: it is not unpacked" in message
    assert "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before


def test_archives_in_an_archive_and_patterns(tmp_path: Path) -> None:
    inner = tarred(tmp_path / "de-en.tgz", entry("de-en/train.de"))
    with tarfile.open(tmp_path / "all.tgz", "w:gz") as archive:
        archive.add(inner, "texts/de-en.tgz")
        archive.add(inner, "texts/fr-en.tgz")
    assert unpack(tmp_path / "all.tgz", tmp_path / "out", "--member", "texts/de-*.tgz") == ""
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["de-en", "train.de"]
    assert "has no file texts/ru" in unpack(tmp_path / "all.tgz", tmp_path / "none", "--member", "texts/ru")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["a.tgz", "a.zip", "missing.tgz"])
def test_what_is_no_archive(tmp_path: Path, name: str) -> None:
    if name != "missing.tgz":
        whole = tarred(tmp_path / "whole.tgz", entry("a")).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    assert f"{name} cannot be unpacked: " in unpack(tmp_path / name, tmp_path / "out")
    assert not (tmp_path / "out").exists()
