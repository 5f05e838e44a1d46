"""kerbs-report: what it reads of logs, tables of moves and checkpoints."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
from synthetic_runs import JSON_LOG, MOVES

from kerbs_fairseq.report import plots
from kerbs_fairseq.report.history import History, from_checkpoint, read_log
from kerbs_fairseq.runs.checkpoint import Checkpoint
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.logs import read_moves

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


@pytest.mark.parametrize("form", ["json", "simple"])
def test_of_several_validation_sets_one_is_shown(tmp_path: Path, form: str) -> None:
    """--valid-subset valid,test: checkpoints are chosen by the first."""
    lines = []
    for subset, loss, ppl in (("valid", 3.1, 8.57), ("test", 2.0, 4.0)):
        as_json = f'{{"epoch": 1, "{subset}_loss": "{loss}", "{subset}_ppl": "{ppl}", "{subset}_num_updates": "2"}}'
        as_text = f"epoch 001 | valid on '{subset}' subset | loss {loss} | ppl {ppl} | num_updates 2"
        lines.append(f"2026 | INFO | {subset} | {as_json if form == 'json' else as_text}\n")
    (tmp_path / "log").write_text("".join(lines))
    assert read_log(tmp_path / "log").valid_ppl == {2: 8.57}
    assert read_log(tmp_path / "log", "test").valid_loss == {2: 2.0}
    first = Checkpoint(Path(), {"model": {}, "cfg": {"dataset": {"valid_subset": "test,valid"}}})
    assert (first.valid_subset, Checkpoint(Path(), {"model": {}}).valid_subset) == ("test", "valid")


def test_events_in_the_log_say_more_than_totals(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(JSON_LOG + "2026 | update 40: 1 senses moved: a → b\nupdate 80: 4 senses moved\n")
    history = read_log(tmp_path / "log")
    assert history.moves_by_update() == {40: 1, 80: 4}
    history.events, history.pretrained = {}, True  # the first total is of another training, or may be
    assert history.moves_by_update() == {100: 3}


def test_words_with_many_senses_are_drawn_as_one_curve() -> None:
    history = History()
    history.senses = {f"kerbs_words_with_{n}": {1: 2.0} for n in ("more", "10", "9")}
    labels = [text.get_text() for text in plots.words_over_time(history).axes[0].get_legend().get_texts()]
    assert labels == ["9", "10", "more"]


def test_the_table_of_moves_says_more_than_the_log(tmp_path: Path) -> None:
    (tmp_path / "moves.tsv").write_text(
        MOVES + "10\t4\tthe\tbank\t0\t-1\n10\t5\tthe\triver\t0\t-1\n20\t4\tbank\tthe\t0\t-1\n2"
    )
    (tmp_path / "log").write_text(JSON_LOG)
    history = read_log(tmp_path / "log")
    history.moves = read_moves(tmp_path / "moves.tsv")
    assert history.moves[0] == (10, "the", "bank")
    assert history.moves_by_update() == {10: 2, 20: 1}
    with pytest.raises(UserError, match="is not a table of moves"):
        read_moves(tmp_path / "log")


def test_what_a_checkpoint_knows_without_a_log() -> None:
    meter = {"val": 1.0, "sum": torch.tensor(30.0), "count": 10}
    state = {"extra_state": {"val_loss": 2.5, "metrics": {"train": [(10, "loss", "AverageMeter", meter)]}}}
    history = from_checkpoint(Checkpoint(Path(), state), 7)
    assert (history.valid_loss, history.train_loss) == ({7: 2.5}, {7: 3.0})
    by_bleu = {"checkpoint": {"best_checkpoint_metric": "bleu"}}
    assert from_checkpoint(Checkpoint(Path(), {**state, "cfg": by_bleu}), 7).valid_loss == {}, "a BLEU is not a loss"
    args = Checkpoint(Path(), {**state, "args": Namespace(best_checkpoint_metric="loss")})
    assert from_checkpoint(args, 7).valid_loss == {7: 2.5}
