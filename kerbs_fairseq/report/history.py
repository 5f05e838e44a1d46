"""The history of a training run: losses, senses and moves over updates, from fairseq's log and the move log."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from kerbs_fairseq.runs import logs
from kerbs_fairseq.runs.checkpoint import Checkpoint

Curve = dict[int, float]  # values by number of updates


@dataclass
class History:
    """Curves of one run. Losses are in bits (base 2) per token, as fairseq logs them; a perplexity is 2^nll_loss."""

    epoch_loss: Curve = field(default_factory=dict)  # training loss: means over epochs,
    inner_loss: Curve = field(default_factory=dict)  # and over the updates since the previous line
    valid_loss: Curve = field(default_factory=dict)
    valid_ppl: Curve = field(default_factory=dict)
    senses: dict[str, Curve] = field(default_factory=dict)  # kerbs_… of the log
    moves: list[tuple[int, str, str]] = field(default_factory=list)  # (update, from word, to word)
    events: Curve = field(default_factory=dict)  # senses moved at each event, from the log
    pretrained: bool = False  # whether the totals in the log include an earlier run

    @property
    def train_loss(self) -> Curve:
        """The training loss, by epoch or by log line, whichever has more points."""
        return self.inner_loss if len(self.inner_loss) > len(self.epoch_loss) else self.epoch_loss

    @property
    def best_ppl(self) -> Optional[float]:
        """The lowest validation perplexity; None if there is none."""
        return min((ppl for ppl in self.valid_ppl.values() if math.isfinite(ppl)), default=None)

    def moves_by_update(self) -> Curve:
        """Return the number of senses that moved at each event of this run.

        From the move log, otherwise from the events in the training log, otherwise from its total of moves.
        """
        if self.moves:
            counts: Curve = {}
            for update, _, _ in self.moves:
                counts[update] = counts.get(update, 0) + 1
            return counts
        if self.events:
            return {update: count for update, count in self.events.items() if count}
        total = sorted(self.senses.get(logs.MOVED_TOTAL, {}).items())
        first = total[0][1] if total and self.pretrained else 0.0
        before = [first, *(value for _, value in total)]
        return {update: value - last for (update, value), last in zip(total, before) if value > last}

    @property
    def has_curves(self) -> bool:
        """Whether there is any curve of the loss."""
        return bool(self.valid_loss or self.train_loss)


def read_log(path: Path, valid: str = logs.VALID) -> History:
    """Read a log of fairseq-train (--log-format json or simple); ``valid`` is the name of the validation set."""
    lines = logs.read_lines(path)
    history = History(events={update: float(count) for update, count in logs.events(lines).items()})
    for record in logs.records(lines):
        at, loss = record.update, record.values.get("loss")
        if at is None or loss is None:
            continue
        if record.kind == valid:
            history.valid_loss[at] = loss
            if "ppl" in record.values:
                history.valid_ppl[at] = record.values["ppl"]
        elif record.kind in (logs.TRAIN, logs.INNER):
            (history.epoch_loss if record.kind == logs.TRAIN else history.inner_loss)[at] = loss
            for name, value in record.values.items():
                if name.startswith(logs.METRIC):
                    history.senses.setdefault(name, {})[at] = value
    return history


def from_checkpoint(checkpoint: Checkpoint, updates: int) -> History:
    """Return the history that a checkpoint itself contains: its last losses."""
    history = History()
    for kind, loss in checkpoint.last_losses():
        (history.valid_loss if kind == logs.VALID else history.epoch_loss)[updates] = loss
    return history
