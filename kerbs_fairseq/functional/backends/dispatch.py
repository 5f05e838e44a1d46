"""The registry of backends, and the choice of one: the fastest that works with the vectors of the senses.

``backend=`` of the layer selects one, else ``KERBS_BACKEND`` does; it is an error if that one cannot run.
"""

import functools
import logging
import os
from types import ModuleType
from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import ChunkKernels, LossKernels, SenseConstants, WordKernels
from kerbs_fairseq.functional.backends.build import native
from kerbs_fairseq.functional.backends.cpu import CpuKernels, is_compiled
from kerbs_fairseq.functional.backends.targets import TargetsApart
from kerbs_fairseq.functional.backends.torch import TorchKernels
from kerbs_fairseq.functional.types import Senses

logger = logging.getLogger(__name__)

VARIABLE = "KERBS_BACKEND"
CHUNK_ELEMENTS = {"cpu": 2**25}  # of D: a balance of fast products and use of the cache
CHUNK_TOKENS = {"cpu": 512}  # products are not faster with more
CHUNK_ELEMENTS_ON_CPU, CHUNK_ELEMENTS_ON_GPU = 2**22, 2**26  # of the other backends; the latter keeps a GPU busy


class Backend(NamedTuple):
    """How to make the kernels of a backend, and whether it can be used with given vectors, with the reason."""

    available: Callable[[Tensor], tuple[bool, str]]
    word_kernels: Callable[[Senses, Optional[SenseConstants]], WordKernels]
    loss_kernels: Callable[[Senses, Optional[SenseConstants], Optional[torch.dtype]], LossKernels]

    @classmethod
    def without_targets(
        cls,
        available: Callable[[Tensor], tuple[bool, str]],
        kernels: Callable[[Senses, Optional[SenseConstants]], ChunkKernels],
    ) -> "Backend":
        """Return a backend whose kernels treat all senses alike."""

        def loss(senses: Senses, constants: Optional[SenseConstants], dtype: Optional[torch.dtype]) -> LossKernels:
            return TargetsApart(kernels(senses, constants), senses, constants, dtype)

        return cls(available, kernels, loss)


def gpu() -> ModuleType:
    """Return the module with the Triton kernels; imported on first use, because importing triton is slow."""
    from kerbs_fairseq.functional.backends import gpu

    return gpu


def triton_available(vectors: Tensor) -> tuple[bool, str]:
    """Return whether the Triton kernels run with ``vectors`` (S, d), and the reason."""
    able, reason = gpu().triton.available(vectors.device, vectors.dtype)
    return able, reason


BACKENDS = {
    "torch": Backend.without_targets(lambda _: (True, "any device and precision"), TorchKernels),
    "cpu": Backend.without_targets(
        lambda vectors: (is_compiled(vectors), f"it is for float32 on a CPU; {native().reason}"), CpuKernels
    ),
    "triton": Backend(
        triton_available,
        lambda senses, _: gpu().TritonKernels(senses),
        lambda senses, _, dtype: gpu().TritonKernels(senses, dtype),
    ),
}


def check_backend(name: str, argument: str = "backend=") -> None:
    """Raise ValueError unless there is a backend of this name, or it is empty."""
    if name and name not in BACKENDS:
        raise ValueError(f"{argument}{name}: there are {', '.join(BACKENDS)}")


def backend_of(vectors: Tensor, backend: str = "") -> str:
    """Return the name of the backend for products with ``vectors`` (S, d); ``backend`` selects it, unless empty."""
    name, argument = (backend, "backend=") if backend else (os.environ.get(VARIABLE, ""), f"{VARIABLE}=")
    if name:
        check_backend(name, argument)
        able, reason = BACKENDS[name].available(vectors)
        if not able:
            raise ValueError(f"{argument}{name} cannot be used here: {reason}")
        return name
    if is_compiled(vectors):
        return "cpu"
    if vectors.device.type == "cuda" and vectors.dtype != torch.float64 and _triton_runs(vectors.device):
        return "triton"
    return "torch"


def describe(vectors: Tensor, backend: str = "") -> str:
    """Return the backend for products with ``vectors`` and why it was chosen."""
    name = backend_of(vectors, backend)
    if backend:
        reason = "selected by backend="
    elif os.environ.get(VARIABLE):
        reason = f"selected by {VARIABLE}"
    elif vectors.dtype == torch.float64:
        reason = "float64 has no other"
    elif vectors.device.type == "cpu":
        reason = native().reason
    elif vectors.device.type == "cuda":
        reason = triton_available(vectors)[1]
    else:
        reason = f"{vectors.device.type} has no other"
    return f"{name}: {reason}"


@functools.cache
def _triton_runs(device: torch.device) -> bool:
    """Return whether the Triton kernels run on a GPU; log a warning once if not."""
    able, reason = gpu().triton.available(device)
    if not able:
        logger.warning(f"KerBS on {device} runs in plain torch, which is slower: {reason}")
    return able


def chunk_size(vectors: Tensor, name: str) -> int:
    """Return the tokens per chunk of the backend ``name`` with ``vectors`` (S, d): fast, and little memory."""
    others = CHUNK_ELEMENTS_ON_CPU if vectors.device.type == "cpu" else CHUNK_ELEMENTS_ON_GPU
    tokens = CHUNK_ELEMENTS.get(name, others) // max(len(vectors), 1)
    return max(16, min(tokens, CHUNK_TOKENS.get(name, tokens)))
