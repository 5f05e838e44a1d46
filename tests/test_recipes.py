"""The recipes end to end, on tiny raw corpora in the owners' formats, with the real commands; and users' mistakes."""

import hashlib
import json
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from commands import with_stand_ins
from raw_corpora import write_dialogs, write_iwslt, write_shards
from recipe_scripts import RECIPES, fake, refusal, run, started

from kerbs_fairseq.evaluation.paper import TASKS
from kerbs_fairseq.evaluation.runs import Run
from kerbs_fairseq.evaluation.words import groups_of_pieces

SCRIPTS = sorted(path for path in RECIPES.rglob("*.sh"))
TINY_LSTM = (
    "--encoder-embed-dim 16 --encoder-hidden-size 16 --decoder-embed-dim 16 --decoder-hidden-size 16 "
    "--decoder-out-embed-dim 16 --max-tokens 300"
)
TINY_GRU = "--decoder-embed-dim 16 --decoder-hidden-size 16 --decoder-out-embed-dim 16 --max-tokens 300"


# --- each recipe from raw files to the table


@pytest.mark.e2e
def test_translation_recipe(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = (
        "--raw",
        write_iwslt(tmp_path / "raw" / "de-en").parent,
        "--out",
        out,
        "--tokens",
        "moses",
        "--size",
        90,
    )
    run("mt_iwslt16/prepare.sh", *arguments)
    assert (out / "text" / "train.de").read_text().count("\n") == 200
    again = run("mt_iwslt16/prepare.sh", *arguments)
    assert again.count("done before") == 3, "finished steps are skipped"
    assert "other settings" in refusal("mt_iwslt16/prepare.sh", *arguments[:-1], 95)
    shown = run(
        "table.sh", "mt_iwslt16", "--out", out, "--seeds", "1", "--scale", "small", "--updates", "3", "--jobs", "2",
        "--cells", "seq2seq-softmax,seq2seq-kerbs-nokernel,seq2seq-kerbs-moves", "--lenpen-grid", "0.5",
        "--min-len-grid", "9", "--", *TINY_LSTM.split(),
    )  # fmt: skip
    assert shown.count(" on validation)") == 3 + 3
    assert re.search(r"\| `seq2seq-softmax` \| softmax \| 0\.\d\d M \| 25\.91 \| ", shown)
    assert re.search(r"\| `seq2seq-kerbs-nokernel` \| KerBS w/o kernel \| 0\.\d\d M \| 26\.79 \| ", shown)
    assert "recipes/mt_iwslt16/train.sh CELL --out out/out --seed SEED --scale small --updates 3 -- --enc" in shown
    ablation = out / "runs" / "seq2seq-kerbs-nokernel" / "seed_1"
    assert "--arch kerbs_lstm" in (ablation / "training").read_text()
    assert "--kerbs-kernel dot --criterion kerbs_cross_entropy --label-smooth" in (ablation / "training").read_text()
    assert len((ablation / "valid_lenpen_0.5_min_len_9" / "valid.hyp").read_text().splitlines()) == 20
    scores = json.loads((ablation / "scores.json").read_text())
    assert "tok:13a" in scores["signature"]
    assert "tok:none" in scores["signature_of_moses_tokens"]
    assert len((ablation / "test.hyp").read_text().splitlines()) == 20
    assert "'lenpen': 0.5, 'unkpen'" in (ablation / "generate.log").read_text()
    assert "'min_len': 9" in (ablation / "generate.log").read_text()
    model = ("seq2seq-kerbs-nokernel", "--out", out)
    assert "was made with other options (--lenpen 0.5 --min-len 9 )" in refusal("mt_iwslt16/evaluate.sh", *model)
    shown = run("mt_iwslt16/evaluate.sh", *model, "--lenpen", "0.5", "--min-len", 9, "--against", "seq2seq-softmax")
    assert "evaluated before" in shown
    assert "seq2seq-kerbs-nokernel against seq2seq-softmax: " in shown


@pytest.mark.e2e
def test_language_model_recipe(tmp_path: Path) -> None:
    out = tmp_path / "out"
    raw = write_shards(tmp_path / "raw")
    run("lm_1b/prepare.sh", "--raw", raw, "--out", out, "--cut", "250,20,30", "--size", 80)
    model = ("gru-kerbs", "--out", out, "--seed", 2)
    run("lm_1b/train.sh", *model, "--scale", "small", "--updates", 4, "--", *TINY_GRU.split())
    run("lm_1b/evaluate.sh", *model)
    scores = json.loads((out / "runs" / "gru-kerbs" / "seed_2" / "scores.json").read_text())
    log = (out / "runs" / "gru-kerbs" / "seed_2" / "eval-lm.log").read_text()
    words = sum(len(line.split()) + 1 for line in (out / "text" / "test.txt").read_text().splitlines())
    assert scores["words"] == words
    groups = groups_of_pieces(out, [Run(out / "runs" / "gru-kerbs" / "seed_2")])
    scored = re.findall(r"Evaluated ([\d,]+) tokens", log)[0]
    assert f"| all | {scored} | " in groups
    assert "| senses in gru-kerbs | " in groups
    # an untrained model is somewhat better than a guess among its 80 pieces, several of which make a word: those that
    # are frequent start with more senses
    pieces = sum(len(line.split()) + 1 for line in (out / "pieces" / "test.txt").read_text().splitlines())
    assert 0.1 < scores["ppl"] / 80 ** (pieces / words) < 3


@pytest.mark.e2e
def test_dialog_recipe(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("dialog_dailydialog/prepare.sh", "--raw", write_dialogs(tmp_path / "raw"), "--out", out, "--size", 80)
    model = ("seq2seq-mos-identity", "--out", out)
    run("dialog_dailydialog/train.sh", *model, "--scale", "small", "--updates", 3, "--", *TINY_LSTM.split())
    run("dialog_dailydialog/evaluate.sh", *model, "--", "--max-len-b", "20")
    scores = json.loads((out / "runs" / "seq2seq-mos-identity" / "seed_1" / "scores.json").read_text())
    assert scores["order"] == 1
    assert 0 <= scores["bleu"] <= 100


# --- mistakes


@pytest.mark.parametrize("recipe", ["mt_iwslt16", "lm_1b", "dialog_dailydialog"])
def test_help_and_unknown_options(recipe: str) -> None:
    assert "Needs:" in run(f"{recipe}/prepare.sh", "--help")
    assert "Cells:" in run(f"{recipe}/train.sh", "--help")
    assert "unknown option --magic" in refusal(f"{recipe}/prepare.sh", "--magic")
    assert "--out needs a value" in refusal(f"{recipe}/prepare.sh", "--out")
    for number in ("many", "08", "0"):
        assert "a whole number from 1 on" in refusal(f"{recipe}/prepare.sh", "--size", number)
    assert "--raw is not a directory" in refusal(f"{recipe}/prepare.sh", "--raw", "missing")
    assert "raw, moses or words" in refusal(f"{recipe}/prepare.sh", "--tokens", "mosses")


def test_unknown_cells_and_missing_data(tmp_path: Path) -> None:
    assert "run recipes/mt_iwslt16/prepare.sh" in refusal("mt_iwslt16/train.sh", "seq2seq-kerbs", "--out", tmp_path)
    (tmp_path / "binary").mkdir()
    message = refusal("mt_iwslt16/train.sh", "seq2seq-magic", "--out", tmp_path)
    assert "there is no cell 'seq2seq-magic'; there are" in message
    assert message.split("'-': ")[1].split() == TASKS["mt_iwslt16"].cells, "the same as in the table"
    two = "seq2seq-softmax seq2seq-mos"
    for name in ("seq2seq-magic+x", "seq2seq-kerbs+", "seq2seq-kerbs+../x", "seq2seq-kerbs+a b", two, f"{two}+x"):
        assert f"there is no cell '{name}'" in refusal("mt_iwslt16/train.sh", name, "--out", tmp_path)
    assert "is not trained" in refusal("mt_iwslt16/evaluate.sh", "seq2seq-kerbs+x", "--out", tmp_path)
    assert "--subset train: test or valid" in refusal(
        "mt_iwslt16/evaluate.sh", "seq2seq-kerbs", "--out", tmp_path, "--subset", "train"
    )
    assert "--lenpen -1: a number" in refusal(
        "mt_iwslt16/evaluate.sh", "seq2seq-kerbs", "--out", tmp_path, "--lenpen", "-1"
    )
    assert "--min-len 1.5: a whole number" in refusal(
        "mt_iwslt16/evaluate.sh", "seq2seq-kerbs", "--out", tmp_path, "--min-len", "1.5"
    )
    assert "unknown option --lenpen" in refusal("lm_1b/evaluate.sh", "gru-kerbs", "--out", tmp_path, "--lenpen", "1")
    assert "paper or small" in refusal("mt_iwslt16/train.sh", "seq2seq-kerbs", "--out", tmp_path, "--scale", "huge")
    assert "is not trained" in refusal("mt_iwslt16/evaluate.sh", "seq2seq-kerbs", "--out", tmp_path)
    known = ("seq2seq-kerbs", "--out", tmp_path)
    assert "unknown option --scale" in refusal("mt_iwslt16/evaluate.sh", *known, "--scale", "small")
    assert "unknown option --against" in refusal("mt_iwslt16/train.sh", *known, "--against", "seq2seq-mos")
    assert "there is no cell '../x'" in refusal("mt_iwslt16/evaluate.sh", *known, "--against", "../x")
    assert "there is no task 'magic'" in refusal("table.sh", "magic")
    assert list(tmp_path.iterdir()) == [tmp_path / "binary"]


@pytest.mark.e2e
def test_a_failed_step_leaves_nothing(tmp_path: Path) -> None:
    raw = write_dialogs(tmp_path / "raw")
    (raw / "dialogues_test.txt").write_bytes(b"caf\xe9 __eou__ yes __eou__\n")
    message = refusal("dialog_dailydialog/prepare.sh", "--raw", raw, "--out", tmp_path / "out")
    assert "line 1: not UTF-8" in message
    assert list((tmp_path / "out").iterdir()) == []
    (raw / "dialogues_test.txt").write_text("so __eou__ yes __eou__\n")
    run("dialog_dailydialog/prepare.sh", "--raw", raw, "--out", tmp_path / "out", "--size", 80)  # nothing is locked


def test_an_archive_with_another_checksum_is_refused(tmp_path: Path) -> None:
    environment = fake(tmp_path / "bin", "curl", 'while [ "$1" != --output ]; do shift; done; echo cut short >"$2"')
    done = started(RECIPES / "dialog_dailydialog" / "prepare.sh", "--out", tmp_path / "out", **environment)
    assert done.returncode == 1
    assert "is not the file that is expected" in done.stderr
    assert not (tmp_path / "out" / "raw").exists()


def test_a_download_that_fails_points_to_raw(tmp_path: Path) -> None:
    environment = fake(tmp_path / "bin", "curl", "exit 6")
    done = started(RECIPES / "lm_1b" / "prepare.sh", "--out", tmp_path / "out", **environment)
    assert done.returncode == 1
    assert "give its folder with --raw" in done.stderr


def zipped(path: Path, files: dict[str, bytes]) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path.read_bytes()


@pytest.mark.e2e
@pytest.mark.parametrize("broken", [False, True])
def test_the_archive_of_dialogs_is_unpacked(tmp_path: Path, broken: bool) -> None:
    raw = write_dialogs(tmp_path / "raw")
    parts = {}
    for name in ("train", "validation", "test"):
        text = (raw / f"dialogues_{name}.txt").read_bytes()
        parts[f"ijcnlp_dailydialog/{name}.zip"] = zipped(tmp_path / "part", {f"{name}/dialogues_{name}.txt": text})
    if broken:
        parts["ijcnlp_dailydialog/test.zip"] = b"cut short"
    archive = zipped(tmp_path / "archive.zip", parts)
    copy = f'while [ "$1" != --output ]; do shift; done; cp {tmp_path / "archive.zip"} "$2"'
    environment = with_stand_ins(fake(tmp_path / "bin", "curl", copy))
    environment["KERBS_SHA256"] = hashlib.sha256(archive).hexdigest()
    out = tmp_path / "my R&D out"
    done = started(RECIPES / "dialog_dailydialog" / "prepare.sh", "--out", out, "--size", 80, **environment)
    assert (done.returncode == 0) != broken, done.stderr
    assert (out / "binary").is_dir() != broken
    assert (out / "raw").is_dir() != broken, "a part that cannot be read is not a corpus"


# --- the scripts themselves


def test_scripts_are_short_and_have_a_head() -> None:
    for path in SCRIPTS:
        lines = path.read_text().splitlines()
        assert lines[0] == "#!/usr/bin/env bash", path
        assert len(lines) < 200, f"{path} has {len(lines)} lines"
        if path.parent != RECIPES or path.name == "table.sh":  # those that a person starts
            assert any(line.startswith("# Needs:") for line in lines), path
            assert any(line.startswith("# Start:") for line in lines), path


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    done = subprocess.run(
        ["shellcheck", "-x", *map(str, SCRIPTS)], cwd=RECIPES.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
