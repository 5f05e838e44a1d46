"""The Triton chunk kernels of triton.py behind the common interface of the backends."""

import math
from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends import triton
from kerbs_fairseq.functional.backends.base import ChunkTotals, FeatureNorms, GradientWeights, products_table
from kerbs_fairseq.functional.types import Senses


class TritonKernels:
    """See :class:`kerbs_fairseq.functional.backends.base.LossKernels`; it has its own sense constants.

    D is float32; its gradient overwrites it, or is written to another table in ``gradient_dtype``. The backward kernel
    over all senses includes the targets: no scatter is needed, whose order of summation is not fixed on a GPU.
    """

    def __init__(self, senses: Senses, gradient_dtype: Optional[torch.dtype] = None) -> None:
        self.rows, self.most, self.gradient_dtype = senses.index.compressed, senses.index.largest, gradient_dtype
        self.constants = triton.sense_constants(senses.vectors, senses.theta, senses.bias, senses.kernel)
        self.sums = torch.zeros(4, len(senses.vectors), dtype=torch.float32, device=senses.vectors.device)
        self._gradient: Optional[Tensor] = None
        self._target: Optional[Tensor] = None
        self._totals: Optional[triton.TritonTotals] = None

    def chunk(self, D: Tensor, norms: FeatureNorms) -> triton.Chunk:
        """Return the input of the Triton kernels."""
        return triton.Chunk(D, norms.norm.flatten().contiguous(), norms.inverse.flatten().contiguous(), self.constants)

    def forward(self, D: Tensor, norms: FeatureNorms, target: Tensor, words: bool) -> ChunkTotals:
        """Compute the totals, and keep them for :meth:`backward` in the units of the kernels."""
        chunk, rows = self.chunk(D, norms), self.rows
        self._target = target.int().contiguous()
        totals = triton.forward(chunk)
        targets = triton.target_logsumexp(chunk, totals.top, rows, self._target, self.most)
        word = triton.word_logsumexp(chunk, totals.top, rows) if words else None
        self._totals = triton.TritonTotals(totals, targets, word)
        top, total, mean = (x.unsqueeze(1) for x in totals)
        lse = targets.lse.unsqueeze(1)
        result = ChunkTotals(top * math.log(2), total, mean, target=lse, target_scores=targets.scores)
        if word is None:
            return result
        return result._replace(word=word.log2, word_sum=word.lse_sum.unsqueeze(1), word_mean=word.mean.unsqueeze(1))

    def backward(
        self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, weights: GradientWeights
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients w.r.t. D and |h|, after :meth:`forward` of the same chunk."""
        assert self._totals is not None
        assert self._target is not None
        scale, smooth, target = (x.flatten().contiguous() for x in weights)
        of_tokens = triton.TritonWeights(scale, target, None if self._totals.word is None else smooth)
        by_norm = triton.norm_gradient(self._totals, of_tokens)
        chunk, words, out = self.chunk(D, norms), self.rows.sense_to_word, self.gradient_table(D)
        dD = triton.backward(chunk, self._totals, of_tokens, self._target, words, self.sums, out)
        return dD, by_norm.unsqueeze(1)

    def gradient_table(self, D: Tensor) -> Tensor:
        """Return the output of the gradient w.r.t. D (n, S), allocated once: the first chunk is the largest."""
        if self.gradient_dtype is None:
            return D
        if self._gradient is None or len(self._gradient) < len(D):
            self._gradient = products_table(len(D), D.size(1), D, self.gradient_dtype)
        return self._gradient[: len(D)]

    def word_log_probs(self, D: Tensor, norms: FeatureNorms) -> Tensor:
        """Compute log P of every word: (n, S) → (n, V); nothing is kept."""
        return triton.word_log_probs(self.chunk(D, norms), self.rows)
