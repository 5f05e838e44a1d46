"""Values that are tried for every cell: rates by validation loss, length penalties by BLEU on the validation set."""

import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from kerbs_fairseq.evaluation.runs import SCORES
from kerbs_fairseq.runs import logs
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import new_folder, read_json, read_text

DIVERGED = "diverged"  # an empty file beside the log of such a training
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


def values_of(text: Optional[str], option: str) -> list[str]:
    """0.001,0.002,0.004 as it was written, each once; none if the option was not given."""
    if text is None:
        return []
    values = list(dict.fromkeys(text.split(",")))
    if not all(NUMBER.fullmatch(value) for value in values):
        raise UserError(f"{option} {text}: numbers with commas between them")
    return values


def variant(cell: str, rate: str) -> str:
    """The name under which a cell is trained with a rate: gru-kerbs+lr0.006."""
    return f"{cell}{'.' if '+' in cell else '+'}lr{rate}"


def has_ended(folder: Path) -> bool:
    """Whether a training with a rate needs no further work."""
    return (folder / "trained").is_file() or (folder / DIVERGED).is_file()


def mark_if_diverged(folder: Path) -> bool:
    """Whether a training that failed did so because its loss was no longer a number; if so it is not tried again."""
    log = folder / "train.log"
    if log.is_file() and re.search(r"FloatingPointError|gradients are Nan/Inf", read_text(log)):
        (folder / DIVERGED).touch()
    return (folder / DIVERGED).is_file()


def loss_of(folder: Path) -> float:
    """The best validation loss of a training; inf if it diverged."""
    loss = None if (folder / DIVERGED).is_file() else logs.best(folder / "train.log", "loss")
    return math.inf if loss is None else loss


def best_rate(folders: dict[str, Path]) -> tuple[str, float]:
    """(rate, loss) with the lowest validation loss, of trainings by rate; the first of equal ones."""
    missing = [rate for rate, folder in folders.items() if not has_ended(folder)]
    if missing:
        raise UserError(f"rate {', '.join(missing)} failed; start again to go on")
    losses = {rate: loss_of(folder) for rate, folder in folders.items()}
    best = min(losses, key=lambda rate: losses[rate])
    if not math.isfinite(losses[best]):
        raise UserError("all rates diverged")
    return best, losses[best]


def lenpen_folder(run: Path, lenpen: str) -> Path:
    """Where evaluate.sh --subset valid --lenpen puts its outputs and scores."""
    return run / f"valid_lenpen_{lenpen}"


def best_lenpen(run: Path, lenpens: Sequence[str]) -> tuple[str, float]:
    """(length penalty, BLEU) with the highest BLEU on the validation set; the first of equal ones."""
    scores = {}
    for lenpen in lenpens:
        path = lenpen_folder(run, lenpen) / SCORES
        try:
            scores[lenpen] = float(read_json(path)["bleu"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path} is broken: remove it, and evaluate again") from None
    best = max(scores, key=lambda lenpen: scores[lenpen])
    return best, scores[best]


def at_the_edge(best: str, values: Sequence[str]) -> str:
    """A remark if the best value is the smallest or largest that was tried: a better one may lie beyond."""
    ordered = sorted(values, key=float)
    return ", at the edge of the grid" if len(ordered) > 1 and best in (ordered[0], ordered[-1]) else ""


def adopt(source: Path, target: Path) -> None:
    """Let the training in ``source`` stand as that of ``target``, whole or not at all, unless there is one."""
    if (target / "training").exists():
        return
    with new_folder(target, replace=True) as folder:  # what is there is at the most a log
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".lock", "recipe.log"), dirs_exist_ok=True)
        command = folder / "command"
        if command.is_file():
            command.write_text(command.read_text().replace(f" {source.parent.name} ", f" {target.parent.name} "))
