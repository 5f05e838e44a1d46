"""The loss and its gradients, chunk by chunk over the tokens; no (tokens, senses) table is kept in memory.

For a chunk of tokens the inner products with all senses are computed, turned into the gradient of the loss by them (see
:mod:`kerbs_fairseq.functional.backends.base`), and multiplied back into the gradients of features and vectors; then the
chunk is forgotten. Three matrix products, the least there can be, and memory for one chunk only.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import (
    ChunkKernels,
    ChunkTotals,
    FeatureNorms,
    KernelValues,
    SenseConstants,
    kernel_values,
    norm_and_theta_gradients,
    products_table,
)
from kerbs_fairseq.functional.backends.dispatch import chunk_kernels, chunk_size
from kerbs_fairseq.functional.kernel import at_least_float32, check_kernel, full_precision
from kerbs_fairseq.functional.types import Loss, Senses, Smoothing

ROWS = 4096  # of a table that is gone through in parts, to have a small part of it in memory twice


class Batch(NamedTuple):
    """``features`` (tokens, d), ``target`` (tokens,), ``weight`` (tokens,), and how the loss is computed."""

    features: Tensor
    target: Tensor
    weight: Tensor
    label_smoothing: float
    chunk: int


class Gradients(NamedTuple):
    """Of features (tokens, d), vectors (senses, d), θ (senses,) and bias (senses,); None where there is none."""

    features: Tensor
    vectors: Tensor
    theta: Optional[Tensor]
    bias: Optional[Tensor]


class Outputs(NamedTuple):
    """log P(target) (tokens,), log P of each sense of the target (tokens, k), Σ_words log P (tokens,), gradients."""

    log_prob: Tensor
    sense_log_prob: Tensor
    log_prob_sum: Optional[Tensor]
    gradients: Optional[Gradients]


class TargetSenses(NamedTuple):
    """The target's senses: which (n, k), 0 for none; their kernel values, K − top, and its log-sum-exp (n, 1)."""

    senses: Tensor
    values: KernelValues
    scores: Tensor
    logsumexp: Tensor

    @classmethod
    def of(
        cls,
        D: Tensor,
        target: Tensor,
        norms: FeatureNorms,
        top: Tensor,
        senses: Senses,
        constants: Optional[SenseConstants],
    ) -> "TargetSenses":
        """For a chunk: D (n, S), ``target`` (n,), ``top`` (n, 1)."""
        own = senses.index.rows(target)
        missing, own = own < 0, own.clamp_min(0)
        values = kernel_values(D.gather(1, own), norms.inverse, constants and constants.at(own), senses.kernel)
        scores = values.k * norms.norm
        if senses.bias is not None:
            scores = scores + senses.bias[own]
        scores = (scores - top).masked_fill(missing, -torch.inf)
        return cls(own, values, scores, torch.logsumexp(scores, 1, keepdim=True))


class GradientSums:
    """The gradients of one batch, assembled chunk by chunk."""

    def __init__(self, batch: Batch, senses: Senses, constants: Optional[SenseConstants]) -> None:
        self.batch, self.senses, self.constants = batch, senses, constants
        self.features = torch.empty_like(batch.features)
        self.vectors = torch.empty_like(senses.vectors) if len(batch.features) else torch.zeros_like(senses.vectors)

    def add(
        self, at: slice, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, own: TargetSenses, kernels: ChunkKernels
    ) -> None:
        """A chunk, whose D (n, S) is overwritten.

        d nll / dK = P(sense) − P(sense | its word is the target); d log P(word) / dK = P(sense | word) − P(sense).
        """
        V = self.senses.index.n_words
        features, weight = self.batch.features[at], self.batch.weight[at].unsqueeze(1)
        smoothing = Smoothing.of(self.batch.label_smoothing, V)
        scale, smooth = (smoothing.nll + smoothing.word * V) * weight / totals.total, smoothing.word * weight
        G_own = torch.exp(own.scores - own.logsumexp) * (-smoothing.nll * weight)
        dD = kernels.backward(D, norms, totals, scale, smooth)
        dD.scatter_add_(1, own.senses, G_own * own.values.slope)
        # by the direction, divided by the norm: the norm cancels against the one in K = |h| |w| k + b
        torch.mm(dD, self.senses.vectors, out=self.features[at])
        self.vectors.addmm_(dD.t(), features, beta=1 if at.start else 0)
        flat = own.senses.flatten()
        if self.senses.bias is not None:
            kernels.sums[3].index_add_(0, flat, G_own.flatten())
        if self.constants is None:
            return
        by_norm = scale * totals.mean + (G_own * own.values.k).sum(1, keepdim=True)
        if totals.word_mean is not None:
            by_norm -= smooth * totals.word_mean
        add_norm_gradient(self.features[at], features, norms.inverse, by_norm)
        for sums, values in zip(kernels.sums, (own.values.F, own.values.T, own.values.linear)):
            sums.index_add_(0, flat, (G_own * norms.norm * values).flatten())

    def finish(self, sums: Tensor) -> Gradients:
        """After the last chunk, with the sums (4, S) of the chunk kernels."""
        bias = None if self.senses.bias is None else sums[3].clone()
        if self.constants is None:
            return Gradients(self.features, self.vectors, None, bias)
        by_norm, theta = norm_and_theta_gradients(sums, self.constants)
        add_norm_gradient(
            self.vectors, self.senses.vectors, self.constants.w_inverse.unsqueeze(1), by_norm.unsqueeze(1)
        )
        return Gradients(self.features, self.vectors, theta, bias)


def add_norm_gradient(gradient: Tensor, vectors: Tensor, inverse: Tensor, by_norm: Tensor) -> None:
    """Complete the gradient by ``vectors`` (rows, d), in place: so far it is that by the direction, over the norm.

    ``inverse`` (rows, 1) of the norm, ``by_norm`` (rows, 1) the gradient by the norm.
    """
    for g, v, i, by in zip(*(x.split(ROWS) for x in (gradient, vectors, inverse, by_norm))):
        radial = (g * v).sum(1, keepdim=True) * i
        g.addcmul_(v, (by - radial) * i)


def over_chunks(batch: Batch, senses: Senses, want_gradients: bool) -> Outputs:
    """Go over all chunks; all floats are of one dtype."""
    features, target = batch.features, batch.target
    N, (S, _), V = len(features), senses.vectors.shape, senses.index.n_words
    constants = SenseConstants.of(senses.vectors, senses.theta, senses.kernel)
    all_norms, kernels = FeatureNorms.of(features, senses.kernel), chunk_kernels(senses, constants)
    log_prob, sense_log_prob = features.new_empty(N), features.new_empty(N, senses.index.largest)
    log_prob_sum = features.new_empty(N) if batch.label_smoothing else None
    gradients = GradientSums(batch, senses, constants) if want_gradients else None
    workspace = products_table(min(batch.chunk, N), S, features)
    for i in range(0, N, batch.chunk):
        at = slice(i, min(i + batch.chunk, N))
        norms = all_norms.chunk(at)
        D = torch.mm(features[at], senses.vectors.t(), out=workspace[: at.stop - i])
        totals = kernels.forward(D, norms, bool(batch.label_smoothing))
        own, log_total = TargetSenses.of(D, target[at], norms, totals.top, senses, constants), totals.total.log()
        log_prob[at], sense_log_prob[at] = (own.logsumexp - log_total).squeeze(1), own.scores - log_total
        if log_prob_sum is not None and totals.word_sum is not None:
            log_prob_sum[at] = (totals.word_sum - V * log_total).squeeze(1)
        if gradients is not None:
            gradients.add(at, D, norms, totals, own, kernels)
    done = None if gradients is None else gradients.finish(kernels.sums)
    return Outputs(log_prob, sense_log_prob, log_prob_sum, done)


class _ChunkedLoss(torch.autograd.Function):
    """The fields of :class:`Loss`, with the gradients of the first computed on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        vectors: Tensor,
        theta: Optional[Tensor],
        bias: Optional[Tensor],
        batch: Batch,
        senses: Senses,
        training: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        senses = replace(senses, vectors=vectors, theta=theta, bias=bias)
        batch = batch._replace(features=features)
        outputs = over_chunks(batch, senses, training and any(ctx.needs_input_grad[:4]))
        smoothing = Smoothing.of(batch.label_smoothing, senses.index.n_words)
        loss = -smoothing.nll * outputs.log_prob
        if outputs.log_prob_sum is not None:
            loss = loss - smoothing.word * outputs.log_prob_sum
        if outputs.gradients is not None:
            ctx.save_for_backward(features, vectors, theta, bias)
            ctx.gradients, ctx.settings = outputs.gradients, (batch, senses)
            ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(outputs.sense_log_prob)
        return (loss * batch.weight).sum(), outputs.log_prob, outputs.sense_log_prob

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, by_loss: Optional[Tensor], by_log_prob: Optional[Tensor], _: None
    ) -> tuple[Optional[Tensor], ...]:
        features, vectors, theta, bias = ctx.saved_tensors
        batch, senses = ctx.settings
        batch = batch._replace(features=features)
        senses = replace(senses, vectors=vectors, theta=theta, bias=bias)
        result: list[Optional[Tensor]] = [None] * 4
        if by_loss is not None:
            gradients, ctx.gradients = ctx.gradients, None  # given away without a copy; if asked again, compute again
            if gradients is None:
                gradients = over_chunks(batch, senses, True).gradients
            result = [None if g is None else g.mul_(by_loss) for g in gradients]
        if by_log_prob is not None:  # somebody uses the log-probabilities themselves: once more, weighted by them
            again = over_chunks(batch._replace(weight=-by_log_prob, label_smoothing=0.0), senses, True).gradients
            assert again is not None
            result = [b if a is None else a if b is None else a + b for a, b in zip(result, again)]
        return (*result, None, None, None)


def chunked_loss(
    features: Tensor,
    senses: Senses,
    target: Tensor,
    weight: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    chunk: int = 0,
) -> Loss:
    """Σ_n weight_n loss_n, a scalar, and log P(target) (tokens,), which can be differentiated; log P of its senses.

    ``features`` (tokens, d), ``target`` (tokens,), ``weight`` (tokens,) or None for 1, which gets no gradient.
    The loss is −log P(target), or the label-smoothed one as fairseq defines it. ``chunk`` tokens are computed at a
    time; 0 chooses. Gradients come back in the dtype of what was given, from float32 mathematics.
    """
    check_kernel(senses.kernel)
    h, vectors = at_least_float32(features), at_least_float32(senses.vectors)
    theta, bias = (None if x is None else at_least_float32(x) for x in (senses.theta, senses.bias))
    weight = h.new_ones(h.size(0)) if weight is None else weight.detach().to(h.dtype)
    batch = Batch(h, target, weight, label_smoothing, chunk or chunk_size(vectors))
    with full_precision(h.device):
        return Loss(*_ChunkedLoss.apply(h, vectors, theta, bias, batch, senses, torch.is_grad_enabled()))
