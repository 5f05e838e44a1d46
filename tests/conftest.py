"""Shared by all tests: a small demo corpus, its binary forms and trained models, each made once for all workers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest
from filelock import FileLock
from hypothesis import settings

from kerbs_fairseq.demo.write import Sizes, write_corpus

settings.register_profile("whatever the machine", deadline=None)  # a time is no test: others may be at work
settings.load_profile("whatever the machine")

PACKAGE = Path(__file__).resolve().parent.parent / "kerbs_fairseq"
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # as in an activated environment
    "OMP_NUM_THREADS": "1",  # the tests themselves run in parallel
}

SMALL_TRANSFORMER = (
    "--arch transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1 "
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
    "--decoder-embed-dim 32 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2"
)
SMALL_LSTM = (
    "--arch lstm_wiseman_iwslt_de_en --encoder-embed-dim 32 --decoder-embed-dim 32 --decoder-out-embed-dim 32 "
    "--encoder-hidden-size 32 --decoder-hidden-size 32"
)
SMALL_TRANSFORMER_LM = (
    "--arch transformer_lm --decoder-layers 1 --decoder-embed-dim 32 --decoder-input-dim 32 --decoder-output-dim 32 "
    "--decoder-ffn-embed-dim 32 --decoder-attention-heads 2"
)
SMALL_LSTM_LM = "--arch lstm_lm --decoder-embed-dim 32 --decoder-hidden-size 32 --decoder-out-embed-dim 32"
QUICK = (
    "--optimizer adam --lr 0.005 --max-tokens 800 --no-progress-bar --log-format json --no-epoch-checkpoints --seed 3"
)


def start(command: str, **options: object) -> subprocess.CompletedProcess:
    """Run a command line with this environment's console commands, whatever its exit code."""
    name, *arguments = command.split()
    settings = {"env": ENVIRONMENT, "capture_output": True, "text": True, "timeout": 300, **options}
    return subprocess.run([str(BIN / name), *arguments], check=False, **settings)


def run(command: str, **options: object) -> str:
    """Run a command line that must succeed; what it printed on both streams."""
    done = start(command, **options)
    assert done.returncode == 0, f"$ {command}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def train(data: Path, model: str, save: Path, options: str, **more: object) -> str:
    """fairseq-train with the plugin and settings that take seconds."""
    return run(f"fairseq-train {data} --user-dir {PACKAGE} {model} --save-dir {save} {QUICK} {options}", **more)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Callable[[str, Callable[[Path], object]], Path]:
    """``once(name, make)``: the folder ``name``, filled by ``make(folder)`` in whichever worker comes first."""
    base = tmp_path_factory.getbasetemp()
    root = base if worker_id == "master" else base.parent

    def get(name: str, make: Callable[[Path], object]) -> Path:
        folder = root / name
        with FileLock(root / f"{name}.lock"):
            if not (root / f"{name}.done").exists():
                make(folder)
                (root / f"{name}.done").touch()
        return folder

    return get


@pytest.fixture(scope="session")
def corpus(once) -> Path:
    """A small demo corpus: too little to learn from, enough to run on."""
    return once("corpus", lambda folder: write_corpus(folder, 1, Sizes(600, 60, 60), Sizes(600, 60, 60)))


@pytest.fixture(scope="session")
def pairs(once, corpus: Path) -> Path:
    """The translation corpus, binarised by two workers."""
    text = corpus / "parallel"
    prefixes = " ".join(f"--{split}pref {text / split}" for split in ("train", "valid", "test"))
    return once("pairs", lambda to: run(f"fairseq-preprocess -s src -t tgt {prefixes} --destdir {to} --workers 2"))


@pytest.fixture(scope="session")
def joined(once, corpus: Path) -> Path:
    """The translation corpus with one dictionary for both sides, as shared embeddings need it."""
    prefixes = " ".join(f"--{split}pref {corpus}/parallel/{split}" for split in ("train", "valid"))
    return once(
        "joined",
        lambda to: run(f"fairseq-preprocess -s src -t tgt {prefixes} --joined-dictionary --destdir {to}"),
    )


@pytest.fixture(scope="session")
def text(once, corpus: Path) -> Path:
    """The monolingual corpus, binarised for language models."""
    prefixes = " ".join(f"--{split}pref {corpus}/mono/{split}.txt" for split in ("train", "valid", "test"))
    return once("text", lambda to: run(f"fairseq-preprocess --only-source {prefixes} --destdir {to} --workers 2"))


@pytest.fixture(scope="session")
def transformer(once, pairs: Path) -> Path:
    """The save-dir of a Transformer trained for 6 updates."""
    return once("transformer", lambda to: train(pairs, SMALL_TRANSFORMER, to, "--max-update 6"))


@pytest.fixture(scope="session")
def transformer_lm(once, text: Path) -> Path:
    """The save-dir of a Transformer language model trained for 6 updates."""
    options = "--task language_modeling --sample-break-mode eos --max-update 6"
    return once("transformer_lm", lambda to: train(text, SMALL_TRANSFORMER_LM, to, options))


@pytest.fixture(scope="session")
def reported(once, pairs: Path, transformer: Path) -> Path:
    """The report of a trained Transformer and of its twin with a softmax, by the command."""

    def make(folder: Path) -> None:
        options = "--criterion kerbs_cross_entropy --max-epoch 2 --kerbs-reallocate-after 2 --kerbs-reallocate-every 2"
        moves = f"--kerbs-move-log {folder}/kerbs/moves.tsv --kerbs-threshold 0"
        (folder / "kerbs").mkdir(parents=True)
        log = train(
            pairs, SMALL_TRANSFORMER.replace("--arch ", "--arch kerbs_"), folder / "kerbs", f"{options} {moves}"
        )
        (folder / "kerbs" / "train.log").write_text(log)
        checkpoints = f"{folder}/kerbs/checkpoint_last.pt {transformer}/checkpoint_last.pt"
        run(f"kerbs-report {checkpoints} --data {pairs} --word the --word a --word bank -o {folder}/report")

    return once("reported", make) / "report"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A folder that a recipe for dialog works in, with a test set of 30 pairs and nothing else."""
    for name in ("text", "binary"):
        (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "out" / "text" / "corpus.json").write_text(json.dumps({"sides": ["src", "tgt"]}))
    (tmp_path / "out" / "text" / "test.src").write_text("who ?\nwhere ?\nwhen ?\n" * 10)
    (tmp_path / "out" / "text" / "test.tgt").write_text("a b c\nd e f\ng h i\n" * 10)
    return tmp_path / "out"
