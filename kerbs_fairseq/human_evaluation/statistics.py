"""Statistics of ratings: agreement between raters, and one-tailed t-tests; None if undefined."""

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from statistics import mean, variance
from typing import Any, Optional

Unit = Sequence[int]  # the scores of one response, one from each rater who rated it


def raw_agreement(units: Sequence[Unit]) -> Optional[float]:
    """Return the share of equal pairs among the scores of a response, averaged over responses."""
    shares = [
        Fraction(sum(n * (n - 1) for n in Counter(unit).values()), len(unit) * (len(unit) - 1))
        for unit in units
        if len(unit) > 1
    ]
    return float(mean(shares)) if shares else None


def fleiss_kappa(units: Sequence[Unit]) -> Optional[float]:
    """Return Fleiss' kappa of responses with equal numbers of scores; None if the expected agreement is 1."""
    if len({len(unit) for unit in units}) != 1 or len(units[0]) < 2:
        return None
    total = Counter(score for unit in units for score in unit)
    count = sum(total.values())
    expected = sum(Fraction(n, count) ** 2 for n in total.values())
    if expected == 1:
        return None
    observed = mean(
        Fraction(sum(n * (n - 1) for n in Counter(unit).values()), len(unit) * (len(unit) - 1)) for unit in units
    )
    return float((observed - expected) / (1 - expected))


def krippendorff_alpha(units: Sequence[Unit]) -> Optional[float]:
    """Return Krippendorff's alpha for ordinal scores; responses with fewer than two scores are ignored."""
    pairable = [unit for unit in units if len(unit) > 1]
    total = Counter(score for unit in pairable for score in unit)
    if len(total) < 2:
        return None
    values = sorted(total)

    def distance(a: int, b: int) -> Fraction:
        low, high = min(a, b), max(a, b)
        between = sum(total[value] for value in values if low <= value <= high)
        return (between - Fraction(total[a] + total[b], 2)) ** 2

    def disagreement(counts: Counter[int]) -> Fraction:
        pairs = sum(counts[a] * counts[b] * distance(a, b) for a in counts for b in counts if a != b)
        return Fraction(pairs) / (sum(counts.values()) - 1)

    observed = sum(disagreement(Counter(unit)) for unit in pairable)
    return float(1 - observed / disagreement(total))


def interval(values: Sequence[Fraction], level: float = 0.95) -> Optional[tuple[float, float]]:
    """Return Student's confidence interval of the mean; None if all values are equal."""
    if len(set(values)) < 2:
        return None
    from scipy import stats

    half = float(stats.t.ppf((1 + level) / 2, len(values) - 1)) * math.sqrt(variance(values) / len(values))
    return float(mean(values)) - half, float(mean(values)) + half


def no_test(reason: str) -> dict[str, Any]:
    """Return a test without a result."""
    return {"t": None, "df": None, "p": None, "why_not": reason}


def t_test(better: Sequence[Fraction], other: Sequence[Fraction], paired: bool) -> dict[str, Any]:
    """Return a one-tailed t-test of H1: the mean of ``better`` is greater (Welch's if not ``paired``), or why not."""
    n = len(better)
    if n < 2:
        return no_test("needs at least two sets")
    if paired:
        differences = {a - b for a, b in zip(better, other)}
        if len(differences) == 1:
            return no_test(f"undefined: the difference is {float(differences.pop()):+.2f} in every set")
        df = float(n - 1)
    else:
        a, b = variance(better) / n, variance(other) / n
        if a + b == 0:
            return no_test("undefined: each system has the same score in every set")
        df = float((a + b) ** 2 * (n - 1) / (a**2 + b**2))
    from scipy import stats

    xs, ys = [float(x) for x in better], [float(y) for y in other]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns if a system has the same score everywhere
        if paired:
            test = stats.ttest_rel(xs, ys, alternative="greater")
        else:
            test = stats.ttest_ind(xs, ys, equal_var=False, alternative="greater")
    return {"t": float(test.statistic), "df": df, "p": float(test.pvalue), "why_not": None}
