"""Grid searches of each cell: learning rates by validation loss, options of the beam search by BLEU on validation."""

import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from kerbs_fairseq.runs import logs
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import new_folder, read_json
from kerbs_fairseq.runs.outputs import SCORES

DIVERGED = "diverged"  # an empty file beside the log of a run that diverged
NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
WHOLE = re.compile(r"[1-9]\d{0,8}")


def values_of(text: Optional[str], option: str, whole: bool = False) -> list[str]:
    """Return the distinct values of a list such as 0.001,0.002,0.004, as text; [] if the option was not given."""
    if text is None:
        return []
    values = list(dict.fromkeys(text.split(",")))
    form, kind = (WHOLE, "whole numbers from 1 on") if whole else (NUMBER, "numbers")
    if not all(form.fullmatch(value) for value in values):
        raise UserError(f"{option} {text}: {kind} with commas between them")
    return values


def variant(cell: str, rate: str) -> str:
    """Return the name of a cell that is trained with a rate: gru-kerbs+lr0.006."""
    return f"{cell}{'.' if '+' in cell else '+'}lr{rate}"


def has_ended(folder: Path) -> bool:
    """Return whether the run in ``folder`` has finished or diverged."""
    return (folder / "trained").is_file() or (folder / DIVERGED).is_file()


def mark_if_diverged(folder: Path) -> bool:
    """Return whether a failed run diverged, by its log; if so, mark it, so that it is not tried again."""
    if logs.has_diverged(folder / logs.LOG):
        (folder / DIVERGED).touch()
    return (folder / DIVERGED).is_file()


def loss_of(folder: Path) -> float:
    """Return the best validation loss of a run; inf if it diverged."""
    loss = None if (folder / DIVERGED).is_file() else logs.best(folder / logs.LOG, "loss")
    return math.inf if loss is None else loss


def best_rate(folders: dict[str, Path]) -> tuple[str, float]:
    """Return the (rate, loss) with the lowest validation loss; ``folders`` are runs by rate. Ties go to the first."""
    missing = [rate for rate, folder in folders.items() if not has_ended(folder)]
    if missing:
        raise UserError(f"rate {', '.join(missing)} failed; start again to go on")
    losses = {rate: loss_of(folder) for rate, folder in folders.items()}
    best = min(losses, key=lambda rate: losses[rate])
    if not math.isfinite(losses[best]):
        raise UserError("all rates diverged")
    return best, losses[best]


def search_folder(run: Path, options: dict[str, str]) -> Path:
    """Return the folder of the outputs and scores of evaluate.sh --subset valid with these options of the search."""
    min_len = options.get("--min-len")
    return run / f"valid_lenpen_{options.get('--lenpen', '1')}{f'_min_len_{min_len}' if min_len else ''}"


def best_by_bleu(folders: dict[str, Path]) -> tuple[str, float]:
    """Return the (value, BLEU) with the highest BLEU on validation; ``folders`` are by value. Ties go to the first."""
    scores = {}
    for value, folder in folders.items():
        path = folder / SCORES
        try:
            scores[value] = float(read_json(path)["bleu"])
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{path} is broken: remove it, and evaluate again") from None
    best = max(scores, key=lambda value: scores[value])
    return best, scores[best]


def at_the_edge(best: str, values: Sequence[str]) -> str:
    """Return a remark if the best value is the smallest or largest of ``values``: a better one may lie beyond."""
    ordered = sorted(values, key=float)
    return ", at the edge of the grid" if len(ordered) > 1 and best in (ordered[0], ordered[-1]) else ""


def adopt(source: Path, target: Path) -> None:
    """Copy the run in ``source`` to ``target``, completely or not at all, unless ``target`` has a run."""
    if (target / "training").exists():
        return
    with new_folder(target, replace=True) as folder:  # it holds a log at most
        shutil.copytree(source, folder, ignore=shutil.ignore_patterns(".lock", "recipe.log"), dirs_exist_ok=True)
        command = folder / "command"
        if command.is_file():
            command.write_text(command.read_text().replace(f" {source.parent.name} ", f" {target.parent.name} "))
