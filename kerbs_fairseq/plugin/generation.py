"""``--kerbs-prune SHARE`` of fairseq-generate, -interactive and -eval-lm: leave out the least used senses.

A word loses its least used senses as long as they had, together, at most SHARE of the word's usage in training. Usage
is Σ P(sense) over the occurrences of the word as a target, a moving average over about the last 1/β updates. So SHARE
estimates how much the summed P(word) decreases in the contexts of the training. In the contexts that the usage was
counted in, with the weights of that time, it decreases by no more, if no sense of the word has moved since: a move sets
the usage of a sense to a mean (``keep``) or to a half (``split``). For other contexts there is no such bound.
"""

import argparse
import functools
import logging
from typing import Any, Callable

from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin.refusal import refuse

logger = logging.getLogger(__name__)

asked = {"share": 0.0}  # set by the command line of this process


class PruneAction(argparse.Action):
    """An action that stores the share for models that are loaded later: fairseq drops options that it does not know."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Store the share; refuse a value outside [0, 1)."""
        try:
            share = float(values)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            refuse(f"--kerbs-prune {values}: a share of at least 0 and below 1")
        asked["share"] = share


def with_prune(add: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap one of fairseq's functions that add options to a parser, so that it adds ``--kerbs-prune`` too."""

    def add_args(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        asked["share"] = 0.0  # forget the value of an earlier command line in this process
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
    """Add the option to fairseq's parsers, and prune where fairseq prepares a model for inference."""
    from fairseq import options
    from fairseq.models import BaseFairseqModel

    for name in ("add_generation_args", "add_eval_lm_args"):
        setattr(options, name, with_prune(getattr(options, name)))
    BaseFairseqModel.prepare_for_inference_ = pruning(BaseFairseqModel.prepare_for_inference_)


def pruning(prepare: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``prepare_for_inference_`` of any model: a KerBS layer keeps its word scorer, and is pruned."""

    @functools.wraps(prepare)
    def prepare_for_inference_(self: Any, cfg: Any) -> None:
        prepare(self, cfg)
        head = getattr(getattr(self, "decoder", None), "head", None)
        if isinstance(head, KernelizedBayesianSoftmax):
            head.for_inference = True  # fairseq refuses to train such a model
            prune(head)
        elif asked["share"]:
            logger.warning("--kerbs-prune has no effect: the model has no senses: its output layer is not KerBS")

    return prepare_for_inference_


def prune(head: KernelizedBayesianSoftmax) -> None:
    """Prune the senses of ``head`` as the command line asks, and log how many are left out."""
    head.prune = asked["share"]
    if not head.prune:
        return
    usage = head.statistics.usage
    if not bool(usage.any()):  # not counted, or reset at the last event (--kerbs-strategy released)
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
