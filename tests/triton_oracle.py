"""What the Triton kernels are judged by: the loss in float64 by autograd, and how they run without a GPU."""

import contextlib
import importlib.util
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Callable, NamedTuple, Optional
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from kerbs_fairseq.functional.backends import triton as backend
from kerbs_fairseq.functional.backends.base import products_table
from kerbs_fairseq.functional.kernel import TINY
from kerbs_fairseq.functional.kernel import psi as plain_psi
from kerbs_fairseq.functional.kernel import psi_prime as plain_psi_prime
from kerbs_fairseq.functional.words import SenseIndex

SOURCE = Path(backend.__file__).with_name("triton_kernels.py")
THETAS = (0.0, 1e-8, -1e-8, 1e-4, -1e-4, 0.1, -0.1, 1.0, -1.0, 8.0, -8.0)
SMALL_BLOCKS = {name: backend.Block(4, 16, 1) for name in backend.BLOCKS} | {"targets": backend.Block(4, 4, 1)}
FEW_WARPS = 6  # with these blocks 9 tokens and 44 senses make a launch of two parts, the first with two steps
FEW_SENSES = 3  # words with more of them are those with many
LN2 = math.log(2)
CLOSE = 3e-6  # float32 mathematics: relative error of norms
SENSES = (1, 3, 4, 2, 1, 1, 2, 1, 17, 3, 4, 1, 1, 3)  # of words, 44 in all: few and many
_names = (f"interpreted_kernels_{i}" for i in itertools.count())


def too_old() -> str:
    """Why the interpreter cannot run here: before Triton 3.7 it fails with NumPy 2.4, or is called otherwise."""
    import triton

    return (
        "" if triton.__version__ >= "3.7" else f"the interpreter of Triton {triton.__version__} is too old: needs 3.7"
    )


def load_interpreted(path: Path = SOURCE) -> ModuleType:
    """The kernels of a file, to be run by Triton's interpreter, however Triton itself was imported."""
    spec = importlib.util.spec_from_file_location(next(_names), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ, TRITON_INTERPRET="1"):
        spec.loader.exec_module(module)
    return module


def _called_by(kernels: ModuleType, call: Callable[..., Any]) -> Callable[..., Any]:
    """How a kernel calls functions: for its own, without what the interpreter's ``call`` prepares anew each time."""

    def faster(self: Any, *args: Any, **more: Any) -> Any:
        own = self.fn.__globals__ is vars(kernels)
        return self.rewrite()(*args, **more) if own else call(self, *args, **more)

    return faster


@contextlib.contextmanager
def interpreter(kernels: ModuleType, blocks: Optional[dict[str, Any]] = None, warps: int = FEW_WARPS) -> Iterator[None]:
    """Within this context the backend launches ``kernels`` in the interpreter."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction

    with contextlib.ExitStack() as stack:
        for name in ("sum", "max"):  # those of Triton's own functions that the kernels call
            function = getattr(tl, name)
            if not isinstance(function, InterpretedFunction):
                stack.enter_context(mock.patch.object(tl, name, InterpretedFunction(function.fn)))
        call = _called_by(kernels, InterpretedFunction.__call__)
        stack.enter_context(mock.patch.object(InterpretedFunction, "__call__", call))
        stack.enter_context(mock.patch.object(backend, "kernels", kernels))
        stack.enter_context(mock.patch.dict(backend.BLOCKS, blocks or {}))
        stack.enter_context(mock.patch.object(backend, "WARPS", warps))
        stack.enter_context(np.errstate(all="ignore"))  # what is in the padding may be anything
        yield


@dataclass
class Problem:
    """Everything the loss is a function of."""

    features: Tensor  # (n, d)
    vectors: Tensor  # (S, d)
    theta: Tensor  # (S,)
    bias: Optional[Tensor]  # (S,)
    sense_to_word: Tensor  # (S,)
    n_words: int
    target: Tensor  # (n,)
    weight: Tensor  # (n,)
    kernel: str = "paper"
    smoothing: float = 0.0

    def to(self, dtype: torch.dtype) -> "Problem":
        """With features and vectors in another precision."""
        return replace(self, features=self.features.to(dtype), vectors=self.vectors.to(dtype))


class Solution(NamedTuple):
    """log P(target) (n,), log P of all words (n, V), and the gradients of the loss."""

    log_prob: Tensor
    log_probs: Tensor
    features: Tensor
    vectors: Tensor
    theta: Tensor
    bias: Tensor


def problem(
    n: int = 5,
    senses: tuple[int, ...] = (1, 2, 3, 1, 5, 1),
    d: int = 8,
    kernel: str = "paper",
    theta: Optional[float] = None,
    size: float = 1.0,
    bias: bool = True,
    smoothing: float = 0.0,
    seed: int = 0,
) -> Problem:
    """Words with so many ``senses`` each, in no order; θ of the grid, or one for all; ``size`` of the scores."""
    g = torch.Generator().manual_seed(seed)
    V, S = len(senses), sum(senses)
    words = torch.arange(V).repeat_interleave(torch.tensor(senses))[torch.randperm(S, generator=g)]
    thetas = torch.tensor(THETAS)[torch.randperm(S, generator=g) % len(THETAS)]
    if theta is not None:
        thetas = torch.full((S,), theta)
    if kernel == "released":
        thetas = -thetas.abs().clamp_min(1e-2)
    vectors = torch.randn(S, d, generator=g) / d**0.5
    target = torch.randint(V, (n,), generator=g)
    first = (words[None] == target[:, None]).int().argmax(1)
    return Problem(
        features=(torch.randn(n, d, generator=g) + vectors[first]) * size,
        vectors=vectors,
        theta=thetas,
        bias=torch.randn(S, generator=g) if bias else None,
        sense_to_word=words,
        n_words=V,
        target=target,
        weight=torch.rand(n, generator=g) + 0.5,
        kernel=kernel,
        smoothing=smoothing,
    )


def _series(x: Tensor, first: int) -> Tensor:
    """Σ_k x^k / (k + first)!"""
    term = torch.ones_like(x) / (1 if first == 1 else 2)
    total = term
    for k in range(1, 22):
        term = term * x / (k + first)
        total = total + term
    return total


def _safe(x: Tensor, inner: Tensor) -> Tensor:
    return torch.where(inner, torch.ones_like(x), x)


def phi(x: Tensor) -> Tensor:
    """(e^x − 1) / x with gradients, also at 0."""
    near = x.abs() < 0.5
    far = _safe(x, near)
    return torch.where(near, _series(x, 1), torch.expm1(far) / far)


def psi(theta: Tensor) -> Tensor:
    """(e^(−θ) + θ − 1) / θ² with gradients, also at 0."""
    near = theta.abs() < 0.5
    far = _safe(theta, near)
    return torch.where(near, _series(-theta, 2), (torch.expm1(-far) + far) / far**2)


def scores_of(features: Tensor, vectors: Tensor, theta: Tensor, bias: Optional[Tensor], kernel: str) -> Tensor:
    """K (n, S) with gradients: the product as it is given, everything else in the precision of θ."""
    product = (features @ vectors.t()).to(theta.dtype)
    scores = product
    if kernel != "dot":
        h_norm, w_norm = (x.to(theta.dtype).norm(dim=1).clamp_min(TINY) for x in (features, vectors))
        c = product / h_norm[:, None] / w_norm
        curved = product * phi(-theta * c) / (2 * psi(theta))
        scores = curved if kernel == "paper" else torch.where(c > 0, curved, product)
    return scores if bias is None else scores + bias


def by_autograd(p: Problem, dtype: torch.dtype, inner: torch.dtype) -> Solution:
    """By torch's own log_softmax and logsumexp: features and vectors in ``dtype``, what follows in ``inner``."""
    bias = torch.zeros_like(p.theta) if p.bias is None else p.bias
    inputs = [x.to(dtype).detach().requires_grad_() for x in (p.features, p.vectors)]
    inputs += [x.to(inner).detach().requires_grad_() for x in (p.theta, bias)]
    sense_log_probs = torch.log_softmax(scores_of(*inputs, p.kernel), 1)
    log_probs = torch.stack([sense_log_probs[:, p.sense_to_word == v].logsumexp(1) for v in range(p.n_words)], 1)
    log_prob = log_probs.gather(1, p.target[:, None]).squeeze(1)
    each = p.smoothing / max(p.n_words - 1, 1)
    loss = -(1 - p.smoothing - each) * log_prob - each * log_probs.sum(1)
    found = torch.autograd.grad((loss * p.weight.to(inner)).sum(), inputs, allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found)]
    if p.bias is None:
        gradients[3].zero_()
    return Solution(log_prob.detach(), log_probs.detach(), *gradients)


def exact(p: Problem) -> Solution:
    """In float64, from features and vectors as they were rounded."""
    return by_autograd(p, torch.float64, torch.float64)


def padded_chunk(n: int, S: int, dtype: torch.dtype, pad: bool) -> Tensor:
    """For D, with NaN in the padding if there is any: nobody may read it."""
    chunk = products_table(n, S, torch.empty(0), dtype) if pad else torch.empty(n, S, dtype=dtype)
    if pad and n:
        chunk.as_strided((n, chunk.stride(0)), chunk.stride()).fill_(torch.nan)
    return chunk


def add_along(gradient: Tensor, vectors: Tensor, by_norm: Tensor) -> Tensor:
    """The gradient by ``vectors`` from those by their directions and by their norms."""
    norm = vectors.norm(dim=1, keepdim=True).clamp_min(TINY)
    unit = vectors / norm
    return gradient + unit * (by_norm[:, None] - (gradient * unit).sum(1, keepdim=True))


def solve(
    p: Problem,
    dtype: torch.dtype = torch.float32,
    gradient_dtype: Optional[torch.dtype] = None,
    pad: bool = True,
    gain: float = 1.0,
    round_dD: Optional[torch.dtype] = None,
    few: int = FEW_SENSES,
    decode: bool = True,
) -> Solution:
    """The same by the kernels: D in ``dtype``, its gradient in the same place, or apart in ``gradient_dtype``.

    ``gain``: factor on all weights within. ``round_dD``: what dD is rounded to by torch, where the interpreter would
    cut digits off (bfloat16). ``decode``: log P by the kernels for decoding, not by those for label smoothing.
    """
    h, W = p.features.float(), p.vectors.float()
    n, S = len(h), len(W)
    norm = h.norm(dim=1)
    inverse = norm.clamp_min(TINY).reciprocal()
    constants = backend.sense_constants(p.vectors, None if p.kernel == "dot" else p.theta, p.bias, p.kernel)
    words = SenseIndex(p.sense_to_word, p.n_words).compressed_rows(few)
    D = padded_chunk(n, S, dtype, pad)
    D.copy_(h @ W.t())
    chunk = backend.Chunk(D, norm, inverse, constants)
    before = D.clone()
    totals = backend.forward(chunk)
    log_probs = backend.word_log_probs(chunk, words) if decode else torch.empty(0)
    target = p.target.int()
    most = int(words.offsets.diff().max())
    targets = backend.target_logsumexp(chunk, totals.top, words, target, most)
    assert torch.equal(D, before), "only the backward kernel changes D"
    log_prob = targets.lse - totals.total.log()
    assert targets.scores is not None
    torch.testing.assert_close(targets.scores.logsumexp(1), targets.lse, rtol=1e-6, atol=1e-6)
    each = p.smoothing / max(p.n_words - 1, 1)
    rest, weight = 1 - p.smoothing - each, p.weight * gain
    scale = (rest + each * p.n_words) * weight / totals.total
    smooth = word = None
    if p.smoothing:
        smooth, word = each * weight, backend.word_logsumexp(chunk, totals.top, words)
        by_word = (word.log2 - totals.total.log2()[:, None]) * LN2
        log_probs = log_probs if decode else by_word
        torch.testing.assert_close(by_word, log_probs, rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(word.log2.sum(1) * LN2, word.lse_sum, rtol=1e-5, atol=1e-5)
    sums = torch.zeros(4, S)
    out = None if gradient_dtype is None else padded_chunk(n, S, gradient_dtype, pad)
    of_chunk, weights = backend.TritonTotals(totals, targets, word), backend.TritonWeights(scale, rest * weight, smooth)
    by_norm = backend.norm_gradient(of_chunk, weights)
    dD = backend.backward(chunk, of_chunk, weights, target, p.sense_to_word.int(), sums, out)
    dD = dD.to(round_dD or dD.dtype).float() / gain
    by_norm, (SF, ST, straight, by_bias) = by_norm / gain, sums / gain
    dh, dW, dtheta = dD @ W, dD.t() @ h, torch.zeros(S)
    if p.kernel != "dot":
        w_norm, t = W.double().norm(dim=1), p.theta.double()
        slope = 0.5 / plain_psi(t)
        dtheta = (-w_norm * slope * (SF * plain_psi_prime(t) / plain_psi(t) + ST)).float()
        dh = add_along(dh, h, by_norm)
        dW = add_along(dW, W, (slope * SF).float() + straight)
    if p.bias is None:
        assert not by_bias.any()
    return Solution(log_prob, log_probs, dh, dW, dtheta, by_bias)


def error(found: Tensor, right: Tensor) -> float:
    """Relative, of norms; absolute where nothing is right."""
    size = float(right.norm())
    return float((found.double() - right).norm()) / (size if size > 1e-9 else 1.0)


def errors(found: Solution, right: Solution) -> dict[str, float]:
    """Of each field."""
    return {name: error(f, r) for name, f, r in zip(Solution._fields, found, right)}


def assert_close(p: Problem, within: float = CLOSE, **options: Any) -> None:
    """The kernels solve the problem as float64 does."""
    of_kernels = errors(solve(p, **options), exact(p))
    assert all(x <= within for x in of_kernels.values()), of_kernels  # a NaN is not


def assert_no_number_shows(kernel: str, value: float) -> None:
    """One product that is ``value`` (NaN or infinite) makes all results of its token NaN, and no others."""
    p = problem(3, kernel=kernel)
    theta = p.theta if kernel == "released" else torch.full_like(p.theta, 2.0)
    constants = backend.sense_constants(p.vectors, theta, p.bias, kernel)
    norm, D = p.features.norm(dim=1), p.features @ p.vectors.t()
    words, where = SenseIndex(p.sense_to_word, p.n_words).compressed, int(D[1].argmin())
    D[1, where] = value
    chunk = backend.Chunk(D, norm, 1 / norm, constants)
    totals = backend.forward(chunk)
    assert totals.total.isnan().tolist() == [False, True, False]
    log_probs = backend.word_log_probs(chunk, words)
    assert log_probs.isnan().all(1).tolist() == [False, True, False]
    assert log_probs[[0, 2]].isfinite().all()
    if np.isnan(value):
        own = p.sense_to_word[where].int().expand(3).contiguous()
        assert backend.target_logsumexp(chunk, totals.top, words, own).lse.isnan().tolist() == [False, True, False]
        assert backend.word_logsumexp(chunk, totals.top, words).lse_sum.isnan().tolist() == [False, True, False]
