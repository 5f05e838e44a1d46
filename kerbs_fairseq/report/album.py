"""The plots of a report, with their tabs and captions."""

import re
from collections.abc import Iterator, Sequence
from typing import Optional

import torch

from kerbs_fairseq.inspection.findings import rank_correlation
from kerbs_fairseq.inspection.learned import Learned
from kerbs_fairseq.report import compare, plots
from kerbs_fairseq.report.drawing import Picture
from kerbs_fairseq.report.gather import Run
from kerbs_fairseq.report.spaces import FEWEST, Contexts
from kerbs_fairseq.runs import logs

Part = tuple[str, Picture]  # (tab, plot)
LONGEST = 60  # characters of a word in the name of a file


def of_training(run: Run) -> Iterator[Part]:
    """Yield the plots of training: curves over updates."""
    history = run.history
    if history.train_loss or history.valid_loss:
        caption = (
            "In bits (base 2) per token, label smoothing included; perplexities in the log are 2^nll_loss, without it."
        )
        yield "training", Picture("training", "Loss", caption, plots.training(history))
    if history.moves_by_update():
        source = "from the table of moves" if history.moves else "from the log"
        caption = f"Senses that moved to another word; {source}."
        yield "training", Picture("moves", "Moves of senses", caption, plots.moves(history))
    if any(name.startswith(logs.WORDS_WITH) for name in history.senses):
        caption = "How many words have so many senses, as training goes on."
        yield "training", Picture("words-over-time", "Senses over time", caption, plots.words_over_time(history))


def of_senses(model: Learned) -> Iterator[Part]:
    """Yield the plots of senses per word."""
    caption = "Special symbols are left out, the end of a sentence among them."
    yield "senses", Picture("senses", "Senses per word", caption, plots.senses_per_word(model))
    if model.counts is not None and len(model.counts[4:].unique()) > 1:
        caption = "Words in classes of frequency, from rare to frequent."
        picture = Picture("frequency", "Senses against frequency", caption, plots.senses_by_frequency(model))
        yield "senses", picture


def of_widths(model: Learned, contexts: Optional[Contexts]) -> Iterator[Part]:
    """Yield the plots of bias, θ and kernel."""
    if model.bias is not None:
        caption = "Added to a sense's score whatever the context. A word's n equal senses have −log n each."
        yield "senses", Picture("bias", "Biases of senses", caption, plots.bias(model))
    if model.kernel == "dot":
        return
    caption = f"Of all senses; a sense is idle if it has less than {logs.IDLE_SHARE:.0%} of its word's usage."
    yield "widths", Picture("theta", "Widths of kernels, θ", caption, plots.theta(model))
    caption = "What a sense scores by the angle to the context, for narrow, middling and wide senses of this model."
    yield "widths", Picture("kernel", "Shapes of the kernel (Figure 2)", caption, plots.kernels(model))
    words = plots.spread_words(contexts) if contexts is not None else []
    if contexts is not None and len(words) > 2:
        at = torch.tensor(words)
        correlation = rank_correlation(model.word_theta()[at].tolist(), contexts.spread[at].tolist())
        caption = (
            f"Lemma 2 says that wider contexts get a larger θ. {len(words)} words with at least {plots.ENOUGH} "
            f"contexts in {contexts.split}; rank correlation {correlation:.2f}. Spread: 1 − length of the mean "
            "direction."
        )
        figure = plots.theta_by_spread(model, contexts)
        yield "widths", Picture("spread", "θ against the spread of contexts", caption, figure)


def of_words(model: Learned, contexts: Contexts, words: Sequence[int]) -> Iterator[Part]:
    """Yield the plots of the contexts of ``words``."""
    taken: set[str] = set()
    for number, word in enumerate(words, 1):
        kept = contexts.kept.get(word)
        if kept is None or kept.number < FEWEST:
            continue
        plain = re.sub(r"[^A-Za-z0-9-]+", "", model.words[word])[:LONGEST]
        name = f"word-{plain}"
        if not plain or name.lower() in taken:  # names of files are not case-sensitive on some systems
            name = f"word-{plain}-no-{number}"
        taken.add(name.lower())
        features, senses = kept.both()
        caption = (
            f"{len(senses)} contexts in {contexts.split}, by PCA, coloured by the likely sense (Figure 1). "
            "Senses are numbered as in the table, most used first."
        )
        figure = plots.contexts_of_word(features, senses, model.senses_of(word))
        yield "words", Picture(name, model.words[word], caption, figure)


def of_comparison(runs: Sequence[Run]) -> Iterator[Part]:
    """Yield the plots that compare several models."""
    if any(run.history.valid_loss for run in runs):
        caption = "On the validation set, lower is better. A perplexity is 2^nll_loss, without label smoothing."
        yield "compare", Picture("compare-validation", "Validation", caption, compare.validation(runs))
    with_senses = [run for run in runs if run.learned is not None]
    if with_senses:
        caption = "Share of words by number of senses."
        yield "compare", Picture("compare-senses", "Senses per word", caption, compare.senses(runs))
    if any(run.learned is not None and run.learned.kernel != "dot" for run in runs):
        caption = "How many of the senses have a θ below a value."
        yield "compare", Picture("compare-theta", "Widths, θ", caption, compare.thetas(runs))


def album(runs: Sequence[Run], contexts: Optional[Contexts], words: Sequence[int]) -> Iterator[Part]:
    """Yield all plots as they are drawn; the details are of the first KerBS model."""
    run = next((run for run in runs if run.learned is not None), None)
    if len(runs) > 1:
        yield from of_comparison(runs)
    if run is None or run.learned is None:
        return
    yield from of_training(run)
    yield from of_senses(run.learned)
    yield from of_widths(run.learned, contexts)
    if contexts is not None:
        yield from of_words(run.learned, contexts, words)
