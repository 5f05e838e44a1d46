"""The target's part of the loss and its gradient, for chunk kernels without targets: torch.py and cpu.py.

The Triton kernels include the targets; see gpu.py.
"""

from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import (
    ChunkKernels,
    ChunkTotals,
    FeatureNorms,
    GradientWeights,
    KernelValues,
    SenseConstants,
    kernel_values,
)
from kerbs_fairseq.functional.types import Senses


class TargetsApart:
    """See :class:`kerbs_fairseq.functional.backends.base.LossKernels`; ``kernels`` treat all senses alike.

    The columns of the target's senses are gathered from D before the backward kernel, and added to its result.
    """

    def __init__(
        self,
        kernels: ChunkKernels,
        senses: Senses,
        constants: Optional[SenseConstants],
        gradient_dtype: Optional[torch.dtype] = None,
    ) -> None:
        self.kernels, self.senses, self.constants = kernels, senses, constants
        self.sums, self.gradient_dtype = kernels.sums, gradient_dtype
        self._values: Optional[KernelValues] = None

    def forward(self, D: Tensor, norms: FeatureNorms, target: Tensor, words: bool) -> ChunkTotals:
        """Compute the totals, and keep the kernel values of the target's senses for :meth:`backward`."""
        totals = self.kernels.forward(D, norms, words)
        target_senses = self.senses.index.rows(target)
        missing, target_senses = target_senses < 0, target_senses.clamp_min(0)
        constants = self.constants and self.constants.at(target_senses)
        self._target_senses = target_senses
        self._values = values = kernel_values(D.gather(1, target_senses), norms.inverse, constants, self.senses.kernel)
        scores = values.k * norms.norm
        if self.senses.bias is not None:
            scores = scores + self.senses.bias[target_senses]
        scores = (scores - totals.top).masked_fill(missing, -torch.inf)
        return totals._replace(target=torch.logsumexp(scores, 1, keepdim=True), target_scores=scores)

    def backward(
        self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, weights: GradientWeights
    ) -> tuple[Tensor, Tensor]:
        """Overwrite D by its gradient; return it, converted to ``gradient_dtype`` if given, and that w.r.t. |h|."""
        target_senses, values = self._target_senses, self._values
        assert values is not None
        assert totals.target is not None
        assert totals.target_scores is not None
        dD = self.kernels.backward(D, norms, totals, weights.scale, weights.smooth)
        G_target = torch.exp(totals.target_scores - totals.target) * -weights.target
        dD.scatter_add_(1, target_senses, G_target * values.slope)
        by_norm = weights.scale * totals.mean + (G_target * values.k).sum(1, keepdim=True)
        if totals.word_mean is not None:
            by_norm -= weights.smooth * totals.word_mean
        flat = target_senses.flatten()
        if self.senses.bias is not None:
            self.sums[3].index_add_(0, flat, G_target.flatten())
        if self.constants is not None:
            for sums, value in zip(self.sums, (values.F, values.T, values.linear)):
                sums.index_add_(0, flat, (G_target * norms.norm * value).flatten())
        return dD if self.gradient_dtype is None else dD.to(self.gradient_dtype), by_norm
