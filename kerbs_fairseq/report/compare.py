"""Plots that compare several models."""

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kerbs_fairseq.inspection.learned import SPECIAL
from kerbs_fairseq.report.drawing import axes, colour, marker, plain_numbers
from kerbs_fairseq.report.gather import Run

LINES = {"KerBS": "-", "MoS": "-.", "softmax": "--"}


def validation(runs: Sequence[Run]) -> Figure:
    """Plot the validation perplexity of all models over updates, or the loss if a perplexity is missing."""
    figure, ax = axes(5.6, 3.6)
    ppl = all(run.history.valid_ppl for run in runs)
    for number, run in enumerate(runs):
        curve = run.history.valid_ppl if ppl else run.history.valid_loss
        if curve:
            x, y = zip(*sorted(curve.items()))
            label = f"{run.name} ({run.head})"
            ax.plot(x, y, LINES[run.head], color=colour(number), marker=marker(number), markersize=4, label=label)
    if ppl:
        ax.set_yscale("log")
        plain_numbers(ax.yaxis, (1, 2, 5))
    ax.set_xlabel("updates")
    ax.set_ylabel("validation perplexity" if ppl else "validation loss (bits per token)")
    ax.legend()
    return figure


def senses(runs: Sequence[Run]) -> Figure:
    """Plot the share of words by number of senses, for each KerBS model."""
    figure, ax = axes(5.6, 3.6)
    models = [(i, run.name, run.learned) for i, run in enumerate(runs) if run.learned is not None]
    most = max(int(model.numbers.max()) for _, _, model in models)
    width = 0.8 / len(models)
    for number, (of_run, name, model) in enumerate(models):
        counts = torch.bincount(model.numbers[SPECIAL:], minlength=most + 1)[1:]
        at = torch.arange(1, most + 1) - 0.4 + width * (number + 0.5)
        ax.bar(at, counts / counts.sum(), width, color=colour(of_run), label=name)  # the colour of the run
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("senses")
    ax.set_ylabel("share of words")
    ax.legend()
    return figure


def thetas(runs: Sequence[Run]) -> Figure:
    """Plot the cumulative distribution of θ, for each KerBS model."""
    figure, ax = axes(5.6, 3.6)
    for number, run in enumerate(runs):
        if run.learned is not None and run.learned.kernel != "dot":
            values = torch.nan_to_num(run.learned.theta).sort().values
            part = torch.linspace(0, 1, len(values))
            few = torch.linspace(0, len(values) - 1, min(len(values), 300)).long()
            ax.plot(values[few], part[few], color=colour(number), ls=("-", "--", "-.", ":")[number % 4], label=run.name)
    ax.set_xlabel("θ (larger: wider)")
    ax.set_ylabel("share of senses below")
    ax.legend()
    return figure
