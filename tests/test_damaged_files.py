"""Damaged files, over every tool: one line and an exit code, or success; nothing lost, nothing written elsewhere."""

import copy
import random
import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
import raw_corpora
import torch
from synthetic_runs import JSON_LOG, MOVES, checkpoint, dictionary_folder

from kerbs_fairseq.cli import average
from kerbs_fairseq.corpora import command as corpus
from kerbs_fairseq.demo import write as demo_corpus
from kerbs_fairseq.human_evaluation import command as rate
from kerbs_fairseq.inspection import command as inspect
from kerbs_fairseq.report import command as report

TIMES = 40  # damages of each tool's files
Main = Callable[[list[str]], None]


def flipped(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, random.Random], Optional[bytes]]] = {
    "truncated": lambda data, chance: data[: chance.randrange(len(data))],
    "flipped": flipped,
    "a hole": lambda data, chance: data[: len(data) // 2] + bytes(64) + data[len(data) // 2 + 64 :],
    "of another type": lambda data, chance: chance.choice(
        [b"\x89PNG\r\n\x1a\n", b'{"a": [1, null]}', b"PK\3\4", b"\n"]
    ),
    "in another encoding": lambda data, chance: data.decode("latin-1").encode(chance.choice(["utf-16", "utf-32"])),
    "empty": lambda data, chance: b"",
    "a directory": lambda data, chance: None,
}


def damage(path: Path, kind: str, chance: random.Random) -> None:
    content = DAMAGES[kind](path.read_bytes() or b"x", chance)
    path.unlink()
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)


def tree(folder: Path) -> dict[Path, Optional[bytes]]:
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def attempt(main: Main, arguments: list[object]) -> str:
    """What a command ends with: "" if all went well."""
    try:
        main([*map(str, arguments)])
    except SystemExit as stopped:
        code = stopped.code
    else:
        return ""
    assert isinstance(code, str), code
    first, *more = code.split("\n")
    assert first.startswith("kerbs-"), "whose message it is"
    assert len(first) < 1000
    assert all(line.startswith("  ") for line in more), "one line, or a list of places"
    return code


# --- every tool with its files: (main, arguments, files that are damaged, what it writes)


def of_inspect(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    data = dictionary_folder(folder)
    made = checkpoint(folder / "checkpoint.pt", data)
    return inspect.main, [made, "--data", data], [made, data / "dict.tgt.txt"], folder / "none"


def of_report(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    data = dictionary_folder(folder)
    made = checkpoint(folder / "checkpoint.pt", data)
    files = {"train.log": JSON_LOG, "moves.tsv": MOVES + "9\t4\tthe\tbank\t0\t-1\n", "scores.json": '{"bleu": 2.5}'}
    for name, text in files.items():
        (folder / name).write_text(text)
    arguments = [made, "-o", folder / "out", "--move-log", folder / "moves.tsv"]
    return report.main, arguments, [made, data / "dict.tgt.txt", *(folder / name for name in files)], folder / "out"


def of_average(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    data = dictionary_folder(folder)
    inputs = [checkpoint(folder / f"{i}.pt", data) for i in range(2)]
    return average.main, [*inputs, "-o", folder / "out.pt"], inputs, folder / "out.pt"


def study(folder: Path) -> tuple[list[object], list[Path]]:
    paths = [folder / name for name in ("source", "a", "b")]
    for path in paths:
        path.write_text("".join(f"{path.name} says “{i}”\n" for i in range(9)), encoding="utf-8")
    systems = [f"--system={path.name}={path}" for path in paths[1:]]
    return ["sheet", "--source", paths[0], *systems, "--sets", 5, "-o", folder / "study"], paths


def of_rating_sheets(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    arguments, paths = study(folder)
    return rate.main, arguments, paths, folder / "study"


def of_rating_report(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    rate.main([*map(str, study(folder)[0])])
    sheets = sorted((folder / "study").glob("rater_*.csv"))
    for sheet in sheets:
        sheet.write_bytes(sheet.read_bytes().replace(b',""\r\n', b',"1"\r\n'))
    return rate.main, ["report", folder / "study"], [*sheets, folder / "study" / "key.json"], folder / "none"


def of_pairs(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    raw = raw_corpora.write_iwslt(folder / "raw")
    return corpus.main, ["pairs", raw, folder / "out"], sorted(raw.iterdir()), folder / "out"


def of_dialogs(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    raw = raw_corpora.write_dialogs(folder / "raw")
    return corpus.main, ["dialog", raw, folder / "out"], sorted(raw.iterdir()), folder / "out"


def of_sentences(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    raw = raw_corpora.write_shards(folder / "raw")
    arguments = ["sentences", raw, folder / "out", "--cut", "200,10,10"]
    return corpus.main, arguments, [path for path in sorted(raw.rglob("*")) if path.is_file()], folder / "out"


def of_words(folder: Path) -> tuple[Main, list[object], list[Path], Path]:
    corpus.main(["dialog", str(raw_corpora.write_dialogs(folder / "raw")), str(folder / "text")])
    files = [path for path in sorted((folder / "text").iterdir()) if path.suffix != ".json"]
    return corpus.main, ["pieces", folder / "text", folder / "out", "--tokens", "words"], files, folder / "out"


TOOLS = (
    of_inspect,
    of_report,
    of_average,
    of_rating_sheets,
    of_rating_report,
    of_pairs,
    of_dialogs,
    of_sentences,
    of_words,
)


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
MISSING = object()
VALUES = [
    MISSING, None, -1, 1.5, float("nan"), "text", [1], {1: 2}, torch.tensor(9), torch.tensor(-1),
    torch.tensor(float("nan")), torch.tensor([]), torch.tensor([1, 2]), torch.full((12,), -1),
    torch.full((12,), torch.nan), torch.arange(12), torch.arange(12) << 40, torch.zeros(12, dtype=torch.bool),
    torch.full((12, 6), torch.nan), torch.full((12, 6), torch.inf), torch.zeros(12, 6, dtype=torch.cfloat),
    torch.zeros(0, 6), torch.zeros(8, dtype=torch.int32), torch.ones(8, dtype=torch.int32),
]  # fmt: skip


def edited(state: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    changed: Any = copy.deepcopy(state)
    at = changed
    for name in path[:-1]:
        at = at.setdefault(name, {})
        at = vars(at) if isinstance(at, Namespace) else at
    if value is MISSING:
        at.pop(path[-1], None)
    else:
        at[path[-1]] = value
    return changed


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
