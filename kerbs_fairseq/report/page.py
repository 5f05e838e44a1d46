"""The report as one self-contained HTML page: no network, no fonts, no other files."""

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any, Optional

from kerbs_fairseq import __version__
from kerbs_fairseq.inspection import findings
from kerbs_fairseq.inspection.findings import without_nan
from kerbs_fairseq.inspection.learned import Learned
from kerbs_fairseq.report.drawing import Picture, inline
from kerbs_fairseq.report.gather import Run

TITLES = {
    "overview": "Overview", "compare": "Compare", "training": "Training", "senses": "Senses", "widths": "Widths",
    "words": "Words",
}  # fmt: skip
HERE = Path(__file__).parent
SHOWN = ("bleu", "chrf", "ppl", "ter")  # scores in the overview; the others are in the table


def esc(value: object) -> str:
    """Escape any text for HTML."""
    return html.escape(str(value))


def page(
    title: str,
    runs: Sequence[Run],
    main: Optional[Run],
    pictures: Sequence[tuple[str, Picture]],
    vocabulary: dict[str, Any],
    notes: Sequence[str],
) -> str:
    """Return the page; ``main`` is the model that is shown in detail, ``pictures`` are (tab, plot)."""
    parts: dict[str, list[str]] = {name: [] for name in TITLES}
    parts["overview"] = [overview(main), notes_list(notes), settings(runs)]
    if len(runs) > 1:
        parts["compare"] = [comparison(runs)]
    for name in TITLES:
        figures = [figure(picture) for where, picture in pictures if where == name]
        if figures:
            parts[name].append(f'<div class="plots">{"".join(figures)}</div>')
    if main is not None and main.learned is not None:
        parts["senses"] += senses_tables(main.learned)
        parts["widths"] += widths_tables(main.learned)
        parts["words"] = [SEARCH, *parts["words"]]
    shown = [name for name in TITLES if any(parts[name])]
    tabs = "\n".join(
        f'<button type="button" role="tab" id="tab-{name}" aria-controls="{name}">{TITLES[name]}</button>'
        for name in shown
    )
    panels = "\n".join(
        f'<section id="{name}" role="tabpanel" aria-labelledby="tab-{name}"><h2>{TITLES[name]}</h2>'
        f"{''.join(parts[name])}</section>"
        for name in shown
    )
    return Template((HERE / "page.html").read_text(encoding="utf-8")).substitute(
        title=esc(title),
        subtitle=esc(subtitle(runs, main)),
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "page.js").read_text(encoding="utf-8"),
        tabs=tabs,
        panels=panels,
        version=esc(__version__),
        data=as_data(vocabulary),
    )


def as_data(value: Any) -> str:
    """Return JSON that is safe inside a script element."""
    text = json.dumps(without_nan(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


SEARCH = (
    '<input type="search" id="search" placeholder="Search for a word" aria-label="Word" autocomplete="off">'
    '<p class="hint" id="message" role="status"></p><div class="matches" id="matches"></div><div id="detail"></div>'
)


def subtitle(runs: Sequence[Run], main: Optional[Run]) -> str:
    """Return a line that describes the models of the page."""
    if main is None or main.learned is None:
        return f"{len(runs)} models compared; none of them is KerBS, so there are no senses to show."
    S, d = main.learned.vectors.shape
    other = f" Compared with {len(runs) - 1} other{'s' if len(runs) > 2 else ''}." if len(runs) > 1 else ""
    return f"{S:,} senses of {main.learned.n_words:,} words with {d} features, kernel {main.learned.kernel}.{other}"


def figure(picture: Picture) -> str:
    """Return a plot with its title and caption."""
    return (
        f'<figure><h3 id="t-{picture.name}">{esc(picture.title)}</h3>{inline(picture)}'
        f'<figcaption class="caption">{esc(picture.caption)}</figcaption></figure>'
    )


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; columns whose names begin with > hold numbers."""
    kinds = [' class="n"' if column.startswith(">") else "" for column in columns]
    head = "".join(f"<th{kind}>{esc(column.lstrip('>'))}</th>" for kind, column in zip(kinds, columns))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{esc(cell)}</td>" for kind, cell in zip(kinds, row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def overview(main: Optional[Run]) -> str:
    """Return the main figures of the model."""
    if main is None or main.learned is None:
        return ""
    idle = findings.idle(main.learned)
    facts = [
        (f"{main.parameters:,}", "parameters"),
        (f"{main.updates:,}", "updates"),
        ("unknown" if main.moved is None else f"{main.moved:,}", "senses moved"),
        (f"{idle['share']:.1%}", "of the senses are idle"),
    ]
    if main.history.best_ppl is not None:
        facts.insert(0, (f"{main.history.best_ppl:.2f}", "best validation perplexity"))
    facts += [(value, name) for name, value in main.scores.items() if name.lower() in SHOWN]
    return f'<ul class="facts">{"".join(f"<li><b>{esc(a)}</b>{esc(b)}</li>" for a, b in facts)}</ul>'


def notes_list(notes: Sequence[str]) -> str:
    """Return the list of what is left out, and why."""
    if not notes:
        return ""
    return f'<div class="notes"><p>Left out:</p><ul>{"".join(f"<li>{esc(note)}</li>" for note in notes)}</ul></div>'


def settings(runs: Sequence[Run]) -> str:
    """Return the table of settings and scores, with a column for each model."""
    rows: list[list[str]] = []
    for what in ("scores", "settings"):
        names = dict.fromkeys(name for run in runs for name in getattr(run, what))
        rows += [[name, *(getattr(run, what).get(name, "") for run in runs)] for name in names]
    return "<h3>Settings and scores</h3>" + table(["", *(run.name for run in runs)], rows)


def comparison(runs: Sequence[Run]) -> str:
    """Return the table that compares the models."""
    scores = list(dict.fromkeys(name for run in runs for name in run.scores))
    columns = ["model", "output layer", ">parameters", ">updates", ">best valid ppl", ">senses", ">moves"]
    rows = []
    for run in runs:
        best = run.history.best_ppl
        senses = "" if run.learned is None else f"{len(run.learned.usage):,}"
        moved = "" if run.learned is None else "unknown" if run.moved is None else f"{run.moved:,}"
        cells = [run.name, run.head, f"{run.parameters:,}", f"{run.updates:,}", "" if best is None else f"{best:.2f}"]
        rows.append([*cells, senses, moved, *(run.scores.get(name, "") for name in scores)])
    return table([*columns, *scores], rows)


def senses_tables(model: Learned) -> list[str]:
    """Return the tables of words by number of senses (Table 5), of gained and lost senses, and of idle senses."""
    lines = findings.by_number(model)
    blocks = ["<h3>Words by number of senses (Table 5)</h3>"]
    blocks.append(
        table([">senses", ">words", "such as"], [(x["senses"], x["words"], "  ".join(x["samples"])) for x in lines])
    )
    moved = findings.movers(model)
    for what, words in moved.items():
        if words:
            rows = [(x["word"], x["from"], x["to"]) for x in words]
            blocks.append(f"<h3>Words that {what} most senses</h3>" + table(["word", ">at the start", ">now"], rows))
    if not moved:
        blocks.append(
            '<p class="hint">Which words won and lost senses is unknown: the checkpoint does not have the senses per '
            "word at the start.</p>"
        )
    idle = findings.idle(model)
    if idle["words"]:
        rows = [(x["word"], x["idle"], x["of"]) for x in idle["words"]]
        blocks.append(
            f"<h3>Idle senses: {idle['senses']} ({idle['share']:.1%})</h3>" + table(["word", ">idle", ">of"], rows)
        )
    return blocks


def widths_tables(model: Learned) -> list[str]:
    """Return the table of the words with the largest and smallest θ (Figure 3)."""
    widths = findings.widths(model)
    if not widths:
        return ["<p>The kernel is the inner product: there is no θ.</p>"]
    rows = [
        (a["word"], f"{a['theta']:.2f}", b["word"], f"{b['theta']:.2f}")
        for a, b in zip(widths["largest"], widths["smallest"])
    ]
    return ["<h3>Widest and narrowest words (Figure 3)</h3>", table(["widest", ">θ", "narrowest", ">θ"], rows)]
