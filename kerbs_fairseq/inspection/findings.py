"""Properties of a trained KerBS model as plain Python data, for the terminal, for JSON and for reports."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kerbs_fairseq.inspection.learned import SPECIAL, Learned
from kerbs_fairseq.runs.logs import IDLE_SHARE


def overview(model: Learned) -> dict[str, Any]:
    """Return sizes, options and counters of the model."""
    S, d = model.vectors.shape
    kept = (
        "kerbs_senses",
        "kerbs_min_senses",
        "kerbs_max_senses",
        "kerbs_strategy",
        "kerbs_init_vectors",
        "kerbs_input",
    )
    return {
        "words": model.n_words,
        "senses": S,
        "features": d,
        "kernel": model.kernel,
        "updates": model.updates,
        "moves": model.moves,
        "options": {name: str(model.options[name]) for name in kept if name in model.options},
        "named": model.counts is not None,
        "dictionary_checked": model.same_dictionary is not None,
        "start_known": model.initial is not None,
    }


def by_number(model: Learned, samples: int = 8) -> list[dict[str, Any]]:
    """Return Table 5 of the paper: for each number of senses, the number of words and the most frequent of them."""
    numbers = model.numbers.tolist()
    groups: dict[int, dict[str, Any]] = {}
    for word in by_frequency(model):
        line = groups.setdefault(numbers[word], {"senses": numbers[word], "words": 0, "samples": []})
        line["words"] += 1
        if len(line["samples"]) < samples:
            line["samples"].append(model.words[word])
    return [groups[n] for n in sorted(groups)]


def by_frequency(model: Learned) -> list[int]:
    """Return the words, most frequent first, without special symbols."""
    how_often = model.seen if model.counts is None else model.counts.float()
    order = torch.argsort(how_often, descending=True, stable=True).tolist()
    return [i for i in order if i >= SPECIAL]


def movers(model: Learned, most: int = 8) -> dict[str, list[dict[str, Any]]]:
    """Return the words that gained and lost most senses since the start; empty if the start is not known."""
    first = model.initial
    if first is None:
        return {}
    change = model.numbers - first
    order = by_frequency(model)

    def best(sign: int) -> list[dict[str, Any]]:
        chosen = sorted((i for i in order if sign * int(change[i]) > 0), key=lambda i: -sign * int(change[i]))[:most]
        return [{"word": model.words[i], "from": int(first[i]), "to": int(model.numbers[i])} for i in chosen]

    return {"won": best(1), "lost": best(-1)}


QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def quantiles_of(values: Tensor) -> dict[str, float]:
    """Return :data:`QUANTILES` of ``values`` (S,), by name."""
    return dict(zip((f"{100 * p:g}%" for p in QUANTILES), torch.quantile(values, torch.tensor(QUANTILES)).tolist()))


def widths(model: Learned, most: int = 8) -> dict[str, Any]:
    """Return quantiles of θ, its mean by number of senses, and the words with the largest and smallest (Figure 3)."""
    if model.kernel == "dot":
        return {}
    of_word = model.word_theta()
    occurs = model.seen > 0
    order = [i for i in by_frequency(model) if occurs[i]]
    ranked = sorted(order, key=lambda i: float(of_word[i]), reverse=True)

    def named(chosen: Sequence[int]) -> list[dict[str, Any]]:
        return [{"word": model.words[i], "theta": float(of_word[i])} for i in chosen]

    return {
        "quantiles": quantiles_of(model.theta),
        "by_senses": {n: float(of_word[model.numbers == n].mean()) for n in model.numbers.unique().tolist()},
        "largest": named(ranked[:most]),
        "smallest": named(ranked[::-1][:most]),
    }


def group(model: Learned, words: Sequence[str]) -> dict[str, Any]:
    """Return mean and standard deviation of θ, and mean number of senses, of a group of words."""
    at = [model.find(word) for word in words]
    of_word = model.word_theta()[at]
    return {
        "words": list(words),
        "theta": float(of_word.mean()),
        "spread": float(of_word.std(unbiased=False)),
        "senses": float(model.numbers[at].float().mean()),
    }


def idle(model: Learned, most: int = 8) -> dict[str, Any]:
    """Return number and share of idle senses, and the words with most of them."""
    unused = (model.share < IDLE_SHARE).nonzero().flatten()
    numbers = torch.bincount(model.sense_to_word[unused], minlength=model.n_words)
    order = sorted((i for i in by_frequency(model) if numbers[i]), key=lambda i: -int(numbers[i]))
    return {
        "senses": len(unused),
        "share": len(unused) / len(model.sense_to_word),
        "words": [{"word": model.words[i], "idle": int(numbers[i]), "of": int(model.numbers[i])} for i in order[:most]],
    }


def word_in_detail(model: Learned, word: str, nearest: int = 5) -> dict[str, Any]:
    """Return the senses of a word with θ, bias, share of usage, length and the nearest senses of other words."""
    at = model.find(word)
    unit = functional.normalize(model.vectors)
    senses = []
    for sense in model.senses_of(at):
        cosines = unit @ unit[sense]
        cosines[model.sense_to_word == at] = -2
        best = torch.topk(cosines, min(nearest, int((cosines > -2).sum()))).indices.tolist()
        senses.append(
            {
                "sense": sense,
                "theta": float(model.theta[sense]),
                "bias": None if model.bias is None else float(model.bias[sense]),
                "share": float(model.share[sense]),
                "length": float(model.vectors[sense].norm()),
                "nearest": [
                    {"word": model.words[int(model.sense_to_word[j])], "cosine": float(cosines[j])} for j in best
                ],
            }
        )
    count = None if model.counts is None else int(model.counts[at])
    return {"word": model.words[at], "count": count, "theta": float(model.word_theta()[at]), "senses": senses}


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if one side is constant, or if there are fewer than three values."""
    from scipy.stats import spearmanr

    if len(a) < 3 or len(set(a)) < 2 or len(set(b)) < 2:
        return 0.0
    return float(spearmanr(a, b).statistic)


def everything(model: Learned, samples: int = 8) -> dict[str, Any]:
    """Return all findings except the details of single words."""
    return {
        "model": overview(model),
        "senses_per_word": by_number(model, samples),
        "movers": movers(model, samples),
        "theta": widths(model, samples),
        "bias": {} if model.bias is None else {"quantiles": quantiles_of(model.bias)},
        "idle": idle(model, samples),
    }


def without_nan(data: Any) -> Any:
    """Return ``data`` with None for numbers that JSON does not have: NaN and infinities."""
    if isinstance(data, dict):
        return {name: without_nan(value) for name, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [without_nan(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
