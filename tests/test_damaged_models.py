"""kerbs-convert and kerbs-export on damaged models and data: one line or success, the old output stays."""

import logging
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from damages import DAMAGES, VALUES, attempt, damage, edited, tree

from kerbs_fairseq.cli import convert, export
from kerbs_fairseq.runs import checkpoint as schema

TIMES = 2  # damages of each file
EDITED = [
    ("cfg",), ("cfg", "model"), ("cfg", "task"), ("cfg", "dataset"), ("cfg", "model", "_name"),
    ("cfg", "model", "decoder_layers"), ("cfg", "model", "kerbs_senses"), ("cfg", "task", "source_lang"),
    ("cfg", "task", "_name"), ("cfg", "dataset", "valid_subset"), ("cfg", "dataset", "max_tokens"),
    ("model", "decoder.embed_tokens.weight"), ("model", "decoder.layers.0.fc1.weight"),
    ("model", "decoder.output_projection.weight"), ("model", "encoder.version"),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, transformer: Path, pairs: Path) -> Path:
    """A checkpoint of a softmax, the same with KerBS, and the data that both need."""
    made = tmp_path / "made"
    (made / "data").mkdir(parents=True)
    for path in pairs.iterdir():
        if path.name.startswith(("dict.", "valid.")):
            shutil.copy(path, made / "data")
    shutil.copy(transformer / "checkpoint_last.pt", made / "softmax.pt")
    arguments = [made / "softmax.pt", made / "kerbs.pt", "--data", made / "data", "--senses", "2"]
    assert attempt(convert.main, [*arguments, "--kerbs-start-noise", "0"]) == ""
    for name in ("out.pt", "out.ts"):
        (made / name).write_bytes(b"old")
    return made


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchScript takes seconds; test_export.py has it."""
    monkeypatch.setattr(torch.jit, "script", lambda generator: generator)
    monkeypatch.setattr(export, "save", lambda result, path: path.write_bytes(b"new"))


def commands(made: Path) -> list[tuple[Any, list[object], Path]]:
    data, fewer = ["--data", made / "data"], ["--beam", 1, "--max-len-b", 3]
    noise = ["--kerbs-start-split", "noise"]  # without the training set
    return [
        (convert.main, [made / "softmax.pt", made / "out.pt", *data, *noise], made / "out.pt"),
        (convert.main, [made / "kerbs.pt", made / "out.pt", *data, "--to-softmax", "--approximate"], made / "out.pt"),
        (export.main, [made / "kerbs.pt", "-o", made / "out.ts", *data, *fewer, "--check", "valid"], made / "out.ts"),
    ]


def test_one_line_or_success(folder: Path, tmp_path: Path, no_compiler: None, caplog: Any) -> None:
    caplog.set_level(logging.CRITICAL)
    for main, arguments, _ in commands(folder):
        assert attempt(main, arguments) == ""
    chance, failed, whole = random.Random(1), 0, tmp_path / "whole"
    shutil.copytree(folder, whole)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("out.")]
    for file in files:
        for kind in chance.sample([*DAMAGES], TIMES):
            damage(file, kind, chance)
            for main, arguments, output in chance.sample(commands(folder), 2):
                before = tree(folder)
                ended = attempt(main, arguments)
                after = tree(folder)
                if not ended:
                    after[output] = before[output]
                assert after == before, (file, kind, ended)
                failed += bool(ended)
            shutil.rmtree(folder)
            shutil.copytree(whole, folder)
    assert failed > len(files) // 2


def test_edited_checkpoints(folder: Path, no_compiler: None) -> None:
    chance, failed = random.Random(2), 0
    states = {n: schema.load(folder / n, True).state for n in ("softmax.pt", "kerbs.pt")}
    for where in EDITED:
        main, arguments, output = chance.choice(commands(folder))
        given = Path(str(arguments[0]))
        torch.save(edited(dict(states[given.name]), where, chance.choice(VALUES)), given)
        before = output.read_bytes()
        if attempt(main, arguments):
            failed += 1
            assert output.read_bytes() == before
    assert failed > len(EDITED) // 2
