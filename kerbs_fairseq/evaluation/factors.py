"""Tables of the effect of each setting of KerBS on the validation perplexity: one per model, one setting per row."""

from typing import Any, Optional

from kerbs_fairseq.evaluation.paper import ARMS, TASKS
from kerbs_fairseq.evaluation.table import Cell, mean_and_spread, row, signed, size_of, spread, values_of

COLUMNS = ("setting", "cell", "parameters", "validation ppl per token", "against `kerbs`", "against softmax")
MEASURE = "valid_ppl"
STANDARD = "kerbs"  # the arm with the defaults


def options_of(text: str) -> list[str]:
    """Return the options after ``--`` in a command, each with its values: ["--lr 0.008", "--kerbs-senses 2"]."""
    _, _, behind = text.partition(" -- ")
    options: list[str] = []
    for word in behind.split():
        if word.startswith("--") or not options:
            options.append(word)
        else:
            options[-1] += f" {word}"
    return options


def variables_of(text: str) -> list[str]:
    """Return the environment variables that a command sets: A=1 of "A=1 recipes/lm_1b/train.sh gru-kerbs …"."""
    return [word for word in text.partition("recipes/")[0].split() if "=" in word]


def setting_of(name: str, cell: Cell, standard: Cell) -> str:
    """Return the variables and options in which a cell differs from ``standard``, as they were given."""
    arm, command = ARMS[name.partition("+")[0].partition("-")[2]], cell.get("train", "")
    own = [one for one in options_of(command) if one not in options_of(standard.get("train", ""))]
    options = [*variables_of(command), *([arm.options] if arm.options else []), *own]
    parts = [] if arm.options or arm.name == STANDARD else [arm.title]
    parts += [f"`{' '.join(options)}`"] if options else []
    return ", ".join(parts) or "the defaults"


def percent_of(cell: Cell, other: Optional[Cell]) -> str:
    """Return the mean difference over the seeds that both cells have, with its standard deviation: −7.3 % ± 0.2."""
    ours, theirs = ({} if one is None else one["seeds"] for one in (cell, other))
    seeds = [seed for seed in ours if MEASURE in ours[seed] and MEASURE in theirs.get(seed, {})]
    if not seeds:
        return ""
    differences = [100 * (ours[seed][MEASURE] / theirs[seed][MEASURE] - 1) for seed in seeds]
    text = f"{signed(sum(differences) / len(seeds), 1)} %"
    return f"{text} ± {spread(differences):.1f}" if len(seeds) > 1 else text


def factors_of(results: dict[str, Any]) -> str:
    """Return a table for every model with KerBS: the softmax, KerBS, and all arms and variants of KerBS."""
    task, cells = TASKS[results["task"]], results["cells"]
    tables = []
    for model in task.models:
        standard, softmax = cells.get(f"{model}-{STANDARD}"), cells.get(f"{model}-softmax")
        if standard is None:
            continue
        lines = [row(COLUMNS), row(["---"] * len(COLUMNS))]
        for name in task.in_order(cells):
            arm = name.partition("+")[0].removeprefix(f"{model}-")
            if name != f"{model}-softmax" and (arm not in ARMS or ARMS[arm].head != "kerbs"):
                continue
            cell = cells[name]
            setting = "softmax" if cell is softmax else setting_of(name, cell, standard)
            against = ["" if cell is other else percent_of(cell, other) for other in (standard, softmax)]
            values = mean_and_spread(values_of(cell, MEASURE))
            lines.append(row([setting, f"`{name}`", size_of(cell), values, *against]))
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)
