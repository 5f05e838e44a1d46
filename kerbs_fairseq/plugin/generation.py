"""``--kerbs-prune SHARE`` of fairseq-generate, -interactive and -eval-lm: leave out senses that training did not use.

A word loses its least used senses as long as they had, together, at most SHARE of the word's usage in training. Usage
is Σ P(sense) over the occurrences of the word as a target, a mean in which the last 1/β updates count most. So SHARE is
an estimate of how much the summed P(word) falls on the contexts of the training. On those that the usage was counted
from, with the weights of that time, it falls by no more, if no sense of the word has moved since: a move sets the usage
of a sense to a mean (``keep``) or to a half (``split``). No word is sure to lose as little on other contexts.
"""

import argparse
import functools
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
        asked["share"] = 0.0  # a new command line; that of an earlier command in this process is over
        group = add(parser, *args, **kwargs)
        parser.add_argument(
            "--kerbs-prune",
            action=PruneAction,
            default=argparse.SUPPRESS,
            metavar="SHARE",
            help="KerBS models: leave out the least used senses of each word, which had together at most this share "
            "of its usage in training: an estimate of how much its probability falls (default: 0, all senses are used)",
        )
        return group

    return add_args


def register() -> None:
    """Have the option in fairseq's parsers, and its effect where fairseq prepares a model for use."""
    from fairseq import options
    from fairseq.models import BaseFairseqModel

    for name in ("add_generation_args", "add_eval_lm_args"):
        setattr(options, name, with_prune(getattr(options, name)))
    BaseFairseqModel.prepare_for_inference_ = pruning(BaseFairseqModel.prepare_for_inference_)


def pruning(prepare: Callable[..., None]) -> Callable[..., None]:
    """``prepare_for_inference_`` of any model, with pruning behind it."""

    @functools.wraps(prepare)
    def prepare_for_inference_(self: Any, cfg: Any) -> None:
        prepare(self, cfg)
        head = getattr(getattr(self, "decoder", None), "head", None)
        if isinstance(head, KernelizedBayesianSoftmax):
            prune(head)
        elif asked["share"]:
            logger.warning("--kerbs-prune has no effect: the model has no senses: its output layer is not KerBS")

    return prepare_for_inference_


def prune(head: KernelizedBayesianSoftmax) -> None:
    """Before a model is used: leave out what the command line asks to leave out, and say what that saves."""
    head.prune = asked["share"]
    if not head.prune:
        return
    usage = head.statistics.usage
    if not bool(usage.any()):  # not counted, or all forgotten at the last event (--kerbs-strategy released)
        logger.warning("--kerbs-prune has no effect: the model has no statistics of its senses")
        head.prune = 0.0
        return
    keep = head.used_senses(head.prune)
    left_out = int((~keep).sum())
    lost = float(usage[~keep].sum() / usage.sum())
    logger.info(
        "--kerbs-prune %g leaves out %d of %d senses (%.1f %%), which had %.2g of the usage in training",
        head.prune, left_out, len(keep), 100 * left_out / len(keep), lost,
    )  # fmt: skip
