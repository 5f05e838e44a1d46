"""Choose the backend of the chunk kernels: the fastest that works on the device of the vectors.

``KERBS_BACKEND=torch``, ``cpu`` or ``triton`` selects one of them; it is an error if that one cannot run.
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
}  # without Triton, whose kernels include the targets
NAMES = (*BACKENDS, "triton")
VARIABLE = "KERBS_BACKEND"
CHUNK_ELEMENTS = {"compiled": 2**25, "cpu": 2**22}  # of D: a balance of fast products and use of the cache
CHUNK_TOKENS = {"compiled": 512}  # products are not faster with more
CHUNK_ELEMENTS_ELSEWHERE = 2**26  # enough to keep a GPU busy


def backend_of(vectors: Tensor) -> str:
    """Return the name of the backend for products with ``vectors`` (S, d)."""
    asked = os.environ.get(VARIABLE, "")
    if asked:
        return forced(asked, vectors)
    if is_compiled(vectors):
        return "cpu"
    if vectors.device.type == "cuda" and vectors.dtype != torch.float64 and _triton_runs(vectors.device):
        return "triton"
    return "torch"


def forced(asked: str, vectors: Tensor) -> str:
    """Return the backend that the environment selects; raise ValueError with the reason if it cannot be used."""
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
    """Describe the backend for products with ``vectors`` and why it was chosen."""
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
    """Return whether the Triton kernels run on a GPU; log a warning once if not."""
    able, reason = triton.available(device)
    if not able:
        logger.warning(f"KerBS on {device} runs in plain torch, which is slower: {reason}")
    return able


def word_kernels(senses: Senses, constants: Optional[SenseConstants]) -> WordKernels:
    """Return the kernels for decoding."""
    name = backend_of(senses.vectors)
    return TritonKernels(senses) if name == "triton" else BACKENDS[name](senses, constants)


def loss_kernels(
    senses: Senses, constants: Optional[SenseConstants], gradient_dtype: Optional[torch.dtype] = None
) -> LossKernels:
    """Return the kernels for the loss, with the gradient w.r.t. D in ``gradient_dtype`` if one is given."""
    name = backend_of(senses.vectors)
    if name == "triton":
        return TritonKernels(senses, gradient_dtype)
    return TargetsApart(BACKENDS[name](senses, constants), senses, constants, gradient_dtype)


def chunk_size(vectors: Tensor) -> int:
    """Return the tokens per chunk for products with ``vectors`` (S, d), a compromise between speed and memory."""
    where = "compiled" if is_compiled(vectors) else vectors.device.type
    tokens = CHUNK_ELEMENTS.get(where, CHUNK_ELEMENTS_ELSEWHERE) // max(len(vectors), 1)
    return max(16, min(tokens, CHUNK_TOKENS.get(where, tokens)))
