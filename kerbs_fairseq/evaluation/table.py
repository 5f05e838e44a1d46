"""Results as Markdown tables: mean and standard deviation over seeds, and significance against the softmax."""

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

from kerbs_fairseq.evaluation.paper import TASKS, Task, baseline_of, name_of
from kerbs_fairseq.evaluation.results import SEARCH, SPEEDS, gather, measure_of
from kerbs_fairseq.evaluation.scores import Perplexity

Cell = dict[str, Any]
DIVERSITY = {  # column and number of digits
    "length_ratio": ("length / reference", 3),
    "precision_1": ("unigram precision", 2),
    "distinct_1": ("distinct-1", 3),
    "distinct_2": ("distinct-2", 3),
    "most_frequent": ("most frequent answer", 3),
}


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample; 0 for a single value."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0


def values_of(cell: Optional[Cell], name: str, runs: str = "seeds") -> list[float]:
    """Return one of the scores of all seeds that have it."""
    return [scores[name] for scores in cell.get(runs, {}).values() if name in scores] if cell else []


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """Format values as mean, standard deviation and number: 27.10 ± 0.20 (3)."""
    if not values:
        return ""
    mean = f"{sum(values) / len(values):.{digits}f}"
    return f"{mean} ± {spread(values):.{digits}f} ({len(values)})" if len(values) > 1 else f"{mean} (1)"


def size_of(cell: Cell) -> str:
    """Format the number of parameters of a cell: 2.37 M, or a range."""
    sizes = [f"{size / 1e6:.2f} M" for size in sorted(set(values_of(cell, "parameters")))]
    return " to ".join(dict.fromkeys([sizes[0], sizes[-1]])) if sizes else ""


def ratio(cell: Cell, baseline: Optional[Cell], name: str) -> str:
    """Format the mean of a speed relative to the softmax, 1.18×; from timed runs if the softmax has them.

    Other runs may be of several machines, and beside other work: they are not compared with timed ones.
    """
    timed = bool(baseline and baseline.get("timed"))
    ours, theirs = (values_of(one, name, "timed" if timed else "seeds") for one in (cell, baseline))
    if not ours or not theirs:
        return ""
    return f"{sum(ours) / len(ours) / (sum(theirs) / len(theirs)):.2f}×"


def row(cells: Sequence[str]) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def signed(value: float, digits: int = 2) -> str:
    """Format a number with its sign, and a typographic minus: +1.25, −0.40."""
    return f"{value:+.{digits}f}".replace("-", "−")


def p_value(p: float) -> str:
    """Format a p-value with three digits: 0.012, or < 0.001."""
    return f"{p:.3f}" if p >= 0.0005 else "< 0.001"


def judged(cell: Cell) -> list[str]:
    """Return the columns: difference from the softmax, p of the bootstrap over all seeds and each, p of the t-test."""
    against = cell.get("against_softmax")
    if not against:
        return [""] * 4
    all_seeds, t_test = against["all"], against["t_test"]
    each = ", ".join(p_value(one["p"]) for one in against["seeds"].values())
    return [
        f"{signed(all_seeds['difference'])} [{signed(all_seeds['low'])}, {signed(all_seeds['high'])}]",
        p_value(all_seeds["p"]),
        each if len(against["seeds"]) > 1 else "",
        p_value(t_test["p"]) if t_test else "",
    ]


def main_table(results: dict[str, Any], failed: Sequence[str] = ()) -> list[str]:
    """Return the lines of the table of all cells; ``failed`` are runs, "CELL, seed N"."""
    task = TASKS[results["task"]]
    cells, fell = results["cells"], Counter(one.partition(", ")[0] for one in failed)
    perplexity = isinstance(task.scorer, Perplexity)
    measures = (
        {"ppl": "PPL per word"} if perplexity else {"bleu": task.measure, "bleu_of_moses_tokens": "of Moses tokens"}
    )
    measures["valid_ppl"] = "validation ppl per token"
    columns = ["cell", "output layer", "parameters", f"paper: {task.corpus}", *measures.values()]
    columns += ["difference from softmax [95 %]", "p", "p of each seed", "p of t-test", "time per update"]
    searched = [key for key in SEARCH if any(cell.get(key) for cell in cells.values())]
    columns += ["scoring speed" if perplexity else "decoding speed", "rate", *searched]
    lines = [row(columns), row(["---"] * len(columns))]
    for name in task.in_order([*cells, *fell]):
        cell, baseline = cells.get(name, {"seeds": {}}), cells.get(baseline_of(name))
        paper = f"{task.figures[name]:.2f}" if name in task.figures else "–"
        ours = [mean_and_spread(values_of(cell, measure)) for measure in measures]
        if fell[name]:
            ours[0] = f"{ours[0]}, {fell[name]} failed".removeprefix(", ")
        speed = [ratio(cell, baseline, key) for key in SPEEDS]
        settings = [cell.get(key) or "" for key in ("rate", *searched)]
        of_cell = [f"`{name}`", name_of(name)[1], size_of(cell), paper]
        lines.append(row([*of_cell, *ours, *judged(cell), *speed, *settings]))
    return lines


def diversity_table(results: dict[str, Any]) -> list[str]:
    """Return the lines of the second table for dialog: length, precision and diversity of the answers."""
    lines = [row(["cell", *(column for column, _ in DIVERSITY.values())]), row(["---"] * (1 + len(DIVERSITY)))]
    for name in TASKS[results["task"]].in_order(results["cells"]):
        cell = results["cells"][name]
        values = [mean_and_spread(values_of(cell, key), digits) for key, (_, digits) in DIVERSITY.items()]
        lines.append(row([f"`{name}`", *values]))
    return lines


def notes(results: dict[str, Any]) -> list[str]:
    """Return the notes below a table."""
    task = TASKS[results["task"]]
    lines = [
        "Mean ± standard deviation (seeds). p: one-sided; of a paired bootstrap over the test sentences (1,000 draws) "
        "with the scores averaged over the seeds that both have, and with each seed; of a paired t-test over seeds. "
        "Times and speeds are relative to the softmax of the same model."
    ]
    if isinstance(task.scorer, Perplexity):
        lines.append("PPL is per word of the text, the end of a sentence included, whatever the subwords.")
    elif results["signatures"]:
        lines.append(f"BLEU by sacrebleu: {', '.join(f'`{one}`' for one in results['signatures'])}.")
    if results["data"]:
        lines.append(f"Corpus, tokens and number of pieces: {results['data']}.")
    return lines


def commands(results: dict[str, Any]) -> list[str]:
    """Return the distinct commands of all cells, with CELL, RATE, LENPEN and MIN_LEN for the values in the table."""
    texts = []
    for step in ("train", "evaluate"):
        for name, cell in results["cells"].items():
            text = cell.get(step, "").replace(f" {name} ", " CELL ")
            if cell.get("rate"):
                text = text.replace(f"--lr {cell['rate']}", "--lr RATE")
            for key, option in SEARCH.items():
                if cell.get(key):
                    text = text.replace(f"{option} {cell[key]}", f"{option} {key.upper()}")
            texts.append(text)
    return [text for text in dict.fromkeys(texts) if text]


def markdown_of(results: dict[str, Any], failed: Sequence[str] = ()) -> str:
    """Return the tables, notes and commands of one set of results."""
    lines = main_table(results, failed)
    if TASKS[results["task"]].dialog:
        lines += ["", *diversity_table(results)]
    lines += ["", *notes(results)]
    if commands(results):
        lines += ["", "```bash", *commands(results), "```"]
    return "\n".join(lines) + "\n"


def markdown(task_name: str, out: Path, failed: Sequence[str] = ()) -> str:
    """Return the table of all evaluated runs below ``out``; ``failed`` are runs, "CELL, seed N"."""
    task: Task = TASKS[task_name]
    results = gather(out.name, task_name, out)
    return f"### {task.title}: {task.measure}\n\n{markdown_of(results, failed)}"


def summary(all_results: Sequence[dict[str, Any]]) -> str:
    """Return a table with a row for each model and set of results: softmaxes, MoS, KerBS and its margin.

    Of the wider softmaxes, of MoS and of KerBS with and without moves the one with more seeds is shown, then the one
    with the better validation perplexity, and KerBS without moves. A second series of runs on a corpus, whose name
    begins with that of the first and "_", has no row.
    """
    columns = [
        "task, corpus, model",
        "measure",
        "softmax",
        "softmax, as many parameters",
        "MoS",
        "KerBS",
        "KerBS − softmax [95 %]",
        "paper's margin",
    ]
    lines = [row(columns), row(["---"] * len(columns))]
    names = [results.get("name", "") for results in all_results]
    for results in all_results:
        if any(results.get("name", "").startswith(f"{name}_") for name in names):
            continue
        task, cells = TASKS[results["task"]], results["cells"]
        for model in task.models:
            if f"{model}-softmax" in cells or f"{model}-kerbs" in cells:
                lines.append(row(summary_row(results, task, model)))
    return "\n".join(lines) + "\n"


def validation_of(cell: Cell) -> float:
    """Return the mean validation perplexity; inf if it is not known."""
    values = values_of(cell, "valid_ppl")
    return sum(values) / len(values) if values else math.inf


def summary_row(results: dict[str, Any], task: Task, model: str) -> list[str]:
    """Return the row of one model in the summary."""
    cells, name = results["cells"], measure_of(task)
    arms = [["softmax"], ["softmax-features", "softmax-model"], ["mos", "mos-identity"], ["kerbs", "kerbs-moves"]]
    shown, best = [], None
    for group in arms:
        candidates = [cells[f"{model}-{arm}"] for arm in group if f"{model}-{arm}" in cells]
        if group[0] == "kerbs":  # the one with more seeds; of those, the first, which has the defaults
            best = max(candidates, key=lambda cell: len(cell["seeds"]), default=None)
        else:  # of those, the better one on validation
            best = min(candidates, key=lambda cell: (-len(cell["seeds"]), validation_of(cell)), default=None)
        shown.append(mean_and_spread(values_of(best, name)))
    if best is not None and best is cells.get(f"{model}-kerbs-moves"):
        shown[-1] += ", senses move"
    against = None if best is None else best.get("against_softmax")
    margin = ""
    if against:
        difference, low, high = (against["all"][key] for key in ("difference", "low", "high"))
        margin = f"{signed(difference)} [{signed(low)}, {signed(high)}], p {p_value(against['all']['p'])}"
        if against["t_test"]:
            margin += f", t-test {p_value(against['t_test']['p'])}"
        if isinstance(task.scorer, Perplexity):
            scores = values_of(cells.get(f"{model}-softmax"), name)
            margin = f"**{signed(100 * difference / (sum(scores) / len(scores)), 1)} %**: {margin}"
    kerbs, softmax = task.figure(model, "kerbs-moves", "kerbs"), task.figure(model, "softmax")
    papers = signed(kerbs - softmax) if kerbs is not None and softmax is not None else "–"
    return [f"{task.title.lower()}, {results['corpus']}, {model}", task.measure, *shown, margin, papers]
