"""The hook that runs once after each update of the parameters, however fairseq trains, and moves senses.

It calls :class:`kerbs_fairseq.allocation.reallocator.Reallocator`, with the options, logs and metrics of fairseq.
"""

import functools
import logging
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
from fairseq import metrics
from fairseq.distributed import utils as distributed
from fairseq.logging.meters import MetersDict, safe_round
from fairseq.models.ema.ema import EMA
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from torch import Tensor

from kerbs_fairseq.allocation.obstacles import obstacle
from kerbs_fairseq.allocation.policy import STRATEGIES
from kerbs_fairseq.allocation.reallocator import Event, NoStatistics, Reallocator, check_schedule
from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.initialization import check_power
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin import head_rate
from kerbs_fairseq.plugin.move_log import MoveLog, Row
from kerbs_fairseq.plugin.options import PRESETS
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.runs import logs
from kerbs_fairseq.runs.checkpoint import HEAD, SENSES, STATISTICS

logger = logging.getLogger(__name__)

SHOWN_NUMBERS = 4  # the log counts words with 1, 2, … this many senses; those with more are counted together


@dataclass
class UpdateHook:
    """When and how the senses of one decoder move, and what the training log shows of them."""

    settings: dict[str, Any]
    move_log: Optional[MoveLog]
    given: list[str] = field(default_factory=list)
    reallocator: Optional[Reallocator] = None
    shown: "Optional[Shown]" = None
    head_rate: float = 1.0
    resolved: dict[str, Any] = field(default_factory=dict)  # options whose values come from a preset or --seed
    warned: bool = False  # of an event without statistics

    @classmethod
    def from_options(cls, args: Any, given: list[str]) -> "UpdateHook":
        """Read ``--kerbs-…``, or refuse the values; ``given`` are the names of the options that were given."""
        every, after, until = args.kerbs_reallocate_every, args.kerbs_reallocate_after, args.kerbs_reallocate_until
        try:
            check_schedule(every, after, until, args.kerbs_threshold, lambda name: f"{option(name)} ")
            check_power(args.kerbs_power, 0.0)  # of the strategy `loss`, whatever --kerbs-init is
        except ValueError as error:
            refuse(str(error))
        if not 0 <= args.kerbs_split_noise < float("inf"):
            refuse(f"--kerbs-split-noise {args.kerbs_split_noise:g}: it must be 0 or more, and finite")
        settings = {
            "every": every,
            "after": after,
            "until": until,
            "strategy": args.kerbs_strategy,
            "threshold": args.kerbs_threshold,
            "power": args.kerbs_power,
            "moved_vector": str(args.kerbs_moved_vector),
            "split_noise": args.kerbs_split_noise,
            "seed": args.kerbs_seed,
        }
        if not 0 < args.kerbs_head_rate < float("inf"):
            refuse(f"--kerbs-head-rate {args.kerbs_head_rate:g}: it must be above 0")
        move_log = MoveLog(args.kerbs_move_log) if args.kerbs_move_log else None
        resolved = {name: getattr(args, name) for name in (*PRESETS["default"], "kerbs_preset", "kerbs_seed")}
        return cls(settings, move_log, given, head_rate=args.kerbs_head_rate, resolved=resolved)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "reallocator": None}  # it holds the optimizer; rebuilt at the next update

    def after_update(self, decoder: Any, optimizer: Any, update: int) -> None:
        """Add the statistics of update number ``update``, which has just been made, and move senses if it is time."""
        if self.reallocator is None:
            self.reallocator = self.begin(decoder, optimizer, update)
        head = decoder.head
        if not head.statistics.in_use:
            return
        self.reallocator.optimizer = optimizer
        event, moved = None, None
        try:
            event = self.reallocator.after_update(update)
        except NoStatistics:  # all updates since the last event were dropped, as when workers run out of memory
            self.warn_of_no_statistics(update)
            moved = 0
        except ValueError as error:
            refuse(str(error))
        if event is not None:
            self.report(decoder, event)
            moved = len(event.moves)
        if self.shown is None:
            self.shown = Shown(head)
        self.shown.log(update, moved)

    def warn_of_no_statistics(self, update: int) -> None:
        """Log, once, that an event made no moves because nothing was counted before it."""
        if not self.warned and is_first_worker():
            logger.warning(
                f"no senses moved after update {update}: there are no statistics since the last event. Were all "
                "batches skipped, or has their loss no gradient?"
            )
        self.warned = True

    def begin(self, decoder: Any, optimizer: Any, update: int) -> Reallocator:
        """Build the Reallocator at the first update of this process; refuse what cannot work; begin the move log."""
        every, name = self.settings["every"], self.settings["strategy"]
        if every:
            self.check(decoder, optimizer, name)
            if self.move_log is not None and is_first_worker():
                self.move_log.begin(update - 1)
        # a custom strategy is looked up only here: it is not needed to use a model, nor if senses never move
        settings = self.settings if every else {**self.settings, "strategy": "paper"}
        many = workers() > 1
        return Reallocator(decoder.head, optimizer, **settings, sum_over_workers=sum_over_workers if many else nothing)

    def check(self, decoder: Any, optimizer: Any, name: str) -> None:
        """Refuse settings with which senses cannot move; warn if the criterion does not count their usage."""
        if name not in STRATEGIES:
            refuse(f"--kerbs-strategy {name}: there are {', '.join(sorted(STRATEGIES))}")
        for useless in without_effect(name):
            if useless in self.given:
                refuse(f"--{useless.replace('_', '-')} has no effect with --kerbs-strategy {name}: leave it out")
        table = decoder.head.senses
        if table.vectors.dim() != 2 or len(table.vectors) != len(table.sense_to_word):
            refuse("senses cannot move while parameters are sharded: --kerbs-reallocate-every 0, or --ddp-backend c10d")
        if type(optimizer).__name__ == "FairseqBMUF":
            refuse("senses cannot move with --use-bmuf, where each worker has its own weights: "
                   "--kerbs-reallocate-every 0")  # fmt: skip
        if not decoder.head.statistics.in_use:
            logger.warning(
                "senses do not move: only --criterion kerbs_cross_entropy counts how they are used. Train with it, or "
                "use --kerbs-reallocate-every 0"
            )

    def report(self, decoder: Any, event: Event) -> None:
        """Log the number of moves with examples, and add the moves to the move log."""
        symbols, situation = decoder.dictionary.symbols, event.situation
        word = situation.sense_to_word.tolist()
        rows = [
            Row(
                event.update,
                move.sense,
                symbols[word[move.sense]],
                symbols[move.word],
                float(situation.usage[move.sense]),
                float(situation.log_accuracy[move.word]),
            )
            for move in event.moves
        ]
        examples = ", ".join(f"{row.from_word} → {row.to_word}" for row in rows[:5])
        more = f", … ({len(rows) - 5} more)" if len(rows) > 5 else ""
        logger.info(logs.MOVED_LINE + "%s%s", event.update, len(rows), f": {examples}" if rows else "", more)
        if self.move_log is not None and is_first_worker():
            self.move_log.add(rows)


def without_effect(strategy: str) -> tuple[str, ...]:
    """Return the options that have no effect with a strategy; none if the strategy is not registered yet."""
    known = STRATEGIES.get(strategy)
    if known is None:
        return ()
    of_renewal = () if known.renew else ("kerbs_moved_vector", "kerbs_split_noise")
    return (*(() if known.threshold else ("kerbs_threshold",)), *of_renewal)


def say_if_senses_never_move(model: Any, max_update: float) -> None:
    """Log a warning with the reason if senses cannot move within ``max_update`` updates (0: not known)."""
    decoder: Any = getattr(model, "decoder", None)
    hook = getattr(decoder, "update_hook", None)
    if hook is None or not hook.settings["every"] or not is_first_worker():
        return
    settings = {key: hook.settings[key] for key in ("every", "after", "until", "threshold")}
    if "kerbs_threshold" in without_effect(hook.settings["strategy"]):
        settings["threshold"] = None
    reason = obstacle(decoder.head.senses, **settings, max_update=max_update or 0, name=option)
    if reason:
        logger.warning(f"senses will never move: {reason}. Change that, or use --kerbs-reallocate-every 0")


def say_if_counted_elsewhere(model: Any, split: Optional[str]) -> None:
    """Log a warning if senses were allocated by the words of another split than ``split``, which is trained on."""
    counted = getattr(getattr(model, "decoder", None), "counted_split", None)
    if counted and split and counted != split and is_first_worker():
        logger.warning(f"senses were allocated by the words of {counted}, since this task does not know of {split}")


def option(name: str) -> str:
    """Return the command-line option of a setting of the schedule."""
    return "--kerbs-threshold" if name == "threshold" else f"--kerbs-reallocate-{name}"


def workers() -> int:
    """Return the number of data-parallel workers."""
    return int(distributed.get_data_parallel_world_size())


def is_first_worker() -> bool:
    """Return whether this worker writes the logs and files."""
    return workers() == 1 or distributed.get_data_parallel_rank() == 0


def sum_over_workers(tensor: Tensor) -> None:
    """Sum ``tensor`` over all workers, in place."""
    distributed.all_reduce(tensor, group=distributed.get_data_parallel_group())


def nothing(tensor: Tensor) -> None:
    """Do nothing, as the sum over a single worker."""


def follow_moves(average: dict[str, Tensor], new: dict[str, Tensor], old_map: dict[str, Tensor]) -> None:
    """Copy the rows of senses that have been restarted from the ``new`` state dict to the ``average``, in place.

    These are the senses of all words that got or lost a sense: a split changes two senses of its word. ``old_map``
    holds the maps that the average had before. Statistics are copied, not averaged.
    """
    for name, value in new.items():
        if name not in average:
            continue
        prefix, _, last = name.rpartition(".")
        if f".{HEAD}{STATISTICS}" in name:
            average[name].copy_(value)
        elif f"{prefix}.".endswith(f".{HEAD}{SENSES}") and last in state_names.PARAMETERS:
            before, now = (maps[f"{prefix}.{state_names.MAP}"] for maps in (old_map, new))
            moved = before != now
            touched = torch.isin(now, torch.cat([before[moved], now[moved]]))
            rows = touched.view(-1, *[1] * (value.dim() - 1))
            average[name].copy_(torch.where(rows, value.to(average[name].dtype), average[name]))


@torch.no_grad()
def summary(head: KernelizedBayesianSoftmax, moved: int) -> dict[str, float]:
    """Return the metrics of the training log; numbers of words leave out those that always have one sense."""
    table, statistics = head.senses, head.statistics
    counts = table.senses_per_word()
    counts[list(table.single)] = 0
    numbers = torch.bincount(counts.clamp_max(SHOWN_NUMBERS + 1), minlength=SHOWN_NUMBERS + 2).tolist()
    of_word = torch.zeros_like(statistics.log_accuracy).index_add_(0, table.sense_to_word, statistics.usage)
    idle = statistics.usage < logs.IDLE_SHARE * of_word[table.sense_to_word]
    result = {
        logs.MOVED: float(moved),
        logs.MOVED_TOTAL: float(statistics.moves),
        **{f"{logs.WORDS_WITH}{n}": float(numbers[n]) for n in range(1, min(table.max_senses, SHOWN_NUMBERS) + 1)},
        logs.IDLE: float(idle.float().mean()),
    }
    if table.max_senses > SHOWN_NUMBERS:
        result[logs.WORDS_WITH + logs.MORE] = float(numbers[SHOWN_NUMBERS + 1])
        result[logs.MOST_SENSES] = float(counts.max())
    theta, bias = table.theta, table.bias
    if theta is not None:
        result[logs.THETA], result[logs.THETA_STD] = float(theta.mean()), float(theta.std(unbiased=False))
    if bias is not None:
        result[logs.BIAS_STD] = float(bias.float().std(unbiased=False))
    return result


class Shown:
    """Meters that show the summary of a layer in fairseq's own log, in any format, and in TensorBoard.

    It is fetched from the device when a line is logged: an update itself does not wait for it.
    """

    def __init__(self, head: KernelizedBayesianSoftmax) -> None:
        self.head, self.moved, self.update = head, 0, 0
        self.values: tuple[int, dict[str, float]] = (-1, {})  # the update and its summary
        table = head.senses
        names = [logs.MOVED, logs.MOVED_TOTAL, logs.IDLE]
        names += [f"{logs.WORDS_WITH}{n}" for n in range(1, min(table.max_senses, SHOWN_NUMBERS) + 1)]
        names += [logs.WORDS_WITH + logs.MORE, logs.MOST_SENSES] * (table.max_senses > SHOWN_NUMBERS)
        names += [logs.THETA, logs.THETA_STD] * (table.theta_raw is not None)
        names += [logs.BIAS_STD] * (table.bias_raw is not None)
        self.meters = {name: MetersDict._DerivedMeter(functools.partial(self.value, name)) for name in names}

    def value(self, name: str, _: MetersDict) -> float:
        """Return a value of the summary after the latest update."""
        if self.values[0] != self.update:
            self.values = self.update, summary(self.head, self.moved)
        whole = name.startswith((logs.MOVED, logs.WORDS_WITH, logs.MOST_SENSES))
        return float(safe_round(self.values[1][name], 0 if whole else 4))

    def log(self, update: int, moved: Optional[int] = None) -> None:
        """Add the meters to fairseq's log after update ``update``; ``moved`` is the number of moves at an event."""
        self.update, self.moved = update, self.moved if moved is None else moved
        for aggregator in metrics.get_active_aggregators():
            for name, meter in self.meters.items():
                if name not in aggregator:
                    aggregator.add_meter(name, meter, priority=950)
                elif aggregator[name] is not meter:  # of an earlier run; fairseq's own assignment refuses to replace it
                    OrderedDict.__setitem__(aggregator, name, meter)


def install() -> None:
    """Call the hook after each update; let averages of weights (``--store-ema``) follow the moves; warn if none can be.

    fairseq has no callback that runs once after each update of the parameters, so the ``optimizer_step`` of tasks calls
    the hook.
    """
    FairseqTask.optimizer_step = hooked(FairseqTask.optimizer_step)
    EMA._step_internal = following(EMA._step_internal)
    Trainer.__init__ = warning_at_the_start(Trainer.__init__)


def warning_at_the_start(build: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``Trainer.__init__``: say when training starts if senses can never move, or were allocated by other data."""

    @functools.wraps(build)
    def trainer(self: Any, cfg: Any, task: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        say_if_senses_never_move(model, getattr(getattr(cfg, "optimization", None), "max_update", 0))
        say_if_counted_elsewhere(model, getattr(getattr(cfg, "dataset", None), "train_subset", None))
        build(self, cfg, task, model, *args, **kwargs)

    return trainer


def following(step: Callable[..., None]) -> Callable[..., None]:
    """Wrap the update of an EMA: the average of a moved sense is restarted, as its old weights are another word's."""

    @functools.wraps(step)
    def _step_internal(self: Any, new_model: Any, updates: Any = None) -> None:
        before = {name: x.clone() for name, x in self.model.state_dict().items() if name.endswith(state_names.MAP)}
        step(self, new_model, updates)
        for state in (self.model.state_dict(), self.fp32_params) if before else ():
            follow_moves(state, new_model.state_dict(), before)

    return _step_internal


def hooked(step: Callable[..., None]) -> Callable[..., None]:
    """Wrap fairseq's ``task.optimizer_step`` so that reallocation follows it."""

    @functools.wraps(step)
    def optimizer_step(self: Any, optimizer: Any, model: Any, update_num: int) -> None:
        scale = amp_scale(optimizer)
        decoder: Any = getattr(model, "decoder", None)
        if getattr(decoder, "update_hook", None) is None:
            step(self, optimizer, model, update_num)
            return
        with head_rate.scaled(decoder, optimizer):
            step(self, optimizer, model, update_num)
        if amp_scale(optimizer) < scale:  # --amp found infinite gradients, made no update, and tries again
            decoder.head.statistics.forget_waiting()
        else:
            decoder.update_hook.after_update(decoder, optimizer, update_num + 1)

    return optimizer_step


def amp_scale(optimizer: Any) -> float:
    """Return the loss scale of ``--amp``, which decreases when an update is skipped; 0 for other optimizers."""
    scaler: Any = getattr(optimizer, "scaler", None)
    return float(scaler.get_scale()) if hasattr(scaler, "get_scale") else 0.0
