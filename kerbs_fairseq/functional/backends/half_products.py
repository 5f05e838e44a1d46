"""Products of float16 or bfloat16 matrices, accumulated and returned in float32, without a float32 copy of either.

The methods:

- CUDA, torch 2.8 or newer: ``torch.mm(a, b, out_dtype=torch.float32)`` on tensor cores. ``torch.addmm`` has the
  argument too, but 2.8 refuses a float32 summand ("self and mat2 must have the same dtype"); later versions take it.
- CUDA, older torch: blocks of the larger matrix are converted to float32 and multiplied in TF32, which represents
  float16 and bfloat16 exactly: nothing is rounded before the sum. Half the speed, and a float32 copy of one block.
- Elsewhere (a CPU has no ``out_dtype`` in torch 2.13): the same blocks in float32. The bfloat16 product of a CPU
  returns bfloat16.

``out_dtype`` is tried once per device type and dtype, on matrices of 16 × 16: the version of torch does not tell what a
build for other hardware supports. Nothing here synchronizes with the device.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import mathematics
from kerbs_fairseq.functional.kernel import at_least_float32

HALVES = (torch.float16, torch.bfloat16)
BLOCK = 8192  # rows of the larger matrix that are converted at a time


@functools.cache
def has_out_dtype(device: str, dtype: torch.dtype, adding: bool = False) -> bool:
    """Return whether ``mm`` (with ``adding``: ``addmm``) of ``dtype`` can write float32 on this type of device."""
    if device == "cpu":
        return False
    a = torch.zeros(16, 16, device=device, dtype=dtype)
    rows = torch.zeros(16, 32, device=device, dtype=torch.float32).narrow(1, 0, 16)  # padded rows, as in use
    try:
        if adding:
            torch.addmm(rows, a.t(), a, out_dtype=torch.float32, out=rows)
        else:
            torch.mm(a, a.t(), out_dtype=torch.float32, out=rows)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def as_multiplied(features: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return features (n, d) and vectors (S, d) in the dtype in which they are multiplied.

    If both have the same half precision, they keep it. Under autocast (``--amp``), a GPU multiplies in the autocast
    dtype, as in torch's own layers; a CPU would not be faster that way. Everything else is float32, or float64.
    """
    dtype = autocast_dtype(features.device.type)
    if dtype in HALVES and torch.float64 not in (features.dtype, vectors.dtype):
        return features.to(dtype), vectors.to(dtype)
    if features.dtype == vectors.dtype and features.dtype in HALVES:
        return features, vectors
    return at_least_float32(features), at_least_float32(vectors)


def autocast_dtype(kind: str) -> Optional[torch.dtype]:
    """Return the dtype of products under autocast on a device type, or None; for GPUs only."""
    if kind not in ("cuda", "xpu"):
        return None
    try:
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    except TypeError:  # torch < 2.4 supports only one kind of GPU
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None


def gradient_dtype(device: torch.device, dtype: torch.dtype) -> Optional[torch.dtype]:
    """Return the half precision that dD is rounded to for its two products, or None to leave it, as on a CPU."""
    return dtype if dtype in HALVES and device.type != "cpu" else None


def product(a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """Compute a (m, k) @ b (k, n) → (m, n): in float32 if either is half precision, else in their common dtype."""
    if out is None:
        out = a.new_empty(a.size(0), b.size(1), dtype=mathematics(a.dtype))
    if a.dtype == b.dtype and a.dtype not in HALVES:
        return torch.mm(a, b, out=out)
    if a.dtype == b.dtype and has_out_dtype(a.device.type, a.dtype):
        return torch.mm(a, b, out_dtype=torch.float32, out=out)
    return _by_blocks(a, b, out, beta=0)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Compute total (m, n) += a (m, k) @ b (k, n) in place, in the precision of :func:`product`."""
    if a.dtype == b.dtype and a.dtype not in HALVES:
        return total.addmm_(a, b)
    if a.dtype == b.dtype and has_out_dtype(a.device.type, a.dtype, adding=True):
        return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    if a.dtype == b.dtype and has_out_dtype(a.device.type, a.dtype):
        return total.add_(torch.mm(a, b, out_dtype=torch.float32))
    return _by_blocks(a, b, total, beta=1)


def _by_blocks(a: Tensor, b: Tensor, out: Tensor, beta: int) -> Tensor:
    """Compute out = beta · out + a @ b in float32, in blocks along the longest of the three sides."""
    (m, k), n = a.shape, b.size(1)
    with _exact_for_halves() if a.is_cuda else contextlib.nullcontext():
        if m >= max(k, n):
            b = b.float()
            for at in range(0, m, BLOCK):
                out[at : at + BLOCK].addmm_(a[at : at + BLOCK].float(), b, beta=beta)
        elif n >= k:
            a = a.float()
            for at in range(0, n, BLOCK):
                out[:, at : at + BLOCK].addmm_(a, b[:, at : at + BLOCK].float(), beta=beta)
        else:
            for at in range(0, k, BLOCK):
                out.addmm_(a[:, at : at + BLOCK].float(), b[at : at + BLOCK].float(), beta=beta if at == 0 else 1)
    return out


@contextlib.contextmanager
def _exact_for_halves() -> Iterator[None]:
    """Context in which float32 products run in TF32, which represents float16 and bfloat16 exactly."""
    matmul = torch.backends.cuda.matmul
    name, value = ("fp32_precision", "tf32") if hasattr(matmul, "fp32_precision") else ("allow_tf32", True)
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
