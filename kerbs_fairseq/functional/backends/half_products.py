"""Products of float16 or bfloat16 matrices, accumulated and returned in float32, without a float32 copy of either.

What there is for it:

- CUDA, torch 2.8 or newer: ``torch.mm(a, b, out_dtype=torch.float32)`` on tensor cores. ``torch.addmm`` has the
  argument too, but 2.8 refuses a float32 summand ("self and mat2 must have the same dtype"); later versions take it.
- CUDA, older torch: blocks of the larger matrix are converted to float32 and multiplied in TF32, which holds float16
  and bfloat16 exactly: nothing is rounded before the sum. Half the speed of the former, and a copy of one block.
- Elsewhere (a CPU has no ``out_dtype`` in torch 2.13): the same blocks, in float32. A CPU's own bfloat16 product
  returns bfloat16.

Each way is tried once per device and precision, on matrices of 16 × 16: what a build of torch for other hardware can
do, its version does not say. Nothing here waits for the device.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Optional

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)
BLOCK = 8192  # rows of the larger matrix that are converted at a time


@functools.cache
def has_out_dtype(device: str, dtype: torch.dtype, adding: bool = False) -> bool:
    """Whether torch multiplies ``dtype`` into float32 on a kind of device, and adds the product to a float32 matrix."""
    if device == "cpu":
        return False
    a = torch.zeros(16, 16, device=device, dtype=dtype)
    try:
        if adding:
            torch.addmm(a.float(), a, a, out_dtype=torch.float32)
        else:
            torch.mm(a, a, out_dtype=torch.float32)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def product(a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
    """a (m, k) @ b (k, n) → float32 (m, n), of two float32 matrices or two of one half precision."""
    if out is None:
        out = torch.empty(a.size(0), b.size(1), device=a.device)
    if a.dtype == torch.float32:
        return torch.mm(a, b, out=out)
    if has_out_dtype(a.device.type, a.dtype):
        return torch.mm(a, b, out_dtype=torch.float32, out=out)
    return _by_blocks(a, b, out, beta=0)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """total (m, n) float32 += a (m, k) @ b (k, n)."""
    if a.dtype == torch.float32:
        return total.addmm_(a, b)
    if has_out_dtype(a.device.type, a.dtype, adding=True):
        return torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    if has_out_dtype(a.device.type, a.dtype):
        return total.add_(torch.mm(a, b, out_dtype=torch.float32))
    return _by_blocks(a, b, total, beta=1)


def _by_blocks(a: Tensor, b: Tensor, out: Tensor, beta: int) -> Tensor:
    """beta out + a @ b, in blocks along the longest of the three sides."""
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
    """Float32 products in TF32, which is exact for numbers that were float16 or bfloat16."""
    matmul = torch.backends.cuda.matmul
    name, value = ("fp32_precision", "tf32") if hasattr(matmul, "fp32_precision") else ("allow_tf32", True)
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)
