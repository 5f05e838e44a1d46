"""Senses move: what happens after each update of the parameters, once, whatever the way fairseq trains.

tokens → … → loss → statistics → **reallocation**. The statistics are summed over all workers, so that every worker
plans the same moves from the same numbers; nothing else has to be sent.
"""

import logging
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch
from fairseq import metrics
from fairseq.distributed import utils as distributed
from torch import Tensor

from kerbs_fairseq.allocation.parameter_rows import Rows
from kerbs_fairseq.allocation.policy import STRATEGIES, Move, Situation, Strategy, problem_of
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.sense_table import MAP_NAME
from kerbs_fairseq.plugin.move_log import MoveLog, Row
from kerbs_fairseq.plugin.refusal import refuse

logger = logging.getLogger(__name__)

MOVED_THETA = 1e-8  # the paper's; float16 makes it 0, which is as good
# Of the spread of all vectors. With as little as first vectors have, both copies stay together and share all usage for
# as long as they are trained, so that it never shows which of them is not needed.
SPLIT_NOISE = 1.0
SUMMARY_EVERY = 100  # updates, where senses never move
IDLE = 0.01  # a sense that has less of its word's usage than this is idle


@dataclass
class Reallocation:
    """When and how the senses of one decoder move; ``shown`` is what the training log shows."""

    every: int
    after: int
    until: int
    threshold: Optional[float]
    strategy_name: str
    moved_vector: str
    move_log: Optional[MoveLog]
    seed: int
    begun: bool = False
    moved_at_last_event: int = 0
    shown: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_options(cls, args: Any) -> "Reallocation":
        """From ``--kerbs-…``, or a refusal."""
        if args.kerbs_reallocate_every < 0:
            refuse(f"--kerbs-reallocate-every {args.kerbs_reallocate_every}: a number of updates, or 0 for never")
        if args.kerbs_reallocate_after < 0:
            refuse(f"--kerbs-reallocate-after {args.kerbs_reallocate_after}: a number of updates, at least 0")
        if args.kerbs_reallocate_until and args.kerbs_reallocate_until < max(1, args.kerbs_reallocate_after):
            refuse(
                f"--kerbs-reallocate-until {args.kerbs_reallocate_until}: not before --kerbs-reallocate-after "
                f"({args.kerbs_reallocate_after}), or 0 for no end"
            )
        if args.kerbs_threshold is not None and not args.kerbs_threshold <= 0:
            refuse(f"--kerbs-threshold {args.kerbs_threshold:g}: log P is never above 0, so a threshold is 0 or less")
        return cls(
            every=args.kerbs_reallocate_every,
            after=args.kerbs_reallocate_after,
            until=args.kerbs_reallocate_until,
            threshold=args.kerbs_threshold,
            strategy_name=args.kerbs_strategy,
            moved_vector=str(args.kerbs_moved_vector),
            move_log=MoveLog(args.kerbs_move_log) if args.kerbs_move_log else None,
            seed=args.kerbs_seed,
        )

    @property
    def strategy(self) -> Strategy:
        """The plan and what goes with it."""
        return STRATEGIES[self.strategy_name]

    def after_update(self, decoder: Any, optimizer: Any, update: int) -> None:
        """Update number ``update`` has just been made: take in its statistics, and move senses if it is time."""
        head = decoder.head
        if not self.begun:
            self.begin(decoder, optimizer, update)
        if not head.statistics.in_use:
            return
        vectors = head.senses.vectors
        if vectors.requires_grad and vectors.grad is None:  # thrown away: this worker ran out of memory half-way
            head.statistics.forget_waiting()
        head.statistics.update(sum_over_workers if workers() > 1 else None)
        if self.is_time(update):
            self.reallocate(decoder, optimizer, update)
        if not self.shown or update % (self.every or SUMMARY_EVERY) == 0:
            self.shown = summary(head, self.moved_at_last_event)
        log(self.shown)

    def is_time(self, update: int) -> bool:
        """Whether senses move after this update."""
        if not self.every or update % self.every:
            return False
        return update >= self.after and (not self.until or update <= self.until)

    def begin(self, decoder: Any, optimizer: Any, update: int) -> None:
        """Before anything is done in this process: refuse what cannot work, say what will not."""
        self.begun = True
        if not self.every:
            return
        if self.strategy_name not in STRATEGIES:  # not before training: one's own is not needed to use a model
            refuse(f"--kerbs-strategy {self.strategy_name}: there are {', '.join(sorted(STRATEGIES))}")
        if self.moved_vector != "keep" and not self.strategy.renew:
            refuse(f"--kerbs-moved-vector has no effect with --kerbs-strategy {self.strategy_name}: leave it out")
        table = decoder.head.senses
        if table.vectors.dim() != 2 or len(table.vectors) != len(table.sense_to_word):
            refuse("senses cannot move while parameters are sharded: --kerbs-reallocate-every 0, or --ddp-backend c10d")
        if type(optimizer).__name__ == "FairseqBMUF":
            refuse("senses cannot move with --use-bmuf, where each worker has its own weights: "
                   "--kerbs-reallocate-every 0")  # fmt: skip
        if not decoder.head.statistics.in_use:
            logger.warning(
                "senses do not move: only --criterion kerbs_cross_entropy counts how they are used. Train with it, or "
                "say --kerbs-reallocate-every 0"
            )
        if self.move_log is not None and is_first_worker():
            self.move_log.begin(update - 1)

    def reallocate(self, decoder: Any, optimizer: Any, update: int) -> None:
        """One event: plan, move, log."""
        head = decoder.head
        situation = situation_of(head, self.threshold)
        moves = self.strategy.plan(situation)
        problem = problem_of(moves, situation)
        if problem:
            refuse(f"--kerbs-strategy {self.strategy_name}: {problem}")
        if moves:
            self.apply(head, optimizer, moves, situation, update)
        head.statistics.forget(everything=self.strategy.forget)
        head.statistics.moves.add_(len(moves))
        self.moved_at_last_event = len(moves)
        self.report(decoder, moves, situation, update)

    def apply(
        self, head: KernelizedBayesianSoftmax, optimizer: Any, moves: list[Move], situation: Situation, update: int
    ) -> None:
        """Change the map, and let the moved senses start again if the strategy wants that."""
        table, statistics = head.senses, head.statistics
        senses = torch.tensor([move.sense for move in moves], device=table.sense_to_word.device)
        words = torch.tensor([move.word for move in moves], device=senses.device)
        table.move(senses, words)
        if not self.strategy.renew:
            return
        vectors = Rows(optimizer, table.vectors)
        if self.moved_vector == "split":
            models = torch.tensor(most_used(situation, [move.word for move in moves]), device=senses.device)
            vectors.write(senses, near(vectors.read(models), vectors.master, self.seed + update))
        vectors.forget(senses)
        if table.theta_raw is not None:
            theta = Rows(optimizer, table.theta_raw)
            theta.write(senses, MOVED_THETA)
            theta.forget(senses)
        mean = statistics.usage.mean()
        if self.strategy.usage_of_word:
            stay = torch.ones_like(statistics.usage).index_fill_(0, senses, 0)
            of_word = torch.zeros_like(statistics.log_accuracy)
            total = of_word.index_add(0, table.sense_to_word, statistics.usage * stay)
            mean = (total / of_word.index_add(0, table.sense_to_word, stay).clamp_min(1))[words]
        statistics.usage[senses] = mean

    def report(self, decoder: Any, moves: list[Move], situation: Situation, update: int) -> None:
        """A line in the log, with examples, and the table of moves."""
        symbols = decoder.dictionary.symbols
        word = situation.sense_to_word.tolist()
        rows = [
            Row(
                update,
                move.sense,
                symbols[word[move.sense]],
                symbols[move.word],
                float(situation.usage[move.sense]),
                float(situation.log_accuracy[move.word]),
            )
            for move in moves
        ]
        examples = ", ".join(f"{row.from_word} → {row.to_word}" for row in rows[:5])
        more = f", … ({len(rows) - 5} more)" if len(rows) > 5 else ""
        logger.info("update %d: %d senses moved%s%s", update, len(rows), f": {examples}" if rows else "", more)
        if self.move_log is not None and is_first_worker():
            self.move_log.add(rows)


def workers() -> int:
    """How many processes train on parts of the data."""
    return int(distributed.get_data_parallel_world_size())


def is_first_worker() -> bool:
    """Whether this process writes what is written once."""
    return workers() == 1 or distributed.get_data_parallel_rank() == 0


def follow_moves(average: dict[str, Tensor], new: dict[str, Tensor], old_map: dict[str, Tensor]) -> None:
    """In a state of averaged weights, let the rows of senses that moved begin again with those of the ``new`` state.

    ``old_map`` holds the maps that the average had before. Statistics are not averaged at all.
    """
    for name, value in new.items():
        if name not in average:
            continue
        if ".head.statistics." in name:
            average[name].copy_(value)
        elif name.endswith((".head.senses.vectors", ".head.senses.theta_raw")):
            map_name = name.rpartition(".")[0] + f".{MAP_NAME}"
            moved = (old_map[map_name] != new[map_name]).view(-1, *[1] * (value.dim() - 1))
            average[name].copy_(torch.where(moved, value.to(average[name].dtype), average[name]))


def sum_over_workers(tensor: Tensor) -> None:
    """In place."""
    distributed.all_reduce(tensor, group=distributed.get_data_parallel_group())


def situation_of(head: KernelizedBayesianSoftmax, threshold: Optional[float]) -> Situation:
    """Copies of the statistics and the map, on the CPU: the one place where training waits for the device."""
    table, statistics = head.senses, head.statistics
    names = ("log_accuracy", "usage", "tokens", "prob", "sense_prob")
    return Situation(
        sense_to_word=table.sense_to_word.to("cpu", copy=True),
        **{name: getattr(statistics, name).to("cpu", copy=True) for name in names},
        min_senses=table.min_senses,
        max_senses=table.max_senses,
        single=table.single,
        threshold=threshold,
    )


def most_used(situation: Situation, words: list[int]) -> list[int]:
    """The most used sense of each of ``words``."""
    wanted = set(words)
    best: dict[int, int] = {}
    usage = situation.usage.tolist()
    for sense, word in enumerate(situation.sense_to_word.tolist()):
        if word in wanted and (word not in best or usage[sense] > usage[best[word]]):
            best[word] = sense
    return [best[word] for word in words]


def near(rows: Tensor, all_rows: Tensor, seed: int) -> Tensor:
    """``rows`` (n, d) with noise; the same on every worker."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(rows.shape, generator=generator).to(rows.device)
    return rows.float() + noise * (SPLIT_NOISE * all_rows.float().std())


@torch.no_grad()
def summary(head: KernelizedBayesianSoftmax, moved: int) -> dict[str, float]:
    """What the training log shows, as numbers."""
    table, statistics = head.senses, head.statistics
    numbers = torch.bincount(table.senses_per_word(), minlength=table.max_senses + 1).tolist()
    of_word = torch.zeros(table.n_words, device=statistics.usage.device)
    of_word.index_add_(0, table.sense_to_word, statistics.usage)
    idle = statistics.usage < IDLE * of_word[table.sense_to_word]
    found = {
        "kerbs_moved": float(moved),
        "kerbs_moved_total": float(statistics.moves),
        **{f"kerbs_words_with_{n}": float(numbers[n]) for n in range(1, table.max_senses + 1)},
        "kerbs_idle": float(idle.float().mean()),
    }
    theta = table.theta
    if theta is not None:
        found["kerbs_theta"], found["kerbs_theta_std"] = float(theta.mean()), float(theta.std(unbiased=False))
    return found


def log(values: dict[str, float]) -> None:
    """Into fairseq's own log, in whichever format, and TensorBoard; weight 0: the latest value counts."""
    for name, value in values.items():
        whole = name.startswith(("kerbs_moved", "kerbs_words"))
        metrics.log_scalar(name, value, weight=0, priority=950, round=0 if whole else 4)


def hooked(step: Callable[..., None]) -> Callable[..., None]:
    """fairseq's ``task.optimizer_step``, with reallocation behind it."""

    def optimizer_step(self: Any, optimizer: Any, model: Any, update_num: int) -> None:
        scale = amp_scale(optimizer)
        step(self, optimizer, model, update_num)
        decoder: Any = getattr(model, "decoder", None)
        if getattr(decoder, "reallocation", None) is None:
            return
        if amp_scale(optimizer) < scale:  # --amp found infinite gradients, made no update, and tries again
            decoder.head.statistics.forget_waiting()
        else:
            decoder.reallocation.after_update(decoder, optimizer, update_num + 1)

    return optimizer_step


def amp_scale(optimizer: Any) -> float:
    """The loss scale of ``--amp``, which falls when an update is skipped; 0 for other optimizers."""
    scaler: Any = getattr(optimizer, "scaler", None)
    return float(scaler.get_scale()) if hasattr(scaler, "get_scale") else 0.0
