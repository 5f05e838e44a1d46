"""Senses that move, from the command line: resumed, by two processes, in the logs and in the table of moves."""

import csv
import json
import re
from pathlib import Path

import pytest
import torch
from commands import (
    MAP,
    MOVING,
    PACKAGE,
    QUICK,
    SMALL_LSTM,
    SMALL_TRANSFORMER,
    by_two,
    refused,
    run,
    train,
    twin,
    weights,
)

pytestmark = pytest.mark.e2e


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_resumed_training_equals_uninterrupted_training(pairs: Path, tmp_path: Path) -> None:
    for name, stops in (("whole", [60]), ("parts", [30, 60])):
        log = f"--kerbs-move-log {tmp_path}/{name}.tsv --kerbs-moved-vector split"
        for updates in stops:
            train(pairs, twin(SMALL_LSTM), tmp_path / name, f"{MOVING} {log} --max-update {updates}")
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name in whole:
        assert torch.equal(whole[name], parts[name]), name
    rows = rows_of(tmp_path / "whole.tsv")
    assert (tmp_path / "whole.tsv").read_text() == (tmp_path / "parts.tsv").read_text()
    assert {int(row["update"]) for row in rows} >= {10, 30, 35, 60}
    assert int(whole["decoder.head.statistics.moves"]) == len(rows)


def test_what_an_interrupted_run_logged_too_much_is_taken_back(pairs: Path, tmp_path: Path) -> None:
    log = f"--kerbs-move-log {tmp_path}/moves.tsv"
    train(pairs, twin(SMALL_LSTM), tmp_path / "save", f"{MOVING} {log} --max-update 10")
    before = (tmp_path / "moves.tsv").read_text()
    with (tmp_path / "moves.tsv").open("a") as file:
        file.write("15\t1\ta\tb\t0\t0\n")  # of an update that was made after the last checkpoint
        file.write("2")  # and what a killed run could still write of "20\t…"
    train(pairs, twin(SMALL_LSTM), tmp_path / "save", f"{MOVING} {log} --max-update 12")
    assert (tmp_path / "moves.tsv").read_text() == before


@pytest.mark.parametrize(
    ("model", "backend"), [(SMALL_TRANSFORMER, "c10d"), (SMALL_LSTM, "legacy_ddp")], ids=["c10d", "legacy_ddp"]
)
def test_two_processes_move_the_same_senses_as_one(pairs: Path, tmp_path: Path, model: str, backend: str) -> None:
    # two half batches an update, in one process or in two
    options = f"{MOVING} --max-update 15 --dropout 0 --lr 0.001"
    options += " --attention-dropout 0" if model == SMALL_TRANSFORMER else ""
    log = f"--kerbs-move-log {tmp_path}"
    train(pairs, twin(model), tmp_path / "one", f"{options} --update-freq 2 {log}/one.tsv")
    run(by_two(pairs, twin(model), tmp_path / "two", f"{options} --ddp-backend {backend} {log}/two.tsv"))
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    moves = [
        [(row["update"], row["sense"], row["to_word"]) for row in rows_of(tmp_path / f"{n}.tsv")]
        for n in ("one", "two")
    ]
    assert moves[0] == moves[1]
    assert len(moves[0]) > 20
    assert torch.equal(one[MAP], two[MAP])
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-3, msg=name)


def test_every_process_ends_with_the_same_map(pairs: Path, tmp_path: Path) -> None:
    # each process writes what it has: fairseq itself saves only the first one's
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "__init__.py").write_text(
        "import atexit, os, sys, torch\n"
        f"sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "import kerbs_fairseq\n"
        "from kerbs_fairseq.plugin.update_hook import UpdateHook\n"
        "after_update = UpdateHook.after_update\n"
        "def watched(self, decoder, optimizer, update):\n"
        "    after_update(self, decoder, optimizer, update)\n"
        f"    torch.save(decoder.head.state_dict(), '{tmp_path}/rank' + os.environ['RANK'] + '.pt')\n"
        "UpdateHook.after_update = watched\n"
    )
    command = by_two(pairs, twin(SMALL_LSTM), tmp_path / "save", f"{MOVING} --max-update 12 --ddp-backend legacy_ddp")
    run(command.replace(f"--user-dir {PACKAGE}", f"--user-dir {tmp_path}/spy"))
    first, second = (torch.load(tmp_path / f"rank{i}.pt", weights_only=False) for i in (0, 1))
    assert int(first["statistics.moves"]) > 20
    for name in first:
        assert torch.equal(first[name], second[name]), name


def test_update_freq_moves_the_same_senses(pairs: Path, tmp_path: Path) -> None:
    # quarter batches, four an update; without dropout and shuffling both see the same sentences
    options = f"{MOVING} --max-update 10 --dropout 0 --lr 0.001 --batch-size {{}} --update-freq {{}} --max-tokens 99999"
    for name, size, frequency in (("whole", 32, 1), ("quarters", 8, 4)):
        log = f"--kerbs-move-log {tmp_path}/{name}.tsv --required-batch-size-multiple 1 --curriculum 9"
        train(pairs, twin(SMALL_LSTM), tmp_path / name, f"{options.format(size, frequency)} {log}")
    moves = [
        [(r["update"], r["sense"], r["to_word"]) for r in rows_of(tmp_path / f"{n}.tsv")] for n in ("whole", "quarters")
    ]
    assert len(moves[0]) > 20
    assert moves[0] == moves[1]
    assert torch.equal(weights(tmp_path / "whole")[MAP], weights(tmp_path / "quarters")[MAP])


@pytest.mark.parametrize("form", ["json", "simple"])
def test_training_log(pairs: Path, tmp_path: Path, form: str) -> None:
    log = run(
        f"fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_LSTM)} --save-dir {tmp_path}/save "
        f"{QUICK.replace('--log-format json', '')} --log-format {form} --log-interval 5 {MOVING} --max-update 10 "
        f"--tensorboard-logdir {tmp_path}/board"
    )
    names = ["moved", "moved_total", "idle", "theta", "theta_std", *(f"words_with_{n}" for n in range(1, 5))]
    if form == "json":
        inner = json.loads(re.findall(r"\| train_inner \| (\{.*\})", log)[-1])
        total = json.loads(re.findall(r"\| train \| (\{.*\})", log)[-1])
        for name in names:
            assert float(inner[f"kerbs_{name}"]) == float(total[f"train_kerbs_{name}"]), name
        assert float(inner["kerbs_moved_total"]) > 20
    else:
        for name in names:
            assert f"kerbs_{name}=" in log
    assert re.search(r"update 10: \d+ senses moved: \S+ → \S+", log)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path / "board" / "train_inner"))
    board.Reload()
    assert {f"kerbs_{name}" for name in names} <= set(board.Tags()["scalars"])


def test_the_ablations_by_options_alone(pairs: Path, tmp_path: Path) -> None:
    for number, options in enumerate(("--kerbs-reallocate-every 0", "--kerbs-senses 1", "--kerbs-kernel dot")):
        log = train(
            pairs, twin(SMALL_LSTM), tmp_path / str(number), f"--criterion kerbs_cross_entropy --max-update 2 {options}"
        )
        assert "valid_ppl" in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kerbs-move-log {folder}/no/moves.tsv", "moves.tsv: No such file or directory"),
        ("--kerbs-move-log {folder}/old.tsv", "is not a table of moves: choose another file"),
        ("--kerbs-strategy best", "--kerbs-strategy best: there are idle, loss, paper, released"),
    ],
)
def test_mistakes(pairs: Path, tmp_path: Path, options: str, message: str) -> None:
    (tmp_path / "old.tsv").write_text("update\tsense\n5\t1\n")
    before = sorted(tmp_path.iterdir())
    refused(
        f"fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_LSTM)} {QUICK} --save-dir {tmp_path}/save "
        f"--criterion kerbs_cross_entropy --kerbs-reallocate-every 5 --max-update 9 {options.format(folder=tmp_path)}",
        message,
    )
    assert (tmp_path / "old.tsv").read_text().endswith("5\t1\n")
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "save"] == before


def test_options_that_contradict_the_checkpoint(pairs: Path, tmp_path: Path) -> None:
    train(pairs, twin(SMALL_LSTM), tmp_path, f"{MOVING} --max-update 2")
    for options, message in (
        ("--kerbs-decay 0.5", "the checkpoint's statistics were made with the decay 0.01, not 0.5"),
        ("--kerbs-max-senses 3", "the checkpoint has a word with 16 senses, the model allows 3"),
    ):
        refused(
            f"fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_LSTM)} {QUICK} --save-dir {tmp_path} {MOVING} "
            f"--max-update 4 {options}",
            message,
        )
