"""Every patch of fairseq: needed here, right with it, and the error it is for without it."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import ENVIRONMENT, PACKAGE, QUICK, SMALL_LSTM, SMALL_TRANSFORMER, by_two, launch, start

from kerbs_fairseq import plugin
from kerbs_fairseq.plugin import fairseq_patches

EMA_PROGRAM = """
import types
import torch, fairseq, kerbs_fairseq
from fairseq.models.ema.ema import EMA

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("words", torch.arange(3))

model = Model()
config = types.SimpleNamespace(
    ema_decay=0.5, ema_seed_model=None, ema_fp32={fp32}, ema_start_update=0, ema_update_freq=1
)
ema = EMA(model, config)
with torch.no_grad():
    model.weight.fill_(3.0)
    model.words.copy_(torch.tensor([7, 8, 9]))
ema.step(model, 1)
state = ema.get_model().state_dict()
print(state["weight"].tolist(), state["words"].tolist(), state["words"].dtype)
"""

BUCKETS_PROGRAM = """
import fairseq, kerbs_fairseq
from fairseq.data import data_utils
print(data_utils.get_buckets([3, 1, 2, 10, 4, 8], 2).tolist())
"""

SPANS_PROGRAM = """
import numpy, fairseq, kerbs_fairseq
from fairseq.data import data_utils
numpy.random.seed(0)
print(data_utils.compute_mask_indices((2, 40), None, 0.3, 4, no_overlap=True).shape)
"""


def without(*patches: str) -> dict[str, str]:
    return {**ENVIRONMENT, fairseq_patches.SKIP_VARIABLE: ",".join(patches)}


def python(program: str, env: dict[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess:
    return launch(["python", "-c", program], env=env)


def test_every_patch_is_in_force_here() -> None:
    assert plugin.applied == [patch.name for patch in fairseq_patches.PATCHES]


def test_applying_again_changes_nothing() -> None:
    from fairseq import checkpoint_utils
    from fairseq.models.ema.ema import EMA

    before = (checkpoint_utils.torch, EMA.__init__)
    assert fairseq_patches.apply() == plugin.applied
    assert (checkpoint_utils.torch, EMA.__init__) == before


def test_torch_and_numpy_themselves_are_untouched() -> None:
    from fairseq import checkpoint_utils
    from fairseq.data import data_utils

    assert checkpoint_utils.torch is not torch
    assert checkpoint_utils.torch.nn is torch.nn
    assert data_utils.np is not np
    assert torch.load.__module__ == "torch.serialization"
    assert not hasattr(np, "int")


def test_needless_patch_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    patch = fairseq_patches.Patch("needless", "", lambda: False, lambda: made.append(1))
    monkeypatch.setattr(fairseq_patches, "PATCHES", (*fairseq_patches.PATCHES, patch))
    assert "needless" not in fairseq_patches.apply()
    assert made == []


def test_unknown_patch_cannot_be_left_out() -> None:
    done = start(f"fairseq-train nowhere --user-dir {PACKAGE} --arch transformer", env=without("no-such-fix"))
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "text_to_speech" not in line]
    assert line.startswith(
        f"kerbs_fairseq: {fairseq_patches.SKIP_VARIABLE} names no such fix: no-such-fix (there are checkpoint"
    )


@pytest.mark.e2e
def test_checkpoint_load(pairs: Path, transformer: Path) -> None:
    command = (
        f"fairseq-validate {pairs} --task translation --user-dir {PACKAGE} --path {transformer}/checkpoint_best.pt "
        "--max-tokens 800"
    )
    assert start(command).returncode == 0
    done = start(command, env=without("checkpoint-load"))
    assert done.returncode != 0
    assert "Weights only load failed" in done.stderr


@pytest.mark.e2e
def test_encoder_fast_path(pairs: Path, transformer: Path) -> None:
    command = f"fairseq-generate {pairs} --user-dir {PACKAGE} --path {transformer}/checkpoint_best.pt --batch-size 60"
    assert start(command).returncode == 0
    done = start(command, env=without("encoder-fast-path"))
    assert done.returncode != 0
    assert "Mask Type should be defined" in done.stderr


@pytest.mark.e2e
def test_numpy_names_in_language_model_data(text: Path, transformer_lm: Path) -> None:
    command = (
        f"fairseq-eval-lm {text} --user-dir {PACKAGE} --path {transformer_lm}/checkpoint_best.pt "
        "--sample-break-mode eos --max-tokens 800"
    )
    assert start(command).returncode == 0
    done = start(command, env=without("numpy-names"))
    assert done.returncode != 0
    assert re.search("has no attribute 'compat'|`np.compat` was removed", done.stderr), "in the words of any numpy 2"


@pytest.mark.parametrize(
    ("program", "answer", "error"),
    [
        (BUCKETS_PROGRAM, "[3, 10]", "interpolation"),
        (SPANS_PROGRAM, "(2, 40)", "has no attribute 'int'"),
    ],
    ids=["buckets", "spans"],
)
def test_numpy_names_in_data_utils(program: str, answer: str, error: str) -> None:
    assert python(program).stdout.splitlines()[-1] == answer
    done = python(program, without("numpy-names"))
    removed = error != "interpolation" or np.lib.NumpyVersion(np.__version__) >= "2.4.0"  # earlier ones warn
    assert (done.returncode != 0) == removed
    assert error in done.stderr


@pytest.mark.e2e
def test_numpy_names_in_translation_batches_by_bucket(pairs: Path, tmp_path: Path) -> None:
    command = (
        f"fairseq-train {pairs} --user-dir {PACKAGE} {SMALL_TRANSFORMER} {QUICK} --save-dir {tmp_path} --max-update 2 "
        "--num-batch-buckets 2 --required-batch-size-multiple 1"
    )
    done = start(command)
    assert done.returncode == 0, done.stderr
    assert "bucketing target lengths" in done.stdout + done.stderr


@pytest.mark.e2e
def test_hydra_warnings(pairs: Path) -> None:
    command = f"fairseq-train {pairs} --user-dir {PACKAGE} {SMALL_LSTM} {QUICK} --max-update 1 --no-save"
    assert "ConfigStore" not in start(command, fresh=True).stderr  # a process warns but once
    assert "ConfigStore" in start(command, env=without("hydra-warnings"), fresh=True).stderr


@pytest.mark.e2e
def test_ddp_on_cpu(pairs: Path, tmp_path: Path) -> None:
    command = (
        f"torchrun --standalone --nproc_per_node 2 --no-python fairseq-train {pairs} --user-dir {PACKAGE} {SMALL_LSTM} "
        f"{QUICK} --save-dir {tmp_path} --max-update 2 --cpu --distributed-backend gloo --ddp-backend c10d"
    )
    done = start(command, env=without("ddp-on-cpu"))  # with it: test_distributed_commands
    assert done.returncode != 0
    assert re.search(r"device_ids.*(CPU|device type)", done.stderr, re.S | re.I), done.stderr


@pytest.mark.e2e
def test_ddp_copies(pairs: Path, tmp_path: Path) -> None:
    """With it: test_distributed_commands, and with KerBS test_reallocation_commands."""
    options = "--max-update 2 --ddp-backend c10d"
    done = start(by_two(pairs, SMALL_TRANSFORMER, tmp_path, options), env=without("ddp-copies"))
    assert done.returncode != 0
    assert "Expected to have finished reduction" in done.stderr


@pytest.mark.parametrize("fp32", [False, True])
def test_ema_integers(fp32: bool) -> None:
    program = EMA_PROGRAM.format(fp32=fp32)
    assert python(program).stdout.splitlines()[-1] == "[2.0, 2.0, 2.0] [7, 8, 9] torch.int64"
    done = python(program, without("ema-integers"))
    assert done.returncode != 0
    assert "can't be cast to" in done.stderr


@pytest.mark.e2e
def test_adaptive_loss(pairs: Path, tmp_path: Path) -> None:
    command = (
        f"fairseq-train {pairs} --user-dir {PACKAGE} {SMALL_TRANSFORMER} {QUICK} --save-dir {tmp_path} --max-update 1 "
        "--criterion adaptive_loss --ddp-backend legacy_ddp"
    )
    done = start(command)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "kerbs_fairseq: --criterion adaptive_loss trains models with an adaptive softmax" in done.stderr
    assert "AssertionError" in start(command, env=without("adaptive-loss")).stderr


def test_environment_of_the_tests_leaves_no_patch_out() -> None:
    assert not os.environ.get(fairseq_patches.SKIP_VARIABLE)
