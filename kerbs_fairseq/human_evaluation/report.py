"""The report of a study as plain data: means, agreement between raters, one-tailed t-tests.

The unit is the set: the scores of a system's response are averaged over raters, and standard deviations, intervals and
tests are computed over sets.
"""

import math
from collections import Counter
from fractions import Fraction
from statistics import mean, variance
from typing import Any, Optional

from kerbs_fairseq.human_evaluation import statistics
from kerbs_fairseq.human_evaluation.scores import SCALE, Scores
from kerbs_fairseq.runs.errors import UserError

OWN = "kerbs"
Sets = dict[int, dict[int, int]]  # {set: {rater: score}} of one system


def of_system(sets: Sets, raters: list[int]) -> dict[str, Any]:
    """Return mean, standard deviation and interval over sets, mean of each rater, and the count of each score."""
    per_set = [Fraction(sum(scores.values()), len(scores)) for scores in sets.values()]
    given = Counter(score for scores in sets.values() for score in scores.values())
    of_raters = {rater: [scores[rater] for scores in sets.values() if rater in scores] for rater in raters}
    return {
        "sets": len(per_set),
        "mean": float(mean(per_set)) if per_set else None,
        "standard_deviation": math.sqrt(variance(per_set)) if len(per_set) > 1 else None,
        "interval_95": statistics.interval(per_set),
        "raters": {str(rater): mean(map(float, each)) if each else None for rater, each in of_raters.items()},
        "scores": {str(score): given[score] for score in SCALE},
    }


def agreement(scores: Scores) -> dict[str, Any]:
    """Return the agreement between raters over responses; ``why_not`` says why a figure is missing."""
    units, raters = scores.by_response(), len(scores.raters)
    by_all = [unit for unit in units if len(unit) == raters]
    figures: dict[str, Any] = {
        "raters": raters,
        "responses": sum(len(unit) > 1 for unit in units),
        "responses_rated_by_all": len(by_all),
        "raw": statistics.raw_agreement(units),
        "fleiss_kappa": statistics.fleiss_kappa(by_all) if by_all else None,
        "krippendorff_alpha_ordinal": statistics.krippendorff_alpha(units),
        "why_not": None,
    }
    if raters < 2:
        figures["why_not"] = "one rater alone: there is nobody to agree with"
    elif figures["raw"] is None:
        figures["why_not"] = "no response was rated by two raters"
    elif figures["krippendorff_alpha_ordinal"] is None:
        figures["why_not"] = "all scores are the same: kappa and alpha are undefined"
    elif not by_all:
        figures["why_not"] = "no response was rated by all raters: kappa is undefined"
    elif figures["fleiss_kappa"] is None:
        figures["why_not"] = "all scores of the responses that all raters rated are the same: kappa is undefined"
    return figures


def comparison(better: Sets, other: Sets) -> dict[str, Any]:
    """Return both tests over the sets with both systems, from the raters who rated both."""
    pairs = []
    for number in sorted(better.keys() & other.keys()):
        both = better[number].keys() & other[number].keys()
        if both:
            pairs.append([Fraction(sum(of[number][rater] for rater in both), len(both)) for of in (better, other)])
    xs, ys = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return {
        "sets": len(pairs),
        "difference": float(mean(xs) - mean(ys)) if pairs else None,
        "paired": statistics.t_test(xs, ys, paired=True),
        "welch": statistics.t_test(xs, ys, paired=False),
    }


def tested(systems: list[str], test: Optional[str], baselines: list[str]) -> tuple[str, list[str]]:
    """Return the system to test, and those that it is compared with."""
    for name in [*([test] if test is not None else []), *baselines]:
        if name not in systems:
            raise UserError(f"there is no system {name!r} in this study: {', '.join(systems)}")
    own = [name for name in systems if name.lower() == OWN]
    chosen = test if test is not None else next((name for name in [*own, *systems] if name not in baselines), None)
    if chosen is None or chosen in baselines:
        raise UserError(f"{chosen or 'every system'} cannot be its own baseline")
    return chosen, list(dict.fromkeys(baselines)) or [name for name in systems if name != chosen]


def report(scores: Scores, test: Optional[str] = None, baselines: Optional[list[str]] = None) -> dict[str, Any]:
    """Return the whole report, ready for JSON: None for undefined figures, with the reason."""
    chosen, others = tested(scores.systems, test, baselines or [])
    by_system = scores.by_system()
    return {
        "sets": len({number for sets in by_system.values() for number in sets}),
        "raters": scores.raters,
        "scores": len(scores.of),
        "missing": scores.missing,
        "systems": {name: of_system(sets, scores.raters) for name, sets in by_system.items()},
        "agreement": agreement(scores),
        "tests": {
            "hypothesis": f"the mean score of {chosen} is greater (one-tailed t-test over sets)",
            "system": chosen,
            "against": {name: comparison(by_system[chosen], by_system[name]) for name in others},
        },
    }
