"""The kernel: values and gradients against mpmath to 50 digits, and the facts that define it."""

import math
from typing import Callable

import mpmath
import pytest
import torch
from kernel_oracle import (
    COSINES,
    DIGITS,
    RAW_THETAS,
    THETAS,
    exact_by_theta,
    exact_k,
    exact_phi,
    exact_phi_prime,
    exact_psi,
    exact_psi_prime,
    exact_slope,
    precision,
    relative_error,
)
from mpmath import mp, mpf
from torch import Tensor

from kerbs_fairseq.functional import kernel
from kerbs_fairseq.functional.kernel import bounded, curvature, released_theta, sense_scores, unit
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex

# --- the building blocks


@precision
@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (kernel.phi, exact_phi),
        (kernel.phi_prime, exact_phi_prime),
        (kernel.psi, exact_psi),
        (kernel.psi_prime, exact_psi_prime),
    ],
)
def test_building_blocks_at_every_size_of_their_argument(
    function: Callable[[Tensor], Tensor], exact: Callable[[float], mpf], dtype: torch.dtype, tolerance: float
) -> None:
    around_the_switch = [sign * size for size in (0.5, 0.999, 1.001, 1.5) for sign in (1, -1)]
    x = torch.tensor([*THETAS, *around_the_switch, 1e-30, -1e-30], dtype=dtype)
    assert relative_error(function(x), [exact(v) for v in x.tolist()]) <= tolerance


# --- k(c; θ)


@precision
@pytest.mark.parametrize("theta", THETAS)
def test_k_and_its_derivatives_over_the_grid(theta: float, dtype: torch.dtype, tolerance: float) -> None:
    c = torch.tensor(COSINES, dtype=dtype, requires_grad=True)
    t = torch.full((len(COSINES),), theta, dtype=dtype, requires_grad=True)
    k = c * curvature(c, t)
    by_c, by_theta = torch.autograd.grad(k.sum(), (c, t))
    points = list(zip(c.tolist(), t.tolist()))
    assert relative_error(k, [exact_k(*point) for point in points]) <= tolerance
    for slope, oracle in ((by_c, exact_slope), (by_theta, exact_by_theta)):
        exact = [oracle(*point) for point in points]
        assert relative_error(slope, exact, max(map(abs, exact))) <= tolerance


@precision
@pytest.mark.parametrize("theta", THETAS)
def test_sense_scores_and_their_gradients_over_the_grid(theta: float, dtype: torch.dtype, tolerance: float) -> None:
    h = torch.tensor([[3 * c, 3 * math.sqrt(1 - c * c)] for c in COSINES], dtype=dtype, requires_grad=True)
    w = torch.tensor([[0.7, 0.0]], dtype=dtype).repeat(len(COSINES), 1).requires_grad_()
    t = torch.full((len(COSINES),), theta, dtype=dtype, requires_grad=True)
    K = sense_scores(h, w, t).diagonal()  # each w and θ meets one h, to have its gradient for itself
    gradients = torch.autograd.grad(K.sum(), (h, w, t))

    exact: dict[str, list] = {"K": [], "h": [], "w": [], "theta": []}
    with mp.workdps(DIGITS):
        for row, vector, number in zip(h.tolist(), w.tolist(), t.tolist()):
            x, y = ([mpf(v) for v in values] for values in (row, vector))
            x_length, y_length = (mpmath.sqrt(sum(v * v for v in values)) for values in (x, y))
            c = sum(a * b for a, b in zip(x, y)) / (x_length * y_length)
            k, slope = exact_k(c, number), exact_slope(c, number)
            exact["K"].append(x_length * y_length * k)
            exact["theta"].append(x_length * y_length * exact_by_theta(c, number))
            for name, one, length, other, other_length in (
                ("h", x, x_length, y, y_length),
                ("w", y, y_length, x, x_length),
            ):
                exact[name] += [
                    other_length * (k * a / length + slope * (b / other_length - c * a / length))
                    for a, b in zip(one, other)
                ]
    assert relative_error(K, exact["K"]) <= tolerance
    for gradient, name in zip(gradients, ("h", "w", "theta")):
        assert relative_error(gradient.flatten(), exact[name], max(map(abs, exact[name]))) <= tolerance, name


def grid(theta: float, n: int = 2001, low: float = -1.0) -> tuple[Tensor, Tensor]:
    c = low + (1 - low) * torch.arange(n, dtype=torch.float64) / (n - 1)
    return c, c * curvature(c, torch.full_like(c, theta))


@pytest.mark.parametrize("theta", THETAS)
def test_k_is_0_at_0_increases_and_has_the_integral_one_half(theta: float) -> None:
    c, k = grid(theta)
    assert k[c == 0].tolist() == [0.0]
    assert bool((k.diff() > 0).all())
    positive, values = grid(theta, low=0.0)
    weight = torch.tensor([1.0, *[4.0, 2.0] * 999, 4.0, 1.0], dtype=torch.float64)  # Simpson's rule
    assert float((weight * values).sum() * positive[1] / 3) == pytest.approx(0.5, abs=1e-9)


def test_k_without_curvature_is_the_cosine() -> None:
    c, k = grid(0.0)
    assert torch.equal(k, c)


def test_negative_theta_is_peaked_and_positive_theta_is_flat() -> None:
    _, peaked = grid(-2.0)
    c, flat = grid(2.0)
    assert float(peaked[-1]) > 1 > float(flat[-1])
    middle = c == 0.5
    assert float(peaked[middle]) < 0.5 < float(flat[middle])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("theta", [0.0, 1e-8, -1e-8, 1e-30])
def test_theta_has_a_gradient_where_training_starts(theta: float, dtype: torch.dtype) -> None:
    c = torch.tensor(COSINES, dtype=dtype)
    t = torch.full_like(c, theta, requires_grad=True)
    (c * curvature(c, t)).sum().backward()
    torch.testing.assert_close(t.grad, c / 3 - c**2 / 2, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["paper", "released"])
def test_gradcheck_of_the_scores(name: str) -> None:
    torch.manual_seed(1)
    h, w = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 6))
    t = torch.tensor([-8.0, -1.0, -0.1, 0.0, 0.1, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *x: sense_scores(*x, name), (h, w, t))


# --- the variants


def naive_released(c: float, raw: float) -> mpf:
    """Section 1's description of the released code, word by word."""
    with mp.workdps(DIGITS):
        limit = 4 if raw > 0 else 5
        eta = mpmath.exp(limit * mpmath.tanh(mpf(raw) / limit))
        return exact_k(c, -eta) if c > 0 else mpf(c)


@precision
@pytest.mark.parametrize("raw", RAW_THETAS)
def test_released_is_the_paper_for_positive_cosines_and_the_inner_product_for_others(
    raw: float, dtype: torch.dtype, tolerance: float
) -> None:
    c = torch.tensor(COSINES, dtype=dtype)
    t = torch.full_like(c, raw)
    k = c * curvature(c, released_theta(t), "released")
    # an error of θ by one unit in the last place is one of θ units in e^(θc)
    assert relative_error(k, [naive_released(*point) for point in zip(c.tolist(), t.tolist())]) <= 4 * tolerance


@precision
def test_released_theta_lies_between_its_limits_and_starts_at_minus_1(dtype: torch.dtype, tolerance: float) -> None:
    raw = torch.tensor(RAW_THETAS, dtype=dtype, requires_grad=True)
    theta = released_theta(raw)
    exact, slopes = [], []
    with mp.workdps(DIGITS):
        for x in raw.tolist():
            limit = 4 if x > 0 else 5
            ratio = mpmath.tanh(mpf(x) / limit)
            exact.append(-mpmath.exp(limit * ratio))
            slopes.append((1 - ratio**2) * exact[-1])
    assert relative_error(theta, exact) <= tolerance
    assert bool((theta >= -math.exp(4) * 1.00001).all())
    assert bool((theta <= -math.exp(-5) * 0.99999).all())
    assert theta[0] == -1
    (slope,) = torch.autograd.grad(theta.sum(), raw)
    assert relative_error(slope, slopes, max(map(abs, slopes))) <= tolerance


def test_dot_is_the_inner_product_and_leaves_theta_alone() -> None:
    torch.manual_seed(1)
    h, w = torch.randn(5, 4), torch.randn(7, 4)
    assert torch.equal(sense_scores(h, w, None, "dot"), h @ w.t())
    assert torch.equal(sense_scores(h, w, torch.randn(7), "dot"), h @ w.t())
    assert torch.equal(curvature(torch.tensor(COSINES), torch.tensor(3.0), "dot"), torch.ones(len(COSINES)))


# --- what training can throw at it


@pytest.mark.parametrize("name", ["paper", "dot", "released"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zero_vectors_and_half_precision_stay_finite(dtype: torch.dtype, name: str) -> None:
    torch.manual_seed(1)
    h, w = torch.randn(4, 8) * 20, torch.randn(len(THETAS), 8)
    h[1], w[1] = 0, 0
    h, w, t = (x.to(dtype).requires_grad_() for x in (h, w, torch.tensor(THETAS)))
    theta = released_theta(t) if name == "released" else bounded(t, 8.0)
    scores = sense_scores(h, w, theta, name)
    assert scores.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(scores[1], torch.zeros_like(scores[1]))
    assert torch.equal(scores[:, 1], torch.zeros_like(scores[:, 1]))
    scores.sum().backward()
    for x in (scores, h.grad, w.grad) if name == "dot" else (scores, h.grad, w.grad, t.grad):
        assert bool(x.isfinite().all())
    assert h.grad.dtype == w.grad.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_scored_in_float32(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    h, w, t = torch.randn(4, 8).to(dtype), torch.randn(len(THETAS), 8).to(dtype), torch.tensor(THETAS).to(dtype)
    torch.testing.assert_close(sense_scores(h, w, t), sense_scores(h.double(), w.double(), t.double()).float())


def test_unit_vectors_have_length_1_and_the_zero_vector_stays() -> None:
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-1e-6, 0.0]])
    torch.testing.assert_close(unit(x), torch.tensor([[0.6, 0.8], [0.0, 0.0], [-1.0, 0.0]]))


# --- the bound of θ


def test_bounded_clamps() -> None:
    theta = torch.tensor([-20.0, -8.0, -1.0, 1e-8, 3.0, 8.0, 9.0])
    assert bounded(theta, 8.0).tolist() == pytest.approx([-8.0, -8.0, -1.0, 1e-8, 3.0, 8.0, 8.0])


@pytest.mark.parametrize("theta", [8.0, 9.0, -8.0, -9.0])
def test_a_theta_at_the_bound_can_come_back_but_not_go_on(theta: float) -> None:
    outward = math.copysign(1.0, theta)
    for gradient, expected in ((outward, outward), (-outward, 0.0)):  # descent goes against the gradient
        t = torch.tensor([theta], requires_grad=True)
        bounded(t, 8.0).backward(torch.tensor([gradient]))
        assert t.grad.tolist() == [expected]


def test_inside_the_bound_every_gradient_passes() -> None:
    t = torch.tensor([-7.9, 0.0, 7.9], requires_grad=True)
    for gradient in ([1.0, -2.0, 3.0], [-1.0, 2.0, -3.0]):
        (passed,) = torch.autograd.grad(bounded(t, 8.0), t, torch.tensor(gradient))
        assert passed.tolist() == gradient


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_descent_stops_at_the_bound_and_returns_from_it(sign: float) -> None:
    t = torch.tensor([7.0 * sign], requires_grad=True)
    optimizer = torch.optim.SGD([t], lr=0.5)

    def descend(towards: float) -> float:
        for _ in range(30):
            optimizer.zero_grad()
            (bounded(t, 8.0) * -towards).sum().backward()
            optimizer.step()
        return float(t.detach())

    assert 8.0 <= descend(sign) * sign <= 8.5
    assert descend(-sign) * sign < 0


@pytest.mark.parametrize("name", ["paper", "released"])
def test_a_kernel_with_theta_is_not_computed_without_it(name: str) -> None:
    vectors, index = torch.ones(2, 3), SenseIndex(torch.arange(2), 2)
    with pytest.raises(ValueError, match=f"the kernel '{name}' needs theta"):
        Senses(vectors, None, None, index, name)
    assert Senses(vectors, None, None, index, "dot").theta is None
