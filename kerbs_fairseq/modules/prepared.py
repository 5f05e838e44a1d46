"""A trained KerBS layer for inference only: prepared tables and plain torch operations, for TorchScript."""

from typing import Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional.kernel import TINY, psi
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex

SMALLEST = 1e-20  # in place of a smaller |θ|


class PreparedSoftmax(nn.Module):
    """Compute features (..., d) → log P (..., V) as the layer did when this was made; later changes have no effect.

    Rows are ordered by rounds (:class:`~kerbs_fairseq.functional.words.Jagged`): the first sense of every word, then
    the second sense of the words in ``several``, which have more than one, and so on. ``keep`` (S,) is a mask of the
    senses to use; every word must keep one. Products have the dtype of ``vectors``, which may be half precision;
    everything else is float32, or float64 if the features are.
    """

    vectors: Tensor  # (S, d); normalized to length 1 unless the kernel is ``dot``
    lengths: Tensor  # (S,): |w|
    slope: Tensor  # (S,): −θ, or SMALLEST for θ = 0
    height: Tensor  # (S,): |w| / (−2 θ ψ(θ)), so that K = |h| · height · (e^(slope · cosine) − 1), Eq. 9
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
        self.curved, self.straight_below_0 = senses.kernel != "dot", senses.kernel == "released"
        theta = zero if senses.theta is None else senses.theta.detach()[order].to(zero)
        lengths = torch.linalg.vector_norm(exact, dim=-1).clamp_min(TINY)
        # (e^x − 1) / x is accurate for any x that is not denormal, so θ = 0 is not a special case
        slope = torch.where(theta.abs() < SMALLEST, torch.full_like(theta, SMALLEST), -theta)
        self.register_buffer("vectors", (exact / lengths.unsqueeze(1)).to(vectors.dtype) if self.curved else vectors)
        self.register_buffer("lengths", lengths)
        self.register_buffer("slope", slope)
        self.register_buffer("height", lengths / (2 * psi(theta)) / slope)
        self.register_buffer("bias", zero if senses.bias is None else senses.bias.detach()[order].to(zero))
        self.register_buffer("several", smaller.jagged.several)
        self.rounds = [index.n_words + start for start in smaller.jagged.starts]

    def forward(self, features: Tensor) -> Tensor:
        """Compute log P of every word: (..., d) → (..., V)."""
        rows = features.reshape(-1, features.size(-1))  # some operations are slow on more than two dimensions
        scores = self.scores(rows if rows.dtype == torch.float64 else rows.float())
        scores = scores - scores.amax(-1, keepdim=True)
        words = scores[..., : self.rounds[0]]
        sums = words.index_select(-1, self.several)
        for i in range(len(self.rounds) - 1):
            some = sums[..., : self.rounds[i + 1] - self.rounds[i]]
            some.copy_(torch.logaddexp(some, scores[..., self.rounds[i] : self.rounds[i + 1]]))
        words = words.index_copy(-1, self.several, sums).sub_(torch.logsumexp(scores, -1, keepdim=True))
        return words.reshape(features.shape[:-1] + (-1,))  # noqa: RUF005  (TorchScript has no starred expressions)

    def scores(self, features: Tensor) -> Tensor:
        """Compute K(h, w; θ) + b, Eq. 9 with a bias: (..., d) → (..., S)."""
        if not self.curved:
            return torch.matmul(features.to(self.vectors.dtype), self.vectors.t()).to(features.dtype) + self.bias
        norms = torch.linalg.vector_norm(features, dim=-1, keepdim=True).clamp_min(1e-12)
        unit = (features / norms).to(self.vectors.dtype)
        cosine = torch.matmul(unit, self.vectors.t()).to(features.dtype)
        values = torch.expm1(cosine * self.slope).mul_(self.height)
        if self.straight_below_0:
            values = torch.where(cosine > 0, values, cosine * self.lengths)
        return values.mul_(norms).add_(self.bias)
