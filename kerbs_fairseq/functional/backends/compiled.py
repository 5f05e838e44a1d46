"""The two passes fused by torch.compile, for GPUs: without it each of some twenty steps goes through memory by itself.

:func:`compiles` tries it on the device once; where it does not work (no Triton, an old card) the plain passes are used.
"""

import functools
import logging
import os
from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.torch import Columns, PlainPasses, Rows, Totals, bend
from kerbs_fairseq.functional.kernel import KERNELS, full_precision
from kerbs_fairseq.functional.words import pick

logger = logging.getLogger(__name__)


def totals_of(D: Tensor, rows: Rows, columns: Optional[Columns], kernel: str, slots: Optional[Tensor]) -> Totals:
    """First pass: (n, S) → totals, with those of words if ``slots`` (V, k) are given."""
    k = bend(D, rows.inverse, columns, kernel).k
    K = k * rows.length
    top = K.amax(1, keepdim=True)
    X = torch.exp(K - top)
    total, mean = X.sum(1, keepdim=True), (X * k).sum(1, keepdim=True)
    if slots is None:
        return Totals(top, total, mean)
    by_word = pick(K - top, slots)
    word = torch.logsumexp(by_word, 2)
    posterior = torch.exp(by_word - word.unsqueeze(2))
    word_mean = (posterior * k[:, slots.clamp_min(0).flatten()].unflatten(1, slots.shape)).sum((1, 2)).unsqueeze(1)
    return Totals(top, total, mean, word, word.sum(1, keepdim=True), word_mean)


def gradient_of(
    D: Tensor,
    rows: Rows,
    columns: Optional[Columns],
    kernel: str,
    totals: Totals,
    factor: Tensor,
    less: Tensor,
    word_of: Optional[Tensor],
) -> tuple[Tensor, Tensor]:
    """Second pass: (the gradient by D (n, S), what to add to the sums (3, S)); ``word_of`` (S,) if words count."""
    bent = bend(D, rows.inverse, columns, kernel)
    K = bent.k * rows.length - totals.top
    G = torch.exp(K) * factor
    if totals.word is not None and word_of is not None:
        G = G - torch.exp(K - totals.word[:, word_of]) * less
    along = G * rows.length
    sums = torch.stack([(along * times).sum(0) for times in (bent.F, bent.T, bent.plain)])
    return G * bent.slope, sums


@functools.cache
def functions() -> tuple[Any, Any]:
    """The two of them compiled, for any size."""
    return torch.compile(totals_of, dynamic=True), torch.compile(gradient_of, dynamic=True)


class CompiledPasses:
    """The passes through torch.compile, on any device for which it works."""

    def __init__(self, slots: Tensor, columns: Optional[Columns], kernel: str, like: Tensor) -> None:
        self.slots, self.columns, self.kernel = slots, columns, kernel
        self.sums = like.new_zeros(3, len(like))
        self.word_of: Optional[Tensor] = None

    def totals(self, D: Tensor, rows: Rows, words: bool) -> Totals:
        """First pass."""
        return functions()[0](D, rows, self.columns, self.kernel, self.slots if words else None)

    def gradient(self, D: Tensor, rows: Rows, totals: Totals, factor: Tensor, less: Tensor) -> Tensor:
        """Second pass."""
        if totals.word is not None and self.word_of is None:
            V, most = self.slots.shape
            word_of = self.slots.new_zeros(D.size(1) + 1)  # empty slots, −1, go to the end
            word_of[self.slots.flatten()] = torch.arange(V, device=D.device).repeat_interleave(most)
            self.word_of = word_of[:-1]
        by_D, sums = functions()[1](D, rows, self.columns, self.kernel, totals, factor, less, self.word_of)
        self.sums += sums
        return by_D


@functools.cache
def compiles(device: torch.device) -> bool:
    """Whether the compiled passes run there and agree with the plain ones; tried once."""
    if device.type not in ("cuda", "xpu") or os.environ.get("KERBS_NATIVE", "1") == "0":
        return False
    try:
        with torch.no_grad(), full_precision(device):
            return all(agrees(device, kernel, words) for kernel in KERNELS for words in (False, True))
    except Exception as problem:  # whatever a compiler can throw
        lines = str(problem).strip().splitlines() or [type(problem).__name__]
        logger.warning(f"KerBS on {device} runs in plain torch, which is slower: torch.compile failed: {lines[0]}")
        return False


def agrees(device: torch.device, kernel: str, words: bool) -> bool:
    """Whether both passes give what the plain ones give, on a small case."""
    generator = torch.Generator().manual_seed(1)
    vectors, features = (torch.randn(size, 8, generator=generator).to(device) for size in (48, 5))
    theta = -torch.rand(48, generator=generator).to(device)
    slots = torch.arange(48, device=device).view(16, 3)
    found = []
    for kind in (CompiledPasses, PlainPasses):
        columns, rows = None if kernel == "dot" else Columns.of(vectors, theta), Rows.of(features, kernel)
        over, D = kind(slots, columns, kernel, vectors), features @ vectors.t()
        totals = over.totals(D, rows, words)
        by_D = over.gradient(D, rows, totals, 1 / totals.total, torch.full_like(totals.total, 0.01))
        found.append([x for x in (*totals, by_D, over.sums) if x is not None])
    if all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(*found)):
        return True
    logger.warning(f"KerBS on {device} runs in plain torch: what torch.compile made of it gives other numbers")
    return False
