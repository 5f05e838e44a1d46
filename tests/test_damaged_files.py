"""Damaged files, over every tool: one line and an exit code, or success; nothing lost, nothing written elsewhere."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from damages import DAMAGES, TOOLS, VALUES, Main, attempt, damage, edited, of_average, of_report, tree
from synthetic_runs import checkpoint, dictionary_folder

from kerbs_fairseq.demo import write as demo_corpus
from kerbs_fairseq.inspection import command as inspect
from kerbs_fairseq.report import command as report

TIMES = 40  # damages of each tool's files


@pytest.fixture
def no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "album", lambda *of: iter(()))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
def test_one_line_or_success(tool: Any, tmp_path: Path, no_plots: None) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    main, arguments, files, output = tool(whole)
    chance, ends = random.Random(1), set()
    for number in range(TIMES):
        folder = tmp_path / "tried"
        shutil.copytree(whole, folder)
        kind = [*DAMAGES][number % len(DAMAGES)]
        file = chance.choice(files)
        damage(folder / file.relative_to(whole), kind, chance)
        before = tree(folder)
        moved = [str(argument).replace(str(whole), str(folder)) for argument in arguments]
        ended = attempt(main, moved)
        ends.add(bool(ended))
        to = folder / output.relative_to(whole)
        after = tree(folder)
        if not ended:  # nothing but the output is new
            after = {path: content for path, content in after.items() if path != to and to not in path.parents}
        assert after == before, f"{file.name} {kind}: {ended}"
        shutil.rmtree(folder)
    assert True in ends


@pytest.mark.parametrize("tool", [of_report, of_average], ids=lambda tool: tool.__name__)
def test_the_old_output_stays_when_a_tool_fails(tool: Any, tmp_path: Path, no_plots: None) -> None:
    main, arguments, files, output = tool(tmp_path)
    assert attempt(main, arguments) == ""
    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2] + b"\xff")
        before = tree(tmp_path)
        if attempt(main, arguments):
            assert tree(tmp_path) == before
        file.write_bytes(content)
    assert output.exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_demo_corpus_is_not_written_over_something_else(tmp_path: Path, force: bool) -> None:
    sizes = ["--parallel", "1,1,1", "--mono", "1,1,1", *["--force"] * force]
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("precious")
    before = tree(tmp_path)
    for name in ("file", "folder", "file/below"):
        assert attempt(demo_corpus.main, [tmp_path / name, *sizes])
        assert tree(tmp_path) == before


# --- checkpoints that were edited

EDITED = [
    *[("model", f"decoder.head.{name}") for name in (
        "senses.vectors", "senses.theta_raw", "senses.sense_to_word", "senses.kernel_id", "senses.initial_senses",
        "senses.vocabulary", "senses.rates", "statistics.usage", "statistics.updates", "statistics.moves",
    )],
    ("model",), ("cfg",), ("args",), ("optimizer_history",), ("extra_state",), ("cfg", "model"), ("cfg", "task"),
    ("cfg", "dataset"), ("cfg", "model", "kerbs_theta_bound"), ("cfg", "task", "data"), ("cfg", "task", "target_lang"),
    ("extra_state", "metrics"), ("extra_state", "val_loss"), ("extra_state", "metrics", "train"),
]  # fmt: skip


@pytest.mark.parametrize("main", [inspect.main, report.main], ids=["inspect", "report"])
def test_edited_checkpoints(main: Main, tmp_path: Path, no_plots: None, capsys: pytest.CaptureFixture[str]) -> None:
    data = dictionary_folder(tmp_path)
    state = torch.load(checkpoint(tmp_path / "whole.pt", data), weights_only=False)
    state["optimizer_history"] = [{"num_updates": 70}]
    state["extra_state"] = {"val_loss": 2.0, "metrics": {"train": [(1, "loss", "x", {"sum": 3.0, "count": 1})]}}
    path, chance = tmp_path / "edited.pt", random.Random(main.__module__)
    arguments = [path] if main is inspect.main else [path, "-o", tmp_path / "out"]
    for where in EDITED:
        for value in chance.sample(VALUES, 3 if main is inspect.main else 1):  # both read it in the same way
            torch.save(edited(state, where, value), path)
            attempt(main, arguments)
            assert "Traceback" not in capsys.readouterr().err


def test_models_of_nan_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no value is left out of the page, or shown as unknown."""
    monkeypatch.setattr(report, "save", lambda picture, folder: None)  # the page has the same plots
    data, head = dictionary_folder(tmp_path), "decoder.head."
    broken = {
        head + "senses.theta_raw": torch.full((12,), torch.nan),
        head + "statistics.usage": torch.full((12,), torch.nan),
        head + "senses.vectors": torch.full((12, 6), torch.nan),
    }
    made = checkpoint(tmp_path / "nan.pt", data, **broken)
    assert attempt(report.main, [made, "-o", tmp_path / "out"]) == ""
    assert "NaN" not in (tmp_path / "out" / "index.html").read_text()
