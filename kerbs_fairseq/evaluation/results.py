"""The results of a recipe's evaluated runs, as JSON: everything that the tables need."""

import glob
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional

import numpy as np

from kerbs_fairseq.evaluation.grids import NUMBER, has_ended, loss_of, variant
from kerbs_fairseq.evaluation.paper import TASKS, Task, baseline_of
from kerbs_fairseq.evaluation.runs import Run, all_runs, references, statistics
from kerbs_fairseq.evaluation.scores import Array, Perplexity
from kerbs_fairseq.evaluation.significance import Comparison, paired_bootstrap, paired_t_test
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import cannot_write, read_json, read_text, write

DIGITS = 6  # significant digits that are kept
SPEEDS = ("seconds_per_update", "tokens_per_second")
TIMED = "+time"  # suffix of short runs on an idle machine, for speed alone; they have no row
SEARCH = {"lenpen": "--lenpen", "min_len": "--min-len"}  # options of evaluate.sh that are tuned
NOT_SCORES = ("versions", "signature", "signature_of_moses_tokens", "order")


def measure_of(task: Task) -> str:
    """Return the name in scores.json of the measure of a task."""
    return "ppl" if isinstance(task.scorer, Perplexity) else "bleu"


def compare(task: Task, system: Sequence[Array], baseline: Sequence[Array]) -> Comparison:
    """Compare two systems by their statistics (sentences, k) for each seed; scores are averaged over seeds."""
    if len({len(one) for one in [*system, *baseline]}) != 1:
        raise UserError("the runs were evaluated on different test sets: evaluate again")
    return paired_bootstrap(task.scorer, np.stack(system), np.stack(baseline))


def gather(name: str, task_name: str, out: Path, corpus: str = "") -> dict[str, Any]:
    """Return scores, commands and comparisons with the softmax of the evaluated runs below ``out``, by cell."""
    task, wanted, evaluated = TASKS[task_name], references(out), all_runs(out)
    runs = [run for run in evaluated if not run.cell.endswith(TIMED)]
    of_cell = {cell: [run for run in runs if run.cell == cell] for cell in task.in_order(run.cell for run in runs)}
    all_scores = [run.scores or {} for of_seeds in of_cell.values() for run in of_seeds]
    judged = {run: statistics(run, task.scorer, wanted) for of_seeds in of_cell.values() for run in of_seeds}
    cells = {}
    for cell, of_seeds in of_cell.items():
        baseline = of_cell.get(baseline_of(cell), []) if cell != baseline_of(cell) else []
        cells[cell] = {
            **commands_of(of_seeds, name, task_name),
            "rates": tried_rates(out, cell),
            "timed": {str(run.seed): speeds_of(run) for run in evaluated if run.cell == f"{cell}{TIMED}"},
            "seeds": {str(run.seed): numbers(run.scores or {}) for run in of_seeds},
            "against_softmax": against(task, of_seeds, baseline, judged),
        }
    return {
        "name": name,
        "task": task_name,
        "corpus": corpus or task.corpus,
        "data": data_of(out),
        "signatures": sorted({s[key] for s in all_scores for key in NOT_SCORES[1:3] if key in s}),
        "versions": merged([s.get("versions", {}) for s in all_scores]),
        "commits": sorted({text for run in judged if (text := text_of(run.folder / "commit"))}),
        "cells": cells,
    }


def against(task: Task, system: Sequence[Run], baseline: Sequence[Run], judged: dict[Run, Array]) -> Optional[dict]:
    """Compare a cell with the softmax over their common seeds: each, all together, and a t-test; None without any."""
    pairs = [(a, b) for a in system for b in baseline if a.seed == b.seed]
    if not pairs:
        return None
    ours, theirs = [judged[a] for a, _ in pairs], [judged[b] for _, b in pairs]
    name = measure_of(task)
    our_scores, their_scores = ([run.score(name) for run in side] for side in zip(*pairs))
    t_test = paired_t_test(our_scores, their_scores, task.scorer.larger_is_better)
    each = {str(a.seed): numbers(asdict(compare(task, [judged[a]], [judged[b]]))) for a, b in pairs}
    return {
        "all": numbers(asdict(compare(task, ours, theirs))),
        "seeds": each,
        "t_test": numbers(asdict(t_test)) if t_test else None,
    }


def commands_of(runs: Sequence[Run], name: str, task: str) -> dict[str, Any]:
    """Return the commands of a cell, with SEED for the seed; parts that its runs do not record are left out."""
    commands: list[dict[str, Any]] = []
    for run in runs:
        training = text_of(run.folder / "training") or ""
        evaluation = text_of(run.folder / "evaluation") or ""
        command = text_of(run.folder / "command") or ""
        options = training.split()
        rate = next((value for option, value in zip(options[-2::-1], options[::-1]) if option == "--lr"), None)
        search = {key: re.search(rf"{option} (\S+)", evaluation) for key, option in SEARCH.items()}
        one = {
            "train": re.sub(r"--seed \d+", "--seed SEED", command.replace("--out OUT", f"--out out/{name}")),
            "evaluate": f"recipes/{task}/evaluate.sh {run.cell} --out out/{name} --seed SEED {evaluation}".strip(),
            "fairseq": re.sub(r"(--seed|--kerbs-seed) \d+", r"\1 SEED", training),
            "rate": rate,
            **{key: found[1] for key, found in search.items() if found},
        }
        commands.append({key: value for key, value in one.items() if value})
    if any(one != commands[0] for one in commands):
        raise UserError(f"{runs[0].folder.parent}: its seeds were made with different options: remove some of them")
    return commands[0]


def speeds_of(run: Run) -> dict[str, Any]:
    """Return the speeds of a run that was made to measure them."""
    scores = run.scores or {}
    return numbers({name: scores.get(name) for name in SPEEDS})


def tried_rates(out: Path, cell: str) -> dict[str, float]:
    """Return the best validation loss of each rate tried for a cell; rates that diverged are left out."""
    prefix = variant(cell, "")
    losses = {}
    for folder in out.glob(f"runs/{glob.escape(prefix)}*/seed_*"):
        rate = folder.parent.name.removeprefix(prefix)
        if NUMBER.fullmatch(rate) and has_ended(folder):
            losses[rate] = loss_of(folder)
    return numbers(dict(sorted(losses.items(), key=lambda pair: float(pair[0]))))


def text_of(path: Path) -> Optional[str]:
    """Return the text of a small file; None if it is missing or empty."""
    return (read_text(path).strip() or None) if path.is_file() else None


def data_of(out: Path) -> str:
    """Return corpus, tokens and number of pieces, without the local path of the corpus."""
    folder, _, rest = (text_of(out / "binary" / ".settings") or "").partition(" ")
    return " ".join(f"{Path(folder).name} {rest}".split()) if folder else ""


def merged(versions: Sequence[dict[str, str]]) -> dict[str, str]:
    """Return the version of each package over all runs; several versions are separated by commas."""
    names = dict.fromkeys(name for one in versions for name in one)
    return {name: ", ".join(sorted({one[name] for one in versions if name in one})) for name in names}


def numbers(scores: dict[str, Any]) -> dict[str, Any]:
    """Return the finite numbers among ``scores``, rounded to :data:`DIGITS` digits."""
    result: dict[str, Any] = {}
    for name, value in scores.items():
        if isinstance(value, (int, float)) and name not in NOT_SCORES and math.isfinite(value):
            result[name] = value if isinstance(value, int) else float(f"{value:.{DIGITS}g}")
    return result


def write_results(results: dict[str, Any], folder: Path) -> Path:
    """Write NAME.json into ``folder``, completely or not at all; return its path."""
    path = folder / f"{results['name']}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        cannot_write(folder, error)
    write(path, json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    return path


def are_results(results: Any) -> bool:
    """Return whether the content of a JSON file has everything that the tables need."""
    try:
        fine = results["task"] in TASKS and all(isinstance(results[key], str) for key in ("name", "corpus", "data"))
        fine = fine and all(isinstance(one, str) for one in results["signatures"])
        for cell in results["cells"].values():
            for scores in [*cell["seeds"].values(), *cell.get("timed", {}).values()]:
                fine = fine and all(isinstance(value, (int, float)) for value in scores.values())
            fine = fine and all(isinstance(cell.get(key, ""), str) for key in ("train", "evaluate", "rate", *SEARCH))
            against = cell.get("against_softmax")
            if against:
                compared = [against["all"], *against["seeds"].values()]
                values = [one[key] for one in compared for key in ("difference", "low", "high", "p")]
                values += [against["t_test"]["p"]] if against["t_test"] else []
                fine = fine and all(isinstance(value, (int, float)) for value in values)
    except (AttributeError, KeyError, TypeError):
        return False
    return fine


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return all results of a folder by name; none if there is no folder."""
    by_name = {}
    for path in sorted(folder.glob("*.json")):
        results = read_json(path)
        if not are_results(results) or results["name"] != path.stem:
            raise UserError(f"{path} is not what kerbs-evaluate collect writes: collect it again")
        by_name[path.stem] = results
    return by_name
