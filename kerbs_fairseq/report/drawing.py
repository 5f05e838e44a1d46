"""Style of the plots, and saving them to files and pages; uses matplotlib's objects without its global state."""

import contextlib
import io
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

# Colours that are distinguishable with any colour vision (Okabe and Ito). In a page each becomes a CSS variable, so
# that light and dark mode have their own shades.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
INK, LINE = "#1b1c1d", "#d3d4d5"  # of text and grid, and of nothing else: `inline` replaces both
MARKERS = ("o", "s", "^", "D", "v", "P")
SIZE = (4.8, 3.2)  # inches: readable at the width of a phone
STYLE = {
    "text.parse_math": False,  # words may contain $
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "kerbs-report",  # the same plot gives the same file
}
logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it logs messages about fonts
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass
class Picture:
    """A plot with its title and caption."""

    name: str  # of its files
    title: str
    caption: str
    figure: Figure


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Use our style for figures that are made and drawn in this context, whatever the user's settings."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def axes(width: float = SIZE[0], height: float = SIZE[1]) -> tuple[Figure, Axes]:
    """Return an empty figure and its axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def colour(number: int) -> str:
    """Return a colour of the palette."""
    return PALETTE[number % len(PALETTE)]


def marker(number: int) -> str:
    """Return a marker, so that colour is not needed; where colours repeat, the markers differ."""
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]


def plain_numbers(axis: Any, steps: Sequence[float] = (1,)) -> None:
    """Label a logarithmic axis by 10, 100, 1000 (and ``steps`` times these), not by powers, which need other fonts."""
    axis.set_major_locator(LogLocator(subs=list(steps)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def save(picture: Picture, folder: Path, dpi: int = 200) -> None:
    """Save a plot as PNG and SVG."""
    for kind, options in (("png", {"dpi": dpi}), ("svg", {"metadata": NO_METADATA})):
        picture.figure.savefig(folder / f"{picture.name}.{kind}", format=kind, **options)


def inline(picture: Picture) -> str:
    """Return a plot as SVG for a page: text as text, colours of the page, unique ids, size of the column."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        picture.figure.savefig(buffer, format="svg", transparent=True, metadata=NO_METADATA)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    prefix = f"{re.sub(r'[^A-Za-z0-9]+', '-', picture.name)}-{sum(map(ord, picture.name))}-"
    text = re.sub(r'\bid="', f'id="{prefix}', text)
    text = re.sub(r'href="#', f'href="#{prefix}', text)
    text = re.sub(r"url\(#", f"url(#{prefix}", text)
    text = text.replace(INK, "currentColor").replace(LINE, "var(--line)")
    for number, of_palette in enumerate(PALETTE):
        text = text.replace(of_palette, f"var(--c{number})")
    head, rest = text.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    assert view is not None
    return f'<svg {view[0]} role="img" aria-labelledby="t-{picture.name}">{rest}'
