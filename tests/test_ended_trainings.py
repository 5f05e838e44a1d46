"""Trainings that have come to their end and are started again, and checkpoints to go on from that are not there."""

import re
import shutil
from pathlib import Path

import pytest
from commands import ENVIRONMENT, PACKAGE, QUICK, SMALL_TRANSFORMER, start
from damages import tree

pytestmark = pytest.mark.e2e


def started(pairs: Path, folder: Path, options: str, **environment: str) -> str:
    command = f"fairseq-train {pairs} --user-dir {PACKAGE} {SMALL_TRANSFORMER} {QUICK} --save-dir {folder} {options}"
    done = start(command, env={**ENVIRONMENT, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def finished(transformer: Path, tmp_path: Path) -> Path:
    """A training with --max-update 6 that has made its 6 updates."""
    shutil.copytree(transformer, tmp_path / "finished")
    return tmp_path / "finished"


def test_it_makes_no_update_more(pairs: Path, finished: Path) -> None:
    before = tree(finished)
    said = started(pairs, finished, "--max-update 6")
    assert tree(finished) == before
    assert said.count("the checkpoint has 6 updates and --max-update is 6: nothing is left to train") == 1
    assert "done training" in said
    fewer = started(pairs, finished, "--max-update 5")
    assert "has 6 updates and --max-update is 5" in fewer
    assert tree(finished) == before


def test_it_goes_on_if_it_is_to_be_longer(pairs: Path, finished: Path) -> None:
    said = started(pairs, finished, "--max-update 7")
    assert "nothing is left" not in said
    assert re.findall(r'"train_num_updates": "(\d+)"', said)[-1] == "7"


@pytest.mark.thorough
def test_fairseq_itself_makes_one_more(pairs: Path, finished: Path) -> None:
    said = started(pairs, finished, "--max-update 6", KERBS_FAIRSEQ_SKIP_FIXES="finished-trainings")
    assert re.findall(r'"train_num_updates": "(\d+)"', said)[-1] == "7"


@pytest.mark.thorough
def test_epochs_are_counted_before_they_begin(pairs: Path, tmp_path: Path) -> None:
    started(pairs, tmp_path / "save", "--max-epoch 1")
    before = tree(tmp_path)
    started(pairs, tmp_path / "save", "--max-epoch 1")
    assert tree(tmp_path) == before


def test_a_missing_restore_file_is_refused(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "folder.pt").mkdir()
    command = f"fairseq-train {pairs} --user-dir {PACKAGE} {SMALL_TRANSFORMER} {QUICK} --save-dir {tmp_path}/save"
    for path in (tmp_path / "none.pt", tmp_path / "folder.pt"):
        done = start(f"{command} --max-update 2 --restore-file {path}")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert f"kerbs_fairseq: --restore-file {path} does not exist" in done.stderr.splitlines()[-1]
        assert not [*(tmp_path / "save").glob("*.pt")]
    # a script that begins a training and goes on with it names the last checkpoint before there is one
    assert start(f"{command} --max-update 1 --restore-file {tmp_path}/save/checkpoint_last.pt").returncode == 0
