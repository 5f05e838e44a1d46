"""kerbs-report: what it reads of logs, tables of moves and checkpoints."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from made_up_runs import JSON_LOG, MOVES

from kerbs_fairseq.inspection.learned import Unreadable
from kerbs_fairseq.report import plots
from kerbs_fairseq.report.history import from_checkpoint, read_log, read_moves

PLAIN_LOG = """\
2026-11-17 04:05:03 | INFO | train | epoch 001 | loss 15.333 | ppl 41268 | num_updates 2 | kerbs_moved_total 3 | wall 22
2026-11-17 04:05:03 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 3.1 | ppl 8.57 | wps 9 | num_updates 2
"""


def test_logs_of_json(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(JSON_LOG)
    history = read_log(tmp_path / "log")
    assert history.epoch_loss == {63: 7.0, 126: 4.5}
    assert history.inner_loss == {100: 6.4}
    assert history.train_loss == history.epoch_loss
    assert history.valid_loss == {63: 5.5, 126: 3.5}
    assert history.best_ppl == 11.31
    assert history.senses["kerbs_moved_total"] == {63: 2, 100: 5, 126: 5}
    assert history.moves_by_update() == {63: 2, 100: 3}


def test_a_log_of_a_run_that_went_wrong(tmp_path: Path) -> None:
    lines = [
        '| valid | {"valid_loss": "nan", "valid_ppl": "nan", "valid_num_updates": "1"}',
        '| valid | {"valid_loss": "2.0", "valid_ppl": "4.0", "valid_num_updates": "2"}',
        '| train | {"train_loss": "2.0", "train_num_updates": "nan"}',
    ]
    (tmp_path / "log").write_text("".join(f"2026-11-17 05:35:27 | INFO {line}\n" for line in lines))
    history = read_log(tmp_path / "log")
    assert history.best_ppl == 4.0
    assert history.epoch_loss == {}
    history.moves = [(0, "a", "b")]
    plots.moves(history)  # at update 0


def test_plain_logs(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(PLAIN_LOG)
    history = read_log(tmp_path / "log")
    assert history.train_loss == {2: 15.333}
    assert history.valid_loss == {2: 3.1}
    assert history.best_ppl == 8.57
    assert history.moves_by_update() == {2: 3}


def test_the_table_of_moves_says_more_than_the_log(tmp_path: Path) -> None:
    (tmp_path / "moves.tsv").write_text(
        MOVES + "10\t4\tthe\tbank\t0\t-1\n10\t5\tthe\triver\t0\t-1\n20\t4\tbank\tthe\t0\t-1\n2"
    )
    (tmp_path / "log").write_text(JSON_LOG)
    history = read_log(tmp_path / "log")
    history.moves = read_moves(tmp_path / "moves.tsv")
    assert history.moves[0] == (10, "the", "bank")
    assert history.moves_by_update() == {10: 2, 20: 1}
    with pytest.raises(Unreadable, match="is no table of moves"):
        read_moves(tmp_path / "log")


def test_what_a_checkpoint_knows_without_a_log() -> None:
    meter = {"val": 1.0, "sum": torch.tensor(30.0), "count": 10}
    state = {"extra_state": {"val_loss": 2.5, "metrics": {"train": [(10, "loss", "AverageMeter", meter)]}}}
    history = from_checkpoint(state, 7)
    assert (history.valid_loss, history.train_loss) == ({7: 2.5}, {7: 3.0})
    by_bleu = {"checkpoint": {"best_checkpoint_metric": "bleu"}}
    assert from_checkpoint({**state, "cfg": by_bleu}, 7).valid_loss == {}, "a BLEU is no loss"
    assert from_checkpoint({**state, "args": Namespace(best_checkpoint_metric="loss")}, 7).valid_loss == {7: 2.5}
