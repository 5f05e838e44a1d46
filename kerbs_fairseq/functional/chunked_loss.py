"""The loss and its gradients, chunk by chunk over the tokens; no (tokens, senses) table is kept in memory.

For a chunk of tokens, the inner products with all senses are computed, turned into the gradient of the loss w.r.t. them
(see :mod:`kerbs_fairseq.functional.backends.base`), and that is multiplied into the gradients w.r.t. features and
vectors. This takes three matrix products, the minimum, and memory for one chunk.
"""

from dataclasses import replace
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import (
    ChunkTotals,
    FeatureNorms,
    GradientWeights,
    LossKernels,
    SenseConstants,
    mathematics,
    norm_and_theta_gradients,
    products_table,
)
from kerbs_fairseq.functional.backends.dispatch import BACKENDS, backend_of, chunk_size
from kerbs_fairseq.functional.backends.half_products import add_product, as_multiplied, gradient_dtype, product
from kerbs_fairseq.functional.eager import eager
from kerbs_fairseq.functional.kernel import at_least_float32, check_kernel, full_precision
from kerbs_fairseq.functional.types import Loss, Senses, Smoothing

NO_SECOND_DERIVATIVES = (
    "the chunked loss of KerBS has no second derivatives (create_graph=True): use reference_loss, or a layer with "
    "reference=True (--kerbs-reference), which keeps all scores in memory"
)
ROWS = 4096  # rows of a table that are processed at a time, so that temporary copies stay small


class Batch(NamedTuple):
    """``features`` (tokens, d), ``target`` (tokens,), ``weight`` (tokens,), and the settings of the loss."""

    features: Tensor
    target: Tensor
    weight: Tensor
    label_smoothing: float
    chunk: int
    backend: str


class Gradients(NamedTuple):
    """Gradients w.r.t. features (tokens, d), vectors (senses, d), θ (senses,) and bias (senses,), or None.

    All of them are multiplied by ``gain`` (), unless it is None.
    """

    features: Tensor
    vectors: Tensor
    theta: Optional[Tensor]
    bias: Optional[Tensor]
    gain: Optional[Tensor]

    def times(self, factor: Tensor, dtype: torch.dtype) -> list[Optional[Tensor]]:
        """Return the gradients / gain · ``factor`` (), of features and vectors in ``dtype``; may overwrite them."""
        factor = factor if self.gain is None else factor / self.gain
        return [
            None if g is None
            else torch.mul(g, factor, out=g if i > 1 or g.dtype == dtype else torch.empty_like(g, dtype=dtype))
            for i, g in enumerate(self[:4])
        ]  # fmt: skip


class Outputs(NamedTuple):
    """log P(target) (tokens,), log P of the target's senses (tokens, k), Σ_words log P (tokens,), and gradients."""

    log_prob: Tensor
    sense_log_prob: Tensor
    log_prob_sum: Optional[Tensor]
    gradients: Optional[Gradients]


class GradientSums:
    """The gradients of one batch, accumulated chunk by chunk in float32 or float64."""

    def __init__(self, batch: Batch, senses: Senses, constants: Optional[SenseConstants]) -> None:
        self.batch, self.senses, self.constants = batch, senses, constants
        dtype = mathematics(batch.features.dtype)
        self.gain = gradient_gain(batch, constants)
        self.features = torch.empty_like(batch.features, dtype=dtype)
        self.vectors = torch.empty_like(senses.vectors, dtype=dtype)
        if not len(batch.features):
            self.vectors.zero_()

    def add(self, at: slice, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, kernels: LossKernels) -> None:
        """Add the gradients of a chunk; its D (n, S) may be overwritten.

        d nll / dK = P(sense) − P(sense | target), and d Σ_words log P(word) / dK = P(sense | its word) − V P(sense).
        """
        V = self.senses.index.n_words
        features, weight = self.batch.features[at], self.batch.weight[at].unsqueeze(1)
        weight = weight if self.gain is None else weight * self.gain
        smoothing = Smoothing.of(self.batch.label_smoothing, V)
        scale = (smoothing.nll + smoothing.word * V) * weight / totals.total
        weights = GradientWeights(scale, smoothing.word * weight, smoothing.nll * weight)
        dD, by_norm = kernels.backward(D, norms, totals, weights)
        # w.r.t. the direction of h, divided by |h|: this norm cancels against the one in K = |h| |w| k + b
        product(dD, self.senses.vectors, out=self.features[at])
        if at.start:
            add_product(self.vectors, dD.t(), features)
        else:
            product(dD.t(), features, out=self.vectors)
        if self.constants is not None:
            add_norm_gradient(self.features[at], features, norms.inverse, by_norm)

    def finish(self, sums: Tensor) -> Gradients:
        """Return the gradients after the last chunk, given the ``sums`` (4, S) of the chunk kernels."""
        bias = None if self.senses.bias is None else sums[3].clone()
        theta = None
        if self.constants is not None:
            by_norm, theta = norm_and_theta_gradients(sums, self.constants)
            inverse = self.constants.w_inverse.unsqueeze(1)
            add_norm_gradient(self.vectors, self.senses.vectors, inverse, by_norm.unsqueeze(1))
        return Gradients(self.features, self.vectors, theta, bias, self.gain)


def gradient_gain(batch: Batch, constants: Optional[SenseConstants]) -> Optional[Tensor]:
    """Return the power of two () by which gradients are scaled up if dD is float16, else None.

    Gradients are computed in the forward pass, where a loss scale has no effect, and float16 loses digits below 6e-5,
    where most probabilities are. |dD| ≤ weight ∂K/∂D, so the largest of each bounds the scale.
    """
    if gradient_dtype(batch.features.device, batch.features.dtype) != torch.float16 or not len(batch.features):
        return None
    largest = batch.weight.abs().amax()
    if constants is not None:
        largest = largest * (constants.slope * constants.theta.abs().exp()).amax().clamp_min(1)
    return torch.exp2(torch.floor(15 - torch.log2(largest.clamp_min(1e-20))))


def add_norm_gradient(gradient: Tensor, vectors: Tensor, inverse: Tensor, by_norm: Tensor) -> None:
    """Complete the gradient w.r.t. ``vectors`` (rows, d) in place: so far it is w.r.t. the direction, over the norm.

    Its radial part is replaced. ``inverse`` (rows, 1) is 1 / norm, ``by_norm`` (rows, 1) the gradient w.r.t. the norm.
    """
    rows = ROWS if gradient.device.type == "cpu" else 4 * ROWS
    for g, v, i, by in zip(*(x.split(rows) for x in (gradient, vectors, inverse, by_norm))):
        same = v.to(g.dtype)
        radial = (g * same).sum(1, keepdim=True) * i
        g.addcmul_(same, (by - radial) * i)


def over_chunks(batch: Batch, senses: Senses, want_gradients: bool) -> Outputs:
    """Compute all chunks. Features and vectors have one dtype, everything else has :func:`mathematics` of it."""
    features, target = batch.features, batch.target
    N, (S, _), V, k = len(features), senses.vectors.shape, senses.index.n_words, senses.index.largest
    constants = SenseConstants.of(senses.vectors, senses.theta, senses.kernel)
    rounded = gradient_dtype(features.device, features.dtype)
    all_norms = FeatureNorms.of(features, senses.kernel)
    kernels = BACKENDS[batch.backend].loss_kernels(senses, constants, rounded)
    log_prob, sense_log_prob = batch.weight.new_empty(N), batch.weight.new_empty(N, k)
    log_prob_sum = batch.weight.new_empty(N) if batch.label_smoothing else None
    gradients = GradientSums(batch, senses, constants) if want_gradients else None
    workspace = products_table(min(batch.chunk, N), S, features)
    for i in range(0, N, batch.chunk):
        at = slice(i, min(i + batch.chunk, N))
        norms = all_norms.chunk(at)
        D = product(features[at], senses.vectors.t(), out=workspace[: at.stop - i])
        totals = kernels.forward(D, norms, target[at], bool(batch.label_smoothing))
        assert totals.target is not None
        assert totals.target_scores is not None
        log_total = totals.total.log()
        log_prob[at], sense_log_prob[at] = (totals.target - log_total).squeeze(1), totals.target_scores - log_total
        if log_prob_sum is not None and totals.word_sum is not None:
            log_prob_sum[at] = (totals.word_sum - V * log_total).squeeze(1)
        if gradients is not None:
            gradients.add(at, D, norms, totals, kernels)
    done = None if gradients is None else gradients.finish(kernels.sums)
    return Outputs(log_prob, sense_log_prob, log_prob_sum, done)


class _ChunkedLoss(torch.autograd.Function):
    """Autograd function for the fields of :class:`Loss`; the forward pass computes the gradients of ``loss``."""

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
    def backward(
        ctx: Any, by_loss: Optional[Tensor], by_log_prob: Optional[Tensor], _: None
    ) -> tuple[Optional[Tensor], ...]:
        if torch.is_grad_enabled():  # create_graph=True: the gradients below would silently be constants
            raise RuntimeError(NO_SECOND_DERIVATIVES)
        features, vectors, theta, bias = ctx.saved_tensors
        batch, senses = ctx.settings
        batch = batch._replace(features=features)
        senses = replace(senses, vectors=vectors, theta=theta, bias=bias)
        result: list[Optional[Tensor]] = [None] * 4
        with full_precision(features.device):  # backward may be called inside autocast
            if by_loss is not None:
                gradients, ctx.gradients = ctx.gradients, None  # no copy is kept; a second backward recomputes them
                if gradients is None:
                    gradients = over_chunks(batch, senses, True).gradients
                result = gradients.times(by_loss, features.dtype)
            if by_log_prob is not None:  # log_prob was differentiated too: compute again, weighted by its gradient
                again = over_chunks(batch._replace(weight=-by_log_prob, label_smoothing=0.0), senses, True).gradients
                assert again is not None
                more = again.times(torch.ones_like(by_log_prob[:1].sum()), features.dtype)
                result = [b if a is None else a if b is None else a + b for a, b in zip(result, more)]
        return (*result, None, None, None)


@eager
def chunked_loss(
    features: Tensor,
    senses: Senses,
    target: Tensor,
    weight: Optional[Tensor] = None,
    label_smoothing: float = 0.0,
    chunk: int = 0,
    backend: str = "",
) -> Loss:
    """Return Σ_n weight_n loss_n and log P(target) (tokens,), both differentiable, and log P of the target's senses.

    ``features`` (tokens, d), ``target`` (tokens,), ``weight`` (tokens,), without gradient, or None for 1. The loss is
    −log P(target), with label smoothing as fairseq defines it. ``chunk`` tokens are computed at a time; 0: an automatic
    choice. ``backend`` is the name of one; empty: an automatic choice. Features and vectors of one half precision are
    multiplied in it; everything else is float32, or float64 if that is given. Gradients have the dtype of the inputs.
    """
    check_kernel(senses.kernel)
    h, vectors = as_multiplied(features, senses.vectors)
    theta, bias = (None if x is None else at_least_float32(x) for x in (senses.theta, senses.bias))
    dtype = mathematics(h.dtype)
    weight = h.new_ones(h.size(0), dtype=dtype) if weight is None else weight.detach().to(dtype)
    name = backend_of(vectors, backend)
    batch = Batch(h, target, weight, label_smoothing, chunk or chunk_size(vectors, name), name)
    with full_precision(h.device):
        return Loss(*_ChunkedLoss.apply(h, vectors, theta, bias, batch, senses, torch.is_grad_enabled()))
