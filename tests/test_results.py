"""Statistics over seeds, what BLEU does not say, results as JSON, and the documentation's tables made from them."""

import io
import json
import math
import shutil
import tarfile
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from commands import PACKAGE
from evaluated import evaluated_run
from hypothesis import given
from hypothesis import strategies as st
from inprocess import batch, prepare
from sacrebleu.metrics import BLEU

from kerbs_fairseq.evaluation import command
from kerbs_fairseq.evaluation.diversity import distinct, diversity, share_of_most_frequent
from kerbs_fairseq.evaluation.pages import NOTHING, OPENING, fill, filled
from kerbs_fairseq.evaluation.paper import TASKS
from kerbs_fairseq.evaluation.results import are_results, data_of, gather, read_results
from kerbs_fairseq.evaluation.runs import Run, of_training
from kerbs_fairseq.evaluation.significance import paired_t_test
from kerbs_fairseq.evaluation.table import commands, markdown_of, p_value, summary
from kerbs_fairseq.runs.checkpoint import NOT_LEARNED
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.logs import seconds_per_update, tokens_per_second

ROOT = PACKAGE.parent
SCORES = st.floats(-50, 50, allow_nan=False)


# --- over seeds


@given(st.tuples(SCORES, SCORES, SCORES), st.tuples(SCORES, SCORES, SCORES), st.booleans())
def test_t_test_of_three_seeds(system: tuple[float, ...], baseline: tuple[float, ...], larger: bool) -> None:
    d = [a - b for a, b in zip(system, baseline)]
    mean = sum(d) / 3
    sd = math.sqrt(sum((x - mean) ** 2 for x in d) / 2)
    test = paired_t_test(system, baseline, larger)
    if len({round(x, 12) for x in d}) == 1:
        assert test is None
    elif sd > 1e-6:
        t = mean / (sd / math.sqrt(3))
        upper = 0.5 - t / (2 * math.sqrt(2 + t * t))  # Student's distribution with two degrees of freedom
        assert test is not None
        assert test.t == pytest.approx(t, rel=1e-4, abs=1e-6)
        assert test.p == pytest.approx(upper if larger else 1 - upper, abs=1e-6)


def test_t_test_needs_pairs() -> None:
    assert paired_t_test([2.0], [1.0], True) is None
    assert paired_t_test([3.0, 4.0], [1.0, 2.0], True) is None, "without spread nothing can be said"
    with pytest.raises(UserError, match="the test needs pairs"):
        paired_t_test([1.0, 2.0], [1.0], True)


# --- what BLEU does not say


LINES = st.lists(
    st.lists(st.sampled_from(["yes", "no", "maybe", "."]), max_size=5).map(" ".join), min_size=1, max_size=8
)


@given(LINES)
def test_diversity_by_other_means(outputs: list[str]) -> None:
    references = ["so it is ."] * len(outputs)
    scores = diversity(outputs, references)
    theirs = BLEU(effective_order=True).corpus_score(outputs, [references])
    assert scores["length_ratio"] == pytest.approx(theirs.sys_len / theirs.ref_len)
    assert scores["precision_1"] == pytest.approx(theirs.precisions[0] if theirs.totals[0] else 0)
    words = [line.split() for line in outputs]
    ones, twos = Counter(w for line in words for w in line), Counter(p for line in words for p in pairwise(line))
    assert scores["distinct_1"] == (len(ones) / sum(ones.values()) if ones else 0)
    assert scores["distinct_2"] == (len(twos) / sum(twos.values()) if twos else 0)
    assert scores["most_frequent"] == max(outputs.count(line) for line in outputs) / len(outputs)


def test_diversity_by_hand() -> None:
    answers = [["a", "b", "a", "b"], ["a"]]
    assert distinct(answers, 1) == 2 / 5
    assert distinct(answers, 2) == 2 / 3  # a b, b a, a b
    assert share_of_most_frequent(["yes", "no", "yes", "."]) == 0.5
    with pytest.raises(UserError, match="of another test set"):
        diversity(["a"], ["a", "b"])


# --- what logs and checkpoints say


def test_seconds_per_update_are_those_of_training(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert seconds_per_update(log) is None
    log.write_text(
        'x | train_inner | {"num_updates": "50", "train_wall": "8", "wall": "27"}\n'
        'x | train | {"epoch": 1, "train_num_updates": "100", "train_train_wall": "31", "train_wall": "34"}\n'
        'x | valid | {"epoch": 1, "valid_wall": "900", "valid_num_updates": "100"}\n'
        'x | train | {"epoch": 2, "train_num_updates": "200", "train_train_wall": "29", "train_wall": "999"}\n'
        'x | train | {"epoch": 2, "train_num_updates": "200", "train_train_wall": "30"}\n'  # repeated
    )
    assert seconds_per_update(log) == (31 + 29) / 200
    log.write_text("2026 | INFO | train | epoch 001 | loss 7.5 | num_updates 50 | train_wall 20 | wall 31\n")
    assert seconds_per_update(log) == 20 / 50, "a plain log"
    log.write_text("nothing\n")
    assert seconds_per_update(log) is None


def test_decoding_speed(tmp_path: Path) -> None:
    first, second = tmp_path / "generate.log", tmp_path / "generate-test.txt"
    assert tokens_per_second(first, second) is None
    second.write_text("x | Translated 2,000 sentences (20,000 tokens) in 40.0s (50.00 sentences/s, 500.25 tokens/s)\n")
    assert tokens_per_second(first, second) == 500.25
    second.write_text("x | Evaluated 1,234 tokens in 3.2s (385.6 tokens/s)\n")
    assert tokens_per_second(second) == 385.6


@pytest.mark.parametrize("arch", ["transformer", "kerbs_transformer"])
def test_dead_parameters_are_those_without_a_gradient(joined: Path, tmp_path: Path, arch: str) -> None:
    run = prepare(joined, "transformer", f"--arch {arch}")
    run.criterion(run.model, batch(run))[0].backward()
    unused = {name: p.numel() for name, p in run.model.named_parameters() if p.grad is None}
    assert {name for name, _ in run.model.named_parameters() if NOT_LEARNED.search(name)} == set(unused)
    assert of_training(Run(tmp_path))["parameters"] is None, "without a checkpoint"
    torch.save({"model": run.model.state_dict()}, tmp_path / "checkpoint_best.pt")
    learned = sum(p.numel() for name, p in run.model.named_parameters() if name not in unused)
    assert of_training(Run(tmp_path))["parameters"] == learned
    (tmp_path / "checkpoint_best.pt").write_bytes(b"cut short")
    with pytest.raises(UserError, match=r"checkpoint_best\.pt"):
        of_training(Run(tmp_path))


# --- results as data


GOOD, BAD = ["a b y", "d e y", "g h y"] * 10, ["a x y", "d x y", "g x y"] * 10


@pytest.fixture
def evaluated(out: Path) -> Path:
    """Three seeds of three cells."""
    for seed, (softmax, kerbs) in enumerate(((BAD, GOOD), (BAD, BAD[:3] + GOOD[3:]), (GOOD, GOOD)), 1):
        for cell, output in (("seq2seq-softmax", softmax), ("seq2seq-mos", BAD), ("seq2seq-kerbs", kerbs)):
            folder = evaluated_run(out, cell, seed, output)
            rate = "0.01" if "kerbs" in cell else "0.003"
            (folder / "training").write_text(f"--arch lstm --lr 1e-3 --seed {seed} --max-update 9 --lr {rate}\n")
            (folder / "evaluation").write_text("--lenpen 1.4 --min-len 8 \n")
            (folder / "command").write_text(
                f"recipes/dialog_dailydialog/train.sh {cell} --out OUT --seed {seed} --scale small -- --lr {rate}\n"
            )
            (folder / "commit").write_text("0123abc\n")
    (out / "binary" / ".settings").write_text("/home/somebody/corpora/dailydialog  raw 4000\n")
    return out


def test_collected_results_have_all_that_the_tables_need(evaluated: Path, tmp_path: Path, capsys) -> None:
    to = tmp_path / "docs" / "results"
    options = ["--name", "dialog", "--corpus", "DailyDialog", "--to", str(to)]
    command.main(["collect", "dialog_dailydialog", str(evaluated), *options])
    assert "9 models" in capsys.readouterr().out
    results = read_results(to)["dialog"]
    assert results == gather("dialog", "dialog_dailydialog", evaluated, "DailyDialog")
    text = (to / "dialog.json").read_text()
    assert str(tmp_path) not in text
    assert "somebody" not in text
    assert results["data"] == "dailydialog raw 4000"
    assert results["commits"] == ["0123abc"]
    kerbs = results["cells"]["seq2seq-kerbs"]
    assert (kerbs["rate"], kerbs["lenpen"], kerbs["min_len"]) == ("0.01", "1.4", "8")
    assert kerbs["train"] == (
        "recipes/dialog_dailydialog/train.sh seq2seq-kerbs --out out/dialog --seed SEED --scale small -- --lr 0.01"
    )
    assert kerbs["evaluate"] == (
        "recipes/dialog_dailydialog/evaluate.sh seq2seq-kerbs --out out/dialog --seed SEED --lenpen 1.4 --min-len 8"
    )
    assert kerbs["fairseq"] == "--arch lstm --lr 1e-3 --seed SEED --max-update 9 --lr 0.01"
    compared = kerbs["against_softmax"]
    scores = {cell: [s["bleu"] for s in of_cell["seeds"].values()] for cell, of_cell in results["cells"].items()}
    differences = [a - b for a, b in zip(scores["seq2seq-kerbs"], scores["seq2seq-softmax"])]
    assert [one["difference"] for one in compared["seeds"].values()] == pytest.approx(differences, abs=1e-3)
    assert compared["all"]["difference"] == pytest.approx(sum(differences) / 3, abs=1e-3)
    assert compared["seeds"]["3"]["p"] == 1
    test = paired_t_test(scores["seq2seq-kerbs"], scores["seq2seq-softmax"], True)
    assert test is not None
    assert compared["t_test"]["p"] == pytest.approx(test.p, rel=1e-3)


def test_seeds_made_with_different_options_are_not_averaged(evaluated: Path) -> None:
    (evaluated / "runs" / "seq2seq-kerbs" / "seed_2" / "training").write_text("--arch lstm --lr 2\n")
    with pytest.raises(SystemExit, match="seq2seq-kerbs: its seeds were made with different options"):
        command.main(["collect", "dialog_dailydialog", str(evaluated)])


def test_nothing_to_collect(out: Path) -> None:
    with pytest.raises(SystemExit, match="has no evaluated models"):
        command.main(["collect", "dialog_dailydialog", str(out), "--name", "x"])
    with pytest.raises(SystemExit, match=r"--name \.\./x: letters"):
        command.main(["collect", "dialog_dailydialog", str(out), "--name", "../x"])


def test_the_corpus_of_this_machine_is_not_named(out: Path) -> None:
    assert data_of(out) == ""
    (out / "binary" / ".settings").write_text("/a/b/lm1b --cut 1,2,3 raw 4000\n")
    assert data_of(out) == "lm1b --cut 1,2,3 raw 4000"


# --- runs kept for another machine


def test_kept_runs_are_restored_elsewhere(evaluated: Path, tmp_path: Path, capsys) -> None:
    for folder in evaluated.glob("runs/*/seed_*"):
        (folder / "trained").touch()
        (folder / "checkpoint_best.pt").write_text("large")
        (folder / "train.log").write_text("start\nx | valid | {}\n")
    for rate, bits in (("0.02", "4.5"), ("0.01", "3.5"), ("0.1", "nan")):
        trial = evaluated / "runs" / f"seq2seq-kerbs+lr{rate}" / "seed_1"
        trial.mkdir(parents=True)
        (trial / ("diverged" if bits == "nan" else "trained")).touch()
        (trial / "train.log").write_text(f'x | valid | {{"valid_loss": "{bits}", "valid_num_updates": "5"}}\n')
    unfinished = evaluated / "runs" / "seq2seq-mos" / "seed_4"
    unfinished.mkdir()
    lenpen = evaluated / "runs" / "seq2seq-kerbs" / "seed_1" / "valid_lenpen_1.4_min_len_8"
    lenpen.mkdir()
    (lenpen / "scores.json").write_text('{"bleu": 3.0}')
    to = tmp_path / "results"
    collect = ["collect", "dialog_dailydialog", str(evaluated), "--name", "dialog", "--to", str(to)]
    command.main(collect)
    first = (to / "dialog.tar.xz").read_bytes()
    command.main(collect)
    assert (to / "dialog.tar.xz").read_bytes() == first, "nothing changes where no run was added"

    other = tmp_path / "other"
    shutil.copytree(evaluated, other, ignore=shutil.ignore_patterns("runs"))
    (other / "binary" / ".settings").write_text("/elsewhere/dailydialog raw 4000\n")
    mine = other / "runs" / "seq2seq-mos" / "seed_2"
    mine.mkdir(parents=True)
    (mine / "trained").write_text("here")
    capsys.readouterr()
    command.main(["restore", str(to / "dialog.tar.xz"), str(other)])
    assert "11 runs restored, without their models; 1 were there before" in capsys.readouterr().out
    assert (mine / "trained").read_text() == "here"
    assert not list(other.glob("runs/*/*/*.pt"))
    assert not unfinished.relative_to(evaluated).exists()
    assert (other / lenpen.relative_to(evaluated) / "scores.json").is_file()
    assert (other / "runs" / "seq2seq-kerbs" / "seed_1" / "train.log").read_text() == "x | valid | {}\n"
    theirs, ours = (gather("dialog", "dialog_dailydialog", out)["cells"] for out in (evaluated, other))
    assert ours["seq2seq-kerbs"] == theirs["seq2seq-kerbs"], "also what depends on every sentence"
    assert ours["seq2seq-kerbs"]["rates"] == {"0.01": 3.5, "0.02": 4.5}


def test_archives_that_cannot_be_restored(out: Path, tmp_path: Path) -> None:
    (tmp_path / "text.tar.xz").write_text("no archive")
    (tmp_path / "other.tar.xz").write_bytes(archive_of({"x": b"y"}))
    (tmp_path / "data.tar.xz").write_bytes(archive_of({"data": b"lm1b 4000", "runs/gru-kerbs/seed_1/trained": b""}))
    for name, message in (
        ("none", "cannot be unpacked"),
        ("text", "cannot be unpacked"),
        ("other", "is not an archive that kerbs-evaluate collect wrote"),
        ("data", r"runs on other data \(lm1b 4000\) than"),
    ):
        with pytest.raises(SystemExit, match=message):
            command.main(["restore", str(tmp_path / f"{name}.tar.xz"), str(out)])
    with pytest.raises(SystemExit, match="is not a directory"):
        command.main(["restore", str(tmp_path / "data.tar.xz"), str(tmp_path / "nowhere")])
    assert sorted(path.name for path in out.iterdir()) == ["binary", "text"], "nothing is left behind"


def archive_of(files: dict[str, bytes]) -> bytes:
    """A compressed tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


# --- tables


def test_the_tables_of_results(evaluated: Path) -> None:
    results = gather("dialog", "dialog_dailydialog", evaluated)
    text = markdown_of(results)
    rows = {line.split("`")[1]: line.split(" | ") for line in text.splitlines()[:6] if "`" in line}
    kerbs = results["cells"]["seq2seq-kerbs"]["against_softmax"]
    each = ", ".join(f"{one['p']:.3f}" for one in kerbs["seeds"].values())
    assert rows["seq2seq-kerbs"][9:11] == [each, f"{kerbs['t_test']['p']:.3f}"]
    assert rows["seq2seq-kerbs"][11:13] == ["1.00×", "1.00×"]
    assert rows["seq2seq-kerbs"][13:] == ["0.01", "1.4", "8 |"]
    precision = ["1.000 ± 0.000 (3)", "33.33 ± 0.00 (3)"]  # of length and of words
    variety = [*precision, *(f"{value:.3f} ± 0.000 (3)" for value in (5 / 90, 4 / 60, 1 / 3))]
    assert f"| `seq2seq-mos` | {' | '.join(variety)} |" in text
    assert text.count("recipes/") == 2, "one command for all cells to train, one to evaluate"
    assert commands(results)[0].endswith("train.sh CELL --out out/dialog --seed SEED --scale small -- --lr RATE")
    assert commands(results)[1].endswith("--lenpen LENPEN --min-len MIN_LEN")


def test_speed_is_that_of_runs_on_an_idle_machine(evaluated: Path) -> None:
    for cell, seconds in (("seq2seq-softmax", 0.2), ("seq2seq-kerbs", 0.25)):
        folder = evaluated_run(evaluated, f"{cell}+time", 1, BAD)
        scores = json.loads((folder / "scores.json").read_text())
        (folder / "scores.json").write_text(json.dumps({**scores, "seconds_per_update": seconds}))
    results = gather("dialog", "dialog_dailydialog", evaluated)
    assert list(results["cells"]) == ["seq2seq-softmax", "seq2seq-mos", "seq2seq-kerbs"], "they have no rows"
    assert results["cells"]["seq2seq-kerbs"]["timed"] == {"1": {"seconds_per_update": 0.25, "tokens_per_second": 100.0}}
    lines = {line.split("`")[1]: line.split(" | ") for line in markdown_of(results).splitlines()[:6] if "`" in line}
    assert lines["seq2seq-kerbs"][11:13] == ["1.25×", "1.00×"]
    assert lines["seq2seq-mos"][11:13] == ["", ""], "without a timed run"
    results["cells"]["seq2seq-kerbs"]["timed"]["1"]["tokens_per_second"] = "fast"
    assert not are_results(results)


def test_the_summary(evaluated: Path) -> None:
    results = gather("dialog", "dialog_dailydialog", evaluated, "DailyDialog")
    for cell, ppl in (("seq2seq-softmax-features", 6.0), ("seq2seq-softmax-model", 5.0)):
        results["cells"][cell] = {"seeds": {"1": {"bleu": ppl, "valid_ppl": ppl}}}
    lines = summary([results]).splitlines()
    assert len(lines) == 3, "a row for each model that was run"
    cells = lines[2].split(" | ")
    assert cells[0] == "| dialog, DailyDialog, seq2seq"
    assert cells[3] == "5.00 (1)", "the wider softmax that is better on validation"
    assert cells[6].startswith("+")
    assert cells[7] == "+1.29 |"
    assert (p_value(0.0123), p_value(0.0004)) == ("0.012", "< 0.001")


def test_perplexities_are_compared_in_percent() -> None:
    all_seeds = {"difference": -9.0, "low": -10.0, "high": -8.0, "p": 0.001}
    cells = {
        "gru-softmax": {"seeds": {"1": {"ppl": 100.0}, "2": {"ppl": 80.0}}},
        "gru-kerbs": {
            "seeds": {"1": {"ppl": 91.0}, "2": {"ppl": 71.0}},
            "against_softmax": {"all": all_seeds, "seeds": {}, "t_test": None},
        },
    }
    line = summary([{"task": "lm_1b", "corpus": "x", "cells": cells}]).splitlines()[2]
    assert "| 81.00 ± 14.14 (2) | **−10.0 %**: −9.00 [−10.00, −8.00], p 0.001 |" in line
    still = {"1": {"ppl": 90.0, "valid_ppl": 9.0}}
    two = {**still, "2": still["1"]}
    for seeds, shown in (
        (still, "| 81.00 ± 14.14 (2) |"),
        (two, "14.14 (2) |"),
        ({**two, "3": two["1"]}, "senses move"),
    ):
        cells["gru-kerbs-moves"] = {"seeds": seeds, "against_softmax": None}
        line = summary([{"task": "lm_1b", "corpus": "x", "cells": cells}]).splitlines()[2]
        assert shown in line, "that with more seeds, then the defaults"
    both = [{"name": name, "task": "lm_1b", "corpus": "x", "cells": cells} for name in ("lm", "lm_high_dropout")]
    assert summary(both) == summary(both[:1]), "a second series has no row"


END = "<!-- end of results -->\n"
PAGE = f"# Title\n<!-- results: dialog -->\nold\n{END}text\n<!-- results -->\n{END}"


def test_pages_are_filled_between_the_markers(evaluated: Path, tmp_path: Path, capsys) -> None:
    empty = PAGE.replace("old\n", f"\n{NOTHING}\n").replace(f"-->\n{END}", f"-->\n\n{NOTHING}\n{END}")
    assert filled(PAGE, {}) == filled(empty, {}) == empty
    page, to = tmp_path / "page.md", tmp_path / "results"
    page.write_text(PAGE)
    command.main(["collect", "dialog_dailydialog", str(evaluated), "--name", "dialog", "--to", str(to)])
    with pytest.raises(SystemExit, match="run make results-table"):
        command.main(["pages", str(page), "--results", str(to), "--check"])
    assert page.read_text() == PAGE
    command.main(["pages", str(page), "--results", str(to)])
    assert "page.md: now has the tables" in capsys.readouterr().out
    text = page.read_text()
    assert text.startswith("# Title\n<!-- results: dialog -->\n\n| cell |")
    assert "<!-- end of results -->\ntext\n<!-- results -->\n\n| task, corpus, model |" in text
    command.main(["pages", str(page), "--results", str(to), "--check"])
    page.write_text("<!-- results: dialog -->\n")
    with pytest.raises(SystemExit, match="without its <!-- end of results -->"):
        command.main(["pages", str(page), "--results", str(to)])
    (to / "dialog.json").write_text('{"name": "other"}')
    with pytest.raises(SystemExit, match="is not what kerbs-evaluate collect writes"):
        command.main(["pages", str(page), "--results", str(to)])


def test_the_documentation_has_the_tables_of_the_results() -> None:
    results = read_results(ROOT / "docs" / "results")
    for path in (ROOT / "docs").glob("*.md"):
        marked = bool(OPENING.search(path.read_text(encoding="utf-8")))
        assert marked == (path.name in ("results.md", "settings.md")), "make results-table names these"
    for name in ("README.md", "docs/results.md", "docs/settings.md"):
        assert not fill(ROOT / name, results, write=False), f"{name}: run make results-table"
    for name, collected in results.items():
        text = json.dumps(collected)
        assert "/home" not in text, f"{name}: a path of somebody's machine"
        assert collected["task"] in TASKS
