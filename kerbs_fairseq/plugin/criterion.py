"""``--criterion kerbs_cross_entropy``: trains and validates twins without a table of all words or senses."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import metrics, models, utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import Tensor

from kerbs_fairseq.plugin.decoders import KerbsDecoder, features_of
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.plugin.unsupported import REASONS

logger = logging.getLogger(__name__)


@dataclass
class KerbsCrossEntropyConfig(FairseqDataclass):
    """Options of the criterion."""

    label_smoothing: float = field(
        default=0.0, metadata={"help": "label smoothing, 0 (none) up to 1, as in label_smoothed_cross_entropy"}
    )
    sentence_avg: bool = II("optimization.sentence_avg")


def kerbs_decoder(model: Any) -> KerbsDecoder:
    """The decoder of a twin; anything else is refused with the name of the twin to use."""
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, KerbsDecoder):
        return decoder
    while hasattr(model, "module"):  # what fairseq wraps around a model that is trained by several processes
        model = model.module
    names = [name for name, known in models.MODEL_REGISTRY.items() if type(model) is known]
    base = getattr(model, "twin_of", names[0] if names else "…")
    if base in REASONS:
        refuse(
            f"kerbs_cross_entropy trains models with a KerBS output layer, which {base} cannot have: {REASONS[base]}"
        )
    refuse(
        "kerbs_cross_entropy trains models with a KerBS output layer, and this one has another: put kerbs_ before the "
        f"name of its architecture (--arch kerbs_{base}, or whichever it is); "
        "or train it with --criterion cross_entropy"
    )


@register_criterion("kerbs_cross_entropy", dataclass=KerbsCrossEntropyConfig)
class KerbsCrossEntropy(FairseqCriterion):
    """−log P(target) of a KerBS decoder, label-smoothed if asked for."""

    def __init__(self, task: Any, sentence_avg: bool, label_smoothing: float) -> None:
        super().__init__(task)
        if not 0.0 <= label_smoothing < 1.0:
            refuse(f"--label-smoothing {label_smoothing:g}: it must be at least 0 and below 1")
        self.sentence_avg, self.label_smoothing = sentence_avg, label_smoothing
        per = "sentence, nll_loss in bits per token" if sentence_avg else "token, nll_loss too"
        logger.info(f"loss is logged in bits (base 2) per {per}; ppl is 2^nll_loss")

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """fairseq's contract: (loss, sample size, logging output), sums over the batch."""
        decoder = kerbs_decoder(model)
        decoder.head.statistics.in_use = True  # also on a worker whose first batch fails
        with features_of(decoder):
            net_output = model(**sample["net_input"])
        target = model.get_targets(sample, net_output)
        loss, nll_loss = self.losses(decoder, net_output[0], target)
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": loss.data,
            "nll_loss": nll_loss,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        return loss, sample_size, logging_output

    def losses(self, decoder: KerbsDecoder, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, −log P(target)), sums in nats over what is not padding: features (B, T, d), target (B, T)."""
        features, target = features.reshape(-1, features.size(-1)), target.reshape(-1)
        real = target.ne(self.padding_idx)
        if features.device.type == "cpu":  # elsewhere this would wait for the device: there padding gets weight 0
            features, target = features[real], target[real]
            real = torch.ones_like(target, dtype=torch.bool)
        weight = real.to(torch.float32)
        loss, log_prob = decoder.head.loss(features, target, weight, self.label_smoothing)
        return loss, -(log_prob.detach() * weight).sum()

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Aggregate over workers and micro-batches."""

        def total(name: str) -> Any:
            return sum(output.get(name, 0) for output in logging_outputs)

        sample_size, tokens = total("sample_size"), total("ntokens")
        metrics.log_scalar("loss", total("loss") / sample_size / math.log(2), sample_size, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / tokens / math.log(2), tokens, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """All are sums."""
        return True
