"""The training that chaos is made of: small, with many saves and events, the same every time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import torch

from kerbs_fairseq.demo.write import Sizes, write_corpus

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
UPDATES = 60
OPTIONS = (
    f"--user-dir {ROOT / 'kerbs_fairseq'} --arch kerbs_transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1 "
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --encoder-attention-heads 2 --decoder-embed-dim 32 "
    "--decoder-ffn-embed-dim 32 --decoder-attention-heads 2 --dropout 0.1 --optimizer adam --lr 0.005 --max-tokens 800 "
    "--criterion kerbs_cross_entropy --kerbs-reallocate-every 3 --kerbs-reallocate-after 3 --seed 3 --cpu "
    "--no-progress-bar --log-format json --no-epoch-checkpoints --save-interval-updates 4 --keep-interval-updates 2 "
    f"--max-update {UPDATES}"
)
# never initialised or never used by fairseq itself, and so different between equal runs
MEANINGLESS = ("_float_tensor", "in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias", "fc1_", "fc2_")


def prepare(folder: Path) -> Path:
    """The data."""
    write_corpus(folder / "corpus", 1, Sizes(600, 60, 60), Sizes(60, 20, 20))
    text, to = folder / "corpus" / "parallel", folder / "pairs"
    prefixes = [part for split in ("train", "valid") for part in (f"--{split}pref", str(text / split))]
    command = [str(BIN / "fairseq-preprocess"), "-s", "src", "-t", "tgt", *prefixes, "--destdir", str(to)]
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    return to


def start(data: Path, folder: Path) -> "subprocess.Popen[str]":
    """Begin the training in ``folder``, or go on with it."""
    command = [str(BIN / "fairseq-train"), str(data), "--save-dir", str(folder), *OPTIONS.split()]
    command += ["--kerbs-move-log", str(folder / "moves.tsv")]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def finish(data: Path, folder: Path) -> str:
    """Train to the end; what it said."""
    process = start(data, folder)
    said, _ = process.communicate()
    if process.returncode:
        sys.exit(f"a training that nobody disturbed ended with {process.returncode}:\n{said[-3000:]}")
    return said


def updates_of(path: Path) -> Optional[int]:
    """How far a checkpoint is; None if there is none. One that cannot be read whole raises what torch raises."""
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, weights_only=False)
    assert state["model"], path
    return int(state["optimizer_history"][-1]["num_updates"])


def saved(folder: Path) -> dict[str, Optional[int]]:
    """All checkpoints of a folder, read whole: updates by name."""
    return {path.name: updates_of(path) for path in sorted(folder.glob("checkpoint*.pt"))}


def differences(folder: Path, wanted: Path) -> list[str]:
    """What a finished training has that another has not: weights, map and statistics bit for bit, moves, state."""
    one, other = (torch.load(f / "checkpoint_last.pt", weights_only=False) for f in (folder, wanted))
    names = [n for n in other["model"] if not any(part in n for part in MEANINGLESS)]
    result = [name for name in names if not torch.equal(one["model"][name], other["model"][name])]
    moments, others = (state["last_optimizer_state"]["state"] for state in (one, other))
    for number, values in others.items():
        same = all(torch.equal(torch.as_tensor(moments[number][k]), torch.as_tensor(v)) for k, v in values.items())
        result += [] if same else [f"the optimizer's state of parameter {number}"]
    if (folder / "moves.tsv").read_bytes() != (wanted / "moves.tsv").read_bytes():
        result.append("moves.tsv")
    return result


def clear(folder: Path) -> None:
    """An empty folder; it may be a file system of its own."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
