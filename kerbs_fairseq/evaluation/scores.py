"""BLEU and perplexity from statistics of each sentence, so that they can be computed for any sample of sentences."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerbs_fairseq.runs.errors import UserError

Array = NDArray[np.float64]


def same_length(outputs: Sequence[object], wanted: Sequence[object]) -> None:
    """Raise an error if the numbers of outputs and sentences differ."""
    if len(outputs) != len(wanted):
        raise UserError(f"{len(outputs)} outputs for {len(wanted)} sentences, of another test set: evaluate again")


@dataclass(frozen=True)
class Bleu:
    """sacrebleu's BLEU with n-grams up to ``order``; ``tokenise`` is sacrebleu's name of a tokeniser, or none."""

    order: int = 4
    tokenise: str = "13a"
    larger_is_better = True

    def metric(self) -> Any:
        """Return the metric of sacrebleu."""
        from sacrebleu.metrics import BLEU

        return BLEU(max_ngram_order=self.order, tokenize=self.tokenise, force=True, effective_order=True)

    def signature(self, hypotheses: Sequence[str], references: Sequence[str]) -> str:
        """Return sacrebleu's signature of the score."""
        from sacrebleu.metrics import BLEU

        metric = BLEU(max_ngram_order=self.order, tokenize=self.tokenise, force=True)
        metric.corpus_score(list(hypotheses), [list(references)])
        return str(metric.get_signature())

    def statistics(self, hypotheses: Sequence[str], references: Sequence[str]) -> Array:
        """Return matches and totals of each order, and both lengths, of every sentence: (sentences, 2 · order + 2)."""
        same_length(hypotheses, references)
        metric = self.metric()
        sentences = [metric.sentence_score(h, [r]) for h, r in zip(hypotheses, references)]
        return np.array([[*f.counts, *f.totals, f.sys_len, f.ref_len] for f in sentences], dtype=np.float64)

    def score(self, total: Array) -> float:
        """Return BLEU of statistics (2 · order + 2,) summed over sentences, smoothed as in sacrebleu."""
        from sacrebleu.metrics import BLEU

        *counts, length, wanted = (int(n) for n in total)
        matches, possible = counts[: self.order], counts[self.order :]
        bleu = BLEU.compute_bleu(matches, possible, length, wanted, smooth_method="exp", max_ngram_order=self.order)
        return float(bleu.score)


@dataclass(frozen=True)
class Perplexity:
    """Perplexity: e to the mean −log P of a word, where the end of a sentence counts as a word."""

    larger_is_better = False

    def statistics(self, nll: Sequence[float], sentences: Sequence[str]) -> Array:
        """Return −log P and number of words of every sentence: (sentences, 2)."""
        same_length(nll, sentences)
        return np.array([[loss, len(text.split()) + 1] for loss, text in zip(nll, sentences)], dtype=np.float64)

    def score(self, total: Array) -> float:
        """Return the perplexity of statistics (2,) summed over sentences."""
        return float(np.exp(total[0] / total[1]))
