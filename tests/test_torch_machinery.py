"""torch.compile, torch.export, second derivatives and autocast: the result of eager torch, or one clear error."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from loss_oracle import problem
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kerbs_fairseq.functional import chunked_loss as loss_module
from kerbs_fairseq.functional.backends import half_products
from kerbs_fairseq.functional.backends.half_products import as_multiplied
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.kernel import (
    KERNELS,
    curvature,
    phi_prime,
    phi_second,
    psi_prime,
    psi_second,
    sense_scores,
)
from kerbs_fairseq.functional.reference import reference_loss
from kerbs_fairseq.modules import KernelizedBayesianSoftmax


@pytest.fixture
def layer() -> KernelizedBayesianSoftmax:
    """At θ = 1e-8, where Inductor's expm1 is 0."""
    return KernelizedBayesianSoftmax(8, 30, senses=2, theta_init=1e-8, counts=torch.arange(30, 0, -1))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(6, 8, generator=generator) * 3, torch.randint(0, 30, (6,), generator=generator)


def gradients(layer: KernelizedBayesianSoftmax, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(layer.parameters())))


def test_a_compiled_layer_gives_what_the_layer_gives(
    layer: KernelizedBayesianSoftmax, batch: tuple[Tensor, Tensor]
) -> None:
    """Whatever the backend: none of the mathematics gets into a graph."""
    operations: set[str] = set()

    def backend(graph: Any, _: Any) -> Any:
        operations.update(str(node.target) for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    expected = layer(*batch)
    compiled = torch.compile(layer, backend=backend)(*batch)
    assert torch.equal(compiled.loss, expected.loss)
    assert torch.equal(compiled.output, expected.output)
    for a, b in zip(gradients(layer, compiled.loss), gradients(layer, expected.loss)):
        assert torch.equal(a, b)
    assert torch.equal(torch.compile(layer.log_prob, backend=backend)(batch[0]), layer.log_prob(batch[0]))
    with torch.no_grad():
        compiled = torch.compile(layer.eval().predict, backend=backend)
        assert torch.equal(compiled(batch[0]), layer.predict(batch[0]))
    cosines, theta = torch.rand(3, 2), torch.full((2,), 1e-8)
    curved = torch.compile(lambda c: 2 * curvature(c, theta), backend=backend)(cosines)
    torch.testing.assert_close(curved, torch.full((3, 2), 2.0))
    assert operations
    assert not any(name in operation for operation in operations for name in ("exp", "mm", "gather", "where"))


@pytest.mark.parametrize("how", ["export", "trace"])
def test_exporting_is_one_clear_error(layer: KernelizedBayesianSoftmax, batch: tuple[Tensor, Tensor], how: str) -> None:
    with pytest.raises(RuntimeError, match="a KerBS layer cannot be exported"):
        torch.export.export(layer, batch) if how == "export" else torch.jit.trace(layer, batch)


# --- second derivatives


@pytest.mark.parametrize("reference", [False, True])
def test_second_derivatives_are_right_or_an_error(batch: tuple[Tensor, Tensor], reference: bool) -> None:
    layer = KernelizedBayesianSoftmax(8, 30, senses=2, theta_init=1.5, reference=reference).double()
    h, words = batch[0].double().requires_grad_(), batch[1]

    def loss(h: Tensor, raw: Tensor) -> Tensor:
        return torch.func.functional_call(layer, {"senses.theta_raw": raw}, (h, words)).loss

    raw = layer.senses.theta_raw
    assert raw is not None
    if reference:
        assert torch.autograd.gradgradcheck(loss, (h, raw))
    else:
        with pytest.raises(RuntimeError, match=r"no second derivatives \(create_graph=True\): use reference_loss"):
            torch.autograd.grad(loss(h, raw), h, create_graph=True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_second_derivatives_of_the_reference(kernel: str) -> None:
    p = problem(n=3, d=3, kernel=kernel, smoothing=0.1).to(torch.float64)

    def loss(h: Tensor, w: Tensor, t: Tensor) -> Tensor:
        theta = None if kernel == "dot" else t
        return reference_loss(h, replace(p.senses, vectors=w, theta=theta), p.target, p.weight, p.smoothing).loss

    inputs = [x.requires_grad_() for x in (p.features, p.vectors, p.theta)]
    assert torch.autograd.gradgradcheck(loss, inputs, atol=1e-4)


def test_there_are_no_third_derivatives() -> None:
    p = problem().to(torch.float64)
    theta = p.theta.clone().requires_grad_()
    value = sense_scores(p.features, p.vectors, theta).sum()
    for _ in range(2):
        (value,) = (x.sum() for x in torch.autograd.grad(value, theta, create_graph=True))
    with pytest.raises(RuntimeError, match="no third derivatives"):
        torch.autograd.grad(value, theta)


@pytest.mark.parametrize("x", [0.0, 1e-8, -1e-4, 0.3, -0.99, 1.01, -1.01, 3.0, -8.0, 8.0])
def test_second_derivatives_of_phi_and_psi(x: float) -> None:
    """By differences of the first, in float64."""
    at, step = torch.tensor(x, dtype=torch.float64), 1e-5
    for first, second in ((phi_prime, phi_second), (psi_prime, psi_second)):
        slope = (first(at + step) - first(at - step)) / (2 * step)
        torch.testing.assert_close(second(at), slope, rtol=1e-6, atol=1e-9)


# --- autocast


def test_autocast_on_a_gpu_multiplies_in_its_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's own layers do; on a CPU the result is that of float32: test_chunked_loss.py."""
    wide, half = torch.float32, torch.bfloat16
    with FakeTensorMode():
        h, w = (torch.empty(4, 8, device="cuda") for _ in range(2))
        assert [x.dtype for x in as_multiplied(h, w)] == [wide, wide]
        assert [x.dtype for x in as_multiplied(h.to(half), w)] == [wide, wide]
        monkeypatch.setattr(half_products, "autocast_dtype", lambda kind: half if kind == "cuda" else None)
        assert [x.dtype for x in as_multiplied(h, w)] == [half, half]
        assert [x.dtype for x in as_multiplied(h.half(), w)] == [half, half]
        assert [x.dtype for x in as_multiplied(h.double(), w.double())] == [torch.float64, torch.float64]
    assert half_products.autocast_dtype("cpu") is None


def test_gradients_that_are_asked_for_inside_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is computed again for them is as exact as the first time."""
    products = []

    def over_chunks(*args: Any) -> Any:
        products.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
        return original(*args)

    original = loss_module.over_chunks
    monkeypatch.setattr(loss_module, "over_chunks", over_chunks)
    p = problem()
    h = p.features.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        chunked_loss(h, p.senses, p.target).log_prob.sum().backward()
        assert (h @ h.t()).dtype == torch.bfloat16
    assert products == [torch.float32, torch.float32]


def test_which_precision_autocast_has(monkeypatch: pytest.MonkeyPatch) -> None:
    assert half_products.autocast_dtype("cuda") is None
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    assert half_products.autocast_dtype("cuda") == torch.bfloat16
    assert half_products.autocast_dtype("cpu") is None
