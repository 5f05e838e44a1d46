"""The kernel of section 4.1.2 of the paper, in a form that is accurate at every θ.

The paper has K(h, w; θ) = |h| |w| k(c; θ) with c = cos(h, w) and

    k(c; θ) = a(θ) (e^(−θc) − 1),    a(θ) = −θ / (2 (e^(−θ) + θ − 1)),

which is 0/0 at θ = 0, where training starts and where a moved sense starts again. With

    φ(x) = (e^x − 1) / x,  φ(0) = 1,        ψ(θ) = (e^(−θ) + θ − 1) / θ²,  ψ(0) = 1/2,

the same function is k(c; θ) = c φ(−θc) / (2 ψ(θ)). φ and ψ are positive and finite for every finite argument, and at
θ = 0 k is c, so that K is the inner product.
"""

import contextlib
import math
from typing import Any, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.eager import eager

KERNELS = ("paper", "dot", "released")
TINY = 1e-12  # smallest norm that is divided by: a shorter vector has no direction
SERIES_BELOW = 1.0  # |x| below which the closed forms lose digits and the series are used
# Coefficients of the series at 0 of φ', ψ, ψ', φ'' and ψ''; at |x| = 1 the first omitted term is below 1e-17.
_PHI_PRIME = [(n + 1) / math.factorial(n + 2) for n in range(18)]
_PSI = [(-1) ** n / math.factorial(n + 2) for n in range(18)]
_PSI_PRIME = [(-1) ** (n + 1) * (n + 1) / math.factorial(n + 3) for n in range(18)]
_PHI_SECOND = [(n + 1) * (n + 2) / math.factorial(n + 3) for n in range(18)]
_PSI_SECOND = [(-1) ** n * (n + 1) * (n + 2) / math.factorial(n + 4) for n in range(18)]


def _series(coefficients: list[float], x: Tensor) -> Tensor:
    """Compute Σ_n coefficients[n] x^n by Horner's rule; any shape."""
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value.mul_(x).add_(coefficient)
    return value


def _near_zero_or(x: Tensor, coefficients: list[float], closed_form: Tensor) -> Tensor:
    return torch.where(x.abs() < SERIES_BELOW, _series(coefficients, x), closed_form)


def phi(x: Tensor) -> Tensor:
    """Compute φ(x) = (e^x − 1) / x, and 1 at 0; any shape, not for autograd."""
    return torch.where(x.abs() < 1e-20, torch.ones_like(x), torch.expm1(x) / x)


def phi_prime(x: Tensor) -> Tensor:
    """Compute φ'(x) = (e^x − φ(x)) / x, and 1/2 at 0; any shape, not for autograd."""
    return _near_zero_or(x, _PHI_PRIME, (torch.exp(x) - phi(x)) / x)


def psi(theta: Tensor) -> Tensor:
    """Compute ψ(θ) = (e^(−θ) + θ − 1) / θ², and 1/2 at 0; any shape, not for autograd."""
    return _near_zero_or(theta, _PSI, (torch.expm1(-theta) + theta) / theta**2)


def psi_prime(theta: Tensor) -> Tensor:
    """Compute ψ'(θ), and −1/6 at 0; any shape, not for autograd."""
    decay = torch.expm1(-theta)
    return _near_zero_or(theta, _PSI_PRIME, (-theta * decay - 2 * (decay + theta)) / theta**3)


def phi_second(x: Tensor) -> Tensor:
    """Compute φ''(x) = (e^x − 2φ'(x)) / x, and 1/3 at 0; any shape, not for autograd."""
    return _near_zero_or(x, _PHI_SECOND, (torch.exp(x) - 2 * phi_prime(x)) / x)


def psi_second(theta: Tensor) -> Tensor:
    """Compute ψ''(θ) = (e^(−θ) − 2ψ(θ) − 4θψ'(θ)) / θ², and 1/12 at 0; any shape, not for autograd."""
    closed_form = (torch.exp(-theta) - 2 * psi(theta) - 4 * theta * psi_prime(theta)) / theta**2
    return _near_zero_or(theta, _PSI_SECOND, closed_form)


_DERIVATIVES = {"φ": (phi, phi_prime, phi_second), "ψ": (psi, psi_prime, psi_second)}


class _Derivative(torch.autograd.Function):
    """Autograd function for φ, ψ or one of their derivatives, differentiable up to the second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, name: str, order: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.name, ctx.order = name, order
        return _DERIVATIVES[name][order](x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        if ctx.order + 1 == len(_DERIVATIVES[ctx.name]):
            raise RuntimeError("the kernel of KerBS has no third derivatives")
        return gradient * _Derivative.apply(x, ctx.name, ctx.order + 1), None, None


class _Bounded(torch.autograd.Function):
    """Clamp whose backward pass zeroes only gradients that would push θ further out, so that θ can leave the bound."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(theta)
        ctx.bound = bound
        return theta.clamp(-bound, bound)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (theta,) = ctx.saved_tensors
        outward = ((theta >= ctx.bound) & (gradient < 0)) | ((theta <= -ctx.bound) & (gradient > 0))
        return gradient.masked_fill(outward, 0), None


def bounded(theta: Tensor, bound: float) -> Tensor:
    """Clamp θ to [−bound, bound], so that e^(−θc) cannot overflow; any shape."""
    return _Bounded.apply(theta, bound)


def released_theta(theta_raw: Tensor) -> Tensor:
    """Return the θ of the released code: −e^x, with x the raw parameter soft-clipped to (−5, 4); any shape."""
    soft = torch.where(theta_raw > 0, 4 * torch.tanh(theta_raw / 4), 5 * torch.tanh(theta_raw / 5))
    return -torch.exp(soft)


def check_kernel(kernel: str) -> None:
    """Raise ValueError if ``kernel`` is unknown."""
    if kernel not in KERNELS:
        raise ValueError(f"unknown kernel {kernel!r}: one of {', '.join(KERNELS)}")


@eager
def curvature(c: Tensor, theta: Tensor, kernel: str = "paper") -> Tensor:
    """Compute k(c; θ) / c = φ(−θc) / (2 ψ(θ)) for cosines ``c`` (tokens, senses), ``theta`` (senses,); differentiable.

    ``paper`` is Eq. 9. ``released`` is what the authors' code computes: Eq. 9 for c > 0, the inner product for c ≤ 0,
    with ``theta`` from :func:`released_theta`. ``dot`` is the inner product.
    """
    check_kernel(kernel)
    if kernel == "dot":
        return torch.ones_like(c)
    curved = _Derivative.apply(-theta * c, "φ", 0) / (2 * _Derivative.apply(theta, "ψ", 0))
    return curved if kernel == "paper" else torch.where(c > 0, curved, torch.ones_like(c))


def unit(x: Tensor) -> Tensor:
    """Return ``x`` (rows, d) normalized to length 1; a zero vector stays zero."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(TINY)


@eager
def sense_scores(
    features: Tensor, vectors: Tensor, theta: Optional[Tensor], kernel: str = "paper", bias: Optional[Tensor] = None
) -> Tensor:
    """Compute K(h, w; θ) + b, Eq. 9 with a bias: ``features`` (tokens, d), ``vectors`` (senses, d) → (tokens, senses).

    ``theta`` and ``bias`` are (senses,) or None. This is the plain reference, differentiated by autograd: |h| |w| k(c)
    is the inner product times k(c) / c. Half-precision inputs are converted to float32.
    """
    with full_precision(features.device):
        features, vectors = at_least_float32(features), at_least_float32(vectors)
        scores = features @ vectors.t()
        if kernel != "dot" and theta is not None:
            scores = scores * curvature(unit(features) @ unit(vectors).t(), at_least_float32(theta), kernel)
        return scores if bias is None else scores + at_least_float32(bias)


def full_precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager that disables autocast (--amp) for ``device``."""
    known = device.type in ("cpu", "cuda", "xpu")
    return torch.autocast(device.type, enabled=False) if known else contextlib.nullcontext()


def at_least_float32(x: Tensor) -> Tensor:
    """Return ``x``, converted to float32 if it is in half precision."""
    return x if x.dtype == torch.float64 else x.float()
