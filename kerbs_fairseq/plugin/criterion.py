"""``--criterion kerbs_cross_entropy``: train and validate ``kerbs_X`` without a table of all words or senses."""

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import metrics, models, utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from fairseq.dataclass import FairseqDataclass
from omegaconf import II
from torch import Tensor

from kerbs_fairseq.plugin.decoders import KerbsDecoder, features_of
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.plugin.unsupported import REASONS

logger = logging.getLogger(__name__)

ACCURACY_CHUNK = 1024  # tokens per chunk when the accuracy is computed


@dataclass
class KerbsCrossEntropyConfig(FairseqDataclass):
    """Options of the criterion."""

    label_smoothing: float = field(
        default=0.0, metadata={"help": "label smoothing, 0 (none) up to 1, as in label_smoothed_cross_entropy"}
    )
    report_accuracy: bool = field(
        default=False, metadata={"help": "report the accuracy of words (needs the scores of all words once more)"}
    )
    ignore_prefix_size: int = field(default=0, metadata={"help": "ignore the first tokens of every sentence"})
    sentence_avg: bool = II("optimization.sentence_avg")


def kerbs_decoder(model: Any) -> KerbsDecoder:
    """Return the KerBS decoder of ``model``; refuse any other model and name the architecture to use."""
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, KerbsDecoder):
        return decoder
    while hasattr(model, "module"):  # fairseq's wrapper of a model that is trained by several processes
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


def accuracy_of(meters: Any) -> float:
    """Return the accuracy in per cent of the words, as fairseq's criteria log it."""
    total = float(meters["total"].sum)
    return round(float(meters["n_correct"].sum) * 100 / total, 3) if total else float("nan")


@register_criterion("kerbs_cross_entropy", dataclass=KerbsCrossEntropyConfig)
class KerbsCrossEntropy(FairseqCriterion):
    """The cross-entropy −log P(target) of a KerBS decoder, with optional label smoothing."""

    def __init__(
        self,
        task: Any,
        sentence_avg: bool,
        label_smoothing: float = 0.0,
        report_accuracy: bool = False,
        ignore_prefix_size: int = 0,
    ) -> None:
        super().__init__(task)
        if not 0.0 <= label_smoothing < 1.0:
            refuse(f"--label-smoothing {label_smoothing:g}: it must be at least 0 and below 1")
        if ignore_prefix_size < 0:
            refuse(f"--ignore-prefix-size {ignore_prefix_size}: it must be 0 or more")
        self.sentence_avg, self.label_smoothing = sentence_avg, label_smoothing
        per = "sentence, nll_loss in bits per token" if sentence_avg else "token, nll_loss too"
        logger.info(f"loss is logged in bits (base 2) per {per}; ppl is 2^nll_loss")
        self.report_accuracy, self.ignore_prefix_size = report_accuracy, ignore_prefix_size

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> tuple[Tensor, int, dict[str, Any]]:
        """Return (loss, sample size, logging output) as fairseq expects them; losses are sums over the batch.

        Without ``reduce`` the losses are those of each token (batch · length,), 0 for padding. They are computed from
        a table of all words and do not enter the statistics of senses.
        """
        decoder = kerbs_decoder(model)
        correct: dict[str, Any] = {}
        if reduce:
            decoder.head.statistics.in_use = True  # also on a worker whose first batch fails
            with features_of(decoder):
                net_output = model(**sample["net_input"])
            target = model.get_targets(sample, net_output)
            features, rest = self.without_prefix(net_output[0]), self.without_prefix(target)
            loss, nll_loss = self.losses(decoder, features, rest)
            if self.report_accuracy:
                correct = self.accuracy(decoder, features, rest)
        else:
            net_output = model(**sample["net_input"])
            target = model.get_targets(sample, net_output)
            loss, nll_loss = self.compute_loss(model, net_output, sample, reduce=False)
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": loss.data,
            "nll_loss": nll_loss,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
            **correct,
        }
        return loss, sample_size, logging_output

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return (loss, −log P(target)) of a decoder's output, in nats; for tasks that call the decoder themselves."""
        kerbs_decoder(model)
        log_probs = self.without_prefix(model.get_normalized_probs(net_output, log_probs=True))
        target = self.without_prefix(model.get_targets(sample, net_output)).reshape(-1, 1)
        loss, nll_loss = label_smoothed_nll_loss(
            log_probs.reshape(-1, log_probs.size(-1)), target, self.label_smoothing, self.padding_idx, reduce
        )
        return (loss, nll_loss) if reduce else (loss.squeeze(-1), nll_loss.squeeze(-1))

    def without_prefix(self, x: Tensor) -> Tensor:
        """Return ``x`` (batch, length, ...) without the first ``ignore_prefix_size`` tokens."""
        return x[:, self.ignore_prefix_size :]

    @torch.no_grad()
    def accuracy(self, decoder: KerbsDecoder, features: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Count the targets (batch, length) that are the most probable word given ``features`` (batch, length, d)."""
        real = target.ne(self.padding_idx)
        rows = features.detach().reshape(-1, features.size(-1)).split(ACCURACY_CHUNK)
        best = torch.cat([decoder.head.predict(part) for part in rows]).view_as(target)
        return {"n_correct": (best.eq(target) & real).sum(), "total": real.sum()}

    def losses(self, decoder: KerbsDecoder, features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return (loss, −log P(target)), sums in nats without padding: features (B, T, d), target (B, T)."""
        features, target = features.reshape(-1, features.size(-1)), target.reshape(-1)
        real = target.ne(self.padding_idx)
        if features.device.type == "cpu":  # elsewhere this would synchronize the device: there padding gets weight 0
            features, target = features[real], target[real]
            real = torch.ones_like(target, dtype=torch.bool)
        weight = real.to(torch.float32)
        loss, log_prob = decoder.head.loss(features, target, weight, self.label_smoothing)
        return loss, -(log_prob.detach() * weight).sum()

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Aggregate the logging outputs over workers and micro-batches."""

        def total(name: str) -> Any:
            return sum(output.get(name, 0) for output in logging_outputs)

        sample_size, tokens = total("sample_size"), total("ntokens")
        metrics.log_scalar("loss", total("loss") / sample_size / math.log(2), sample_size, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / tokens / math.log(2), tokens, round=3)
        if any("total" in output for output in logging_outputs):
            metrics.log_scalar("total", total("total"))
            metrics.log_scalar("n_correct", total("n_correct"))
            metrics.log_derived("accuracy", accuracy_of)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: all logging outputs are sums."""
        return True
