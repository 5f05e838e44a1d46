"""How every plot looks, and how it gets into a file or a page; by matplotlib's objects, without its global state."""

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

# Colours that people with any colour vision tell apart (Okabe and Ito). In a page each becomes a variable of its style
# sheet, so that light and dark have shades of their own.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
INK, LINE = "#1b1c1d", "#d3d4d5"  # of texts and of lines behind the data; nothing else has these colours
MARKERS = ("o", "s", "^", "D", "v", "P")
SIZE = (4.8, 3.2)  # inches: readable at the width of a phone
STYLE = {
    "text.parse_math": False,  # a word may have $ in it
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
    "svg.hashsalt": "kerbs-report",  # the same plot has the same file
}
logging.getLogger("matplotlib").setLevel(logging.WARNING)  # it would tell of its fonts
NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass
class Picture:
    """A plot with what stands around it."""

    name: str  # of its files
    title: str
    caption: str
    figure: Figure


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Within this context figures are made and drawn in our style, whatever the user's settings are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)  # type: ignore[arg-type]
        yield


def axes(width: float = SIZE[0], height: float = SIZE[1]) -> tuple[Figure, Axes]:
    """An empty plot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.add_subplot()


def colour(number: int) -> str:
    """One of the palette."""
    return PALETTE[number % len(PALETTE)]


def marker(number: int) -> str:
    """One for each colour, for those who see none; with the next round of colours each has another one."""
    return MARKERS[(number + number // len(PALETTE)) % len(MARKERS)]


def plain_numbers(axis: Any, steps: Sequence[float] = (1,)) -> None:
    """Label a logarithmic axis by 10, 100, 1000 (and ``steps`` times them), not by powers: they need other type."""
    axis.set_major_locator(LogLocator(subs=list(steps)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def save(picture: Picture, folder: Path, dpi: int = 200) -> None:
    """As PNG and as SVG for a paper."""
    for kind, options in (("png", {"dpi": dpi}), ("svg", {"metadata": NO_METADATA})):
        picture.figure.savefig(folder / f"{picture.name}.{kind}", format=kind, **options)


def inline(picture: Picture) -> str:
    """As SVG for a page: text is text, colours are the page's, ids are its own, its size is its column's."""
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
