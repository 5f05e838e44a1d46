"""The passes of cpu.cpp, for float32 on a CPU."""

import ctypes
from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.build import native
from kerbs_fairseq.functional.backends.torch import Columns, Rows, Totals
from kerbs_fairseq.functional.kernel import KERNELS


def is_native(like: Tensor) -> bool:
    """Whether tensors such as this one go through the compiled passes."""
    return like.device.type == "cpu" and like.dtype == torch.float32 and native().library is not None


def _at(x: Optional[Tensor]) -> Optional[ctypes.c_void_p]:
    if x is None:
        return None
    assert x.is_contiguous()
    return ctypes.c_void_p(x.data_ptr())


class NativePasses:
    """The compiled passes: both sweep over D alone, and compute the kernel twice rather than keep it."""

    def __init__(self, slots: Tensor, columns: Optional[Columns], kernel: str, like: Tensor) -> None:
        library = native().library
        assert library is not None
        self.library, self.slots, self.kernel = library, slots, KERNELS.index(kernel)
        self.sums = like.new_zeros(3, len(like))
        self.columns = [] if columns is None else [column.contiguous() for column in columns]
        pointers = [column.data_ptr() for column in self.columns] or [0] * len(Columns._fields)
        self.pointers = (ctypes.c_void_p * len(pointers))(*pointers)
        self.lookup: Optional[tuple[Tensor, Tensor]] = None

    def _shape(self, D: Tensor) -> tuple[Any, ...]:
        return _at(D), ctypes.c_int64(D.size(0)), ctypes.c_int64(D.size(1)), self.pointers

    def _words(self) -> tuple[Tensor, Tensor]:
        """(slots (k, V), S for none; the word of each sense (S,)), as 32-bit integers."""
        if self.lookup is None:
            V, most = self.slots.shape
            slots = self.slots.t().to(torch.int32).contiguous()
            slots[slots < 0] = self.sums.size(1)
            word_of = torch.zeros(self.sums.size(1) + 1, dtype=torch.int32)  # empty slots, −1, go to the end
            word_of[self.slots.flatten()] = torch.arange(V, dtype=torch.int32).repeat_interleave(most)
            self.lookup = slots, word_of
        return self.lookup

    def totals(self, D: Tensor, rows: Rows, words: bool) -> Totals:
        """First pass."""
        (n, _), (V, most) = D.shape, self.slots.shape
        length, inverse = rows.length.contiguous(), rows.inverse.contiguous()
        found = D.new_empty(n, 5)
        slots, word = (self._words()[0], D.new_empty(n, V)) if words else (None, None)
        sizes = ctypes.c_int64(V), ctypes.c_int64(most)
        self.library.kerbs_totals(
            self.kernel, *self._shape(D), _at(length), _at(inverse), _at(found), _at(slots), *sizes, _at(word)
        )
        top, total, mean, *of_words = found.split(1, 1)
        return Totals(top, total, mean, word, *of_words) if words else Totals(top, total, mean)

    def gradient(self, D: Tensor, rows: Rows, totals: Totals, factor: Tensor, less: Tensor) -> Tensor:
        """Second pass."""
        per_row = [x.contiguous() for x in (rows.length, rows.inverse, totals.top, factor)]
        word_of = None if totals.word is None else self._words()[1]
        less = less.contiguous()
        of_words = _at(totals.word), ctypes.c_int64(len(self.slots)), _at(word_of), _at(less)
        self.library.kerbs_gradient(self.kernel, *self._shape(D), *map(_at, per_row), *of_words, _at(self.sums))
        return D
