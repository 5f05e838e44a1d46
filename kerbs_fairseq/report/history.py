"""What happened in training: losses, senses and moves over updates, from fairseq's logs and from the table of moves."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from kerbs_fairseq.inspection.learned import Unreadable
from kerbs_fairseq.plugin.move_log import Row

Curve = dict[int, float]  # a value after so many updates


@dataclass
class History:
    """Losses are in bits (base 2) a token, as fairseq logs them; a perplexity is 2 to the power of the nll loss."""

    epoch_loss: Curve = field(default_factory=dict)  # in training: means over epochs,
    inner_loss: Curve = field(default_factory=dict)  # and over the updates since the line before
    valid_loss: Curve = field(default_factory=dict)
    valid_ppl: Curve = field(default_factory=dict)
    senses: dict[str, Curve] = field(default_factory=dict)  # kerbs_… of the log
    moves: list[tuple[int, str, str]] = field(default_factory=list)  # (update, from word, to word)

    @property
    def train_loss(self) -> Curve:
        """The finer of the two curves of the loss in training."""
        return self.inner_loss if len(self.inner_loss) > len(self.epoch_loss) else self.epoch_loss

    @property
    def best_ppl(self) -> Optional[float]:
        """The lowest perplexity on the validation set."""
        return min((ppl for ppl in self.valid_ppl.values() if math.isfinite(ppl)), default=None)

    def moves_by_update(self) -> Curve:
        """How many senses moved at each event: from the table of moves, or else from the growing total in the log."""
        if self.moves:
            counts: Curve = {}
            for update, _, _ in self.moves:
                counts[update] = counts.get(update, 0) + 1
            return counts
        total = sorted(self.senses.get("kerbs_moved_total", {}).items())
        before = [0.0, *(value for _, value in total)]
        return {update: value - last for (update, value), last in zip(total, before) if value > last}


def read_log(path: Path) -> History:
    """The log of fairseq-train: lines of JSON (--log-format json), or the plain ones that end an epoch."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Unreadable(f"the log {path} cannot be read: {error.strerror or error}") from None
    history = History()
    for line in text.splitlines():
        values = values_of(line)
        if values:
            take(history, values)
    return history


def values_of(line: str) -> dict[str, float]:
    """The numbers of a line of a log by name, those of validation as valid_…; empty if it has none."""
    found = re.search(r"\{.*\}\s*$", line)
    if found:
        try:
            values = json.loads(found[0])
        except ValueError:
            return {}
        return dict(numbers(values)) if isinstance(values, dict) else {}
    if not re.search(r"\bepoch \d+ \| ", line):
        return {}
    subset = re.search(r"\| (\w+) on '\w+' subset \|", line)
    prefix = f"{subset[1]}_" if subset else "train_"
    pairs = dict(re.findall(r"\| (\w+) (\S+)", line))
    return {f"{prefix}{name}": value for name, value in numbers(pairs)}


def numbers(values: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Those entries that are numbers; fairseq writes most as text."""
    for name, value in values.items():
        try:
            yield name, float(value)
        except (TypeError, ValueError):
            continue


def take(history: History, values: dict[str, float]) -> None:
    """Add the values of one line."""
    kind = next((p for p in ("valid_", "train_", "") if f"{p}loss" in values and f"{p}num_updates" in values), None)
    if kind is None or not math.isfinite(values[f"{kind}num_updates"]):
        return
    at = int(values[f"{kind}num_updates"])
    if kind == "valid_":
        history.valid_loss[at] = values["valid_loss"]
        if "valid_ppl" in values:
            history.valid_ppl[at] = values["valid_ppl"]
        return
    (history.epoch_loss if kind else history.inner_loss)[at] = values[f"{kind}loss"]
    for name, value in values.items():
        short = name[len(kind) :] if name.startswith(kind) else name
        if short.startswith("kerbs_"):
            history.senses.setdefault(short, {})[at] = value


def read_moves(path: Path) -> list[tuple[int, str, str]]:
    """The table that --kerbs-move-log wrote; half a line at its end, of a run that goes on, is left out."""
    try:
        head, *lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"the table of moves {path} cannot be read: {error}") from None
    rows = [line.split("\t") for line in lines[:-1]]
    if head != "\t".join(Row._fields) or not all(len(row) == len(Row._fields) and row[0].isdigit() for row in rows):
        raise Unreadable(f"{path} is no table of moves as --kerbs-move-log writes it")
    return [(int(update), from_word, to_word) for update, _, from_word, to_word, *_ in rows]


def from_checkpoint(state: dict[str, Any], updates: int) -> History:
    """The little that a checkpoint itself knows: its last losses."""
    history, extra = History(), state.get("extra_state") or {}
    last = extra.get("val_loss")
    if isinstance(last, (int, float)) and chosen_by(state) == "loss":
        history.valid_loss[updates] = float(last)
    for _, name, _, meter in (extra.get("metrics") or {}).get("train", []):
        count = meter.get("count") if isinstance(meter, dict) else None
        if name == "loss" and count:
            history.epoch_loss[updates] = float(meter["sum"]) / float(count)
    return history


def chosen_by(state: dict[str, Any]) -> str:
    """--best-checkpoint-metric, which fairseq saves as val_loss even if it is a BLEU."""
    for part in (state.get("args"), (state.get("cfg") or {}).get("checkpoint")):
        values: Any = {} if part is None else part if hasattr(part, "get") else vars(part)
        if values.get("best_checkpoint_metric"):
            return str(values["best_checkpoint_metric"])
    return "loss"
