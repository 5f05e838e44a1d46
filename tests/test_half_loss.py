"""The loss of half-precision features and vectors, rounded where a GPU rounds: errors against float64, and memory."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Optional
from unittest import mock

import pytest
import torch
import triton_oracle as oracle
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton_oracle import Problem, Solution

from kerbs_fairseq.functional import chunked_loss as loss_module
from kerbs_fairseq.functional.backends import base, dispatch, half_products
from kerbs_fairseq.functional.backends import triton as triton_backend
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex

HALVES = (torch.float16, torch.bfloat16)
SENSES = (1, 2, 1, 1, 3, 1, 1, 2) * 40


@contextlib.contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """dD is rounded to half precision."""
    with mock.patch.object(loss_module, "gradient_dtype", lambda _, dtype: dtype if dtype in HALVES else None):
        yield


def senses_of(p: Problem, vectors: Tensor, theta: Tensor, bias: Optional[Tensor]) -> Senses:
    index = SenseIndex(p.sense_to_word, p.n_words)
    return Senses(vectors, None if p.kernel == "dot" else theta, bias, index, p.kernel)


def solve(p: Problem, by_loss: float = 1.0, chunk: int = 30) -> Solution:
    """By the loss of the layer, in chunks."""
    given = (p.features, p.vectors, p.theta, torch.zeros_like(p.theta) if p.bias is None else p.bias)
    h, w, t, b = (x.detach().clone().requires_grad_() for x in given)
    senses = senses_of(p, w, t, None if p.bias is None else b)
    found = chunked_loss(h, senses, p.target, p.weight, p.smoothing, chunk)
    (found.loss * by_loss).backward()
    gradients = (torch.zeros_like(x) if x.grad is None else x.grad for x in (h, w, t, b))
    return Solution(found.log_prob.detach(), WordScorer(senses)(h.detach()), *gradients)


@pytest.mark.parametrize("size", [0.1, 10.0, 100.0], ids=["flat", "peaked", "large logits"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_no_less_exact_than_torch_in_the_same_precision(dtype: torch.dtype, size: float) -> None:
    small = {torch.float16: 3e-5, torch.bfloat16: 2e-4}[dtype]
    for kernel, smoothing in (("paper", 0.0), ("dot", 0.1), ("paper", 0.1)):
        p = oracle.problem(64, SENSES, 32, kernel, 1.0, size, smoothing=smoothing).to(dtype)
        right = oracle.exact(p)
        stock = oracle.errors(oracle.by_autograd(p, dtype, torch.float32), right)
        with as_on_a_gpu():
            found = solve(p)
        assert found.vectors.dtype == found.features.dtype == dtype
        assert found.log_prob.dtype == found.theta.dtype == torch.float32
        ours = oracle.errors(found, right)
        print(kernel, smoothing, {name: f"{ours[name]:.1e} ({stock[name]:.1e})" for name in Solution._fields})
        assert all(ours[name] <= stock[name] + small for name in Solution._fields), (kernel, ours, stock)
        for name in ("features", "vectors"):
            exact = getattr(right, name)
            assert ours[name] <= 1.6 * oracle.error(exact.to(dtype), exact), "at the rounding of the result"


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_cpu_rounds_nothing_but_the_result(kernel: str) -> None:
    p = oracle.problem(64, SENSES, 32, kernel, smoothing=0.1).to(torch.bfloat16)
    found, right = solve(p), oracle.exact(p)
    for name in ("features", "vectors"):
        exact = getattr(right, name)
        assert oracle.error(getattr(found, name), exact) <= 1.01 * oracle.error(exact.to(torch.bfloat16), exact)


@pytest.mark.parametrize("theta", [0.0, 8.0, -8.0])
@pytest.mark.parametrize("weight", [2.0**-14, 1.0, 2.0**10])
def test_float16_neither_underflows_nor_overflows(weight: float, theta: float) -> None:
    """A mean over tokens has weights of 2^-14, and at θ = 8 and c = −1 the slope of the kernel is 13,600."""
    p = oracle.problem(32, SENSES, 16, theta=theta).to(torch.float16)
    p = replace(p, weight=p.weight * weight)
    p.features[0] = -100 * p.vectors[0]
    with as_on_a_gpu():
        found = solve(p, by_loss=1 / weight)  # as a loss scale does, so that the result fits into float16
    right = oracle.exact(replace(p, weight=p.weight / weight))
    assert oracle.errors(found, right)["vectors"] < 1e-3
    assert oracle.errors(found, right)["features"] < 1e-3


def test_weights_of_zero_have_zero_gradients() -> None:
    p = oracle.problem(8).to(torch.float16)
    with as_on_a_gpu():
        found = solve(replace(p, weight=p.weight * 0))
    assert all(not x.any() for x in found[2:])


def test_log_probs_can_be_differentiated_in_float16() -> None:
    p = oracle.problem(16, SENSES, 16).to(torch.float16)
    h = p.features.clone().requires_grad_()
    with as_on_a_gpu():
        found = chunked_loss(h, senses_of(p, p.vectors, p.theta, p.bias), p.target)
        (found.log_prob * p.weight).sum().backward()
    right = oracle.exact(p)
    assert h.grad is not None
    assert oracle.error(-h.grad, right.features) < 1e-3


needs_triton = pytest.mark.skipif(bool(triton_backend.MISSING), reason=triton_backend.MISSING)


@needs_triton
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_through_triton(monkeypatch: pytest.MonkeyPatch, smoothing: float) -> None:
    """In float16: the interpreter's bfloat16 cuts digits off where hardware rounds."""
    monkeypatch.setenv("KERBS_BACKEND", "triton")
    p = oracle.problem(10, (1, 3, 4, 2, 1, 17, 1, 3), 16, smoothing=smoothing).to(torch.float16)
    right = oracle.exact(p)
    with as_on_a_gpu(), oracle.interpreter(oracle.load_interpreted(), oracle.SMALL_BLOCKS):
        assert dispatch.backend_of(p.vectors) == "triton"
        found, again = solve(p, chunk=4), solve(p, chunk=4)
    ours = oracle.errors(found, right)
    assert all(x < 6e-4 for x in ours.values()), ours
    assert all(torch.equal(a, b) for a, b in zip(found, again))


# --- no float32 copy of the sense table


class Tables(TorchDispatchMode):
    """The shapes of all float32 results with d columns or rows."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.d, self.shapes = d, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(x, Tensor) and x.dtype == torch.float32 and x.dim() == 2 and self.d in x.shape:
                self.shapes.append((func.overloadpacket.__name__, max(x.shape)))
        return found


def test_the_sense_table_is_never_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its gradient, which is summed in float32: made once, and written to in place."""
    d, part = 24, 64
    p = oracle.problem(40, (2,) * 100, d).to(torch.bfloat16)
    for module, name in ((half_products, "BLOCK"), (base, "NORM_ROWS"), (loss_module, "ROWS")):
        monkeypatch.setattr(module, name, part)
    h, w = p.features.requires_grad_(), p.vectors.requires_grad_()
    senses = senses_of(p, w, p.theta, p.bias)
    with Tables(d) as tables:
        loss = chunked_loss(h, senses, p.target, chunk=10).loss
        loss.backward()
    allowed = ("empty_like", "addmm_", "detach", "view", "alias", "slice", "t", "transpose", "split")
    copies = [(name, rows) for name, rows in tables.shapes if rows > part and name not in allowed]
    assert not copies
    assert sum(name == "empty_like" and rows > part for name, rows in tables.shapes) == 1
