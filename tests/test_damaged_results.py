"""kerbs-evaluate and kerbs-table on folders of other people, and on damaged files of runs."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from damages import DAMAGES, attempt, damage, tree
from evaluated import evaluated_run

from kerbs_fairseq.evaluation import command as evaluate
from kerbs_fairseq.evaluation import sweep
from kerbs_fairseq.evaluation.significance import paired_bootstrap

TIMES = 3  # damages of each file
WANTED = ["a b c", "d e f", "g h i"] * 10
# JSON of another shape than what is written there
SHAPES = ["1", "null", '"text"', "[]", "[1, 2]", "{}", '{"sides": 3}', '{"sides": []}', '{"sides": [1, null]}',
          '{"bleu": "high"}', '{"bleu": null}', '{"bleu": [1]}', '{"bleu": NaN}', '{"bleu": 1e999, "ppl": 1e999}',
          '{"bleu": 1, "versions": 3}', '{"bleu": 1, "versions": {"torch": [1]}}', '{"bleu": 1, "signature": {}}',
          '{"bleu": 1, "parameters": "many"}', "[" * 5000]  # fmt: skip


def folder_of_bleu(out: Path) -> tuple[list[list[object]], list[Path]]:
    """Two evaluated runs of a dialog recipe: the commands over them, and their files."""
    runs = [evaluated_run(out, cell, 1, [*WANTED[:20], *["a b"] * 10]) for cell in ("seq2seq-softmax", "seq2seq-kerbs")]
    for run in [*runs, evaluated_run(out, "seq2seq-kerbs", 2, WANTED)]:
        (run / "training").write_text("--arch lstm --lr 0.1")
        (run / "evaluation").write_text("--lenpen 1")
        (run / "command").write_text("recipes/x/train.sh --out OUT --seed 1")
        (run / "train.log").write_text('| valid | {"epoch": 1, "valid_loss": "2", "valid_ppl": "4"}\n')
        (run / "generate-test.txt").write_text("".join(f"H-{i}\t-1\t{line}\n" for i, line in enumerate(WANTED)))
    (out / "pieces").mkdir()
    (out / "pieces" / "pieces.json").write_text(
        json.dumps({"tokens": "words", "languages": ["tgt=en"], "sides": ["src", "tgt"]})
    )
    (out / "results").mkdir()
    task = "dialog_dailydialog"
    evaluate.main(["collect", task, str(out), "--to", str(out / "results"), "--name", "kept"])
    (out / "page.md").write_text(
        "<!-- results: kept -->\nold\n<!-- end of results -->\n<!-- results -->\n<!-- end of results -->\n"
    )
    commands: list[list[object]] = [
        ["score", task, out, runs[0]],
        ["compare", task, out, *runs],
        ["table", task, out],
        ["collect", task, out, "--to", out / "results", "--name", "new"],
        ["pages", out / "page.md", "--results", out / "results"],
    ]
    return commands, [path for path in sorted(out.rglob("*")) if path.is_file()]


def folder_of_ppl(out: Path) -> tuple[list[list[object]], list[Path]]:
    """The same for a language model."""
    (out / "text" / "corpus.json").write_text('{"sides": ["txt"]}')
    (out / "text" / "test.txt").write_text("a b\nc d\n")
    (out / "pieces").mkdir()
    (out / "pieces" / "test.txt").write_text("a b\nc d\n")
    (out / "binary" / "dict.txt").write_text("a 1\nb 1\n")
    runs = []
    for cell in ("gru-softmax", "gru-kerbs"):
        run = out / "runs" / cell / "seed_1"
        run.mkdir(parents=True)
        (run / "scores.json").write_text('{"ppl": 4.5, "words": 6}')
        (run / "test.nll").write_text("3.5\n4.5\n")
        (run / "eval-lm.log").write_text("| 0 a [-1.5]\tb [-2]\n| 1 c [-1]\td [-3.5]\n")
        runs.append(run)
    commands: list[list[object]] = [
        ["score", "lm_1b", out, runs[0]],
        ["compare", "lm_1b", out, *runs],
        ["table", "lm_1b", out],
        ["collect", "lm_1b", out, "--to", out / "results"],
    ]
    return commands, [path for path in sorted(out.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("make", [folder_of_bleu, folder_of_ppl])
def test_one_line_or_success(make: Any, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_bootstrap, "__defaults__", (5, 1))  # draws, seed
    commands, files = make(out)
    for arguments in commands:
        assert attempt(evaluate.main, arguments) == "", arguments
    whole, chance, failed = tmp_path / "whole", random.Random(1), 0
    shutil.copytree(out, whole)
    for file in files:
        kinds = chance.sample([*DAMAGES, *SHAPES] if file.suffix == ".json" else [*DAMAGES], TIMES)
        for kind in kinds:
            if kind in DAMAGES:
                damage(file, kind, chance)
            else:
                file.write_text(kind)
            for arguments in chance.sample(commands, 2):
                before = tree(out)
                if attempt(evaluate.main, arguments):
                    failed += 1
                    assert tree(out) == before, (file, kind, arguments)
            shutil.rmtree(out)
            shutil.copytree(whole, out)
    assert failed


def test_folders_of_other_people(out: Path, tmp_path: Path) -> None:
    task = "dialog_dailydialog"
    run = evaluated_run(out, "seq2seq-softmax", 1, WANTED)
    foreign = tmp_path / "my model" / "last"
    shutil.copytree(run, foreign)
    for arguments in (
        ["score", task, out, foreign],
        ["score", task, tmp_path / "none", run],
        ["compare", task, out, run, foreign],
        ["compare", task, tmp_path, run],
        ["table", task, tmp_path],
        ["collect", task, tmp_path / "none"],
        ["pages", tmp_path],
        ["pages", tmp_path / "none.md", "--results", tmp_path / "none"],
        ["table", "mt_iwslt16", run / "scores.json"],
    ):
        assert attempt(evaluate.main, arguments), arguments


# --- kerbs-table


def folder_of_a_table(out: Path) -> tuple[list[object], list[Path]]:
    """Two trained and evaluated cells, with rates and length penalties that were tried: the command, and its files."""
    folder_of_bleu(out)
    for cell in ("seq2seq-softmax", "seq2seq-kerbs"):
        run = out / "runs" / cell / "seed_1"
        (run / "trained").touch()
        for lenpen in ("0.6", "1"):
            (run / f"valid_lenpen_{lenpen}").mkdir()
            (run / f"valid_lenpen_{lenpen}" / "scores.json").write_text('{"bleu": 2.5}')
        for rate in ("0.1", "0.2"):
            shutil.copytree(run, out / "runs" / f"{cell}+lr{rate}" / "seed_1")
    (out / "table.md").write_text("old\n")
    recipe = Path(__file__).parent.parent / "recipes" / "dialog_dailydialog"
    arguments: list[object] = [recipe, "--out", out, "--seeds", 1, "--cells", "seq2seq-softmax,seq2seq-kerbs"]
    arguments += ["--lr-grid", "0.1,0.2", "--lenpen-grid", "0.6,1"]
    read = ("scores.json", "test.hyp", "test.tgt", "corpus.json", "train.log", "training", "command", "evaluation")
    return arguments, [path for path in sorted(out.rglob("*")) if path.name in read]


def table(arguments: list[object]) -> object:
    with pytest.raises(SystemExit) as stopped:
        sweep.main([*map(str, arguments)])
    return stopped.value.code


def test_a_table_of_damaged_runs(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failures are listed, or one line ends it; only the table is written, and whole."""
    monkeypatch.setattr(paired_bootstrap, "__defaults__", (5, 1))
    monkeypatch.setattr(sweep.Sweep, "call", lambda *of: "")  # scripts that have nothing to do
    arguments, files = folder_of_a_table(out)
    assert table(arguments) == 0
    whole, chance, failed = tmp_path / "whole", random.Random(1), 0
    shutil.copytree(out, whole)
    for file in files:
        kind = chance.choice([*DAMAGES, *SHAPES] if file.suffix == ".json" else [*DAMAGES])
        if kind in DAMAGES:
            damage(file, kind, chance)
        else:
            file.write_text(kind)
        capsys.readouterr()
        before = tree(out)
        code = table(arguments)
        said = capsys.readouterr()
        assert code in (0, 1) or (isinstance(code, str) and "\n" not in code), (file, kind, code)
        assert code != 1 or "FAILED" in said.out or "no rate chosen" in said.out or "no table" in said.out, (file, kind)
        assert "Traceback" not in said.err
        failed += bool(code)
        after = tree(out)
        shown = after.pop(out / "table.md")
        assert shown == before.pop(out / "table.md") or shown.endswith(b"\n")
        assert after == before, (file, kind, code)
        shutil.rmtree(out)
        shutil.copytree(whole, out)
    assert failed
