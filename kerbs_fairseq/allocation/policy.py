"""Which senses move to which words: Algorithm 1 of the paper, as a function of the statistics and the current map.

A strategy takes a :class:`Situation` and returns a list of moves. It changes nothing. :func:`register_strategy` adds
your own strategy, for ``--kerbs-strategy``.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor

SHARE = 0.005  # share of the words that get a sense in one event at most, if there is no threshold
MARGIN = 2.0  # strategy ``loss``: a sense moves if the ratio of its values for its new word and its old one is larger
SPARE = 0.05  # strategy ``idle``: a sense with less than this share of its word's usage is idle, and may move


class Move(NamedTuple):
    """A sense and the word to which it moves."""

    sense: int
    word: int


@dataclass(frozen=True)
class Situation:
    """The inputs of a strategy: tensors on the CPU, for V words and S senses.

    ``sense_to_word`` (senses,) is the current map. ``log_accuracy`` (words,) and ``usage`` (senses,) are log P and U of
    the paper; ``tokens``, ``prob`` and ``nll`` (words,) and ``sense_prob`` (senses,) are sums since the last event over
    the tokens whose target is the word: 1, P(word), −log P(word), and the probability of each of its senses. Words in
    ``single`` (special symbols) neither lose nor gain senses. ``threshold`` is ε, or None; ``power`` is for ``loss``.
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
    """How senses are moved: the plan, and what is changed besides the map.

    ``renew``: a moved sense starts again, with θ near 0, new usage, and zero moments in the optimizer (the paper).
    Its usage is the mean over all senses (the paper), or with ``usage_of_word`` over the senses of its new word.
    ``forget``: the moving statistics are reset to zero after an event (the released code).
    ``threshold``: the plan may use ``Situation.threshold``; without it, a threshold that is given is an error.
    """

    plan: Plan
    renew: bool = True
    forget: bool = False
    usage_of_word: bool = False
    threshold: bool = True


STRATEGIES: dict[str, Strategy] = {}


def register_strategy(
    name: str, renew: bool = True, forget: bool = False, usage_of_word: bool = False, threshold: bool = True
) -> Callable[[Plan], Plan]:
    """Return a decorator that registers a function from a situation to moves as ``--kerbs-strategy name``.

    The other arguments are those of :class:`Strategy`.
    """

    def register(plan: Plan) -> Plan:
        if name in STRATEGIES:
            raise ValueError(f"there is a strategy {name!r} already")
        STRATEGIES[name] = Strategy(plan, renew, forget, usage_of_word, threshold)
        return plan

    return register


class AllocationPlan:
    """The map while an event is being planned: the senses per word, and the senses in the order of their usage."""

    def __init__(self, situation: Situation, usage: Tensor, spare: Optional[Tensor] = None) -> None:
        """Sort by ``usage`` (senses,), least first; ``spare`` (senses,) masks the senses that may move (None: all)."""
        self.word = situation.sense_to_word.tolist()
        self.number = torch.bincount(situation.sense_to_word, minlength=situation.n_words).tolist()
        self.bounds = situation.min_senses, situation.max_senses
        self.single = frozenset(situation.single)
        order = torch.argsort(usage, stable=True)  # least used first; ties by index
        self._order = (order if spare is None else order[spare[order]]).tolist()
        self._next = 0
        self._back: list[int] = []  # heap of ranks: senses that were skipped and may move again
        self._kept: dict[int, list[int]] = defaultdict(list)  # ranks skipped because their word is at its minimum

    def can_get(self, word: int) -> bool:
        """Return whether ``word`` may get one more sense."""
        return word not in self.single and self.number[word] < self.bounds[1]

    def _can_give(self, word: int) -> bool:
        return word not in self.single and self.number[word] > self.bounds[0]

    def _least(self) -> Optional[int]:
        """Remove and return the rank of the next candidate sense; None if there is none left."""
        ahead = self._next < len(self._order)
        if self._back and (not ahead or self._back[0] < self._next):
            return heapq.heappop(self._back)
        if not ahead:
            return None
        self._next += 1
        return self._next - 1

    def give_least_used_to(self, word: int) -> Optional[Move]:
        """Move the least used sense of another word above its minimum to ``word``; return None if there is none."""
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
        # its own senses may go to other words again; as it has one more now, so may those skipped at its minimum
        for rank in own + (self._kept.pop(word, []) if move else []):
            heapq.heappush(self._back, rank)
        return move


def give_in_order(plan: AllocationPlan, words: Iterable[int], limit: Optional[int] = None) -> list[Move]:
    """Move one sense to each of ``words`` that may get one, in order; at most ``limit`` moves."""
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
    """Algorithm 1: move the least used sense to each word with log P below the threshold, worst word first.

    Without a threshold, at most 0.5 % of V words get a sense: the worst of those that were seen and may get one.
    """
    return give_in_order(AllocationPlan(situation, situation.usage), *in_need(situation))


def in_need(situation: Situation) -> tuple[list[int], Optional[int]]:
    """Return the words with log P below the threshold, worst first, and how many may get a sense; None: all."""
    order = torch.argsort(situation.log_accuracy, stable=True)
    below = 0.0 if situation.threshold is None else situation.threshold
    limit = max(1, round(SHARE * situation.n_words)) if situation.threshold is None else None
    return order[situation.log_accuracy[order] < below].tolist(), limit


@register_strategy("idle", usage_of_word=True)
def idle(situation: Situation) -> list[Move]:
    """Algorithm 1 with usage relative to the word: idle senses move to words without idle senses, worst word first.

    A sense is idle if it has less than a twentieth of its word's usage. So rare words keep the senses that they use,
    and a frequent word that stays badly predicted gets no further sense while it has an idle one.
    """
    words = situation.sense_to_word
    usage = situation.usage.double()  # that of a word not seen for long may be denormal in float32
    of_word = torch.zeros_like(situation.log_accuracy, dtype=torch.double).index_add_(0, words, usage)
    share = usage / of_word[words].clamp_min(1e-300)
    spare = share < SPARE
    has_idle = torch.zeros(situation.n_words, dtype=torch.bool)
    has_idle[words[spare]] = True
    wanting, limit = in_need(situation)
    return give_in_order(AllocationPlan(situation, share, spare), (i for i in wanting if not has_idle[i]), limit)


@register_strategy("loss", usage_of_word=True, threshold=False)
def loss(situation: Situation) -> list[Move]:
    """The rule of the initial allocation, with the cost of a word in place of its count.

    The m-th sense of a word has the value cost^power / (m − 1), where cost is its summed −log P since the last event.
    While the value of a further sense for one word exceeds MARGIN times that of the last sense of another word, the
    least used sense of the other word moves: Algorithm 1, repeated until nothing changes.
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
    receivers = sorted((i for i, n in got.items() if n > 0), key=lambda i: (-cost[i] / max(numbers[i], 1), i))
    left = {i: -n for i, n in got.items() if n < 0}
    senses = []
    for sense in torch.argsort(situation.usage, stable=True).tolist():
        giver = int(situation.sense_to_word[sense])
        if left.get(giver, 0) > 0:
            left[giver] -= 1
            senses.append(sense)
    return [Move(sense, word) for sense, word in zip(senses, (i for i in receivers for _ in range(got[i])))]


@register_strategy("released", renew=False, forget=True, threshold=False)
def released(situation: Situation) -> list[Move]:
    """The strategy of the authors' code: words with the largest mean probability times √count get a sense first.

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
    """Return what is wrong with ``moves``, or None; a check of user-defined strategies, also used by the tests."""
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
    # not all words: in a checkpoint of version 0.1 the end-of-sentence symbol may be below the minimum
    for i in sorted(touched):
        if not situation.min_senses <= number[i] <= situation.max_senses:
            return f"word {i} would have {number[i]} senses, outside {situation.min_senses} to {situation.max_senses}"
    return None
