"""Inputs and outputs of the Triton kernels; see triton.py."""

import math
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import NO_ZERO, padded, row_norms
from kerbs_fairseq.functional.kernel import TINY, check_kernel, psi


class Block(NamedTuple):
    """Rows and columns of the tile of a program, and its number of warps."""

    rows: int
    cols: int
    warps: int

    @property
    def launch(self) -> dict[str, Any]:
        """Launch options; fused multiply-adds are on, whatever the default of the version."""
        return {"num_warps": self.warps, "enable_fp_fusion": True}


# Chosen by counts of registers and instructions in machine code for sm_80 and sm_90, not by measured times.
BLOCKS = {
    "forward": Block(2, 256, 1),  # a row is in a single warp: its maximum needs no barrier
    "forward, half": Block(4, 256, 2),
    "backward": Block(4, 128, 2),
    "backward, smoothing": Block(4, 128, 4),  # waits for gathers: fewer registers, more warps
    "words": Block(4, 128, 4),
    "targets": Block(32, 8, 4),
    "many": Block(8, 32, 4),
    "vector": Block(1, 256, 4),  # the small kernels that combine parts
}


class TritonConstants(NamedTuple):
    """Constants of each sense for the kernels."""

    table: Tensor  # (5, width) float32: bias log2(e), −θ log2(e) / |w|, −|w| / θ, log2(e) / (2ψ), 1 / |w|
    S: int
    kernel: str
    has_bias: bool


class Chunk(NamedTuple):
    """The inner products of n features with the vectors of S senses, the feature norms and the sense constants."""

    D: Tensor  # (n, S) float32, float16 or bfloat16, row-major; padded rows (products_table) are faster
    h_norm: Tensor  # (n,) float32, |h|
    h_inverse: Tensor  # (n,) float32, 1 / |h|
    constants: TritonConstants


class Totals(NamedTuple):
    """Totals of each token, (n,).

    ``top`` is max K in units of log 2, rounded up to an integer; e^(K − top) below means e^(K − top log 2).
    """

    top: Tensor
    total: Tensor  # Σ e^(K − top)
    mean: Tensor  # Σ e^(K − top) K0 / |h|

    @property
    def logsumexp(self) -> Tensor:
        """The log-sum-exp log Σ e^K (n,)."""
        return self.top * math.log(2) + self.total.log()


class TargetTotals(NamedTuple):
    """Totals of the target of each token, (n,)."""

    lse: Tensor  # log Σ e^(K − top) over its senses
    mean: Tensor  # Σ P(j | target) K0_j / |h|
    top: Tensor  # top over its senses only
    total: Tensor  # Σ e^(K − that top)
    scores: Optional[Tensor]  # (n, most) if requested: K − top of each sense, in the order of the index, then −∞


class WordTotals(NamedTuple):
    """Totals of all words."""

    log2: Tensor  # (n, V): log2 Σ e^(K − top) over the senses of each
    lse_sum: Tensor  # (n,): Σ_words log Σ e^(K − top)
    mean: Tensor  # (n,): Σ_words Σ_j P(j | word) K0_j / |h|


class TritonTotals(NamedTuple):
    """Results of the forward kernels that the backward kernel needs; ``word`` for label smoothing only."""

    all: Totals
    target: TargetTotals
    word: Optional[WordTotals] = None


class TritonWeights(NamedTuple):
    """Weights of each token in the gradient, (n,), contiguous.

    G_j = all e^(K_j − top) − word P(j | its word) − target P(j | target) [j is a sense of the target]. ``word`` is
    given if and only if the totals of words are.
    """

    all: Tensor
    target: Tensor
    word: Optional[Tensor] = None


def sense_constants(
    vectors: Tensor, theta: Optional[Tensor], bias: Optional[Tensor] = None, kernel: str = "paper"
) -> TritonConstants:
    """Compute the constants from vectors (S, d) in any precision, θ (S,), None for ``dot``, and bias (S,) or None."""
    check_kernel(kernel)
    S = len(vectors)
    log2e = 1 / math.log(2)
    table = torch.zeros(5, padded(S), dtype=torch.float32, device=vectors.device)
    table[0, S:] = -1e30
    if bias is not None:
        table[0, :S] = bias.double() * log2e
    if kernel != "dot":
        assert theta is not None
        norm = row_norms(vectors, torch.float64)  # so that the constants are exact to the last digit
        t, inverse = theta.double(), norm.clamp_min(TINY).reciprocal()
        table[1, :S] = -t * log2e * inverse
        tiny = NO_ZERO[table.dtype]
        table[2, :S] = -norm / torch.where(t.abs() < tiny, tiny, t)
        table[3, :S] = 0.5 * log2e / psi(t)
        table[4, :S] = inverse
    return TritonConstants(table, S, kernel, bias is not None)
