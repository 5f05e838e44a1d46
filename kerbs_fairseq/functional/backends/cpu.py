"""The chunk kernels of cpu.cpp, for float32 on a CPU."""

import ctypes
from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import ChunkTotals, FeatureNorms, SenseConstants
from kerbs_fairseq.functional.backends.build import native
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.functional.types import Senses


def is_compiled(like: Tensor) -> bool:
    """Return whether such tensors use the compiled kernels; half precision does, as its products are float32."""
    return like.device.type == "cpu" and like.dtype != torch.float64 and native().library is not None


def _at(x: Optional[Tensor]) -> Optional[ctypes.c_void_p]:
    if x is None:
        return None
    assert x.is_contiguous()
    return ctypes.c_void_p(x.data_ptr())


class CpuKernels:
    """See :class:`kerbs_fairseq.functional.backends.base.ChunkKernels`.

    Each of them reads D once, and kernel values are recomputed instead of stored.
    """

    def __init__(self, senses: Senses, constants: Optional[SenseConstants]) -> None:
        library = native().library
        assert library is not None
        self.library, self.index, self.kernel = library, senses.index, KERNELS.index(senses.kernel)
        S = len(senses.vectors)
        self.sums = torch.zeros(4, S, dtype=torch.float32)
        bias = torch.zeros(S, dtype=torch.float32) if senses.bias is None else senses.bias.detach().contiguous()
        # referenced here for as long as the library has their addresses
        self.constants = [bias, *([] if constants is None else [x.contiguous() for x in constants])]
        n = 1 + len(SenseConstants._fields)
        self.addresses = (ctypes.c_void_p * n)(*(x.data_ptr() for x in self.constants))
        self._words: Optional[tuple[Tensor, Optional[Tensor], Tensor, Tensor]] = None
        self._sense_to_word: Optional[Tensor] = None

    def words(self) -> tuple[Any, ...]:
        """Return the index by rounds as arguments of the library."""
        if self._words is None:
            jagged = self.index.jagged
            first, several, others, empty = (
                x.to(torch.int32) for x in (jagged.first, jagged.several, jagged.others, jagged.empty)
            )
            senses = torch.cat([first, others])
            ordered = torch.equal(senses, torch.arange(len(senses), dtype=torch.int32))
            self._words = several, None if ordered else senses, torch.tensor(jagged.starts), empty
        several, of_rounds, starts, empty = self._words
        sizes = (ctypes.c_int64(n) for n in (len(several), len(starts) - 1, len(empty), self.index.n_words))
        return _at(several), _at(of_rounds), _at(starts), _at(empty), *sizes

    def _chunk(self, D: Tensor) -> tuple[Any, ...]:
        assert D.stride(1) == 1
        sizes = (ctypes.c_int64(size) for size in (*D.shape, D.stride(0)))
        return self.kernel, ctypes.c_void_p(D.data_ptr()), *sizes, self.addresses

    def forward(self, D: Tensor, norms: FeatureNorms, words: bool) -> ChunkTotals:
        """Compute the totals of a chunk; does not change D."""
        norm, inverse = norms.norm.contiguous(), norms.inverse.contiguous()
        totals = D.new_empty(len(D), 5)
        if not words:
            self.library.kerbs_forward(*self._chunk(D), _at(norm), _at(inverse), _at(totals))
            return ChunkTotals(*totals.split(1, 1)[:3])
        word = D.new_empty(len(D), self.index.n_words)
        self.library.kerbs_forward_words(
            *self._chunk(D), _at(norm), _at(inverse), _at(totals), *self.words(), _at(word)
        )
        top, total, mean, word_sum, word_mean = totals.split(1, 1)
        return ChunkTotals(top, total, mean, word, word_sum, word_mean)

    def backward(self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, scale: Tensor, smooth: Tensor) -> Tensor:
        """Overwrite D by its gradient."""
        per_token = [x.contiguous() for x in (norms.norm, norms.inverse, totals.top, scale, smooth)]
        if totals.word is not None and self._sense_to_word is None:
            self._sense_to_word = self.index.sense_to_word.to(torch.int32)
        of_words = _at(totals.word), ctypes.c_int64(self.index.n_words), _at(self._sense_to_word)
        self.library.kerbs_backward(*self._chunk(D), *map(_at, per_token), *of_words, _at(self.sums))
        return D

    def word_log_probs(self, D: Tensor, norms: FeatureNorms) -> Tensor:
        """Compute log P of every word (n, V)."""
        norm, inverse = norms.norm.contiguous(), norms.inverse.contiguous()
        log_probs = D.new_empty(len(D), self.index.n_words)
        self.library.kerbs_word_log_probs(*self._chunk(D), _at(norm), _at(inverse), *self.words(), _at(log_probs))
        return log_probs
