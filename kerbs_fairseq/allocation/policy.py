"""Which senses move to which words: Algorithm 1 of the paper, as a function of the statistics and the present map.

A strategy looks at a :class:`Situation` and returns a list of moves. It changes nothing. :func:`register_strategy` adds
one of your own, for ``--kerbs-strategy``.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor

SHARE = 0.005  # of the words that may get a sense in one event, where no threshold says which
MARGIN = 2.0  # how much more a sense must be worth to its new word than to its old one, to the strategy ``loss``
IDLE = 0.05  # a sense that has less of its word's usage than this is idle, to the strategy of that name


class Move(NamedTuple):
    """A sense and the word that it goes to."""

    sense: int
    word: int


@dataclass(frozen=True)
class Situation:
    """What a strategy may look at: tensors on the CPU, for V words and S senses.

    ``sense_to_word`` (senses,) is the present map. ``log_accuracy`` (words,) and ``usage`` (senses,) are log P and U of
    the paper; ``tokens``, ``prob`` and ``nll`` (words,) and ``sense_prob`` (senses,) are sums since the last event: how
    often a word was the target, its probability then, its −log P, and the probability of each of its senses. Words in
    ``single`` (special symbols) neither give nor get. ``threshold`` is ε, or None; ``power`` is that of ``loss``.
    """

    sense_to_word: Tensor
    log_accuracy: Tensor
    usage: Tensor
    tokens: Tensor
    prob: Tensor
    nll: Tensor
    sense_prob: Tensor
    min_senses: int = 1
    max_senses: int = 4
    single: Sequence[int] = ()
    threshold: Optional[float] = None
    power: float = 1.0

    @property
    def n_words(self) -> int:
        """Size of the vocabulary."""
        return len(self.log_accuracy)


Plan = Callable[[Situation], list[Move]]


@dataclass(frozen=True)
class Strategy:
    """How senses are moved: the plan, and what is done beside changing the map.

    ``renew``: a moved sense starts again, with θ near 0, new usage and fresh moments in the optimizer (the paper).
    Its usage is the mean of all senses (the paper), or with ``usage_of_word`` that of its new word's senses.
    ``forget``: after an event the moving statistics begin at zero (the released code).
    """

    plan: Plan
    renew: bool = True
    forget: bool = False
    usage_of_word: bool = False


STRATEGIES: dict[str, Strategy] = {}


def register_strategy(
    name: str, renew: bool = True, forget: bool = False, usage_of_word: bool = False
) -> Callable[[Plan], Plan]:
    """Decorator: make a function from a situation to moves known as ``--kerbs-strategy name``."""

    def register(plan: Plan) -> Plan:
        if name in STRATEGIES:
            raise ValueError(f"there is a strategy {name!r} already")
        STRATEGIES[name] = Strategy(plan, renew, forget, usage_of_word)
        return plan

    return register


class AllocationPlan:
    """The map while an event is being planned: how many senses each word has, and which one is used least."""

    def __init__(self, situation: Situation, usage: Tensor, spare: Optional[Tensor] = None) -> None:
        """``usage`` (senses,) says who goes first, and ``spare`` (senses,) who may go at all: all, if it is None."""
        self.word = situation.sense_to_word.tolist()
        self.number = torch.bincount(situation.sense_to_word, minlength=situation.n_words).tolist()
        self.bounds = situation.min_senses, situation.max_senses
        self.single = frozenset(situation.single)
        order = torch.argsort(usage, stable=True)  # least used first, lower number first among equals
        self._order = (order if spare is None else order[spare[order]]).tolist()
        self._next = 0
        self._back: list[int] = []  # a heap of ranks: senses passed over once that may be taken again
        self._kept: dict[int, list[int]] = defaultdict(list)  # by word: ranks passed over, as it has no more to give

    def can_get(self, word: int) -> bool:
        """Whether ``word`` may have one more."""
        return word not in self.single and self.number[word] < self.bounds[1]

    def _can_give(self, word: int) -> bool:
        return word not in self.single and self.number[word] > self.bounds[0]

    def _least(self) -> Optional[int]:
        """The rank of the next sense to look at, which is taken out; None at the end."""
        ahead = self._next < len(self._order)
        if self._back and (not ahead or self._back[0] < self._next):
            return heapq.heappop(self._back)
        if not ahead:
            return None
        self._next += 1
        return self._next - 1

    def give_least_used_to(self, word: int) -> Optional[Move]:
        """Move the least used sense of another word that has one to spare; None if there is none."""
        own = []
        move = None
        while (rank := self._least()) is not None:
            sense = self._order[rank]
            giver = self.word[sense]
            if giver == word:
                own.append(rank)
            elif not self._can_give(giver):
                self._kept[giver].append(rank)
            else:
                move = Move(sense, word)
                self.number[giver] -= 1
                self.number[word] += 1
                self.word[sense] = word
                break
        # its own senses are there for others again, and now that it has one more, so are those it could not spare
        for rank in own + (self._kept.pop(word, []) if move else []):
            heapq.heappush(self._back, rank)
        return move


def give_in_order(plan: AllocationPlan, words: Iterable[int], limit: Optional[int] = None) -> list[Move]:
    """One sense for each of ``words`` that may have one more, until ``limit`` or until nobody has any to spare."""
    moves: list[Move] = []
    for word in words:
        if limit is not None and len(moves) >= limit:
            break
        if plan.can_get(word):
            move = plan.give_least_used_to(word)
            if move is not None:
                moves.append(move)
    return moves


@register_strategy("paper")
def paper(situation: Situation) -> list[Move]:
    """Algorithm 1: the least used sense to each word with log P below the threshold, worst word first.

    Without a threshold, to the worst 0.5 % of V among the words that have been seen and may have one more.
    """
    return give_in_order(AllocationPlan(situation, situation.usage), *in_need(situation))


def in_need(situation: Situation) -> tuple[list[int], Optional[int]]:
    """Words with log P below the threshold, worst first, and how many may get a sense; None: all of them."""
    order = torch.argsort(situation.log_accuracy, stable=True)
    below = 0.0 if situation.threshold is None else situation.threshold
    limit = max(1, round(SHARE * situation.n_words)) if situation.threshold is None else None
    return order[situation.log_accuracy[order] < below].tolist(), limit


@register_strategy("idle", usage_of_word=True)
def idle(situation: Situation) -> list[Move]:
    """Algorithm 1 with usage relative to the word: idle senses go to words that use all they have, worst word first.

    A sense is idle if it has less than a twentieth of its word's usage. So rare words lose no sense that they use, and
    frequent words that nothing can help get no more than one idle sense.
    """
    words = situation.sense_to_word
    usage = situation.usage.double()  # that of a word long unseen is too small a number for float32
    of_word = torch.zeros_like(situation.log_accuracy, dtype=torch.double).index_add_(0, words, usage)
    share = usage / of_word[words].clamp_min(1e-300)
    spare = share < IDLE
    has_idle = torch.zeros(situation.n_words, dtype=torch.bool)
    has_idle[words[spare]] = True
    wanting, limit = in_need(situation)
    return give_in_order(AllocationPlan(situation, share, spare), (i for i in wanting if not has_idle[i]), limit)


@register_strategy("loss", usage_of_word=True)
def loss(situation: Situation) -> list[Move]:
    """The rule of the first allocation, with what a word costs in the place of its count.

    A word's m-th sense is worth cost^power / (m − 1) to it, where cost is its summed −log P since the last event. As
    long as a further sense is worth more to one word than the last sense of another word is to that one, by a margin,
    the other word gives its least used sense: Algorithm 1, repeated until nothing changes.
    """
    cost = situation.nll.double().clamp_min(0).pow(situation.power).tolist()
    numbers = torch.bincount(situation.sense_to_word, minlength=situation.n_words).tolist()
    single, (least, most) = set(situation.single), (situation.min_senses, situation.max_senses)
    words = [i for i in range(situation.n_words) if i not in single]
    wanting = [(-cost[i] / max(numbers[i], 1), i) for i in words if numbers[i] < most and cost[i] > 0]
    sparing = [(cost[i] / (numbers[i] - 1), i) for i in words if numbers[i] > max(least, 1)]
    heapq.heapify(wanting)
    heapq.heapify(sparing)
    got: dict[int, int] = defaultdict(int)
    while wanting and sparing:
        (value, receiver), (loss, giver) = wanting[0], sparing[0]
        if receiver == giver or -value <= MARGIN * loss:
            break
        got[receiver] += 1
        got[giver] -= 1
        heapq.heappop(wanting)
        heapq.heappop(sparing)
        has = numbers[receiver] + got[receiver]
        if has < most:
            heapq.heappush(wanting, (-cost[receiver] / has, receiver))
        has = numbers[giver] + got[giver]
        if has > max(least, 1):
            heapq.heappush(sparing, (cost[giver] / (has - 1), giver))
    receivers = sorted((i for i, n in got.items() if n > 0), key=lambda i: (-cost[i] / numbers[i], i))
    left = {i: -n for i, n in got.items() if n < 0}
    senses = []
    for sense in torch.argsort(situation.usage, stable=True).tolist():
        giver = int(situation.sense_to_word[sense])
        if left.get(giver, 0) > 0:
            left[giver] -= 1
            senses.append(sense)
    return [Move(sense, word) for sense, word in zip(senses, (i for i in receivers for _ in range(got[i])))]


@register_strategy("released", renew=False, forget=True)
def released(situation: Situation) -> list[Move]:
    """What the authors' code does: first come the words with the largest mean probability times √count.

    Only words above the median count get a sense, and at most 0.5 % of V in an event. All sums are since the last
    event. There is no threshold.
    """
    tokens, prob = situation.tokens.double(), situation.prob.double()
    median = float(tokens.sort().values[situation.n_words - situation.n_words // 2 :][:1].sum())
    mean = (prob + 1e-7) / (tokens + 1e-7)
    order = torch.argsort(1 / (mean * tokens.sqrt()).clamp_min(1e-7), stable=True).tolist()
    counts = tokens.tolist()
    limit = math.ceil(SHARE * situation.n_words)
    plan = AllocationPlan(situation, situation.sense_prob)
    return give_in_order(plan, (i for i in order if counts[i] > median), limit)


def problem_of(moves: list[Move], situation: Situation) -> Optional[str]:
    """What is wrong with ``moves``, or None: for strategies of other people, and for the tests."""
    word, number = situation.sense_to_word.tolist(), torch.bincount(situation.sense_to_word).tolist()
    number += [0] * (situation.n_words - len(number))
    moved: set[int] = set()
    touched: set[int] = set()
    for sense, to in moves:
        if not (0 <= sense < len(word) and 0 <= to < len(number)):
            return f"there is no sense {sense} or no word {to}"
        if sense in moved:
            return f"sense {sense} moves twice"
        if to == word[sense]:
            return f"sense {sense} belongs to word {to} already"
        if {to, word[sense]} & set(situation.single):
            return f"a special symbol keeps its one sense (sense {sense}, to word {to})"
        moved.add(sense)
        touched |= {to, word[sense]}
        number[word[sense]] -= 1
        number[to] += 1
    # the others are as they were: in a checkpoint of version 0.1 one may be below the minimum, the end of a sentence
    for i in sorted(touched):
        if not situation.min_senses <= number[i] <= situation.max_senses:
            return f"word {i} would have {number[i]} senses, outside {situation.min_senses} to {situation.max_senses}"
    return None
