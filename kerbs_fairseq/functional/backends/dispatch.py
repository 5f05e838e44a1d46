"""Which passes to use: the fastest that work where the vectors are."""

from typing import Optional

from torch import Tensor

from kerbs_fairseq.functional.backends.compiled import CompiledPasses, compiles
from kerbs_fairseq.functional.backends.cpu import NativePasses, is_native
from kerbs_fairseq.functional.backends.torch import Columns, Passes, PlainPasses

CHUNK_ELEMENTS = {"native": 2**24, "cpu": 2**22}  # of D: a compromise between fast products and a cache that holds
CHUNK_ELEMENTS_ELSEWHERE = 2**26  # what keeps a GPU busy


def passes(slots: Tensor, columns: Optional[Columns], kernel: str, like: Tensor) -> Passes:
    """For vectors ``like`` (S, d), and ``slots`` (V, k)."""
    if is_native(like):
        return NativePasses(slots, columns, kernel, like)
    if compiles(like.device):
        return CompiledPasses(slots, columns, kernel, like)
    return PlainPasses(slots, columns, kernel, like)


def chunk_size(vectors: Tensor) -> int:
    """Tokens per chunk, for products with ``vectors`` (S, d): large enough to be fast, small enough to be cheap."""
    where = "native" if is_native(vectors) else vectors.device.type
    return max(16, CHUNK_ELEMENTS.get(where, CHUNK_ELEMENTS_ELSEWHERE) // max(len(vectors), 1))
