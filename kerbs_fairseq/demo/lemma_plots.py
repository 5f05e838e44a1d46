"""The plots of the lemmas: ``python -m kerbs_fairseq.demo.lemmas --plots FOLDER``."""

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from kerbs_fairseq.demo import lemmas
from kerbs_fairseq.report.drawing import INK, Picture, axes, colour, marker, save, style
from kerbs_fairseq.report.spaces import main_axes

SEED = 0
ABOVE: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "ncols": 2}  # outside of the points
TRUE_WIDTHS = (0.025, 0.05, 0.1, 0.15, 0.2, 0.25)


def spread_over_clusters() -> Figure:
    """Plot Lemma 1: contexts of a word with two clusters, coloured by their likely sense, and its sense vectors."""
    trained = lemmas.two_clusters(SEED)
    contexts = trained.contexts.flatten(0, 1)
    lengths = trained.vectors.norm(dim=1, keepdim=True)
    points = main_axes(torch.cat([contexts, trained.vectors / lengths * lemmas.LENGTH]))
    figure, ax = axes()
    for sense in range(2):
        its = points[: len(contexts)][trained.senses.flatten() == sense]
        label = f"contexts that mean sense {sense + 1}"
        ax.scatter(its[:, 0], its[:, 1], s=8, c=colour(sense), marker=marker(sense), lw=0, alpha=0.7, label=label)
        x, y = points[len(contexts) + sense].tolist()
        ax.scatter([x], [y], s=90, c=colour(sense), marker="*", edgecolors=INK, linewidths=1)
        ax.annotate(f"sense {sense + 1}", (x, y), xytext=(6, 6), textcoords="offset points")
    ax.set_xlabel("first main axis")
    ax.set_ylabel("second")
    ax.legend(**ABOVE)
    return figure


def theta_by_width(outliers: float, seeds: range) -> Figure:
    """Plot Lemma 2: θ of words with narrow and with wide clusters, for some sets of contexts."""
    figure, ax = axes()
    for number, kind in enumerate(("narrow", "wide")):
        points = [(seed, float(t)) for seed in seeds for t in lemmas.lemma_2(seed, outliers)[number]]
        x, y = zip(*points)
        width = (lemmas.NARROW, lemmas.WIDE)[number]
        ax.scatter(x, y, s=36, c=colour(number), marker=marker(number), label=f"{kind} cluster (spread {width})")
    ax.set_xticks(list(seeds))
    ax.set_xlabel("set of contexts")
    ax.set_ylabel("θ learned")
    ax.legend(**ABOVE)
    return figure


def gaussian() -> Figure:
    """Plot Section 4.1.2: σ of the Gaussian that fits best against the true width, with outliers and without."""
    figure, ax = axes()
    for number, outliers in enumerate((0.0, lemmas.OUTLIERS)):
        widths = [lemmas.gaussian_width(true, outliers, SEED) for true in TRUE_WIDTHS]
        ax.plot(TRUE_WIDTHS, widths, color=colour(number), marker=marker(number), label=f"{outliers:.0%} outliers")
    ax.set_xlabel("true width, in 8 of 512 dimensions")
    ax.set_ylabel("σ of the best Gaussian")
    ax.set_ylim(bottom=0)
    ax.legend(**ABOVE)
    return figure


def write(folder: Path, seeds: int = 5) -> list[Path]:
    """Draw all plots into ``folder``; return their PNG files."""
    folder.mkdir(parents=True, exist_ok=True)
    with style():
        pictures = [
            Picture("lemma-1", "", "", spread_over_clusters()),
            Picture("lemma-2", "", "", theta_by_width(0.0, range(seeds))),
            Picture("lemma-2-outliers", "", "", theta_by_width(lemmas.OUTLIERS, range(seeds))),
            Picture("gaussian", "", "", gaussian()),
        ]
        for picture in pictures:
            save(picture, folder, dpi=110)
    return [folder / f"{picture.name}.png" for picture in pictures]
