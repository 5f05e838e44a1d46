"""The chunk kernels of triton.py behind the interface of all backends, for a GPU."""

import math
from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends import triton
from kerbs_fairseq.functional.backends.base import ChunkTotals, FeatureNorms, GradientWeights, products_table
from kerbs_fairseq.functional.types import Senses


class TritonKernels:
    """See :class:`kerbs_fairseq.functional.backends.base.LossKernels`; the constants of senses are its own.

    D is float32; its gradient takes its place, or is made in ``gradient_dtype`` apart from it. What targets add to the
    gradient is inside the sweep over all senses: no scatter, whose sums come in any order on a GPU.
    """

    def __init__(self, senses: Senses, gradient_dtype: Optional[torch.dtype] = None) -> None:
        self.rows, self.most, self.gradient_dtype = senses.index.compressed, senses.index.largest, gradient_dtype
        self.constants = triton.sense_constants(senses.vectors, senses.theta, senses.bias, senses.kernel)
        self.sums = torch.zeros(4, len(senses.vectors), dtype=torch.float32, device=senses.vectors.device)
        self._gradient: Optional[Tensor] = None
        self._target: Optional[Tensor] = None
        self._totals: Optional[triton.ChunkTotals] = None

    def chunk(self, D: Tensor, norms: FeatureNorms) -> triton.Chunk:
        """What the kernels work on."""
        return triton.Chunk(D, norms.norm.flatten().contiguous(), norms.inverse.flatten().contiguous(), self.constants)

    def forward(self, D: Tensor, norms: FeatureNorms, target: Tensor, words: bool) -> ChunkTotals:
        """Keeps the totals for :meth:`backward`, which needs them in the units of the kernels."""
        chunk, rows = self.chunk(D, norms), self.rows
        self._target = target.int().contiguous()
        totals = triton.forward(chunk)
        own = triton.target_logsumexp(chunk, totals.top, rows, self._target, self.most)
        word = triton.word_logsumexp(chunk, totals.top, rows) if words else None
        self._totals = triton.ChunkTotals(totals, own, word)
        top, total, mean = (x.unsqueeze(1) for x in totals)
        in_nats = ChunkTotals(top * math.log(2), total, mean, target=own.lse.unsqueeze(1), target_senses=own.scores)
        if word is None:
            return in_nats
        return in_nats._replace(word=word.log2, word_sum=word.lse_sum.unsqueeze(1), word_mean=word.mean.unsqueeze(1))

    def backward(
        self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, weights: GradientWeights
    ) -> tuple[Tensor, Tensor]:
        """After :meth:`forward` of the same chunk."""
        assert self._totals is not None
        assert self._target is not None
        scale, smooth, target = (x.flatten().contiguous() for x in weights)
        of_tokens = triton.Weights(scale, target, None if self._totals.word is None else smooth)
        by_norm = triton.norm_gradient(self._totals, of_tokens)
        chunk, words, out = self.chunk(D, norms), self.rows.sense_to_word, self.gradient_table(D)
        dD = triton.backward(chunk, self._totals, of_tokens, self._target, words, self.sums, out)
        return dD, by_norm.unsqueeze(1)

    def gradient_table(self, D: Tensor) -> Tensor:
        """Where the gradient by D (n, S) goes: allocated once for all chunks, the first of which is the largest."""
        if self.gradient_dtype is None:
            return D
        if self._gradient is None or len(self._gradient) < len(D):
            self._gradient = products_table(len(D), D.size(1), D, self.gradient_dtype)
        return self._gradient[: len(D)]

    def word_log_probs(self, D: Tensor, norms: FeatureNorms) -> Tensor:
        """log P of every word, without anything kept: (n, S) → (n, V)."""
        return triton.word_log_probs(self.chunk(D, norms), self.rows)
