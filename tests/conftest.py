"""Shared by all tests: a small demo corpus, its binary forms and trained models, each made once for all workers."""

import json
from pathlib import Path
from typing import Callable

import configs
import on_device
import pytest
import torch
from commands import SMALL_TRANSFORMER, SMALL_TRANSFORMER_LM, run, train, twin
from filelock import FileLock
from hypothesis import settings

from kerbs_fairseq.demo.write import Sizes, write_corpus

settings.register_profile("whatever the machine", deadline=None)  # no deadlines: other processes may be at work
settings.load_profile("whatever the machine")
configs.install()
torch.set_num_threads(1)  # the tests themselves run in parallel; with more: test_threads.py


def pytest_configure() -> None:
    """One line, and no test, where the device that is asked for is not there."""
    if on_device.missing():
        raise pytest.UsageError(on_device.missing())


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


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with a dictionary of a few words."""
    from synthetic_runs import dictionary_folder  # loads fairseq

    return dictionary_folder(tmp_path)


@pytest.fixture
def synthetic(tmp_path: Path, data: Path) -> Path:
    """A checkpoint of a KerBS model that was written by hand, in a folder of its own."""
    from synthetic_runs import checkpoint

    (tmp_path / "run").mkdir()
    return checkpoint(tmp_path / "run" / "checkpoint.pt", data)


@pytest.fixture
def data_for(joined: Path, text: Path):
    """``data_for(base)``: the folder of data for models of this family."""
    from inprocess import LANGUAGE_MODELS  # loads fairseq and all its models

    return lambda base: text if base in LANGUAGE_MODELS else joined


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
        log = train(pairs, twin(SMALL_TRANSFORMER), folder / "kerbs", f"{options} {moves}")
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
