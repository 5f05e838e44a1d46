"""Which backend computes the chunk kernels: the fastest that works where the vectors are.

``KERBS_BACKEND=torch``, ``cpu`` or ``triton`` asks for one of them; where that one cannot run it is an error.
"""

import functools
import logging
import os
from typing import Callable, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends import triton
from kerbs_fairseq.functional.backends.base import ChunkKernels, LossKernels, SenseConstants, WordKernels
from kerbs_fairseq.functional.backends.build import native
from kerbs_fairseq.functional.backends.cpu import CpuKernels, is_compiled
from kerbs_fairseq.functional.backends.gpu import TritonKernels
from kerbs_fairseq.functional.backends.targets import TargetsApart
from kerbs_fairseq.functional.backends.torch import TorchKernels
from kerbs_fairseq.functional.types import Senses

logger = logging.getLogger(__name__)

BACKENDS: dict[str, Callable[[Senses, Optional[SenseConstants]], ChunkKernels]] = {
    "torch": TorchKernels,
    "cpu": CpuKernels,
}  # and Triton's, which have the targets in them
NAMES = (*BACKENDS, "triton")
VARIABLE = "KERBS_BACKEND"
CHUNK_ELEMENTS = {"compiled": 2**25, "cpu": 2**22}  # of D: between fast products and tables that stay in the cache
CHUNK_TOKENS = {"compiled": 512}  # more make no product faster
CHUNK_ELEMENTS_ELSEWHERE = 2**26  # what keeps a GPU busy


def backend_of(vectors: Tensor) -> str:
    """The name of the backend for products with ``vectors`` (S, d)."""
    asked = os.environ.get(VARIABLE, "")
    if asked:
        return forced(asked, vectors)
    if is_compiled(vectors):
        return "cpu"
    if vectors.device.type == "cuda" and vectors.dtype != torch.float64 and _triton_runs(vectors.device):
        return "triton"
    return "torch"


def forced(asked: str, vectors: Tensor) -> str:
    """The backend that the environment asks for, or an error that says why it cannot be had."""
    if asked not in NAMES:
        raise ValueError(f"{VARIABLE}={asked}: there are {', '.join(NAMES)}")
    able, reason = True, ""
    if asked == "cpu":
        able, reason = is_compiled(vectors), f"it is for float32 on a CPU; {native().reason}"
    elif asked == "triton":
        able, reason = triton.available(vectors.device, vectors.dtype)
    if not able:
        raise ValueError(f"{VARIABLE}={asked} cannot be used here: {reason}")
    return asked


def chosen(vectors: Tensor) -> str:
    """The backend for products with ``vectors``, and why it is this one."""
    name = backend_of(vectors)
    if os.environ.get(VARIABLE):
        reason = f"{VARIABLE} asks for it"
    elif name == "triton":
        reason = triton.available(vectors.device, vectors.dtype)[1]
    elif name == "cpu":
        reason = native().reason
    elif vectors.dtype == torch.float64:
        reason = "float64 has no other"
    else:
        known = {"cpu": native().reason, "cuda": triton.available(vectors.device, vectors.dtype)[1]}
        reason = known.get(vectors.device.type, f"{vectors.device.type} has no other")
    return f"{name}: {reason}"


@functools.cache
def _triton_runs(device: torch.device) -> bool:
    """Whether the Triton kernels run on a GPU; said once if not."""
    able, reason = triton.available(device)
    if not able:
        logger.warning(f"KerBS on {device} runs in plain torch, which is slower: {reason}")
    return able


def word_kernels(senses: Senses, constants: Optional[SenseConstants]) -> WordKernels:
    """For decoding."""
    name = backend_of(senses.vectors)
    return TritonKernels(senses) if name == "triton" else BACKENDS[name](senses, constants)


def loss_kernels(
    senses: Senses, constants: Optional[SenseConstants], gradient_dtype: Optional[torch.dtype] = None
) -> LossKernels:
    """For the loss, with the gradient by D in ``gradient_dtype`` if one is given."""
    name = backend_of(senses.vectors)
    if name == "triton":
        return TritonKernels(senses, gradient_dtype)
    return TargetsApart(BACKENDS[name](senses, constants), senses, constants, gradient_dtype)


def chunk_size(vectors: Tensor) -> int:
    """Tokens per chunk, for products with ``vectors`` (S, d): large enough to be fast, small enough to be cheap."""
    where = "compiled" if is_compiled(vectors) else vectors.device.type
    tokens = CHUNK_ELEMENTS.get(where, CHUNK_ELEMENTS_ELSEWHERE) // max(len(vectors), 1)
    return max(16, min(tokens, CHUNK_TOKENS.get(where, tokens)))
