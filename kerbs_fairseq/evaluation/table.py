"""The paper's table as Markdown: its figures, ours as mean and spread over seeds, and whether a difference is one."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from kerbs_fairseq.evaluation.paper import Task, name_of
from kerbs_fairseq.evaluation.runs import Run, all_runs, references, statistics
from kerbs_fairseq.evaluation.scores import Perplexity
from kerbs_fairseq.evaluation.significance import Comparison, paired_bootstrap
from kerbs_fairseq.runs.files import read_text


def spread(values: Sequence[float]) -> float:
    """The standard deviation of a sample; 0 of a single value."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def by_cell(out: Path, task: Task) -> dict[str, list[Run]]:
    """The evaluated runs of each cell and variant that has any, in the order of the table."""
    runs = all_runs(out)
    return {cell: [run for run in runs if run.cell == cell] for cell in task.in_order(run.cell for run in runs)}


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
    """The table of everything that has been evaluated below ``out``; ``failed`` are runs, "CELL, seed N"."""
    wanted, runs = references(out), by_cell(out, task)
    fell = Counter(one.partition(", ")[0] for one in failed)
    perplexity = isinstance(task.scorer, Perplexity)
    measures = (
        {"ppl": "PPL per word"} if perplexity else {"bleu": task.measure, "bleu_of_moses_tokens": "of Moses tokens"}
    )
    measures["valid_ppl"] = "validation ppl per token"
    columns = ["model", "output layer", "parameters", f"paper: {task.corpus}", *measures.values()]
    columns += ["difference from softmax [95 %]", "p"]
    lines = [f"### {task.title}: {task.measure}, mean ± sd (seeds)", "", row(columns), row(["---"] * len(columns))]
    for cell in task.in_order([*runs, *fell]):
        of_cell, baseline = runs.get(cell, []), f"{cell.split('-')[0]}-softmax"
        paper = f"{task.figures[cell]:.2f}" if cell in task.figures else "–"
        ours = [mean_and_spread(values_of(of_cell, name)) for name in measures]
        if fell[cell]:
            ours[0] = f"{ours[0]}, {fell[cell]} failed".removeprefix(", ")
        versus = compare(task, of_cell, runs.get(baseline, []), wanted) if cell != baseline else None
        judged = ["", ""]
        if versus:
            judged = [f"{versus.difference:+.2f} [{versus.low:+.2f}, {versus.high:+.2f}]", f"{versus.p:.3f}"]
        lines.append(row([*name_of(cell), size_of(of_cell), paper, *ours, *judged]))
    return "\n".join([*lines, "", *footnotes(task, out, runs)]) + "\n"


def values_of(runs: Sequence[Run], name: str) -> list[float]:
    """One of the scores, of all runs that have it as a number."""
    found = [(run.scores or {}).get(name) for run in runs]
    return [float(value) for value in found if value is not None and math.isfinite(value)]


def size_of(runs: Sequence[Run]) -> str:
    """How many parameters the models of a cell have: 2.37 M, or a range."""
    sizes = [f"{size / 1e6:.2f} M" for size in sorted(set(values_of(runs, "parameters")))]
    return " to ".join(dict.fromkeys([sizes[0], sizes[-1]])) if sizes else ""


def row(cells: Sequence[str]) -> str:
    """Of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def mean_and_spread(values: Sequence[float]) -> str:
    """27.10 ± 0.20 (3)."""
    if not values:
        return ""
    mean = f"{sum(values) / len(values):.2f}"
    return f"{mean} ± {spread(values):.2f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"


def footnotes(task: Task, out: Path, runs: dict[str, list[Run]]) -> list[str]:
    """What a reader must know."""
    notes = [
        "p: one-sided, paired bootstrap over the test sentences (1,000 draws), scores averaged over the seeds that "
        "both have; the spread over seeds stands beside the mean."
    ]
    if isinstance(task.scorer, Perplexity):
        notes.append("PPL is per word of the text, the end of a sentence included, whatever the subwords.")
    else:
        signatures = {str((run.scores or {}).get("signature")) for of_cell in runs.values() for run in of_cell}
        notes.append(f"BLEU by sacrebleu on detokenised text: {', '.join(sorted(signatures))}.")
    settings = out / "binary" / ".settings"
    if settings.is_file():
        notes.append(f"Corpus, tokens and number of pieces: {read_text(settings).strip()}.")
    return notes
