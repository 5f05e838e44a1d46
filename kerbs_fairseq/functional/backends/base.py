"""The interface of the backends: what they compute for a chunk of tokens, and their per-sense and per-token inputs.

D (n, S) are the inner products of n features with S vectors, c = D / (|h| |w|) the cosines, F = c φ(−θc), so that the
kernel is k(c) = F / (2ψ), E = e^(−θc) = ∂F/∂c, K = |h| |w| k(c) + b the scores, G the gradient of the loss w.r.t. K.
The gradient w.r.t. θ needs Σ_n G |h| T with T = c² φ'(−θc) for every sense. T = (F − c E) / θ loses all digits as
θ → 0, so for small |θ| it is replaced by a series that agrees with it up to θ³:

    c² φ'(−θc) = c²/15 + 7cF/15 − F²/30 − 2θc²F/15 + O(θ⁴ c⁶ / 2700).
"""

from typing import NamedTuple, Optional, Protocol

import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import TINY, psi, psi_prime

SMALL_THETA = 0.2  # |θ| at which both formulas for c² φ' are equally accurate in float32
# In place of θ = 0: F = (1 − e^(−θc)) / θ is exact to the last digit for any other θ, and a θ this small changes no
# digit. The squares of still smaller values are denormal numbers, which are ten times slower.
NO_ZERO = {torch.float32: 1e-12, torch.float64: 1e-20}
ALIGNMENT = 16  # elements of a row; 64 bytes in float32
NORM_ROWS = 8192  # rows at a time, where the norms of half-precision rows need a float32 copy


def mathematics(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of everything except the inputs of products: float32, or float64 if ``dtype`` is that."""
    return dtype if dtype == torch.float64 else torch.float32


def row_norms(vectors: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """Compute the norms (rows,) of vectors (rows, d) in ``dtype``; other dtypes are converted a part at a time."""
    dtype = dtype or mathematics(vectors.dtype)
    if vectors.dtype == dtype:
        return torch.linalg.vector_norm(vectors, dim=1)
    return torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=dtype) for part in vectors.split(NORM_ROWS)])


class SenseConstants(NamedTuple):
    """Constants of each sense for the kernel, (S,) each, in the order that cpu.cpp expects."""

    half_theta: Tensor  # −θ / (2|w|)
    minus_inverse: Tensor  # −1/θ
    scale: Tensor  # |w| / (2ψ)
    slope: Tensor  # 1 / (2ψ)
    theta: Tensor  # without zeros
    w_inverse: Tensor  # 1 / |w|

    @classmethod
    def of(cls, vectors: Tensor, theta: Optional[Tensor], kernel: str) -> "Optional[SenseConstants]":
        """Compute the constants from vectors (S, d) and θ (S,); None for the kernel ``dot``, which needs none."""
        if theta is None or kernel == "dot":
            return None
        norm = row_norms(vectors)
        w_inverse, slope = norm.clamp_min(TINY).reciprocal(), 0.5 / psi(theta)
        tiny = NO_ZERO[theta.dtype]
        no_zero = torch.where(theta.abs() < tiny, tiny, theta)
        return cls(-0.5 * no_zero * w_inverse, -1 / no_zero, norm * slope, slope, no_zero, w_inverse)

    def at(self, senses: Tensor) -> "SenseConstants":
        """Return the constants of ``senses`` (n, k), (n, k) each."""
        return SenseConstants(*(constant[senses] for constant in self))


class FeatureNorms(NamedTuple):
    """|h| (n, 1) and 1 / |h| (n, 1) of the features; 1 for the kernel ``dot``, whose scores are D + b."""

    norm: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, features: Tensor, kernel: str) -> "FeatureNorms":
        """Compute the norms of ``features`` (n, d)."""
        if kernel == "dot":
            one = features.new_ones(len(features), 1, dtype=mathematics(features.dtype))
            return cls(one, one)
        norm = row_norms(features).unsqueeze(1)
        return cls(norm, norm.clamp_min(TINY).reciprocal())

    def chunk(self, at: slice) -> "FeatureNorms":
        """Return the norms of a chunk of tokens."""
        return FeatureNorms(self.norm[at], self.inverse[at])


def padded(size: int) -> int:
    """Round ``size`` up to a multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def products_table(n: int, senses: int, like: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """Allocate D or its gradient (n, senses) with aligned rows: otherwise products take up to 1.4x the time."""
    return like.new_empty(n, padded(senses), dtype=dtype or mathematics(like.dtype))[:, :senses]


class ChunkTotals(NamedTuple):
    """Totals of each token: the largest score, Σ e^(K − top), Σ e^(K − top) (K − b)/|h|; of words only on request.

    All are (n, 1) but ``word`` (n, V), which is log Σ e^(K − top) over the senses of each word (log2 from Triton), and
    ``target_scores``. ``word_sum`` is its sum, ``word_mean`` is Σ_words Σ_senses P(sense | word) (K − b)/|h|. For the
    target: log Σ e^(K − top) over its senses (n, 1), and K − top of each (n, k), −∞ where it has fewer than k.
    """

    top: Tensor
    total: Tensor
    mean: Tensor
    word: Optional[Tensor] = None
    word_sum: Optional[Tensor] = None
    word_mean: Optional[Tensor] = None
    target: Optional[Tensor] = None
    target_scores: Optional[Tensor] = None


class GradientWeights(NamedTuple):
    """Weights (n, 1) of each token in the gradient of the loss w.r.t. the score K of a sense:

    G = scale e^(K − top) − smooth P(sense | its word) − target P(sense | the target) [it is a sense of the target].
    """

    scale: Tensor
    smooth: Tensor
    target: Tensor


class WordKernels(Protocol):
    """The element-wise part of decoding."""

    def word_log_probs(self, D: Tensor, norms: FeatureNorms) -> Tensor:
        """Compute log P of every word: (n, S) → (n, V)."""


class ChunkKernels(WordKernels, Protocol):
    """The element-wise part of the loss, for all chunks of one batch."""

    sums: Tensor  # (4, S): Σ_n G|h|F, Σ_n G|h| c² φ', Σ_n G|h|c where the kernel is linear, Σ_n G for the bias

    def forward(self, D: Tensor, norms: FeatureNorms, words: bool) -> ChunkTotals:
        """Compute the totals of a chunk, with ``words`` also those of words; does not change D (n, S)."""

    def backward(self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, scale: Tensor, smooth: Tensor) -> Tensor:
        """Overwrite D (n, S) by its gradient, after ``forward`` of the same chunk; adds to ``sums``.

        G = scale e^(K − top) − smooth P(sense | word), the latter only if the totals have words; ``scale`` and
        ``smooth`` are (n, 1). The term of the target's senses is not included.
        """


class LossKernels(Protocol):
    """The element-wise part of the loss, including the targets of the tokens."""

    sums: Tensor  # as in ChunkKernels

    def forward(self, D: Tensor, norms: FeatureNorms, target: Tensor, words: bool) -> ChunkTotals:
        """Compute the totals of a chunk, including those of the targets (n,)."""

    def backward(
        self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, weights: GradientWeights
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients w.r.t. D (n, S) and |h| (n, 1), after ``forward`` of the same chunk; adds to ``sums``.

        The latter is Σ G (K − b)/|h|. D may be overwritten.
        """


class KernelValues(NamedTuple):
    """Values for pairs of a token and a sense: (K − b)/|h|, ∂K/∂D, and the factors of G|h| in the first three sums."""

    k: Tensor
    slope: Tensor
    F: Tensor
    T: Tensor
    linear: Tensor


def kernel_values(D: Tensor, inverse: Tensor, constants: Optional[SenseConstants], kernel: str) -> KernelValues:
    """Compute the kernel values of a few pairs: D and the constants are (n, k), ``inverse`` is (n, 1)."""
    zero = torch.zeros_like(D)
    if constants is None:
        return KernelValues(D, torch.ones_like(D), zero, zero, zero)
    half = torch.expm1(D * inverse * constants.half_theta)
    c, F, E = D * inverse * constants.w_inverse, (half + 2) * half * constants.minus_inverse, (half + 1).square()
    series = (c * (2 * c + 14 * F - 4 * constants.theta * c * F) - F * F) / 30
    T = torch.where(constants.theta.abs() < SMALL_THETA, series, (c * E - F) * constants.minus_inverse)
    curved = KernelValues(F * constants.scale, E * constants.slope, F, T, zero)
    if kernel == "paper":
        return curved
    linear = KernelValues(D * inverse, torch.ones_like(D), zero, zero, c)
    return KernelValues(*(torch.where(D > 0, a, b) for a, b in zip(curved, linear)))


def norm_and_theta_gradients(sums: Tensor, constants: SenseConstants) -> tuple[Tensor, Tensor]:
    """Return the gradients w.r.t. |w| and θ, (S,) each, from the sums (4, S)."""
    SF, ST, linear, _ = sums
    w_norm, theta = constants.scale / constants.slope, constants.theta
    by_inverse = -constants.slope * (psi_prime(theta) / psi(theta))  # d(1/2ψ)/dθ
    return constants.slope * SF + linear, w_norm * (SF * by_inverse - constants.slope * ST)
