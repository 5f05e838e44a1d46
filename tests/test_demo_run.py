"""kerbs-demo, from one command to the table."""

import json
import re
from pathlib import Path

import pytest
from commands import launch

from kerbs_fairseq.demo import run as demo
from kerbs_fairseq.runs import process as commands

SMALLER_DEMO = """
import functools, sys
from kerbs_fairseq.demo import run, write
sizes = write.Sizes(2000, 200, 200)
run.write_corpus = functools.partial(write.write_corpus, parallel=sizes, mono=sizes)
run.main(sys.argv[1:])
"""


@pytest.mark.e2e
def test_demo_prints_its_table(tmp_path: Path) -> None:
    options = f"--out {tmp_path}/out --models lstm --heads softmax kerbs --epochs 1"
    done = launch(["python", "-c", SMALLER_DEMO, *options.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"epoch  1/1  valid ppl +[\d.]+ ", done.stdout)
    assert re.search(r"^model +head +parameters +valid ppl +BLEU +seconds$", done.stdout, re.M)
    assert re.search(r"^lstm +kerbs +[\d,]{7} +[\d.]+ +[\d.]+ +\d+$", done.stdout, re.M)
    stock, result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [(row["model"], row["head"]) for row in (stock, result)] == [("lstm", "softmax"), ("lstm", "kerbs")]
    assert 2 < result["valid_ppl"] < 360
    assert "tok:none" in result["signature"]
    assert re.search(r"^true senses +words +has 1 +has 2", done.stdout, re.M)
    assert re.search(r"^rank correlation -?\d\.\d\d, without grammar words -?\d\.\d\d$", done.stdout, re.M)
    assert re.search(r"^word +true senses +has +means +times +right +by chance$", done.stdout, re.M)
    assert re.search(r"^all 35 +\d+ +\d+% +\d+%$", done.stdout, re.M)
    assert done.stdout.splitlines()[-2] == f"Report: {tmp_path}/out/report/index.html (open it in a browser)"
    page = (tmp_path / "out" / "report" / "index.html").read_text()
    assert "lstm-softmax" in page
    assert "BLEU signature" in page
    assert stock["truth_correlation"] is None
    assert -1 < result["truth_correlation"] < 1


def test_other_peoples_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("keep me")
    with pytest.raises(SystemExit, match="was not written by this command"):
        demo.main(["--out", str(tmp_path)])
    assert (tmp_path / "precious").read_text() == "keep me"


@pytest.mark.parametrize("seed", ["-1", "99999999999"])
def test_bad_seed_costs_no_earlier_demo(tmp_path: Path, seed: str) -> None:
    (tmp_path / demo.MARK).write_text("{}")
    with pytest.raises(SystemExit, match="a whole number from 0"):
        demo.main(["--out", str(tmp_path), "--seed", seed])
    assert (tmp_path / demo.MARK).is_file()


def test_jobs_must_be_positive() -> None:
    with pytest.raises(SystemExit, match="--jobs must be at least 1"):
        demo.main(["--jobs", "0"])


def test_epochs_must_be_positive() -> None:
    with pytest.raises(SystemExit, match="--epochs must be at least 1"):
        demo.main(["--epochs", "0"])


def test_a_head_that_no_chosen_model_has(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--heads kerbs-1\.5 requires --models transformer"):
        demo.main(["--out", str(tmp_path / "out"), "--models", "lstm", "--heads", "kerbs-1.5"])
    assert not (tmp_path / "out").exists()


def test_failing_command_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = demo.Model("bad", 1, "no_such_arch", "")
    monkeypatch.setattr(demo, "MODELS", (bad,))
    monkeypatch.setattr(demo, "preprocess", lambda folder: None)
    monkeypatch.setattr(demo, "write_corpus", lambda folder, seed: None)
    with pytest.raises(SystemExit) as stopped:
        demo.main(["--out", str(tmp_path / "out"), "--models", "bad", "--heads", "softmax"])
    assert re.match(
        r"kerbs-demo: fairseq-train failed \(2\); full log: .*train\.log. Last lines:\n", str(stopped.value.code)
    )
    assert "invalid choice: 'no_such_arch'" in str(stopped.value.code)


def test_training_watch_reads_the_log(capsys: pytest.CaptureFixture) -> None:
    result = demo.Result("x", "softmax")
    watch = demo.TrainingWatch(result, 4)
    watch('2026 | INFO | valid | {"epoch": 1, "valid_loss": "2", "valid_ppl": "4"}\n')
    watch('2026 | INFO | valid | {"epoch": 2, "valid_loss": "3", "valid_ppl": "8"}\n')
    assert result.valid_ppl == 4.0
    assert "epoch  2/4" in capsys.readouterr().out


def test_a_stopped_command_does_not_go_on(tmp_path: Path) -> None:
    script = tmp_path / "count.sh"
    script.write_text("i=0; while true; do echo $i; i=$((i+1)); sleep 0.05; done\n")

    def stop(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        commands.run(["sh", str(script)], tmp_path / "log", stop)
    assert (tmp_path / "log").read_text() == "0\n"
    running: set[commands.Process] = set()
    with pytest.raises(KeyboardInterrupt):
        commands.logged(["sh", str(script)], tmp_path / "log", stop, running=running, append=True)
    assert (tmp_path / "log").read_text() == "0\n0\n"
    assert not running


def test_missing_command_is_explained(tmp_path: Path) -> None:
    with pytest.raises(commands.CommandFailed, match="no-such-command is not installed: run kerbs-doctor"):
        commands.run(["no-such-command"], tmp_path / "log")


@pytest.mark.parametrize(("here", "plain"), [(True, True), (False, False)])
def test_user_dir_is_the_plain_name_where_fairseq_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool, plain: bool
) -> None:
    package = Path(commands.__file__).parent.parent
    monkeypatch.chdir(package.parent if here else tmp_path)
    beside_fairseq = (package.parent / "fairseq").is_dir()
    assert commands.user_dir() == ("kerbs_fairseq" if plain or beside_fairseq else str(package))
