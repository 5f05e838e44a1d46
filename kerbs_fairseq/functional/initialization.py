"""The state before training: how many senses each word gets, and where their vectors start."""

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

INITIAL_MAPS = ("random", "uniform", "frequency")
INITIAL_VECTORS = ("clone", "near", "random")
NOISE = {"clone": 0.01, "near": 0.5}  # of the spread of the words' vectors


def check_bounds(ratio: float, min_senses: int, max_senses: int) -> None:
    """Refuse what no allocation can satisfy, with a message that names the numbers."""
    if min_senses < 1:
        raise ValueError(f"the minimum of senses is {min_senses}: every word needs at least 1")
    if min_senses > max_senses:
        raise ValueError(f"the minimum of senses ({min_senses}) is above the maximum ({max_senses})")
    if not min_senses <= ratio <= max_senses:
        raise ValueError(
            f"{ratio:g} senses a word are outside the bounds: between {min_senses} and {max_senses} are possible"
        )


def initial_senses(
    n_words: int,
    ratio: float,
    min_senses: int = 1,
    max_senses: int = 4,
    how: str = "random",
    counts: Optional[Tensor] = None,
    single: Sequence[int] = (),
    seed: int = 1,
) -> Tensor:
    """The number of senses of each word (words,), the same on every machine for the same ``seed``.

    Words in ``single`` (special symbols) get one sense, whatever the bounds. The n others get round(ratio · n) senses
    in all, each at least ``min_senses``. The rest is dealt at ``random`` (the paper), ``uniform``ly (the released code)
    or by ``frequency``: the next sense goes where it leaves most occurrences for each, ``counts`` (words,).
    """
    check_bounds(ratio, min_senses, max_senses)
    ordinary = torch.ones(n_words, dtype=torch.bool)
    ordinary[list(single)] = False
    n = int(ordinary.sum())
    spare = round(ratio * n) - min_senses * n
    generator = torch.Generator().manual_seed(seed)
    room = max_senses - min_senses
    # Every possible further sense of every word, (word, how many it has before); the first ``spare`` are handed out.
    word = torch.arange(n).repeat_interleave(room)
    has = torch.arange(min_senses, max_senses).repeat(n)
    order = torch.randperm(n * room, generator=generator)
    if how == "uniform":
        order = order[torch.argsort(has[order], stable=True)]
    elif how == "frequency":
        if counts is None:
            raise ValueError("allocation by frequency needs the words' counts")
        share = counts.double()[ordinary][word] / (has + 1)
        order = torch.argsort(share, descending=True, stable=True)
    elif how != "random":
        raise ValueError(f"unknown initial allocation {how!r}: one of {', '.join(INITIAL_MAPS)}")
    extra = torch.bincount(word[order[:spare]], minlength=n)
    senses = torch.ones(n_words, dtype=torch.long)
    senses[ordinary] = min_senses + extra
    return senses


def map_of(senses: Tensor) -> Tensor:
    """The map sense → word (senses,) for numbers of senses (words,): the senses of a word stand together."""
    return torch.repeat_interleave(torch.arange(len(senses)), senses)


def initial_vectors(words: Tensor, sense_to_word: Tensor, how: str = "clone", seed: int = 1) -> Tensor:
    """Where the sense vectors (senses, d) start, from vectors for the words (words, d).

    ``clone``: all senses of a word at its vector, with a little noise to tell them apart; a word's only sense has none.
    ``near``: the same with much noise, so that they part, and still pull the features to where their word is.
    ``random``: each drawn on its own, with the spread of ``words``.
    """
    generator = torch.Generator().manual_seed(seed)
    spread = float(words.float().std()) if words.numel() > 1 else 1.0
    noise = torch.randn(len(sense_to_word), words.size(1), generator=generator).to(words)
    if how == "random":
        return noise * spread
    if how not in NOISE:
        raise ValueError(f"unknown initial vectors {how!r}: one of {', '.join(INITIAL_VECTORS)}")
    alone = torch.bincount(sense_to_word)[sense_to_word] == 1
    return words[sense_to_word] + noise.masked_fill(alone.unsqueeze(1), 0) * (NOISE[how] * spread)
