"""Mistakes that fairseq meets with a traceback: one line that says what to do. And trainings without warnings."""

import shutil
import subprocess
import sys
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import BIN, ENVIRONMENT, PACKAGE, QUICK, SMALL_LSTM, SMALL_TRANSFORMER, start, twin
from fairseq.modules import MultiheadAttention
from inprocess import prepare, trainer

from kerbs_fairseq.allocation import policy
from kerbs_fairseq.allocation.obstacles import obstacle
from kerbs_fairseq.modules import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin import fairseq_messages, fairseq_patches

BOOT = PACKAGE.parent / "boot"
KERBS = f"{twin(SMALL_LSTM)} --criterion kerbs_cross_entropy"


def line_of(done: subprocess.CompletedProcess) -> str:
    """The one line that a command ends with."""
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Traceback" not in done.stdout + done.stderr, done.stderr[-3000:]
    *_, last = done.stderr.strip().splitlines()
    assert last.startswith("kerbs_fairseq: ")
    return last


def damaged(folder: Path, pairs: Path, model: Path) -> Path:
    """Data and checkpoints with which something is wrong."""
    content = (model / "checkpoint_best.pt").read_bytes()
    (folder / "cut.pt").write_bytes(content[: len(content) // 2])
    torch.save({"weights": 1}, folder / "other.pt")
    for name, file in (("empty", "valid.src-tgt.tgt.bin"), ("short", "train.src-tgt.tgt.bin")):
        shutil.copytree(pairs, folder / name)
        (folder / name / file).write_bytes((pairs / file).read_bytes()[: 0 if name == "empty" else 999])
    (folder / "nothing").mkdir()
    return folder


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ("pairs", "--restore-file BAD/cut.pt", "cut.pt cannot be read as a checkpoint ("),
        pytest.param(
            "pairs",
            "--restore-file BAD/other.pt",
            "other.pt cannot be read as a checkpoint (KeyError",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "pairs",
            "--restore-file MODEL --criterion cross_entropy",
            "its optimizer's state has no place for senses",
            marks=pytest.mark.thorough,
        ),
        ("BAD/missing", "", "missing: [Errno 2] No such file or directory"),
        pytest.param("BAD/nothing", "", "nothing: Could not infer language pair", marks=pytest.mark.thorough),
        ("BAD/empty", "", "the data set 'valid' in BAD/empty is empty"),
        ("BAD/short", "", "the data are damaged (offset must be non-negative"),
        pytest.param("pairs", "--valid-subset valid,dev", "there is no data set 'dev' in", marks=pytest.mark.thorough),
        ("pairs", "--fp16", "--fp16 needs a GPU"),
        ("pairs", "--bf16", "fairseq takes --bf16 and --tpu for the use of a TPU"),
        ("pairs", "BACKEND", "KERBS_BACKEND=magic: there are "),
        ("pairs", "--lr 1e30", "training has diverged (gradients are Nan/Inf): use a lower --lr"),
    ],
)
def test_training_ends_with_a_line(
    tmp_path: Path, pairs: Path, transformer: Path, data: str, options: str, message: str
) -> None:
    bad = str(damaged(tmp_path, pairs, transformer))
    folder = str(pairs) if data == "pairs" else data.replace("BAD", bad)
    options = options.replace("BAD", bad).replace("MODEL", f"{transformer}/checkpoint_best.pt")
    command = f"fairseq-train {folder} --user-dir {PACKAGE} {KERBS} --save-dir {tmp_path}/save {QUICK} --max-update 3"
    env = {**ENVIRONMENT, "KERBS_BACKEND": "magic"} if options == "BACKEND" else ENVIRONMENT
    assert message.replace("BAD", bad) in line_of(start(f"{command} {options.replace('BACKEND', '')}", env=env))


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param("--path BAD/cut.pt", "cut.pt cannot be read as a checkpoint", marks=pytest.mark.thorough),
        ("--path BAD/none.pt", "Model file not found"),
        ("--path MODEL --beam 0", "--beam 0: at least 1"),
        ("--path MODEL --gen-subset dev", "there is no data set 'dev' in"),
    ],
)
def test_generation_ends_with_a_line(
    tmp_path: Path, pairs: Path, transformer: Path, options: str, message: str
) -> None:
    bad = str(damaged(tmp_path, pairs, transformer))
    options = options.replace("BAD", bad).replace("MODEL", f"{transformer}/checkpoint_best.pt")
    assert message in line_of(start(f"fairseq-generate {pairs} --user-dir {PACKAGE} {options}"))


def test_other_exceptions_and_other_programs_keep_their_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fairseq import checkpoint_utils

    hook = sys.excepthook
    for name, missing, shown in (
        ("/bin/fairseq-train", True, False),
        ("/home/me/train.py", True, True),
        ("/bin/fairseq-train", False, True),
    ):
        monkeypatch.setattr(sys.modules["__main__"], "__file__", name, raising=False)
        try:
            if missing:
                checkpoint_utils.load_checkpoint_to_cpu("none.pt")
            raise RuntimeError("a fault of somebody's model")
        except (OSError, RuntimeError):
            hook(*sys.exc_info())
        assert ("Traceback" in capsys.readouterr().err) == shown


def test_the_option_that_is_required_is_named() -> None:
    from fairseq import optim

    with pytest.raises(ValueError, match="optimizer is required!") as caught:
        optim.build_optimizer(Namespace(optimizer=None), [])
    assert fairseq_messages.explained(caught.value, caught.tb) == "optimizer is required! Give --optimizer"


def test_interrupts_and_exits_are_not_explained() -> None:
    for error in (KeyboardInterrupt(), SystemExit(1), MemoryError()):
        assert fairseq_messages.explained(error, None) is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("data --arch kerbs_lstm", "fairseq-train: kerbs_lstm is of kerbs_fairseq: add --user-dir kerbs_fairseq"),
        pytest.param(
            "data --arch=gru_lm", "fairseq-train: --arch=gru_lm is of kerbs_fairseq: add", marks=pytest.mark.thorough
        ),
        ("data --arch lstm --kerbs-senses 2", "fairseq-train: --kerbs-senses is of kerbs_fairseq: add"),
    ],
)
def test_a_forgotten_user_dir_is_said_at_once(arguments: str, line: str) -> None:
    program = f"import sys; sys.argv = ['/bin/fairseq-train', *{arguments.split()}]; import fairseq"
    done = with_our_shim([sys.executable, "-c", program])
    assert done.returncode == 1
    assert done.stderr.startswith(line)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.e2e
def test_a_checkpoint_without_the_user_dir(pairs: Path, transformer: Path) -> None:
    done = with_our_shim([str(BIN / "fairseq-generate"), str(pairs), "--path", f"{transformer}/checkpoint_best.pt"])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "cannot be read without kerbs_fairseq: add --user-dir kerbs_fairseq" in done.stderr.splitlines()[-1]


def with_our_shim(command: list[str]) -> subprocess.CompletedProcess:
    """Run it with the boot shim of these sources, which may be newer than the one that is installed."""
    env = {**ENVIRONMENT, "PYTHONPATH": f"{BOOT}:{ENVIRONMENT.get('PYTHONPATH', '')}"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.e2e
@pytest.mark.parametrize("more", ["--amp", pytest.param("", marks=pytest.mark.thorough)])
def test_a_training_without_warnings(tmp_path: Path, pairs: Path, more: str) -> None:
    command = f"fairseq-train {pairs} --user-dir {PACKAGE} {twin(SMALL_TRANSFORMER)} {QUICK} --save-dir {tmp_path}"
    done = start(f"{command} --max-update 2 --criterion kerbs_cross_entropy --kerbs-reallocate-every 0 {more}")
    assert done.returncode == 0
    said = [line for line in (done.stdout + done.stderr).splitlines() if "Warning" in line]
    assert [line for line in said if "CUDA is not available" not in line] == []


def test_masks_of_one_type_give_the_same_attention() -> None:
    torch.manual_seed(1)
    layer = MultiheadAttention(8, 2, self_attention=True)
    x, padding = torch.randn(5, 3, 8), torch.zeros(3, 5, dtype=torch.bool)
    padding[1, 3:] = True
    causal = torch.full((5, 5), -torch.inf).triu(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attended, _ = layer(x, x, x, key_padding_mask=padding, attn_mask=causal)
    masked = causal.expand(3, 2, 5, 5).masked_fill(padding[:, None, None], -torch.inf)
    q, k, v = (p(x).view(5, 3, 2, 4).permute(1, 2, 0, 3) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
    weights = torch.softmax(q @ k.mT / 2 + masked, -1)
    expected = layer.out_proj((weights @ v).permute(2, 0, 1, 3).reshape(5, 3, 8))
    torch.testing.assert_close(attended, expected)


# --- senses that can never move


@pytest.mark.parametrize(
    ("of_layer", "of_schedule", "reason"),
    [
        ({}, {"every": 100}, None),
        ({}, {"every": 100, "after": 150, "until": 200, "max_update": 200}, None),
        ({}, {"every": 500, "until": 300}, "after update 500, and until is 300"),
        ({}, {"every": 100, "after": 150, "until": 199}, "after update 200, and until is 199"),
        ({}, {"every": 100, "after": 1000, "max_update": 999}, "after update 1000, and training ends after 999"),
        ({}, {"every": 100, "threshold": float("-inf")}, "no log P is below threshold -inf"),
        ({"senses": 3, "max_senses": 3}, {"every": 1}, "all words have the most senses that they may have, 3"),
        ({"senses": 1, "max_senses": 1}, {"every": 1}, "all words have the most senses that they may have, 1"),
        ({"senses": 2, "min_senses": 2}, {"every": 1}, "no word has more than the 2 that it keeps"),
    ],
)
def test_what_keeps_senses_from_moving(of_layer: Any, of_schedule: Any, reason: Any) -> None:
    table = KernelizedBayesianSoftmax(4, 20, single=[0, 1], **of_layer).senses
    why_not = obstacle(table, **of_schedule)
    assert (why_not is None) if reason is None else (reason in str(why_not))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--max-update 9 --kerbs-reallocate-after 2 --kerbs-reallocate-every 5", None),
        ("--max-update 9", None),
        ("--max-update 9 --kerbs-reallocate-every 10 --kerbs-reallocate-after 1", "training ends after 9"),
        (
            "--kerbs-reallocate-every 100 --kerbs-reallocate-after 0 --kerbs-reallocate-until 50",
            "--kerbs-reallocate-until is 50",
        ),
        (
            "--kerbs-reallocate-every 100 --kerbs-strategy paper --kerbs-threshold=-inf",
            "no log P is below --kerbs-threshold -inf",
        ),
        (
            "--kerbs-reallocate-every 100 --kerbs-strategy mine --kerbs-threshold=-inf",
            "no log P is below --kerbs-threshold -inf",
        ),
        ("--kerbs-reallocate-every 100 --kerbs-senses 1", "no word has more than the 1 that it keeps"),
    ],
)
def test_a_training_in_which_senses_never_move_says_so_once(
    pairs: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, options: str, reason: Any
) -> None:
    monkeypatch.setitem(policy.STRATEGIES, "mine", policy.Strategy(lambda situation: []))
    trainer(prepare(pairs, "lstm", f"--arch kerbs_lstm --criterion kerbs_cross_entropy --optimizer adam {options}"))
    said = [record.getMessage() for record in caplog.records if "never move" in record.getMessage()]
    assert len(said) == (reason is not None)
    assert reason is None or (reason in said[0] and "or use --kerbs-reallocate-every 0" in said[0])


@pytest.mark.e2e
def test_it_says_so_without_the_repairs_too(pairs: Path) -> None:
    options = "--max-update 1 --kerbs-reallocate-every 10 --fp16 --no-save"
    env = {**ENVIRONMENT, fairseq_patches.SKIP_VARIABLE: "early-checks"}
    done = start(f"fairseq-train {pairs} --user-dir {PACKAGE} {KERBS} {QUICK} --cpu {options}", env=env)
    assert "--fp16 needs a GPU" not in done.stderr, "what early-checks would say"
    assert (done.stdout + done.stderr).count("senses will never move: ") == 1


@pytest.mark.parametrize(("option", "unit"), [("", "per token, nll_loss too"), ("--sentence-avg", "per sentence, nll")])
def test_the_log_says_what_the_loss_is_per(
    pairs: Path, caplog: pytest.LogCaptureFixture, option: str, unit: str
) -> None:
    with caplog.at_level("INFO"):
        prepare(pairs, "lstm", f"--arch kerbs_lstm --criterion kerbs_cross_entropy {option}")
    assert unit in caplog.text
