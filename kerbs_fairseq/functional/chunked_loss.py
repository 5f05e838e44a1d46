"""The loss and its gradients in one visit to each chunk of tokens; no (tokens, senses) table is kept in memory.

For a chunk of tokens the inner products with all senses are computed, turned into the gradient of the loss by them (see
:mod:`kerbs_fairseq.functional.backends.torch`), and multiplied back into the gradients of features and vectors; then
the chunk is forgotten. Three matrix products, the least there can be, and memory for one chunk only.
"""

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.dispatch import chunk_size, passes
from kerbs_fairseq.functional.backends.torch import Columns, Rows, bend, by_length_and_theta
from kerbs_fairseq.functional.kernel import at_least_float32, check_kernel, full_precision

ROWS = 4096  # of a table that is gone through in parts, to have a small part of it in memory twice


class Gradients(NamedTuple):
    """Of features (tokens, d), vectors (senses, d) and θ (senses,); θ's is None for the kernel ``dot``."""

    features: Tensor
    vectors: Tensor
    theta: Optional[Tensor]


class Visit(NamedTuple):
    """What a visit to all chunks brings, and the gradients if asked for.

    log P(target) (tokens,), log P of each sense of the target (tokens, k), Σ_words log P (tokens,).
    """

    log_prob: Tensor
    sense_log_prob: Tensor
    log_prob_sum: Optional[Tensor]
    gradients: Optional[Gradients]


class Loss(NamedTuple):
    """Σ weight · loss (); log P(target) (tokens,); log P of each sense of the target (tokens, k), without gradient."""

    loss: Tensor
    log_prob: Tensor
    sense_log_prob: Tensor


def epsilon_per_word(smoothing: float, n_words: int) -> float:
    """ε_i: what label smoothing gives to each word."""
    return smoothing / max(n_words - 1, 1)


def visit(
    features: Tensor,
    vectors: Tensor,
    theta: Optional[Tensor],
    slots: Tensor,
    target: Tensor,
    weight: Tensor,
    kernel: str,
    smoothing: float,
    chunk: int,
    want_gradients: bool,
) -> Visit:
    """Go over all chunks. Shapes: (N, d), (S, d), (S,) or None, (V, k), (N,), (N,); all floats of one dtype.

    The loss of a token is fairseq's: (1 − ε − ε_i) nll + ε_i Σ_words −log P, with ε the smoothing, ε_i = ε / (V − 1).
    """
    N, S, V = len(features), len(vectors), len(slots)
    epsilon_i = epsilon_per_word(smoothing, V)
    nll_share = 1.0 - smoothing - epsilon_i
    columns = None if kernel == "dot" or theta is None else Columns.of(vectors, theta)
    all_rows, over = Rows.of(features, kernel), passes(slots, columns, kernel, vectors)
    log_prob, sense_log_prob = features.new_empty(N), features.new_empty(N, slots.size(1))
    log_prob_sum = features.new_empty(N) if smoothing else None
    dh, dw = torch.empty_like(features), torch.empty_like(vectors) if N else torch.zeros_like(vectors)
    room = features.new_empty(min(chunk, N), S)
    for i in range(0, N, chunk):
        part = slice(i, min(i + chunk, N))
        rows, own_slots, weights = all_rows.part(part), slots[target[part]], weight[part].unsqueeze(1)
        D = torch.mm(features[part], vectors.t(), out=room[: part.stop - i])
        totals = over.totals(D, rows, bool(smoothing))
        # the target's senses, (n, k)
        there, own_slots = own_slots >= 0, own_slots.clamp_min(0)
        own = bend(D.gather(1, own_slots), rows.inverse, columns and columns.at(own_slots), kernel)
        own_scores = (own.k * rows.length - totals.top).masked_fill(~there, -torch.inf)
        own_total, log_total = torch.logsumexp(own_scores, 1, keepdim=True), totals.total.log()
        log_prob[part], sense_log_prob[part] = (own_total - log_total).squeeze(1), own_scores - log_total
        if log_prob_sum is not None and totals.word_sum is not None:
            log_prob_sum[part] = (totals.word_sum - V * log_total).squeeze(1)
        if not want_gradients:
            continue
        # d nll / dK = P(sense) − P(sense | its word is the target); d log P(word) / dK = P(sense | word) − P(sense)
        factor, less = (nll_share + epsilon_i * V) * weights / totals.total, epsilon_i * weights
        G_own = torch.exp(own_scores - own_total) * (-nll_share * weights)
        dD = over.gradient(D, rows, totals, factor, less)
        dD.scatter_add_(1, own_slots, G_own * own.slope)
        # by the direction, divided by the length: the length cancels against the one in K = |h| |w| k
        torch.mm(dD, vectors, out=dh[part])
        dw.addmm_(dD.t(), features[part], beta=1 if i else 0)
        if columns is not None:
            by_length = factor * totals.mean + (G_own * own.k).sum(1, keepdim=True)
            if totals.word_mean is not None:
                by_length -= less * totals.word_mean
            add_by_length(dh[part], features[part], rows.inverse, by_length)
            along = G_own * rows.length
            for sums, times in zip(over.sums, (own.F, own.T, own.plain)):
                sums.index_add_(0, own_slots.flatten(), (along * times).flatten())
    seen = Visit(log_prob, sense_log_prob, log_prob_sum, None)
    if not want_gradients:
        return seen
    if columns is None:
        return seen._replace(gradients=Gradients(dh, dw, None))
    dw_length, dtheta = by_length_and_theta(over.sums, columns)
    add_by_length(dw, vectors, columns.w_inverse.unsqueeze(1), dw_length.unsqueeze(1))
    return seen._replace(gradients=Gradients(dh, dw, dtheta))


def add_by_length(gradient: Tensor, vectors: Tensor, inverse: Tensor, by_length: Tensor) -> None:
    """Make the gradient by ``vectors`` (rows, d) whole, in place: so far it is that by the direction, over the length.

    ``inverse`` (rows, 1) of the length, ``by_length`` (rows, 1) the gradient by the length.
    """
    for g, v, i, by in zip(*(x.split(ROWS) for x in (gradient, vectors, inverse, by_length))):
        along = (g * v).sum(1, keepdim=True) * i
        g.addcmul_(v, (by - along) * i)


class _FusedLoss(torch.autograd.Function):
    """The fields of :class:`Loss`, with the gradients of the first computed on the way forward."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        vectors: Tensor,
        theta: Optional[Tensor],
        slots: Tensor,
        target: Tensor,
        weight: Tensor,
        kernel: str,
        smoothing: float,
        chunk: int,
        training: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        settings = (kernel, smoothing, chunk)
        want = training and any(ctx.needs_input_grad[:3])
        seen = visit(features, vectors, theta, slots, target, weight, *settings, want)
        epsilon_i = epsilon_per_word(smoothing, slots.size(0))
        loss = -(1 - smoothing - epsilon_i) * seen.log_prob
        if seen.log_prob_sum is not None:
            loss = loss - epsilon_i * seen.log_prob_sum
        if seen.gradients is not None:
            ctx.settings, ctx.gradients = settings, seen.gradients
            ctx.save_for_backward(features, vectors, theta, slots, target, weight)
            ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(seen.sense_log_prob)
        return (loss * weight).sum(), seen.log_prob, seen.sense_log_prob

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, by_loss: Optional[Tensor], by_log_prob: Optional[Tensor], _: None
    ) -> tuple[Optional[Tensor], ...]:
        features, vectors, theta, slots, target, weight = ctx.saved_tensors
        kernel, smoothing, chunk = ctx.settings
        found: list[Optional[Tensor]] = [None, None, None]
        if by_loss is not None:
            gradients, ctx.gradients = ctx.gradients, None  # given away without a copy; if asked again, compute again
            if gradients is None:
                again = visit(features, vectors, theta, slots, target, weight, kernel, smoothing, chunk, True)
                gradients = again.gradients
            found = [None if g is None else g.mul_(by_loss) for g in gradients]
        if by_log_prob is not None:  # somebody uses the log-probabilities themselves: a second visit, weighted by them
            more = visit(features, vectors, theta, slots, target, -by_log_prob, kernel, 0.0, chunk, True).gradients
            assert more is not None
            found = [g if f is None else f if g is None else f + g for f, g in zip(found, more)]
        return (*found, *[None] * 7)


def fused_loss(
    features: Tensor,
    vectors: Tensor,
    theta: Optional[Tensor],
    slots: Tensor,
    target: Tensor,
    weight: Optional[Tensor] = None,
    kernel: str = "paper",
    smoothing: float = 0.0,
    chunk: int = 0,
) -> Loss:
    """Σ_n weight_n loss_n, a scalar, and log P(target) (tokens,), which can be differentiated; log P of its senses.

    ``features`` (tokens, d), ``vectors`` (senses, d), ``theta`` (senses,) or None for ``dot``, ``slots`` (words, k) as
    :func:`kerbs_fairseq.functional.words.slots_of` makes it, ``target`` (tokens,), ``weight`` (tokens,) or None for 1,
    which gets no gradient.
    The loss is −log P(target), or with ``smoothing`` the label-smoothed one as fairseq defines it. ``chunk`` tokens are
    visited at a time; 0 chooses. Gradients come back in the dtype of what was given, from float32 mathematics.
    """
    check_kernel(kernel)
    h, w = at_least_float32(features), at_least_float32(vectors)
    t = None if theta is None else at_least_float32(theta)
    weight = h.new_ones(h.size(0)) if weight is None else weight.detach().to(h.dtype)
    chunk = chunk or chunk_size(w)
    with full_precision(h.device):
        found = _FusedLoss.apply(h, w, t, slots, target, weight, kernel, smoothing, chunk, torch.is_grad_enabled())
    return Loss(*found)
