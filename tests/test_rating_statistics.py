"""kerbs-rate's statistics against densities, textbooks and brute force."""

import itertools
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerbs_fairseq.human_evaluation import statistics


def test_constant_thirds_are_seen_as_constant() -> None:
    thirds, more = [Fraction(1, 3)] * 5, [Fraction(2, 3), Fraction(1), Fraction(4, 3), Fraction(0), Fraction(1, 3)]
    shifted = [value - Fraction(1, 3) for value in more]
    why_not = "undefined: the difference is +0.33 in every set"
    assert statistics.t_test(more, shifted, paired=True) == {"t": None, "df": None, "p": None, "why_not": why_not}
    assert statistics.t_test(thirds, more, paired=False)["df"] == pytest.approx(4)
    assert statistics.interval(thirds) is None


MEANS = st.lists(st.tuples(*[st.integers(0, 6).map(lambda n: Fraction(n, 3))] * 2), min_size=2, max_size=30)


def upper_tail(t: float, df: float) -> float:
    """P(T > t) by integrating Student's density."""
    scale = mpmath.gamma((df + 1) / 2) / (mpmath.sqrt(df * mpmath.pi) * mpmath.gamma(df / 2))
    half = mpmath.quad(lambda x: scale * (1 + x * x / df) ** (-(df + 1) / 2), mpmath.linspace(0, abs(t), 5))
    return float(0.5 - half if t > 0 else 0.5 + half)


@settings(max_examples=25, deadline=None)
@given(MEANS)
def test_t_tests_against_the_density(pairs: list[tuple[Fraction, Fraction]]) -> None:
    xs, ys = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    n = len(pairs)

    def mean_and_error(values: list[float]) -> tuple[float, float]:
        m = sum(values) / n
        return m, sum((value - m) ** 2 for value in values) / (n - 1) / n

    for paired in (True, False):
        test = statistics.t_test(*zip(*pairs), paired=paired)
        if test["why_not"]:
            assert len({a - b for a, b in pairs}) == 1 or len(set(pairs)) == 1
            continue
        if paired:
            m, error = mean_and_error([x - y for x, y in zip(xs, ys)])
            df = n - 1
        else:
            (a, e), (b, f) = mean_and_error(xs), mean_and_error(ys)
            m, error, df = a - b, e + f, (e + f) ** 2 / ((e**2 + f**2) / (n - 1))
        assert test["t"] == pytest.approx(m / error**0.5, rel=1e-6, abs=1e-9)
        assert test["df"] == pytest.approx(df, rel=1e-6)
        assert test["p"] == pytest.approx(upper_tail(m / error**0.5, df), rel=1e-4, abs=1e-7)


def test_interval_of_a_textbook() -> None:
    # five values of mean 3 and variance 2.5; the table of Student's t has 2.776 for 4 degrees of freedom
    low, high = statistics.interval([Fraction(i) for i in (1, 2, 3, 4, 5)])
    assert (low, high) == (pytest.approx(3 - 2.776 * 0.5**0.5, abs=1e-3), pytest.approx(3 + 2.776 * 0.5**0.5, abs=1e-3))


def test_kappa_of_the_worked_example() -> None:
    # ten subjects, fourteen raters, five categories: the worked example of Fleiss' kappa, 0.210
    table = "0 0 0 0 14/0 2 6 4 2/0 0 3 5 6/0 3 9 2 0/2 2 8 1 1/7 7 0 0 0/3 2 6 3 0/2 5 3 2 2/6 5 2 1 0/0 2 2 3 7"
    units = [[c for c, n in enumerate(line.split()) for _ in range(int(n))] for line in table.split("/")]
    assert statistics.fleiss_kappa(units) == pytest.approx(0.210, abs=5e-4)


def test_alpha_of_the_worked_example() -> None:
    # four observers, twelve units, missing values: Krippendorff's own example, 0.815 for ordinal data
    observers = ["1233214 12...", "1 2 3 3 2 2 4 1 2 5 . 3", ". 3 3 3 2 3 4 2 2 5 1 .", "1 2 3 3 2 4 4 1 2 5 1 ."]
    table = [line.replace(" ", "") for line in observers]
    units = [[int(c) for c in column if c != "."] for column in zip(*table)]
    assert len(units) == 12
    assert statistics.krippendorff_alpha(units) == pytest.approx(0.815, abs=5e-4)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=12))
def test_agreement_by_counting_pairs(units: list[list[int]]) -> None:
    pairs = [(a, b) for unit in units for a, b in itertools.permutations(unit, 2)]
    every = [score for unit in units for score in unit]
    equal = sum(a == b for a, b in pairs) / len(pairs)
    assert statistics.raw_agreement(units) == pytest.approx(equal)
    kappa, alpha = statistics.fleiss_kappa(units), statistics.krippendorff_alpha(units)
    if len(set(every)) == 1:
        assert kappa is alpha is None
        return
    chance = sum(a == b for a in every for b in every) / len(every) ** 2
    assert kappa == pytest.approx((equal - chance) / (1 - chance))
    ranks = {s: sum(x < s for x in every) + (every.count(s) + 1) / 2 for s in every}  # ordinal: squares of mean ranks

    def apart(of: list[tuple[int, int]]) -> float:
        return sum((ranks[a] - ranks[b]) ** 2 for a, b in of) / len(of)

    assert alpha == pytest.approx(1 - apart(pairs) / apart(list(itertools.permutations(every, 2))))
