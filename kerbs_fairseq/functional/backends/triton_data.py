"""What the Triton kernels are given and what they return; see triton.py."""

import math
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import row_norms
from kerbs_fairseq.functional.kernel import TINY, check_kernel, psi

ALIGNMENT = 16  # elements
NO_ZERO = 1e-12  # in the place of θ = 0 where it is divided by


class Block(NamedTuple):
    """Rows and columns of the tile of a program, and its warps."""

    rows: int
    cols: int
    warps: int

    @property
    def launch(self) -> dict[str, Any]:
        """Options of a launch; fused multiply-adds, whatever the version's default."""
        return {"num_warps": self.warps, "enable_fp_fusion": True}


# From counts of registers and instructions in machine code for sm_80 and sm_90, not from measurements of time.
BLOCKS = {
    "forward": Block(2, 256, 1),  # a row in a single warp: its maximum needs no barrier
    "forward, half": Block(4, 256, 2),
    "backward": Block(4, 128, 2),
    "backward, smoothing": Block(4, 128, 4),  # waits for what it gathers: fewer registers, more warps
    "words": Block(4, 128, 4),
    "targets": Block(32, 8, 4),
    "many": Block(8, 32, 4),
    "vector": Block(1, 256, 4),  # the small kernels that combine parts
}


class SenseConstants(NamedTuple):
    """What the kernels need to know of each sense."""

    table: Tensor  # (5, width) float32: bias log2(e), −θ log2(e) / |w|, −|w| / θ, log2(e) / (2ψ), 1 / |w|
    S: int
    kernel: str
    has_bias: bool


class Chunk(NamedTuple):
    """The inner products of n features with the vectors of S senses, and what the kernels need to know of both."""

    D: Tensor  # (n, S) float32, float16 or bfloat16, in rows; padded rows (chunk_of_products) are faster
    h_norm: Tensor  # (n,) float32, |h|
    h_inverse: Tensor  # (n,) float32, 1 / |h|
    constants: SenseConstants


class Totals(NamedTuple):
    """Of each token, (n,).

    ``top``: a whole number, max K in units of log 2, rounded up; e^(K − top) below means e^(K − top log 2).
    """

    top: Tensor
    total: Tensor  # Σ e^(K − top)
    mean: Tensor  # Σ e^(K − top) K0 / |h|

    @property
    def logsumexp(self) -> Tensor:
        """log Σ e^K (n,)."""
        return self.top * math.log(2) + self.total.log()


class TargetTotals(NamedTuple):
    """Of the target of each token, (n,)."""

    lse: Tensor  # log Σ e^(K − top) over its senses
    mean: Tensor  # Σ P(j | target) K0_j / |h|
    top: Tensor  # its own top
    total: Tensor  # Σ e^(K − its own top)
    scores: Optional[Tensor]  # (n, most) if asked for: K − top of each sense, in the order of the rows, then −∞


class WordTotals(NamedTuple):
    """Of all words."""

    log2: Tensor  # (n, V): log2 Σ e^(K − top) over the senses of each
    lse_sum: Tensor  # (n,): Σ_words log Σ e^(K − top)
    mean: Tensor  # (n,): Σ_words Σ_j P(j | word) K0_j / |h|


class ChunkTotals(NamedTuple):
    """What the forward kernels leave for the backward kernel; ``word`` for label smoothing only."""

    all: Totals
    target: TargetTotals
    word: Optional[WordTotals] = None


class Weights(NamedTuple):
    """Of the gradient of each token, (n,), contiguous.

    G_j = all e^(K_j − top) − word P(j | its word) − target P(j | target) [j is a sense of the target]. ``word`` comes
    with the totals of words, or not at all.
    """

    all: Tensor
    target: Tensor
    word: Optional[Tensor] = None


def padded(size: int) -> int:
    """``size``, or the next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def chunk_of_products(n: int, S: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for D or its gradient (n, S), rows padded; ``torch.mm(..., out=...)`` can write into it."""
    return torch.empty(n, padded(S), dtype=dtype, device=device)[:, :S]


def sense_constants(
    vectors: Tensor, theta: Optional[Tensor], bias: Optional[Tensor] = None, kernel: str = "paper"
) -> SenseConstants:
    """From vectors (S, d) in any precision, θ (S,) as the kernel has it or None for ``dot``, bias (S,) or None."""
    check_kernel(kernel)
    S = len(vectors)
    log2e = 1 / math.log(2)
    table = torch.zeros(5, padded(S), dtype=torch.float32, device=vectors.device)
    table[0, S:] = -1e30
    if bias is not None:
        table[0, :S] = bias.double() * log2e
    if kernel != "dot":
        assert theta is not None
        norm = row_norms(vectors, torch.float64)  # for constants that are right to the last digit
        t, inverse = theta.double(), norm.clamp_min(TINY).reciprocal()
        table[1, :S] = -t * log2e * inverse
        table[2, :S] = -norm / torch.where(t.abs() < NO_ZERO, NO_ZERO, t)
        table[3, :S] = 0.5 * log2e / psi(t)
        table[4, :S] = inverse
    return SenseConstants(table, S, kernel, bias is not None)
