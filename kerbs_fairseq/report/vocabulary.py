"""All words of a model with their senses, as compact data for the search of the page."""

import math
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch.nn import functional

from kerbs_fairseq.inspection.findings import by_frequency
from kerbs_fairseq.inspection.learned import Learned
from kerbs_fairseq.report.spaces import Contexts

NEAREST = 4
WITH_NEAREST = 2000  # most frequent words: all senses of a large vocabulary would take minutes
ROWS = 256  # senses compared with all others at once


def nearest(
    model: Learned, senses: Sequence[int], progress: Callable[[float], None] = lambda part: None
) -> dict[int, list[int]]:
    """Return for each of ``senses`` the words of the nearest senses of other words, by cosine."""
    unit, of = functional.normalize(model.vectors), model.sense_to_word
    neighbours: dict[int, list[int]] = {}
    if len(unit) <= NEAREST:
        return neighbours
    for start in range(0, len(senses), ROWS):
        rows = torch.tensor(senses[start : start + ROWS])
        cosines = unit[rows] @ unit.t()
        cosines.masked_fill_(of[rows].unsqueeze(1) == of, -2)
        best = cosines.topk(NEAREST, 1).indices
        neighbours.update(zip(rows.tolist(), of[best].tolist()))
        progress(min(1.0, (start + ROWS) / len(senses)))
    return neighbours


def vocabulary(
    model: Learned,
    contexts: Optional[Contexts],
    also: Sequence[int] = (),
    progress: Callable[[float], None] = lambda part: None,
) -> dict[str, Any]:
    """Return the words by frequency, ``[word, count, senses]``, for the page.

    A sense is ``[θ, bias, share of usage, length, nearest words (places in the list), times meant, examples]``, an
    example ``[sentence, position, probability]``. ``also`` are words that get their nearest whatever their frequency.
    """
    order = by_frequency(model)
    place = {word: i for i, word in enumerate(order)}
    close = sorted({*order[:WITH_NEAREST], *also})
    own: dict[int, list[int]] = {word: [] for word in order}
    usage = torch.argsort(model.usage, descending=True, stable=True).tolist()
    of = model.sense_to_word.tolist()
    for sense in usage:  # most used first
        if of[sense] in own:
            own[of[sense]].append(sense)
    near = nearest(model, [sense for word in close for sense in own[word]], progress)
    theta, share = rounded(model.theta), rounded(model.share)
    bias = [None] * len(theta) if model.bias is None else rounded(model.bias)
    length = rounded(model.vectors.norm(dim=1))

    def sense_row(sense: int) -> list[Any]:
        others = list(dict.fromkeys(place[w] for w in near.get(sense, []) if w in place))
        row: list[Any] = [theta[sense], bias[sense], share[sense], length[sense], others]
        if contexts is not None:
            examples = [[s, p, round(q, 3)] for s, p, q in contexts.examples.get(sense, [])]
            row += [int(contexts.meant[sense]), examples]
        return row

    counts = None if model.counts is None else model.counts.tolist()
    return {
        "words": [
            [model.words[word], None if counts is None else counts[word], [sense_row(s) for s in own[word]]]
            for word in order
        ],
        "sentences": [] if contexts is None else contexts.sentences,
        "contexts": contexts is not None,
        "nearest": len(close),
    }


def rounded(values: torch.Tensor) -> list[Optional[float]]:
    """Round to three decimals; None for values that are not finite."""
    return [round(v, 3) if math.isfinite(v) else None for v in values.tolist()]
