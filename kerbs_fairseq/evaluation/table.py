"""The paper's table as Markdown: its figures, ours as mean and spread over seeds, and whether a difference is one."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from kerbs_fairseq.evaluation.paper import Task, name_of
from kerbs_fairseq.evaluation.runs import Run, all_runs, references, statistics
from kerbs_fairseq.evaluation.significance import Comparison, paired_bootstrap


def spread(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of a single value."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def by_cell(out: Path, cells: Sequence[str]) -> dict[str, list[Run]]:
    """The evaluated runs of each cell that has any, in the order of ``cells``."""
    runs = all_runs(out)
    found = {cell: [run for run in runs if run.cell == cell] for cell in cells}
    return {cell: of_cell for cell, of_cell in found.items() if of_cell}


def in_common(system: Sequence[Run], baseline: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs of the seeds that both have."""
    seeds = {run.seed for run in system} & {run.seed for run in baseline}
    return [run for run in system if run.seed in seeds], [run for run in baseline if run.seed in seeds]


def compare(task: Task, system: Sequence[Run], baseline: Sequence[Run], wanted: Sequence[str]) -> Optional[Comparison]:
    """Over the seeds that both have; None if there are none."""
    ours, theirs = in_common(system, baseline)
    if not ours:
        return None
    system_statistics, baseline_statistics = (statistics(runs, task.scorer, wanted) for runs in (ours, theirs))
    return paired_bootstrap(task.scorer, system_statistics, baseline_statistics)


def markdown(task: Task, out: Path, failed: Sequence[str] = ()) -> str:
    """The table of everything that has been evaluated below ``out``."""
    wanted = references(out)
    runs = by_cell(out, task.cells)
    name = "ppl" if task.measure == "PPL" else "bleu"
    lines = [
        f"### {task.title}: {task.measure}",
        "",
        "| model | output layer | paper | ours, mean ± sd (seeds) | difference from softmax [95 %] | p |",
        "|---|---|---|---|---|---|",
    ]
    for cell in task.cells:
        model, head = name_of(cell)
        paper = f"{task.figures[cell]:.2f}" if cell in task.figures else "–"
        if cell not in runs:
            if cell in failed:
                lines.append(f"| {model} | {head} | {paper} | failed | | |")
            continue
        values = [float((run.scores or {})[name]) for run in runs[cell]]
        mean = f"{sum(values) / len(values):.2f}"
        ours = f"{mean} ± {spread(values):.2f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"
        versus = None
        if f"{model}-softmax" in runs and cell != f"{model}-softmax":
            versus = compare(task, runs[cell], runs[f"{model}-softmax"], wanted)
        difference, p = "", ""
        if versus:
            difference = f"{versus.difference:+.2f} [{versus.low:+.2f}, {versus.high:+.2f}]"
            p = f"{versus.p:.3f}"
        lines.append(f"| {model} | {head} | {paper} | {ours} | {difference} | {p} |")
    lines += ["", *footnotes(task, runs)]
    return "\n".join(lines) + "\n"


def footnotes(task: Task, runs: dict[str, list[Run]]) -> list[str]:
    """What a reader must know."""
    notes = [
        "p: one-sided, paired bootstrap over the test sentences (1,000 draws), scores averaged over the seeds that "
        "both have; the spread over seeds stands beside the mean."
    ]
    if task.measure == "PPL":
        return [*notes, "PPL is per word of the text, the end of a sentence included, whatever the subwords."]
    signatures = {str((run.scores or {}).get("signature")) for of_cell in runs.values() for run in of_cell}
    return [*notes, f"BLEU by sacrebleu on detokenised text: {', '.join(sorted(signatures))}."]
