"""What the kernel is judged by: the closed forms, as the paper prints them, in mpmath; and where they are compared."""

import mpmath
import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

DIGITS = 150  # 50 remain after what cancels in the closed forms at 1e-30
THETAS = [0.0, *(sign * size for size in (1e-8, 1e-4, 1e-2, 0.1, 1.0, 2.0, 8.0) for sign in (1, -1))]
COSINES = [0.0, *(sign * size for size in (1e-20, 1e-8, 1e-4, 0.01, 0.1, 0.3, 0.5, 2 / 3, 0.9, 1) for sign in (1, -1))]
RAW_THETAS = [0.0, *(sign * size for size in (1e-8, 1e-4, 0.1, 1.0, 3.0, 8.0, 50.0) for sign in (1, -1))]
PRECISIONS = [(torch.float32, 1e-5), (torch.float64, 1e-12)]
precision = pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS, ids=["float32", "float64"])


def exact_k(c: float, theta: float) -> mpf:
    with mp.workdps(DIGITS):
        c, theta = mpf(c), mpf(theta)
        if theta == 0:
            return c
        return -theta / (2 * (mpmath.expm1(-theta) + theta)) * mpmath.expm1(-theta * c)


def exact_slope(c: float, theta: float) -> mpf:
    """∂k/∂c."""
    with mp.workdps(DIGITS):
        c, theta = mpf(c), mpf(theta)
        if theta == 0:
            return mpf(1)
        return theta**2 / (2 * (mpmath.expm1(-theta) + theta)) * mpmath.exp(-theta * c)


def exact_by_theta(c: float, theta: float) -> mpf:
    """∂k/∂θ."""
    with mp.workdps(DIGITS):
        c, theta = mpf(c), mpf(theta)
        if theta == 0:
            return c / 3 - c**2 / 2
        D, D_prime = mpmath.expm1(-theta) + theta, -mpmath.expm1(-theta)
        a, a_prime = -theta / (2 * D), -(D - theta * D_prime) / (2 * D**2)
        return a_prime * mpmath.expm1(-theta * c) - a * c * mpmath.exp(-theta * c)


def exact_phi(x: float) -> mpf:
    with mp.workdps(DIGITS):
        return mpmath.expm1(x) / mpf(x) if x else mpf(1)


def exact_phi_prime(x: float) -> mpf:
    with mp.workdps(DIGITS):
        return (mpmath.exp(mpf(x)) - exact_phi(x)) / mpf(x) if x else mpf(1) / 2


def exact_psi(x: float) -> mpf:
    with mp.workdps(DIGITS):
        return (mpmath.expm1(-mpf(x)) + mpf(x)) / mpf(x) ** 2 if x else mpf(1) / 2


def exact_psi_prime(x: float) -> mpf:
    with mp.workdps(DIGITS):
        x = mpf(x)
        return (-mpmath.expm1(-x) / x**2 - 2 * (mpmath.expm1(-x) + x) / x**3) if x else -mpf(1) / 6


def relative_error(values: Tensor, exact: list, scale: float = 0.0) -> float:
    """The largest error, each relative to its exact value, or to ``scale`` where that is given."""
    errors = [abs(mpf(f) - e) / (scale or abs(e) or mpf(1e-300)) for f, e in zip(values.tolist(), exact)]
    assert len(errors) == len(exact) == values.numel()
    return float(max(errors))
