"""Which backend to use: the fastest that works where the vectors are."""

from typing import Optional

from torch import Tensor

from kerbs_fairseq.functional.backends.base import ChunkKernels, SenseConstants
from kerbs_fairseq.functional.backends.cpu import CpuKernels, is_compiled
from kerbs_fairseq.functional.backends.torch import TorchKernels
from kerbs_fairseq.functional.types import Senses

CHUNK_ELEMENTS = {"compiled": 2**24, "cpu": 2**22}  # of D: between fast products and tables that stay in the cache
CHUNK_ELEMENTS_ELSEWHERE = 2**26  # what keeps a GPU busy


def chunk_kernels(senses: Senses, constants: Optional[SenseConstants]) -> ChunkKernels:
    """For senses whose floats are all of one dtype."""
    return CpuKernels(senses, constants) if is_compiled(senses.vectors) else TorchKernels(senses, constants)


def chunk_size(vectors: Tensor) -> int:
    """Tokens per chunk, for products with ``vectors`` (S, d): large enough to be fast, small enough to be cheap."""
    where = "compiled" if is_compiled(vectors) else vectors.device.type
    return max(16, CHUNK_ELEMENTS.get(where, CHUNK_ELEMENTS_ELSEWHERE) // max(len(vectors), 1))
