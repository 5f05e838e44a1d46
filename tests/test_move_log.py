"""The table of moves: what is there already is kept, or refused."""

from pathlib import Path
from typing import Any

import pytest

from kerbs_fairseq.plugin.move_log import MoveLog, Row


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
    log.begin(7)
    assert log.path.read_text().splitlines() == ["\t".join(Row._fields), "5\t1\ta\tb\t0.25\t-3"]
    with pytest.raises(ValueError, match="has the moves of another run"):
        log.begin(0)
