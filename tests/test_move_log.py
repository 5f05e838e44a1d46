"""The table of moves: what is there already is kept, or refused."""

import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from kerbs_fairseq.plugin.move_log import MoveLog, Row
from kerbs_fairseq.runs.logs import read_moves


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot write .*: it is a directory"),
        (b"precious\n", "is not a table of moves: choose another file"),
        (b"\xff\xfe\n\x00", "is not UTF-8"),
        (b"no end of line", "is not a table of moves: choose another file"),
    ],
)
def test_other_peoples_files_are_not_taken_for_a_move_log(tmp_path: Path, content: Any, message: str) -> None:
    path = tmp_path / "moves"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        MoveLog(str(path)).begin(7)
    assert path.is_dir() if content is None else path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_resumed_run_keeps_what_it_does_not_repeat(tmp_path: Path) -> None:
    log = MoveLog(str(tmp_path / "moves.tsv"))
    log.begin(0)
    log.add([Row(5, 1, "a", "b", 0.25, -3.0), Row(10, 2, "b", "a", 0.5, -2.0)])
    for update in (7, 5):  # the last one: a checkpoint that was saved right after an event
        log.begin(update)
        assert log.path.read_text().splitlines() == ["\t".join(Row._fields), "5\t1\ta\tb\t0.25\t-3"]


def test_moves_of_a_training_that_does_not_go_on_are_put_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another run, or of one that was killed before its first checkpoint: the next start begins at update 0."""
    for number in (1, 2):
        log = MoveLog(str(tmp_path / "moves.tsv"))
        log.begin(0)
        log.add([Row(number, 1, "a", "b", 0.25, -3.0)])
    log.begin(0)
    assert read_moves(log.path) == []
    assert [read_moves(tmp_path / f"moves.tsv.{n}")[0][0] for n in (1, 2)] == [1, 2]
    assert caplog.text.count("had moves of a training that does not go on: they are in") == 2


def test_a_full_disk_is_said_once_and_synthetic_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A training goes on; half a line that was written is not a row of the table."""
    log, moves = MoveLog(str(tmp_path / "moves.tsv")), [Row(i, i, "a", "b", 0.25, -3.0) for i in range(1, 5)]
    log.begin(0)
    log.add(moves[:1])
    whole = log.path.read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 5, limit[1]))
        log.add(moves[1:2])
        log.add(moves[2:3])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert log.path.read_bytes()[: len(whole)] == whole
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "cannot be written: File too large. Training goes on" in warning
    log.add(moves[3:])
    assert [update for update, _, _ in read_moves(log.path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "message"),
    [("pipe", "it is not a regular file"), ("/dev/stdout", ""), ("/dev/null", "it is not a regular file")],
)
def test_only_a_regular_file_is_a_move_log(tmp_path: Path, name: str, message: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=f"--kerbs-move-log.*{message}"):
        MoveLog(str(tmp_path / name)).begin(0)


def test_links_are_followed_and_words_stay_in_their_cells(tmp_path: Path) -> None:
    (tmp_path / "link.tsv").symlink_to("moves.tsv")
    log = MoveLog(str(tmp_path / "link.tsv"))
    log.begin(0)
    log.add([Row(5, 1, "a\tb", "c\nd", 0.25, -3.0)])
    assert log.path.is_symlink()
    assert read_moves(tmp_path / "moves.tsv") == [(5, r"a\tb", r"c\nd")]
    log.begin(7)


def test_what_another_program_cut_is_not_filled_with_zeros(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = MoveLog(str(tmp_path / "moves.tsv"))
    log.begin(0)
    log.path.write_text("")
    log.add([Row(5, 1, "a", "b", 0.25, -3.0)])
    assert log.path.read_text() == ""
    assert "another program has made it shorter" in caplog.text
