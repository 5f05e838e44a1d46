"""Significance of differences: a paired bootstrap over the test sentences, and a paired t-test over seeds.

The bootstrap estimates how often one system is no better than another on test sets resampled from this one; the t-test,
how likely such differences are over seeds if the systems are equally good.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional, Union

import numpy as np

from kerbs_fairseq.evaluation.scores import Array, Bleu, Perplexity
from kerbs_fairseq.runs.errors import UserError

SAMPLES = 1000


@dataclass(frozen=True)
class Comparison:
    """Comparison of a system with a baseline; scores are means over seeds."""

    difference: float  # system minus baseline
    low: float  # 95 % of the differences lie between these two
    high: float
    p: float  # one-sided: the share of test sets on which the system is not better


def means(scorer: Union[Bleu, Perplexity], statistics: Array, weights: Array) -> Array:
    """Return scores (sets,), averaged over seeds, of statistics (seeds, sentences, k) and weights (sets, sentences)."""
    totals = np.einsum("bn,snk->bsk", weights, statistics)
    return np.array([np.mean([scorer.score(total) for total in seeds]) for seeds in totals])


def paired_bootstrap(
    scorer: Union[Bleu, Perplexity], system: Array, baseline: Array, samples: int = SAMPLES, seed: int = 1
) -> Comparison:
    """Compare statistics (seeds, sentences, k) of the same sentences; seeds may differ in number.

    Sentences are drawn with replacement, the same ones for both systems and all seeds. So p reflects the choice of test
    sentences, not the variation between seeds.
    """
    n = system.shape[1]
    if baseline.shape[1] != n:
        raise UserError(f"{n} sentences against {baseline.shape[1]}: these are different test sets")
    weights = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=samples).astype(np.float64)
    everything = np.ones((1, n))
    difference = float((means(scorer, system, everything) - means(scorer, baseline, everything))[0])
    drawn = means(scorer, system, weights) - means(scorer, baseline, weights)
    better = drawn > 0 if scorer.larger_is_better else drawn < 0
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Comparison(difference, float(low), float(high), (int((~better).sum()) + 1) / (samples + 1))


@dataclass(frozen=True)
class TTest:
    """t-test of the differences between a system and a baseline over seeds."""

    t: float
    p: float  # one-sided: the probability of a t at least as good


def paired_t_test(system: Sequence[float], baseline: Sequence[float], larger_is_better: bool) -> Optional[TTest]:
    """Compare scores of the same seeds in the same order; None if fewer than two, or if all differences are equal."""
    if len(system) != len(baseline):
        raise UserError(f"{len(system)} seeds against {len(baseline)}: the test needs pairs")
    differences = {round(a - b, 12) for a, b in zip(system, baseline)}
    if len(differences) < 2:  # no spread to compare with
        return None
    from scipy import stats

    test = stats.ttest_rel(system, baseline, alternative="greater" if larger_is_better else "less")
    return TTest(float(test.statistic), float(test.pvalue))
