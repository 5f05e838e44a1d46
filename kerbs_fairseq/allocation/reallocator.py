"""Reallocation: update the statistics after each update of the parameters, and move senses between words.

tokens → … → loss → statistics → **reallocation**. The statistics are summed over all workers, so that every worker
plans the same moves; nothing else has to be communicated.
"""

import math
import numbers
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.allocation.parameter_rows import ParameterRows
from kerbs_fairseq.allocation.policy import STRATEGIES, Move, Situation, Strategy, problem_of
from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.initialization import check_power
from kerbs_fairseq.functional.kernel import at_least_float32
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax

MOVED_VECTORS = ("keep", "split")
MOVED_THETA = 1e-8  # as in the paper; in float16 it becomes 0, which is equivalent
SPLIT_NOISE = 0.5  # in standard deviations of all vectors


class NoStatistics(RuntimeError):
    """Nothing was counted, so that there is nothing to plan moves from."""

    def __init__(self, since: str = "") -> None:
        super().__init__(
            f"there are no statistics{since}: train with the loss of the layer (forward or loss, in training mode, and "
            "backward) before step()"
        )


class Event(NamedTuple):
    """A reallocation event: the number of the update, the moves, and the situation before them."""

    update: int
    moves: list[Move]
    situation: Situation


class Reallocator:
    """Moves the senses of ``layer`` between words while ``optimizer`` trains it.

    Call :meth:`step` after each ``optimizer.step()``. Under ``torch.distributed`` the statistics are summed over
    ``process_group``, and every worker makes the same moves.

    Args:
        layer: the output layer
        optimizer: any torch optimizer, or one of fairseq's, that holds the parameters of the layer
        every: updates between two events; 0: senses never move
        after, until: no event before update ``after`` or after update ``until``; until = 0: no end
        strategy: a name of :data:`kerbs_fairseq.allocation.policy.STRATEGIES`
        threshold: ε, for the strategies that use it; None: the worst 0.5 % of the words
        power: exponent of the cost in the strategy ``loss``
        moved_vector: ``keep`` (the paper), or ``split``: the most used sense of the new word is split in two
        split_noise: noise that is added and subtracted in a split, in standard deviations of all vectors
        seed: seed of the noise; the same on every worker
        sum_over_workers: sums a tensor over all workers in place; None: ``torch.distributed`` if it is in use
    """

    def __init__(
        self,
        layer: KernelizedBayesianSoftmax,
        optimizer: Any,
        every: int = 100,
        after: int = 1000,
        until: int = 0,
        *,
        strategy: str = "paper",
        threshold: Optional[float] = None,
        power: float = 1.0,
        moved_vector: str = "split",
        split_noise: float = SPLIT_NOISE,
        seed: int = 1,
        sum_over_workers: Optional[Callable[[Tensor], object]] = None,
        process_group: Any = None,
    ) -> None:
        check_schedule(every, after, until, threshold)
        if strategy not in STRATEGIES:
            raise ValueError(f"unknown strategy {strategy!r}: one of {', '.join(sorted(STRATEGIES))}")
        if moved_vector not in MOVED_VECTORS:
            raise ValueError(f"unknown moved vector {moved_vector!r}: one of {', '.join(MOVED_VECTORS)}")
        if not 0 <= split_noise < float("inf"):
            raise ValueError(f"a split noise of {split_noise:g}: it must be 0 or more, and finite")
        if moved_vector == "keep" and split_noise != SPLIT_NOISE:
            raise ValueError("split_noise has no effect with moved_vector='keep': leave it out")
        if threshold is not None and not STRATEGIES[strategy].threshold:
            raise ValueError(f"threshold has no effect with strategy={strategy!r}: leave it out")
        check_power(power, 0.0)
        self.layer, self.optimizer = layer, optimizer
        self.every, self.after, self.until = every, after, until
        self.strategy_name, self.threshold, self.power = strategy, threshold, power
        self.moved_vector, self.split_noise, self.seed = moved_vector, split_noise, seed
        self.updates = 0
        self._sum, self._group = sum_over_workers, process_group
        self._device = layer.senses.vectors.device
        if every:
            if optimizer is None:
                raise TypeError("optimizer=None: must be the optimizer that trains the layer, or give every=0")
            for parameter in self.parameters():
                ParameterRows(optimizer, parameter)  # raises if the optimizer does not hold it

    @property
    def strategy(self) -> Strategy:
        """The registered strategy."""
        return STRATEGIES[self.strategy_name]

    def parameters(self) -> list[torch.nn.Parameter]:
        """Return the parameters with one row per sense."""
        return list(self.layer.senses.parameters())

    def state_dict(self) -> dict[str, int]:
        """Return what a resumed run needs besides the state of the layer."""
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self.updates = int(state["updates"])

    def step(self) -> Optional[Event]:
        """Update the statistics after an update of the parameters, and move senses if an event is due.

        Raises RuntimeError if nothing was counted, at all or since the last event.
        """
        return self.after_update(self.updates + 1)

    def after_update(self, update: int) -> Optional[Event]:
        """Do what :meth:`step` does, for the update with the number ``update``."""
        vectors, statistics = self.layer.senses.vectors, self.layer.statistics
        if vectors.device != self._device:
            raise RuntimeError(
                f"the layer was moved from {self._device} to {vectors.device} after the Reallocator was made: "
                "move it first, then make the optimizer and the Reallocator"
            )
        if not statistics.in_use:
            raise NoStatistics
        if vectors.requires_grad and vectors.grad is None:  # dropped: this worker ran out of memory
            statistics.forget_waiting()
        statistics.update(self._summing())
        self.updates = update
        return self.reallocate(update) if self.is_time(update) else None

    def _summing(self) -> Optional[Callable[[Tensor], object]]:
        if self._sum is not None:
            return self._sum
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        if distributed.get_world_size(self._group) == 1:
            return None
        return lambda tensor: distributed.all_reduce(tensor, group=self._group)

    def is_time(self, update: int) -> bool:
        """Return whether senses move after this update."""
        if not self.every or update % self.every:
            return False
        return update >= self.after and (not self.until or update <= self.until)

    def reallocate(self, update: int) -> Event:
        """Plan and apply the moves of one event."""
        statistics = self.layer.statistics
        situation = situation_of(self.layer, self.threshold, self.power)
        if not bool(situation.tokens.any()):  # the same on every worker
            raise NoStatistics(" since the last event")
        moves = self.strategy.plan(situation)
        problem = problem_of(moves, situation)
        if problem:
            raise ValueError(f"the strategy {self.strategy_name!r}: {problem}")
        if moves:
            self.apply(moves, situation, update)
        statistics.forget(everything=self.strategy.forget)
        statistics.moves.add_(len(moves))
        return Event(update, moves, situation)

    @torch.no_grad()
    def apply(self, moves: list[Move], situation: Situation, update: int) -> None:
        """Change the map, and reinitialize the moved senses if the strategy has ``renew``."""
        table, statistics = self.layer.senses, self.layer.statistics
        senses = torch.tensor([move.sense for move in moves], device=table.sense_to_word.device)
        words = torch.tensor([move.word for move in moves], device=senses.device)
        table.move(senses, words)
        if not self.strategy.renew:
            return
        rows = {name: ParameterRows(self.optimizer, p) for name, p in table.named_parameters()}
        if self.moved_vector == "split":
            generator = torch.Generator().manual_seed(self.seed + update)
            for moved, source in rounds(moves, situation):
                self.split(rows, moved, source, generator)
        else:
            if state_names.THETA in rows:
                rows[state_names.THETA].write(senses, MOVED_THETA / table.theta_rate)
            mean = statistics.usage.mean()
            if self.strategy.usage_of_word:
                stay = torch.ones_like(statistics.usage).index_fill_(0, senses, 0)
                of_word = torch.zeros_like(statistics.log_accuracy)
                total = of_word.index_add(0, table.sense_to_word, statistics.usage * stay)
                mean = (total / of_word.index_add(0, table.sense_to_word, stay).clamp_min(1))[words]
            statistics.usage[senses] = mean
        for part in rows.values():
            part.forget(senses)

    def split(
        self, rows: dict[str, ParameterRows], moved: list[int], source: list[int], generator: torch.Generator
    ) -> None:
        """Split each of the senses ``source`` (n,), all different, into itself and one of ``moved`` (n,).

        The vectors get plus and minus the same noise, so that their mean does not change. θ is copied. If there is a
        bias, both get it minus log 2: without noise the word's probability does not change. Each has half the usage.
        """
        table, usage = self.layer.senses, self.layer.statistics.usage
        vectors = rows[state_names.VECTORS]
        at, to = (torch.tensor(x, device=usage.device) for x in (source, moved))
        old = at_least_float32(vectors.read(at))
        noise = torch.randn(old.shape, generator=generator, dtype=torch.float32).to(old)
        noise = noise * (self.split_noise * at_least_float32(vectors.master).std())
        vectors.write(at, old + noise)
        vectors.write(to, old - noise)
        if state_names.THETA in rows:
            rows[state_names.THETA].write(to, rows[state_names.THETA].read(at))
        if state_names.BIAS in rows:
            bias = at_least_float32(rows[state_names.BIAS].read(at)) - math.log(2) / table.bias_rate
            rows[state_names.BIAS].write(at, bias)
            rows[state_names.BIAS].write(to, bias)
        usage[at] = usage[at] / 2
        usage[to] = usage[at]


def check_schedule(
    every: int, after: int, until: int, threshold: Optional[float], name: Callable[[str], str] = "{}=".format
) -> None:
    """Raise ValueError for an invalid schedule; ``name`` maps an argument to what the user wrote before its value."""
    updates: dict[str, Any] = {"every": every, "after": after, "until": until}
    for argument, value in updates.items():
        if not isinstance(value, numbers.Integral):
            raise ValueError(f"{name(argument)}{value}: must be a whole number of updates")
    if every < 0:
        raise ValueError(f"{name('every')}{every}: must be a number of updates, or 0 for never")
    if after < 0:
        raise ValueError(f"{name('after')}{after}: must be a number of updates, at least 0")
    if until and until < max(1, after):
        raise ValueError(f"{name('until')}{until}: must not be before {name('after')}{after}; 0 means no end")
    if threshold is not None and not threshold <= 0:
        raise ValueError(f"{name('threshold')}{threshold:g}: log P is never above 0, so a threshold is 0 or less")


def rounds(moves: list[Move], situation: Situation) -> list[tuple[list[int], list[int]]]:
    """Return rounds (moved, source) of splits: each move splits the sense of its word that is the most used by then.

    Within a round no sense is split twice, so that all its splits can be made at once.
    """
    receiving = {move.word for move in moves}
    leaving = {move.sense for move in moves}
    usage: dict[int, dict[int, float]] = {word: {} for word in receiving}
    for sense, (word, used) in enumerate(zip(situation.sense_to_word.tolist(), situation.usage.tolist())):
        if word in receiving and sense not in leaving:
            usage[word][sense] = used
    result: list[tuple[list[int], list[int]]] = []
    busy: set[int] = set()  # senses of the current round
    for move in moves:
        word_usage = usage[move.word]
        if not word_usage:  # all senses of the word leave, as a custom plan may ask: this one keeps its vector
            word_usage[move.sense] = 0.0
            continue
        source = max(word_usage, key=lambda sense: (word_usage[sense], -sense))
        word_usage[source] = word_usage[move.sense] = word_usage[source] / 2
        if not result or source in busy:
            result.append(([], []))
            busy = set()
        result[-1][0].append(move.sense)
        result[-1][1].append(source)
        busy |= {source, move.sense}
    return result


def situation_of(layer: KernelizedBayesianSoftmax, threshold: Optional[float] = None, power: float = 1.0) -> Situation:
    """Copy the statistics and the map to the CPU, which synchronizes with the device."""
    table, statistics = layer.senses, layer.statistics
    names = (*state_names.MOVING, *state_names.RECENT)
    return Situation(
        sense_to_word=table.sense_to_word.to("cpu", copy=True),
        **{name: getattr(statistics, name).to("cpu", copy=True) for name in names},
        min_senses=table.min_senses,
        max_senses=table.max_senses,
        single=table.single,
        threshold=threshold,
        power=power,
    )
