"""Plots of one KerBS model."""

import itertools
import math
import re
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from kerbs_fairseq.functional.kernel import curvature
from kerbs_fairseq.inspection.learned import SPECIAL, Learned
from kerbs_fairseq.report.drawing import INK, axes, colour, marker, plain_numbers
from kerbs_fairseq.report.history import History
from kerbs_fairseq.report.spaces import Contexts, main_axes
from kerbs_fairseq.runs import logs

QUANTILES = (0.05, 0.5, 0.95)
ENOUGH = 5  # contexts that a spread needs
MOST_POINTS = 1500
SENSE_GROUPS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 8), (9, math.inf))  # (fewest, most) senses
PARTS = 25  # bars over the updates


def training(history: History) -> Figure:
    """Plot the training and validation loss over updates."""
    figure, ax = axes()
    for number, (name, curve) in enumerate((("training", history.train_loss), ("validation", history.valid_loss))):
        if curve:
            x, y = zip(*sorted(curve.items()))
            ax.plot(x, y, color=colour(number), marker=marker(number) if len(x) < 25 else "", markersize=4, label=name)
    ax.set_xlabel("updates")
    ax.set_ylabel("loss (bits per token)")
    ax.set_ylim(bottom=0)
    ax.legend()
    return figure


def moves(history: History) -> Figure:
    """Plot the number of moves over updates, and their total."""
    figure, ax = axes()
    x, y = zip(*sorted(history.moves_by_update().items()))
    width = max(1, math.ceil(x[-1] / PARTS))
    parts = [0.0] * PARTS
    for update, count in zip(x, y):
        parts[max(0, update - 1) // width] += count
    ax.bar([width * (i + 0.5) for i in range(PARTS)], parts, width * 0.9, color=colour(0))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("updates")
    ax.set_ylabel(f"senses moved in {width:,} updates", color=colour(0))
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    whole = ax.twinx()
    whole.plot([0, *x], [0, *itertools.accumulate(y)], color=colour(4), drawstyle="steps-post")
    whole.set_ylim(bottom=0)
    whole.set_ylabel("in all", color=colour(4))
    whole.grid(False)
    return figure


def words_over_time(history: History) -> Figure:
    """Plot the number of words with one, two … senses over updates."""
    figure, ax = axes()
    names = [name for name in history.senses if re.fullmatch(rf"{logs.WORDS_WITH}(\d+|{logs.MORE})", name)]
    names.sort(key=lambda name: (len(name), name))  # by number, "more" last
    for number, name in enumerate(names):
        x, y = zip(*sorted(history.senses[name].items()))
        ax.plot(x, y, color=colour(number), marker=marker(number), markersize=4, label=name[len(logs.WORDS_WITH) :])
    ax.set_xlabel("updates")
    ax.set_ylabel("words")
    ax.set_ylim(bottom=0)
    ax.legend(title="senses", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def senses_per_word(model: Learned) -> Figure:
    """Plot words by number of senses, now and before training."""
    figure, ax = axes()
    first = model.initial
    most = int(model.numbers.max()) if first is None else int(max(model.numbers.max(), first.max()))
    x = torch.arange(1, most + 1)
    groups = [("now", model.numbers)] if first is None else [("before training", first), ("now", model.numbers)]
    width = 0.8 / len(groups)
    for number, (name, numbers) in enumerate(groups):
        counts = torch.bincount(numbers[SPECIAL:], minlength=most + 1)[1:]
        at = x - 0.4 + width * (number + 0.5)
        bars = ax.bar(at, counts, width, color=colour(1 if name != "now" else 0), label=name)
        ax.bar_label(bars, [f"{int(n):,}" for n in counts], fontsize=8)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("senses")
    ax.set_ylabel("words")
    ax.legend()
    return figure


def senses_by_frequency(model: Learned) -> Figure:
    """Plot the share of words with one, two … senses against their frequency."""
    figure, ax = axes()
    assert model.counts is not None
    counts, numbers = model.counts[SPECIAL:].float().clamp_min(1), model.numbers[SPECIAL:]
    low, high = float(counts.min()), float(counts.max())
    n_bins = max(1, min(10, int(len(counts.unique()) / 2)))
    edges = torch.logspace(torch.log10(torch.tensor(low)), torch.log10(torch.tensor(high * 1.001)), n_bins + 1)
    of_bin = torch.bucketize(counts, edges[1:-1], right=True)
    sizes = torch.bincount(of_bin, minlength=n_bins)
    bottom = torch.zeros(n_bins)
    for n in range(1, int(numbers.max()) + 1):
        share = torch.bincount(of_bin[numbers == n], minlength=n_bins) / sizes.clamp_min(1)
        ax.bar(edges[:-1], share, edges.diff() * 0.94, bottom, align="edge", color=colour(n - 1), label=str(n))
        bottom = bottom + share
    for left, right, size in zip(edges[:-1].tolist(), edges[1:].tolist(), sizes.tolist()):
        if size:
            ax.text((left * right) ** 0.5, 1.01, f"{size:,}", ha="center", va="bottom", fontsize=7)
    ax.set_xscale("log")
    plain_numbers(ax.xaxis)
    ax.set_xlabel("times in training (numbers above: words)")
    ax.set_ylabel("share of words")
    ax.legend(title="senses", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def theta(model: Learned) -> Figure:
    """Plot a histogram of θ, with idle senses marked."""
    return _of_senses(model, model.theta, "θ (larger: wider)")


def bias(model: Learned) -> Figure:
    """Plot a histogram of the bias, with idle senses marked."""
    assert model.bias is not None
    return _of_senses(model, model.bias, "bias")


def _of_senses(model: Learned, values: torch.Tensor, label: str) -> Figure:
    """Plot a histogram of ``values`` (S,), with idle senses marked."""
    figure, ax = axes()
    idle = model.share < logs.IDLE_SHARE
    values = torch.nan_to_num(values)
    low, high = float(values.min()), float(values.max())
    edges = torch.linspace(low - 1e-3, high + 1e-3, 41).tolist()
    parts = [values[~idle].tolist(), values[idle].tolist()]
    labels = ["used", f"idle (share below {logs.IDLE_SHARE:.0%})"]
    ax.hist(parts, edges, stacked=True, color=[colour(0), colour(1)], label=labels)
    ax.set_xlabel(label)
    ax.set_ylabel("senses")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.legend()
    return figure


def spread_words(contexts: Contexts) -> list[int]:
    """Return the words with enough contexts for a spread, most frequent first."""
    order = torch.argsort(contexts.times, descending=True, stable=True)[:MOST_POINTS].tolist()
    return [i for i in order if i >= SPECIAL and contexts.times[i] >= ENOUGH]


def theta_by_spread(model: Learned, contexts: Contexts) -> Figure:
    """Plot θ of words against the spread of their contexts (Lemma 2)."""
    figure, ax = axes()
    words = torch.tensor(spread_words(contexts))
    of_word = model.word_theta()
    for number, (fewest, most) in enumerate(SENSE_GROUPS):
        its = words[(model.numbers[words] >= fewest) & (model.numbers[words] <= most)]
        if len(its):
            name = (
                str(fewest) if fewest == most else f"{fewest} to {most}" if math.isfinite(most) else f"{fewest} or more"
            )
            look: dict[str, Any] = {"c": colour(number), "marker": marker(number), "alpha": 0.75, "lw": 0}
            ax.scatter(contexts.spread[its], of_word[its], s=14, label=name, **look)
    ax.set_xlabel("spread of a word's contexts")
    ax.set_ylabel("θ of the word")
    ax.legend(title="senses", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def kernels(model: Learned) -> Figure:
    """Plot the kernel against the angle between context and sense, for quantiles of the learned θ (Figure 2)."""
    figure, ax = axes()
    angle = torch.linspace(0, torch.pi, 181)
    cosine = angle.cos()
    degrees = torch.rad2deg(angle)
    shown = torch.quantile(torch.nan_to_num(model.theta), torch.tensor(QUANTILES)).tolist()
    for number, (part, value) in enumerate(zip(QUANTILES, shown)):
        curve = cosine * curvature(cosine, torch.tensor(value), model.kernel)
        name = {0.05: "narrow (5 %)", 0.5: "median", 0.95: "wide (95 %)"}[part]
        ax.plot(degrees, curve, color=colour(number), ls=("-", "--", "-.")[number], label=f"{name}: θ = {value:.2f}")
    ax.plot(degrees, cosine, color=INK, linewidth=1, linestyle=":", label="inner product: θ = 0")
    ax.set_xticks([0, 45, 90, 135, 180], ["0°", "45°", "90°", "135°", "180°"])
    ax.set_xlabel("angle between context and sense")
    ax.set_ylabel("kernel, for lengths 1")
    ax.legend()
    return figure


def contexts_of_word(features: Tensor, senses: Tensor, order: list[int]) -> Figure:
    """Plot contexts (n, d) of a word by PCA, coloured by their likely ``senses`` (n,) (Figure 1).

    ``order`` are the senses of the word, which determines their colours.
    """
    figure, ax = axes()
    points = main_axes(features)
    for number, sense in enumerate(order):
        its = points[senses == sense]
        if len(its):
            look: dict[str, Any] = {"c": colour(number), "marker": marker(number), "alpha": 0.8, "lw": 0}
            ax.scatter(its[:, 0], its[:, 1], s=22, label=f"{number + 1}: {len(its)}", **look)
    ax.set_xlabel("first main axis")
    ax.set_ylabel("second")
    ax.legend(title="sense: times", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
