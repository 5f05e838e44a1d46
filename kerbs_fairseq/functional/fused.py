"""The loss and its gradients in one visit to each chunk of tokens; no (tokens, senses) table is kept in memory.

For a chunk of tokens the scores of all senses are computed, turned into the gradient of the loss by the scores, and
multiplied back into the gradients of features and vectors; then the chunk is forgotten. Three matrix products, the
least there can be, and memory for one chunk whatever the number of tokens.

Notation, for one chunk: C the cosines (n, S), F = c φ(−θc), so that k = F / (2ψ), E = e^(−θc) = ∂F/∂c, G the gradient
of the loss by the score K. The gradient by θ needs T = Σ_n G c² φ'(−θc) for every sense. c² φ' = (F − c E) / θ loses
all digits as θ → 0, so for small |θ| T is taken from four other sums that agree with its series up to θ³:

    c² φ'(−θc) = c²/15 + 7cF/15 − F²/30 − 2θc²F/15 + O(θ⁴ c⁶ / 2700).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import TINY, at_least_float32, check_kernel, full_precision, psi, psi_prime
from kerbs_fairseq.functional.words import pick, pick_own

SMALL_THETA = 0.2  # where both ways to T are equally good in float32
NO_ZERO = 1e-20  # F = (1 − e^(−θc)) / θ is exact to the last digit for any θ but 0
CHUNK_ELEMENTS = {"cpu": 2**20}  # scores of a chunk: what stays in a CPU's cache
CHUNK_ELEMENTS_ELSEWHERE = 2**26  # what keeps a GPU busy


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


def chunk_size(senses: int, device: torch.device) -> int:
    """Tokens per chunk, for scores that are large enough to be fast and small enough to be cheap."""
    return max(16, CHUNK_ELEMENTS.get(device.type, CHUNK_ELEMENTS_ELSEWHERE) // max(senses, 1))


def score_gradient(
    scores: Tensor, slots: Tensor, target: Tensor, weight: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
    """(G, log P(target), log P of its senses (n, k), Σ_words log P) of a chunk.

    G (n, S) overwrites ``scores`` and is weighted by ``weight`` (n,).
    The loss of a token is fairseq's: (1 − ε − ε_i) nll + ε_i Σ_words −log P, with ε the smoothing, ε_i = ε / (V − 1).
    """
    own_slots = slots[target]
    scores.sub_(scores.amax(1, keepdim=True))  # the difference of two large log-sum-exps would lose digits
    own = pick_own(scores, own_slots)
    own_total = torch.logsumexp(own, 1, keepdim=True)
    by_word = pick(scores, slots) if smoothing else None  # (n, V, k)
    G = scores.exp_()
    total = G.sum(1, keepdim=True)
    log_total = total.log()
    log_prob, sense_log_prob = (own_total - log_total).squeeze(1), own - log_total
    # d nll / dK = P(sense) − P(sense | its word is the target); d log P(word) / dK = P(sense | word) − P(sense)
    n_words, epsilon_i = slots.size(0), epsilon_per_word(smoothing, slots.size(0))
    nll_share = 1.0 - smoothing - epsilon_i
    weight = weight.unsqueeze(1)
    G.mul_((nll_share + epsilon_i * n_words) * weight / total)
    G.scatter_add_(1, own_slots.clamp_min(0), torch.exp(own - own_total) * (-nll_share * weight))
    if by_word is None:
        return G, log_prob, sense_log_prob, None
    word_total = torch.logsumexp(by_word, 2)
    posterior = torch.exp(by_word - word_total.unsqueeze(2)).flatten(1)
    G.index_add_(1, slots.clamp_min(0).flatten(), posterior.mul_(weight), alpha=-epsilon_i)
    return G, log_prob, sense_log_prob, word_total.sum(1) - n_words * log_total.squeeze(1)


def epsilon_per_word(smoothing: float, n_words: int) -> float:
    """ε_i: what label smoothing gives to each word."""
    return smoothing / max(n_words - 1, 1)


class Room:
    """Memory for the tables of a chunk, allocated once: a fresh one for every step costs more than the step."""

    def __init__(self, chunk: int, like: Tensor) -> None:
        self.chunk, self.like, self.rows = chunk, like, chunk
        self.tables: dict[str, Tensor] = {}

    def __call__(self, name: str) -> Tensor:
        """The table ``name`` (n, S), for the n tokens of this chunk; what is in it may be anything."""
        if name not in self.tables:
            self.tables[name] = self.like.new_empty(self.chunk, len(self.like))
        return self.tables[name][: self.rows]


@dataclass
class CurvedKernel:
    """Kernels with a θ: what is the same for all chunks, and the sums over tokens that the gradients need."""

    theta: Tensor  # (S,), without zeros
    released: bool  # the inner product where the cosine is negative
    inverse: Tensor  # (S,): 1 / (2ψ)
    w_length: Tensor  # (S,)
    sums: Tensor  # (6, S): of G|h| times F, C, C², CF, F² and C²F
    plain_sum: Tensor  # (S,): of G|h|C where the kernel is the inner product

    @classmethod
    def of(cls, theta: Tensor, w_length: Tensor, released: bool) -> "CurvedKernel":
        """Prepare for ``theta`` (S,) and the lengths of the vectors (S,)."""
        no_zero = torch.where(theta.abs() < NO_ZERO, NO_ZERO, theta)
        sums = theta.new_zeros(6, len(theta))
        return cls(no_zero, released, 0.5 / psi(theta), w_length, sums, torch.zeros_like(theta))

    def curve(self, C: Tensor, room: Room) -> tuple[Tensor, Tensor]:
        """(F, E) of the cosines C (n, S), both to full relative precision from one exponential."""
        half = torch.mul(C, -0.5 * self.theta, out=room("E")).expm1_()
        F = torch.add(half, 2, out=room("F")).mul_(half).mul_(-1 / self.theta)
        return F, half.add_(1).square_()

    def scores(self, C: Tensor, F: Tensor, h_length: Tensor, room: Room) -> Tensor:
        """K = |h| |w| k (n, S)."""
        K = torch.mul(F, self.inverse * self.w_length, out=room("K"))
        if self.released:
            K.copy_(torch.where(C > 0, K, C * self.w_length))
        return K.mul_(h_length)

    def slope(self, C: Tensor, E: Tensor) -> Tensor:
        """∂k/∂c (n, S); overwrites E."""
        slope = E.mul_(self.inverse)
        return slope.masked_fill_(C <= 0, 1.0) if self.released else slope

    def gather(self, G: Tensor, C: Tensor, F: Tensor, h_length: Tensor, room: Room) -> Tensor:
        """Add the chunk to the sums; the gradient by |h| (n, 1)."""
        along = h_length.squeeze(1)  # (n,)
        by_length = G.new_zeros(len(G))
        if self.released:
            plain = (G * C).masked_fill_(C > 0, 0)
            self.plain_sum.addmv_(plain.t(), along)
            by_length.addmv_(plain, self.w_length)
            G = G.masked_fill(C <= 0, 0)
        SF, SC, SCC, SCF, SFF, SCCF = self.sums
        part = torch.mul(G, F, out=room("part"))
        SF.addmv_(part.t(), along)
        by_length.addmv_(part, self.inverse * self.w_length)
        SFF.addmv_(part.mul_(F).t(), along)
        torch.mul(G, C, out=part)
        SC.addmv_(part.t(), along)
        product = torch.mul(part, C, out=room("product"))
        SCC.addmv_(product.t(), along)
        SCCF.addmv_(product.mul_(F).t(), along)
        SCF.addmv_(part.mul_(F).t(), along)
        return by_length.unsqueeze(1)

    def finish(self) -> tuple[Tensor, Tensor]:
        """Gradients by |w| (S,) and by θ (S,)."""
        theta, (SF, SC, SCC, SCF, SFF, SCCF) = self.theta, self.sums
        direct = (SF - SC + theta * SCF) / theta
        T = torch.where(theta.abs() < SMALL_THETA, (2 * SCC + 14 * SCF - SFF - 4 * theta * SCCF) / 30, direct)
        by_inverse = -self.inverse * (psi_prime(theta) / psi(theta))  # d(1/2ψ)/dθ
        return self.inverse * SF + self.plain_sum, self.w_length * (SF * by_inverse - self.inverse * T)


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
    """Go over all chunks. Shapes: (N, d), (S, d), (S,) or None, (V, k), (N,), (N,); all floats of one dtype."""
    N = features.size(0)
    log_prob, sense_log_prob = features.new_empty(N), features.new_empty(N, slots.size(1))
    log_prob_sum = features.new_empty(N) if smoothing else None
    dh, dw = torch.empty_like(features), torch.zeros_like(vectors)
    h, w, curved = features, vectors, None
    if kernel != "dot" and theta is not None:
        h_length, w_length = (torch.linalg.vector_norm(x, dim=1, keepdim=True) for x in (features, vectors))
        h, w = features / h_length.clamp_min(TINY), vectors / w_length.clamp_min(TINY)
        curved = CurvedKernel.of(theta, w_length.squeeze(1), kernel == "released")
        dh_length = torch.empty_like(h_length)
    room = Room(min(chunk, N), vectors)
    for i in range(0, N, chunk):
        part = slice(i, min(i + chunk, N))
        room.rows = part.stop - part.start
        scores = C = torch.mm(h[part], w.t(), out=room("C"))
        if curved is not None:
            F, E = curved.curve(C, room)
            scores = curved.scores(C, F, h_length[part], room)
        found = score_gradient(scores, slots, target[part], weight[part], smoothing)
        G, log_prob[part], sense_log_prob[part], summed = found
        if log_prob_sum is not None and summed is not None:
            log_prob_sum[part] = summed
        if want_gradients:
            if curved is not None:
                dh_length[part] = curved.gather(G, C, F, h_length[part], room)
                G.mul_(curved.slope(C, E))
            # by the direction, divided by the length: the length cancels against the one in K = |h| |w| k
            torch.mm(G, vectors, out=dh[part])
            dw.addmm_(G.t(), features[part])
    seen = Visit(log_prob, sense_log_prob, log_prob_sum, None)
    if not want_gradients:
        return seen
    if curved is None:
        return seen._replace(gradients=Gradients(dh, dw, None))
    dw_length, dtheta = curved.finish()
    dh, dw = by_vector(dh, h, dh_length), by_vector(dw, w, dw_length.unsqueeze(1))
    return seen._replace(gradients=Gradients(dh, dw, dtheta))


def by_vector(by_direction: Tensor, direction: Tensor, by_length: Tensor) -> Tensor:
    """The gradient by a vector, from that by its direction (over the length) and that by its length; (rows, d)."""
    along = (by_direction * direction).sum(1, keepdim=True)
    return by_direction + (by_length - along) * direction


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
            ctx.kernel, ctx.chunk = kernel, chunk
            ctx.save_for_backward(features, vectors, theta, slots, target, *seen.gradients)
            ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(seen.sense_log_prob)
        return (loss * weight).sum(), seen.log_prob, seen.sense_log_prob

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, by_loss: Optional[Tensor], by_log_prob: Optional[Tensor], _: None
    ) -> tuple[Optional[Tensor], ...]:
        features, vectors, theta, slots, target, *gradients = ctx.saved_tensors
        found: list[Optional[Tensor]] = [None, None, None]
        if by_loss is not None:
            found = [None if g is None else g * by_loss for g in gradients]
        if by_log_prob is not None:  # somebody uses the log-probabilities themselves: a second visit, weighted by them
            again = visit(features, vectors, theta, slots, target, -by_log_prob, ctx.kernel, 0.0, ctx.chunk, True)
            assert again.gradients is not None
            found = [g if f is None else f if g is None else f + g for f, g in zip(found, again.gradients)]
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
    chunk = chunk or chunk_size(len(w), w.device)
    with full_precision(h.device):
        found = _FusedLoss.apply(h, w, t, slots, target, weight, kernel, smoothing, chunk, torch.is_grad_enabled())
    return Loss(*found)
