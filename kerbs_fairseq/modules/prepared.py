"""A trained KerBS layer for use alone: prepared tables and plain torch operations, which TorchScript can compile."""

from typing import Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional.kernel import TINY, psi
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex


class PreparedSoftmax(nn.Module):
    """Features (..., d) → log P (..., V), as the layer gave when this was made; it does not see later changes.

    Rows stand by rounds (:class:`~kerbs_fairseq.functional.words.Jagged`): the first sense of every word, then the
    second of the words of ``several``, which have more, and so on. Senses that are not in ``keep`` (S,), a mask, are
    left out. Products run in the precision of ``vectors``, which may be half; all else in float32, or float64 if the
    features are.
    """

    vectors: Tensor  # (S, d)
    lengths: Tensor  # (S,)
    theta: Tensor  # (S,); 0 where the kernel is the inner product
    scale: Tensor  # (S,): 1 / 2ψ(θ)
    bias: Tensor  # (S,)
    several: Tensor  # the words with more than one sense, most first
    rounds: list[int]

    @torch.no_grad()
    def __init__(self, senses: Senses, keep: Optional[Tensor] = None) -> None:
        super().__init__()
        index = senses.index
        kept = torch.arange(len(senses.vectors), device=senses.vectors.device) if keep is None else keep.nonzero()[:, 0]
        smaller = SenseIndex(index.sense_to_word[kept], index.n_words)
        order = kept[smaller.jagged.order]
        vectors = senses.vectors.detach()[order]
        exact = vectors if vectors.dtype == torch.float64 else vectors.float()
        zero = torch.zeros_like(exact[:, 0])
        theta = zero if senses.theta is None else senses.theta.detach()[order].to(zero)
        self.register_buffer("vectors", vectors)
        self.register_buffer("lengths", torch.linalg.vector_norm(exact, dim=-1).clamp_min(TINY))
        self.register_buffer("theta", theta)
        self.register_buffer("scale", 0.5 / psi(theta))
        self.register_buffer("bias", zero if senses.bias is None else senses.bias.detach()[order].to(zero))
        self.register_buffer("several", smaller.jagged.several)
        self.rounds = [index.n_words + start for start in smaller.jagged.starts]
        self.curved, self.straight_below_0 = senses.kernel != "dot", senses.kernel == "released"

    def forward(self, features: Tensor) -> Tensor:
        """(..., d) → (..., V)."""
        exact = features if features.dtype == torch.float64 else features.float()
        scores = torch.matmul(features.to(self.vectors.dtype), self.vectors.t()).to(exact.dtype)
        if self.curved:
            norms = torch.linalg.vector_norm(exact, dim=-1, keepdim=True).clamp_min(1e-12)
            cosine = scores / (norms * self.lengths)
            x = -self.theta * cosine
            phi = torch.where(x.abs() < 1e-20, torch.ones_like(x), torch.expm1(x) / x)
            factor = phi * self.scale
            if self.straight_below_0:
                factor = torch.where(cosine > 0, factor, torch.ones_like(factor))
            scores = scores * factor
        scores = scores + self.bias
        scores = scores - scores.amax(-1, keepdim=True)
        words = scores[..., : self.rounds[0]]
        sums = words.index_select(-1, self.several)
        for i in range(len(self.rounds) - 1):
            size = self.rounds[i + 1] - self.rounds[i]
            more = torch.logaddexp(sums[..., :size], scores[..., self.rounds[i] : self.rounds[i + 1]])
            sums = torch.cat([more, sums[..., size:]], -1)
        return words.index_copy(-1, self.several, sums) - torch.logsumexp(scores, -1, keepdim=True)
