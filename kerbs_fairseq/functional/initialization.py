"""The state before training: how many senses each word gets, and where their vectors and biases start."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

INITIAL_MAPS = ("frequency", "random", "uniform")
INITIAL_VECTORS = ("clone", "near", "random")
BIASES = ("zero", "log", "none")
NOISE = {"clone": 0.01, "near": 0.5}  # of the standard deviation of the words' vectors
LARGEST_POWER = 10.0  # of a count: larger ones overflow, and with this one the most frequent words get all already
ENUMERATED = 2**22  # up to this many possible further senses, all of them are listed and shuffled


def check_bounds(ratio: float, min_senses: int, max_senses: int) -> None:
    """Raise ValueError if no allocation can satisfy the bounds."""
    if min_senses < 1:
        raise ValueError(f"the minimum number of senses is {min_senses}: every word needs at least 1")
    if min_senses > max_senses:
        raise ValueError(f"the minimum number of senses ({min_senses}) is above the maximum ({max_senses})")
    if not min_senses <= ratio <= max_senses:
        raise ValueError(
            f"{ratio:g} senses per word are outside the bounds: between {min_senses} and {max_senses} are possible"
        )


def check_power(power: float, min_count: float) -> None:
    """Raise ValueError if ``power`` or ``min_count`` is not valid for :func:`allocate`."""
    if not 0 <= power <= LARGEST_POWER:
        raise ValueError(f"the power of the count is {power:g}: it must be from 0 to {LARGEST_POWER:g}")
    if not 0 <= min_count < float("inf"):
        raise ValueError(f"the minimum count per sense is {min_count:g}: it must be 0 or more")


def allocate(
    need: Tensor,
    total: int,
    min_senses: int,
    max_senses: int,
    power: float = 1.0,
    min_count: float = 0.0,
    order: Optional[Tensor] = None,
) -> Tensor:
    """Return numbers of senses (n,) by ``need`` (n,): the next sense goes to the largest need^power / senses.

    Every word has at least ``min_senses`` and at most ``max_senses``. Allocation ends when ``total`` senses are
    allocated, or when with a further one every word would have less than ``min_count`` of need per sense. Ties go to
    the word with fewer senses, then to the first in ``order`` (n,).
    """
    weight = need.double().clamp_min(0).pow(power).tolist()
    limit = need.tolist()
    numbers = [min_senses] * len(limit)
    rank = range(len(limit)) if order is None else torch.argsort(order).tolist()
    spare = total - min_senses * len(limit)

    def may_have_more(word: int) -> bool:
        has = numbers[word]
        return has < max_senses and limit[word] >= min_count * (has + 1)

    heap = [(-weight[i] / min_senses, min_senses, rank[i], i) for i in range(len(limit)) if may_have_more(i)]
    heapq.heapify(heap)
    while heap and spare > 0:
        _, _, first, word = heap[0]
        numbers[word] += 1
        spare -= 1
        if may_have_more(word):
            heapq.heapreplace(heap, (-weight[word] / numbers[word], numbers[word], first, word))
        else:
            heapq.heappop(heap)
    return torch.tensor(numbers, dtype=torch.long)


def distribute(n: int, spare: int, most: int, evenly: bool, generator: torch.Generator) -> Tensor:
    """Distribute ``spare`` further senses over n words, at most ``most`` each, at random or ``evenly`` → (n,)."""
    if evenly:
        each, rest = divmod(spare, max(n, 1))
        extra = torch.full((n,), each)
        extra[torch.randperm(n, generator=generator)[:rest]] += 1
        return extra
    # A random subset of all possible further senses (word, number) is drawn.
    if n * most <= ENUMERATED:
        drawn = torch.randperm(n * most, generator=generator)[:spare]
    else:
        drawn = torch.empty(0, dtype=torch.long)
        while len(drawn) < spare:
            more = torch.randint(n * most, (spare,), generator=generator)
            drawn = torch.cat([drawn, more]).unique()
        drawn = drawn[torch.randperm(len(drawn), generator=generator)[:spare]]
    return torch.bincount(drawn.div(max(most, 1), rounding_mode="floor"), minlength=n)


@dataclass(frozen=True)
class InitialAllocation:
    """How senses are allocated before training: ``ratio`` per word on average, ``min_senses`` to ``max_senses`` each.

    ``how``: by ``frequency`` (see :func:`allocate` for ``power`` and ``min_count``), at ``random`` (the paper) or
    ``uniform``ly (the released code).
    """

    ratio: float
    min_senses: int = 1
    max_senses: int = 16
    how: str = "random"
    power: float = 1.0
    min_count: float = 0.0

    def __post_init__(self) -> None:
        check_bounds(self.ratio, self.min_senses, self.max_senses)
        check_power(self.power, self.min_count)
        if self.how not in INITIAL_MAPS:
            raise ValueError(f"unknown initial allocation {self.how!r}: one of {', '.join(INITIAL_MAPS)}")
        for name, value, unused in (("power", self.power, 1.0), ("min_count", self.min_count, 0.0)):
            if self.how != "frequency" and value != unused:
                raise ValueError(f"{name} has no effect with init={self.how!r}: it is of init='frequency', with counts")


def initial_senses(
    n_words: int,
    allocation: InitialAllocation,
    counts: Optional[Tensor] = None,
    single: Sequence[int] = (),
    seed: int = 1,
) -> Tensor:
    """Return the number of senses of each word (words,), the same on every machine for the same ``seed``.

    Words in ``single`` (special symbols) get one sense, whatever the bounds. The n others get round(ratio · n) senses
    in total, or fewer if ``min_count`` allows no more. An allocation by frequency needs ``counts`` (words,).
    """
    min_senses, max_senses, min_count = allocation.min_senses, allocation.max_senses, allocation.min_count
    ordinary = torch.ones(n_words, dtype=torch.bool)
    ordinary[list(single)] = False
    n = int(ordinary.sum())
    total = round(allocation.ratio * n)
    generator = torch.Generator().manual_seed(seed)
    if allocation.how == "frequency":
        if counts is None:
            raise ValueError("allocation by frequency needs the words' counts")
        if len(counts) != n_words:
            raise ValueError(f"there are counts of {len(counts)} words, and {n_words} words")
        need = counts[ordinary]
        if min_count > 0 and total > min_senses * n and not bool((need >= min_count * (min_senses + 1)).any()):
            raise ValueError(
                f"no word occurs {min_count * (min_senses + 1):g} times, so none can have {min_senses + 1} senses of "
                f"{min_count:g} occurrences each: lower the minimum count, or ask for {min_senses} senses per word"
            )
        shuffled = torch.randperm(n, generator=generator)
        numbers = allocate(need, total, min_senses, max_senses, allocation.power, min_count, shuffled)
    else:
        spare = total - min_senses * n
        numbers = min_senses + distribute(n, spare, max_senses - min_senses, allocation.how == "uniform", generator)
    senses = torch.ones(n_words, dtype=torch.long)
    senses[ordinary] = numbers
    return senses


def map_of(senses: Tensor) -> Tensor:
    """Return the map sense → word (senses,) for numbers of senses (words,); the senses of a word are consecutive."""
    return torch.repeat_interleave(torch.arange(len(senses)), senses)


def initial_vectors(words: Tensor, sense_to_word: Tensor, how: str = "near", seed: int = 1) -> Tensor:
    """Return initial sense vectors (senses, d), from the vectors ``words`` (words, d).

    ``clone``: the vector of the word plus a little noise, so that its senses differ; a word's only sense gets no noise.
    ``near``: the same with more noise, so that the senses diverge but still pull features towards their word.
    The noise sums to zero over the senses of a word: two senses get plus and minus the same vector.
    ``random``: drawn independently, with the standard deviation of ``words``.
    """
    generator = torch.Generator().manual_seed(seed)
    spread = float(words.float().std()) if words.numel() > 1 else 1.0
    noise = torch.randn(len(sense_to_word), words.size(1), generator=generator, dtype=torch.float32).to(words)
    if how == "random":
        return noise * spread
    if how not in NOISE:
        raise ValueError(f"unknown initial vectors {how!r}: one of {', '.join(INITIAL_VECTORS)}")
    n = torch.bincount(sense_to_word, minlength=len(words)).to(words).unsqueeze(1)
    mean = torch.zeros_like(words).index_add_(0, sense_to_word, noise) / n.clamp_min(1)
    # subtracting the mean reduces the variance to (n − 1) / n: scale it back to 1; a word's only sense has no noise
    scale = (n / (n - 1).clamp_min(1)).sqrt()
    return words[sense_to_word] + (noise - mean[sense_to_word]) * (scale[sense_to_word] * NOISE[how] * spread)


def initial_bias(word_bias: Tensor, sense_to_word: Tensor, how: str = "zero") -> Optional[Tensor]:
    """Return initial biases (senses,), from the biases of the words (words,).

    ``zero``: the bias of the word, so that the logit of a word with n senses is higher by log n. ``log``: minus log n,
    so that n equal senses give their word the probability that one sense would give it. ``none``: no bias.
    """
    if how not in BIASES:
        raise ValueError(f"unknown bias {how!r}: one of {', '.join(BIASES)}")
    if how == "none":
        return None
    n = torch.bincount(sense_to_word, minlength=len(word_bias)).to(word_bias)
    return (word_bias - n.clamp_min(1).log() if how == "log" else word_bias)[sense_to_word]
