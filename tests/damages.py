"""Damaged files and values, and every tool with files that can be damaged."""

import copy
import random
from argparse import Namespace
from pathlib import Path
from typing import Any, Callable, Optional

import raw_corpora
import torch
from synthetic_runs import JSON_LOG, MOVES, checkpoint, dictionary_folder

from kerbs_fairseq.cli import average
from kerbs_fairseq.corpora import command as corpus
from kerbs_fairseq.human_evaluation import command as rate
from kerbs_fairseq.inspection import command as inspect
from kerbs_fairseq.report import command as report

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
