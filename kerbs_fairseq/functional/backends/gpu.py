"""The chunk kernels of triton.py behind the interface of all backends, for float32 products on a GPU."""

import math
from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends import triton
from kerbs_fairseq.functional.backends.base import ChunkTotals, FeatureNorms, SenseConstants
from kerbs_fairseq.functional.types import Senses


class TritonKernels:
    """See :class:`kerbs_fairseq.functional.backends.base.ChunkKernels`; the constants of senses are its own."""

    def __init__(self, senses: Senses, constants: Optional[SenseConstants]) -> None:
        self.senses = senses
        self.constants = triton.sense_constants(senses.vectors, senses.theta, senses.bias, senses.kernel)
        self.sums = senses.vectors.new_zeros(4, len(senses.vectors))
        self.sense_to_word = senses.index.sense_to_word.int()
        self._words: Optional[triton.Words] = None
        self._totals: Optional[triton.Totals] = None
        self._word_totals: Optional[triton.WordTotals] = None

    def words(self) -> triton.Words:
        """The index from words to senses, made when it is first needed."""
        if self._words is None:
            index = self.senses.index
            self._words = triton.Words.of(index.sense_to_word, index.n_words)
        return self._words

    def chunk(self, D: Tensor, norms: FeatureNorms) -> triton.Chunk:
        """What the kernels work on."""
        return triton.Chunk(D, norms.norm.flatten().contiguous(), norms.inverse.flatten().contiguous(), self.constants)

    def forward(self, D: Tensor, norms: FeatureNorms, words: bool) -> ChunkTotals:
        """Keeps the totals for :meth:`backward`, which needs them in the units of the kernels."""
        chunk = self.chunk(D, norms)
        self._totals = totals = triton.forward(chunk)
        top, total, mean = (x.unsqueeze(1) for x in totals)
        if not words:
            self._word_totals = None
            return ChunkTotals(top * math.log(2), total, mean)
        self._word_totals = word = triton.word_logsumexp(chunk, totals.top, self.words())
        of_words = word.log2, word.lse_sum.unsqueeze(1), word.mean.unsqueeze(1)
        return ChunkTotals(top * math.log(2), total, mean, *of_words)

    def backward(self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, scale: Tensor, smooth: Tensor) -> Tensor:
        """After :meth:`forward` of the same chunk; no token has a target here, as the caller adds those."""
        assert self._totals is not None
        top = self._totals.top
        nobody = torch.full_like(top, -1, dtype=torch.int32)
        zero, one = torch.zeros_like(top), torch.ones_like(top)
        return triton.backward(
            self.chunk(D, norms),
            top,
            scale.flatten().contiguous(),
            nobody,
            triton.TargetTotals(zero, zero, zero, one, None),
            zero,
            self.sense_to_word,
            self.sums,
            None if self._word_totals is None else smooth.flatten().contiguous(),
            self._word_totals,
        )

    def word_log_probs(self, D: Tensor, norms: FeatureNorms) -> Tensor:
        """Without anything kept."""
        return triton.word_log_probs(self.chunk(D, norms), self.words())
