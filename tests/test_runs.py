"""The library for what runs leave behind: checkpoints that cannot run code, files that are whole, one way to end."""

import argparse
import builtins
import contextlib
import datetime
import functools
import importlib
import io
import os
import pickle
import signal
import stat
import subprocess
import sys
import tarfile
import time
from collections import OrderedDict
from pathlib import Path, PurePosixPath
from typing import Any, Callable

import numpy as np
import pytest
import torch
from commands import BIN, ENVIRONMENT
from omegaconf import OmegaConf
from synthetic_runs import checkpoint, dictionary_folder

from kerbs_fairseq.cli import average, doctor
from kerbs_fairseq.corpora import command as corpus
from kerbs_fairseq.demo import run as demo
from kerbs_fairseq.demo import write as demo_corpus
from kerbs_fairseq.human_evaluation import command as rate
from kerbs_fairseq.inspection import command as inspect
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.report import command as report
from kerbs_fairseq.runs import checkpoint as schema
from kerbs_fairseq.runs import errors, files, logs
from kerbs_fairseq.runs.errors import UserError

COMMANDS = (average, corpus, demo, demo_corpus, doctor, inspect, rate, report)

# --- checkpoints


class Calls:
    """What calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


HOSTILE = {
    f"{os.system.__module__}.system": lambda to: Calls(os.system, f"touch {to}"),
    "builtins.eval": lambda to: Calls(eval, f"open({str(to)!r}, 'w')"),
    "builtins.getattr": lambda to: Calls(builtins.getattr, Path(to), "touch"),
    "importlib.import_module": lambda to: Calls(importlib.import_module, "os"),
    "torch.storage._load_from_bytes": lambda to: Calls(
        torch.storage._load_from_bytes, pickle.dumps(Calls(os.system, f"touch {to}"))
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
def test_a_checkpoint_runs_no_code(
    tmp_path: Path, name: str, new_format: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    data, touched = dictionary_folder(tmp_path), tmp_path / "touched"
    state = torch.load(checkpoint(tmp_path / "fine.pt", data), weights_only=False)
    state["extra_state"] = {"hidden": [HOSTILE[name](touched)]}
    path = tmp_path / "hostile.pt"
    torch.save(state, path, _use_new_zipfile_serialization=new_format)
    for main, arguments in (
        (inspect.main, [path]),
        (report.main, [path, "-o", tmp_path / "out"]),
        (average.main, [path, "-o", tmp_path / "out.pt"]),
    ):
        with pytest.raises(SystemExit, match=f"asks for {name}, which no checkpoint needs.*--trust"):
            main([*map(str, arguments)])
        assert not touched.exists()
        assert not (tmp_path / "out").exists()
        assert not (tmp_path / "out.pt").exists()


def test_what_is_trusted_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "album", lambda *of: iter(()))  # no plots
    data = dictionary_folder(tmp_path)
    path = checkpoint(tmp_path / "own.pt", data)
    state = torch.load(path, weights_only=False)
    torch.save({**state, "own": datetime.date(2019, 11, 1)}, path)
    with pytest.raises(SystemExit, match=r"asks for datetime\.date"):
        inspect.main([str(path)])
    inspect.main([str(path), "--trust"])
    report.main([str(path), "--trust", "-o", str(tmp_path / "out")])
    average.main([str(path), "--trust", "-o", str(tmp_path / "out.pt")])
    assert torch.load(tmp_path / "out.pt", weights_only=False)["own"] == datetime.date(2019, 11, 1)


@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
def test_all_that_fairseq_saves_is_allowed(tmp_path: Path, new_format: bool) -> None:
    from fairseq.meters import AverageMeter

    table = torch.randn(3, 2)
    state = {
        "args": argparse.Namespace(arch="lstm", update_freq=[1], adam_betas=(0.9, 0.98), flags={"a", "b"}),
        "cfg": OmegaConf.create({"model": {"_name": "lstm", "sizes": [1, 2.5, None, "x"]}}),
        "model": OrderedDict(a=table, b=table.half(), c=torch.nn.Parameter(table), d=torch.tensor([True])),
        "extra_state": {"best": np.float64(2.5), "dtype": torch.float16, "size": torch.Size([2]), "path": Path("x")},
        "train_meters": OrderedDict(loss=AverageMeter()),
        "bytes": b"\xff",
    }
    torch.save(state, tmp_path / "c.pt", _use_new_zipfile_serialization=new_format)
    loaded = schema.load(tmp_path / "c.pt")
    assert torch.equal(loaded.model["c"], table)
    assert loaded.state["args"] == state["args"]
    assert loaded.options("model")["arch"] == "lstm"
    loaded.state["args"] = None
    assert loaded.options("model") == {"_name": "lstm", "sizes": [1, 2.5, None, "x"]}
    assert loaded.state["extra_state"] == state["extra_state"]


def test_paths_of_every_python_can_be_read() -> None:
    for module in ("pathlib", "pathlib._local"):  # the second is what Python 3.13 writes
        file = io.BytesIO(f"c{module}\nPurePosixPath\n(Vx\ntR.".encode())
        assert schema.Unpickler(file).load() == PurePosixPath("x")
    with pytest.raises(UserError, match=r"pathlib\.Path"):
        schema.Unpickler(io.BytesIO(b"cpathlib._local\nPath\n.")).load()


def test_what_torch_would_read_in_another_way_is_refused(tmp_path: Path) -> None:
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "script.pt"))
    with tarfile.open(tmp_path / "tar.pt", "w") as archive:
        archive.add(errors.__file__, "storages")
    os.mkfifo(tmp_path / "pipe.pt")
    for name, message in (
        ("script.pt", "is a TorchScript archive"),
        ("tar.pt", "is a tar archive"),
        ("pipe.pt", "is not a regular file"),
        ("none.pt", "does not exist"),
        (".", "is a directory"),
    ):
        with pytest.raises(UserError, match=message):
            schema.load(tmp_path / name)


def test_copies_that_encoder_layers_keep_are_not_parameters() -> None:
    names = ["encoder.layers.0.fc1_weight", "encoder.layers.11.in_proj_bias", "decoder.head.statistics.usage"]
    assert schema.parameters({name: torch.zeros(5) for name in names}) == 0
    learned = [
        "encoder.layers.0.fc1.weight",
        "encoder.layers.0.self_attn.in_proj_weight",
        "decoder.head.senses.vectors",
    ]
    assert schema.parameters({name: torch.rand(5) for name in learned}) == 15


def test_fingerprints_tell_dictionaries_apart() -> None:
    fingerprints = {schema.fingerprint(words) for words in (["a", "b"], ["b", "a"], ["a"], ["a\nb"], [])}
    assert len(fingerprints) == 4, "a line end is in no dictionary"
    assert all(-(2**63) <= number < 2**63 for number in fingerprints)


# --- files


def interrupted(writing: contextlib.AbstractContextManager[Path], name: str, by: Exception) -> None:
    with writing as beside:
        (beside / name if name else beside).write_text("half")
        raise by


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    files.write(path, "first\n")
    path.chmod(0o640)
    with pytest.raises(UserError, match=f"cannot write {path}: No space left"):
        interrupted(files.replacing(path), "", OSError(28, "No space left on device"))
    assert path.read_text() == "first\n"
    files.write(path, "second\n")
    assert path.read_text() == "second\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "link").symlink_to("below/file")
    files.write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "below" / "file").read_text() == "text"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("/dev/full", "it is not a regular file"),
        ("/dev/stdout", "cannot write"),
        ("pipe", "it is not a regular file"),
        ("folder", "it is a directory"),
        ("input.pt", "it is one of the inputs"),
        ("link.pt", "it is one of the inputs"),
        ("circle", "cannot write"),
        ("no/such", "No such file or directory"),
        ("n" * 300, "File name too long"),
    ],
)
def test_only_regular_files_are_written_and_no_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {"a": torch.zeros(2)}}, "input.pt")
    before = Path("input.pt").read_bytes()
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("link.pt").symlink_to("input.pt")
    Path("circle").symlink_to("circle")
    with pytest.raises(SystemExit, match=f"^kerbs-average: .*{message}"):
        average.main(["input.pt", "input.pt", "-o", output])
    assert Path("input.pt").read_bytes() == before
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert {path.name for path in tmp_path.iterdir()} == {"input.pt", "pipe", "folder", "link.pt", "circle"}


def test_a_folder_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "a" / "folder"
    with files.new_folder(path) as folder:
        (folder / "file").write_text("first")
    with pytest.raises(UserError, match="No space left"):
        interrupted(files.new_folder(path, replace=True), "file", OSError(28, "No space left on device"))
    assert (path / "file").read_text() == "first"
    with files.new_folder(path, replace=True) as folder:
        (folder / "other").write_text("second")
    assert [file.name for file in path.iterdir()] == ["other"]
    assert list(path.parent.iterdir()) == [path]


def test_files_of_a_folder_are_replaced_together(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report"
    with pytest.raises(ZeroDivisionError):
        interrupted(files.updating(path), "page", ZeroDivisionError())
    assert list(tmp_path.iterdir()) == []
    path.mkdir(parents=True)
    (path / "own").write_text("precious")
    with files.updating(path) as folder:
        (folder / "figures").mkdir()
        (folder / "figures" / "plot").write_text("plot")
        (folder / "page").write_text("page")
    assert sorted(str(file.relative_to(path)) for file in path.rglob("*")) == ["figures", "figures/plot", "own", "page"]


# --- logs


def test_lines_within_an_epoch_of_a_plain_log() -> None:
    line = "2026 | INFO | train_inner | epoch 002:    100 / 300 loss=7.25, ppl=152.2, num_updates=400, lr=0.001"
    assert logs.record_of(line) == ("train_inner", {"loss": 7.25, "ppl": 152.2, "num_updates": 400.0, "lr": 0.001})
    assert logs.events(["2026 | update 400: 12 senses moved: a → b, …", "x"]) == {400: 12}


# --- how commands end


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.NAME)
@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(), 141, ""),
        (OSError(28, "No space left on device"), "cannot write to the standard output: No space left on device", ""),
        (UserError("a \x1b[31m mistake"), r"a \x1b[31m mistake", ""),
        (MemoryError(), "not enough memory", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_command_ends_with_one_line(
    command: Any, raised: BaseException, code: Any, said: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def stop(*_: object) -> None:
        raise raised

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    monkeypatch.setattr(errors, "discard", lambda stream: None)
    with pytest.raises(SystemExit) as stopped:
        command.main([])
    assert stopped.value.code == (code if isinstance(code, int) else f"{command.NAME}: {code}")
    assert capsys.readouterr().err == (f"{command.NAME}: {said}\n" if said else "")


def console_program(body: str) -> list[str]:
    """A program that runs ``body`` as a console command does, without importing the whole package."""
    setup = f"import runpy, sys; console = runpy.run_path({errors.__file__!r})['console']\n"
    return [sys.executable, "-S", "-c", f"{setup}with console('kerbs-x'):\n    {body}"]


def test_a_closed_pipe_a_full_disk_and_a_closed_output() -> None:
    many = console_program("[print('x' * 99) for _ in range(9999)]")
    with subprocess.Popen(many, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
    with open("/dev/full", "w") as full:
        done = subprocess.run(many, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "kerbs-x: cannot write to the standard output: No space left on device" in done.stderr
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *many], capture_output=True, text=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_an_ascii_terminal() -> None:
    env = {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        console_program("print('θ'); sys.exit('größer')"), env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("\\u03b8\n", 1)
    assert "Traceback" not in done.stderr


@pytest.mark.e2e
def test_ctrl_c_while_a_command_is_importing() -> None:
    command = [str(BIN / "kerbs-inspect"), "nowhere"]
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # the tests may run in the background
    for _ in range(5):  # on a busy machine it may be over before the signal is sent
        with subprocess.Popen(
            command,
            env=ENVIRONMENT,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=heed,  # noqa: PLW1509
        ) as process:
            maps = Path(f"/proc/{process.pid}/maps")
            while process.poll() is None and b"torch" not in maps.read_bytes():  # not yet in the middle of it
                time.sleep(0.005)
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
        if "interrupted" in said:
            break
    assert said == "kerbs-inspect: interrupted\n"
    assert process.returncode in (130, -signal.SIGINT)


def test_refusals_end_the_process_only_where_fairseqs_command_is_the_main_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"^kerbs_fairseq: a mistake$"):
        refuse("a mistake")
    main = sys.modules["__main__"]
    for path, name in (
        ("/env/bin/fairseq-train", "fairseq-train"),
        ("/site-packages/fairseq_cli/train.py", "fairseq-train"),
        ("/env/bin/kerbs-report", "kerbs-report"),
        ("/home/me/fairseq-experiments.py", ""),
        ("/home/me/train.py", ""),
    ):
        monkeypatch.setattr(main, "__file__", path, raising=False)
        assert errors.command_name() == name
        with pytest.raises(SystemExit if name == "fairseq-train" else UserError, match=r"^kerbs_fairseq: a mistake$"):
            refuse("a mistake")
