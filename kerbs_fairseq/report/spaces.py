"""The contexts of all words in a split: their spread, likely senses, examples, and some contexts for plots."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import torch
from torch import Tensor
from torch.nn import functional

from kerbs_fairseq.inspection.findings import by_frequency
from kerbs_fairseq.inspection.learned import SPECIAL, Learned
from kerbs_fairseq.inspection.pieces import mark_of, spaced

EXAMPLES = 3  # sentences for a sense
FEWEST, MOST_KEPT = 3, 400  # contexts of a word in a plot
BATCH = 1000  # tokens: small, so that a sample of the split has sentences of all lengths
USED = 0.1  # share from which a sense counts as used


@dataclass
class Kept:
    """Contexts of one word that are kept for a plot."""

    features: list[Tensor] = field(default_factory=list)  # (n, d) each
    senses: list[Tensor] = field(default_factory=list)  # (n,) each
    number: int = 0

    def both(self) -> tuple[Tensor, Tensor]:
        """Return contexts (n, d) and their likely senses (n,)."""
        return torch.cat(self.features)[:MOST_KEPT], torch.cat(self.senses)[:MOST_KEPT]


@dataclass
class Contexts:
    """Statistics of the contexts of V words and S senses in ``tokens`` tokens of a split."""

    split: str
    tokens: int
    whole: bool  # whether these are all tokens of the split
    times: Tensor  # (V,): how often each word is a target
    spread: Tensor  # (V,): 1 − length of the mean direction; 0 if all contexts have the same direction, at most 1
    meant: Tensor  # (S,): how often each sense is the most likely one
    sentences: list[str]  # pieces separated by tabs
    examples: dict[int, list[tuple[int, int, float]]]  # by sense: (sentence, position, probability), best first
    kept: dict[int, Kept]  # by word, of words that may be plotted


def candidates(model: Learned, most: int = 40) -> list[int]:
    """Return candidates for plots, best first: frequent words with senses that are well used and far apart.

    The order is by Σ_ij p_i p_j (1 − cos(w_i, w_j)) · log(1 + count), with p the shares of a word's senses: the mean
    distance between the senses of two occurrences, weighted by frequency.
    """
    of = model.sense_to_word
    mean = torch.zeros(model.n_words, model.vectors.size(1))
    mean.index_add_(0, of, functional.normalize(model.vectors) * model.share.unsqueeze(1))
    apart = 1 - mean.square().sum(1)  # Σ_ij p_i p_j cos is the squared length of Σ_i p_i w_i, for unit vectors
    how_often = model.seen if model.counts is None else model.counts.float()
    used = torch.bincount(of[model.share >= USED], minlength=model.n_words) > 1
    score = apart * torch.log1p(how_often) * used * (model.seen > 0)
    order = torch.argsort(score, descending=True, stable=True)[:most].tolist()
    return [i for i in order if i >= SPECIAL and score[i] > 0] or by_frequency(model)[:most]


def chosen(contexts: Contexts, words: Sequence[int], most: int) -> list[int]:
    """Return the best of ``words`` for plots: first those with two or more senses in use in the contexts."""

    def plain(word: int) -> bool:
        kept = contexts.kept.get(word)
        if kept is None or kept.number < 12:
            return False
        _, counts = kept.both()[1].unique(return_counts=True)
        return int((counts >= USED * int(counts.sum())).sum()) > 1

    good = [word for word in words if plain(word)]
    return (good + [word for word in words if word not in good and contexts.times[word] >= FEWEST])[:most]


def read_contexts(
    checkpoint: Path,
    data: Path,
    split: str,
    model: Learned,
    keep: Sequence[int],
    tokens: int,
    progress: Callable[[float], None] = lambda part: None,
) -> Contexts:
    """Run the model on up to ``tokens`` tokens of a split; contexts of the words in ``keep`` are kept for plots."""
    from kerbs_fairseq.inspection.contexts import Reader  # loads fairseq and all its models

    reader = Reader(checkpoint, data, split)
    wanted = torch.ones(model.n_words, dtype=torch.bool)
    wanted[:SPECIAL] = False
    result = Contexts(
        split, 0, True, torch.zeros(model.n_words), torch.zeros(model.n_words),
        torch.zeros(len(model.sense_to_word)), [], {}, {word: Kept() for word in keep},
    )  # fmt: skip
    mean, mark = torch.zeros(model.n_words, model.vectors.size(1)), mark_of(model.words)
    for batch in reader.batches(BATCH, shuffle=True):
        if result.tokens >= tokens:
            result.whole = False
            break
        matches = reader.find(batch, wanted)
        if not len(matches.words):
            continue
        result.tokens += len(matches.words)
        result.times += torch.bincount(matches.words, minlength=model.n_words)
        result.meant += torch.bincount(matches.senses, minlength=len(result.meant))
        mean.index_add_(0, matches.words, functional.normalize(matches.features))
        for word in set(matches.words.tolist()) & result.kept.keys():
            its, kept = matches.words == word, result.kept[word]
            if kept.number < MOST_KEPT:
                kept.features.append(matches.features[its].clone())
                kept.senses.append(matches.senses[its])
                kept.number += int(its.sum())
        add_examples(result, reader, batch, matches, mark)
        progress(min(1.0, result.tokens / tokens))
    result.spread = 1 - (mean / result.times.clamp_min(1).unsqueeze(1)).norm(dim=1)
    return result


def add_examples(result: Contexts, reader: Any, batch: dict[str, Any], matches: Any, mark: str) -> None:
    """Keep the most likely sentences of each sense; a sentence of several senses is stored once."""
    from kerbs_fairseq.inspection.contexts import AROUND, around

    texts: dict[tuple[int, int], int] = {}
    sentences: dict[int, tuple[str, ...]] = {}
    probabilities, rows = matches.probabilities.tolist(), matches.rows.tolist()
    for i, (sense, column) in enumerate(zip(matches.senses.tolist(), matches.columns.tolist())):
        examples = result.examples.setdefault(sense, [])
        if len(examples) == EXAMPLES and examples[-1][2] >= probabilities[i]:
            continue
        if rows[i] not in sentences:
            sentences[rows[i]] = reader.sentence(batch, rows[i])
        words = sentences[rows[i]]
        position = reader.position(batch, rows[i], column)
        key = (rows[i], -1)
        if len(words) > 2 * AROUND + 1:  # long lines, such as the blocks of language models, are cut around each word
            key = (rows[i], position)
            words, position = around(words, position)
        if key not in texts:
            texts[key] = len(result.sentences)
            result.sentences.append("\t".join("" if word == "</s>" else spaced(word, mark) for word in words))
        examples.append((texts[key], position, probabilities[i]))
        examples.sort(key=lambda example: -example[2])
        del examples[EXAMPLES:]


def main_axes(features: Tensor) -> Tensor:
    """Project contexts (n, d) on their first two principal axes (n, 2); signs are fixed for reproducible plots."""
    centred = features - features.mean(0)
    _, _, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:2]
    if len(axes) < 2:
        axes = torch.cat([axes, torch.zeros(2 - len(axes), features.size(1))])
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    return centred @ (axes * torch.where(largest < 0, -1.0, 1.0)).t()
