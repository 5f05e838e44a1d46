"""``--kerbs-prune SHARE`` of fairseq-generate, -interactive and -eval-lm: leave out senses that training did not use.

A word loses its least used senses as long as they had, together, at most SHARE of the word's usage in training. So on
the contexts of the training P(word) falls by at most that share, on average over the word's occurrences.
"""

import argparse
import logging
from typing import Any, Callable

from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin.refusal import refuse

logger = logging.getLogger(__name__)

asked = {"share": 0.0}  # by the command line of this process


class PruneAction(argparse.Action):
    """Keeps the share for models that are loaded later: fairseq drops options that it does not know."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Refuse a value that is not a share."""
        try:
            share = float(values)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            refuse(f"--kerbs-prune {values}: a share of at least 0 and below 1")
        asked["share"] = share


def with_prune(add: Callable[..., Any]) -> Callable[..., Any]:
    """One of fairseq's functions that add options to a parser, with ours added."""

    def add_args(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        group = add(parser, *args, **kwargs)
        parser.add_argument(
            "--kerbs-prune",
            action=PruneAction,
            default=argparse.SUPPRESS,
            metavar="SHARE",
            help="KerBS models: leave out the least used senses of each word, which had together at most this share "
            "of its usage in training (default: 0, all senses are used)",
        )
        return group

    return add_args


def register() -> None:
    """Have the option in fairseq's parsers."""
    from fairseq import options

    for name in ("add_generation_args", "add_eval_lm_args"):
        setattr(options, name, with_prune(getattr(options, name)))


def prune(head: KernelizedBayesianSoftmax) -> None:
    """Before a model is used: leave out what the command line asks to leave out, and say what that saves."""
    head.prune = asked["share"]
    if not head.prune:
        return
    if not int(head.statistics.updates):
        logger.warning("--kerbs-prune has no effect: the model was trained without statistics of its senses")
        head.prune = 0.0
        return
    keep, usage = head.used_senses(head.prune), head.statistics.usage
    left_out = int((~keep).sum())
    lost = float(usage[~keep].sum() / usage.sum().clamp_min(1e-30))
    logger.info(
        "--kerbs-prune %g leaves out %d of %d senses (%.1f %%), which had %.2g of the probability of training targets",
        head.prune, left_out, len(keep), 100 * left_out / len(keep), lost,
    )  # fmt: skip
