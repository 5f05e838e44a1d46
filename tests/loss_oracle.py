"""What the chunked loss is judged by: loops over senses in Python floats, with the kernel of mpmath."""

import math
from dataclasses import dataclass, replace
from typing import Callable, Optional

import torch
from kernel_oracle import THETAS, exact_by_theta, exact_k, exact_slope
from torch import Tensor

from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex

Loss = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass
class Problem:
    """Everything a loss is a function of."""

    features: Tensor
    vectors: Tensor
    theta: Tensor
    bias: Optional[Tensor]
    sense_to_word: Tensor
    n_words: int
    target: Tensor
    weight: Tensor
    kernel: str = "paper"
    smoothing: float = 0.0

    def to(self, dtype: torch.dtype) -> "Problem":
        names = ("features", "vectors", "theta", "weight") + (("bias",) if self.bias is not None else ())
        return replace(self, **{name: getattr(self, name).to(dtype) for name in names})

    @property
    def index(self) -> SenseIndex:
        return SenseIndex(self.sense_to_word, self.n_words)

    @property
    def senses(self) -> Senses:
        theta = None if self.kernel == "dot" else self.theta
        return Senses(self.vectors, theta, self.bias, self.index, self.kernel)

    def solve(
        self, loss: Loss = chunked_loss, by_loss: float = 1.0, by_log_prob: Optional[Tensor] = None, **more: int
    ) -> list[Tensor]:
        """Loss, log P(target), and the gradients of by_loss · loss + by_log_prob · log P(target)."""
        tensors = (self.features, self.vectors, self.theta, *(() if self.bias is None else (self.bias,)))
        inputs = [x.detach().clone().requires_grad_() for x in tensors]
        changed = replace(self, vectors=inputs[1], theta=inputs[2], bias=None if self.bias is None else inputs[3])
        value, log_prob, _ = loss(inputs[0], changed.senses, self.target, self.weight, self.smoothing, **more)
        objective = value * by_loss if by_loss else 0.0
        if by_log_prob is not None:
            objective = objective + (log_prob * by_log_prob).sum()
        partial = torch.autograd.grad(objective, inputs, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, partial)]
        return [value.detach(), log_prob.detach(), *gradients]


def problem(
    n: int = 7,
    d: int = 5,
    n_words: int = 6,
    seed: int = 0,
    kernel: str = "paper",
    bias: bool = True,
    **more: float,
) -> Problem:
    """Every θ of the grid once (for ``released``: its negative part), words with 1 to 4 senses, in no order."""
    generator = torch.Generator().manual_seed(seed)
    theta = torch.tensor(THETAS)
    if kernel == "released":
        theta = -theta.abs().clamp_min(math.exp(-5))
    senses = torch.tensor([1, 2, 3, 4, 2, 3])
    words = torch.arange(n_words).repeat_interleave(senses)[torch.randperm(len(theta), generator=generator)]
    return Problem(
        features=torch.randn(n, d, generator=generator) * 1.5,
        vectors=torch.randn(len(theta), d, generator=generator),
        theta=theta,
        bias=torch.randn(len(theta), generator=generator) if bias else None,
        sense_to_word=words,
        n_words=n_words,
        target=torch.randint(0, n_words, (n,), generator=generator),
        weight=torch.rand(n, generator=generator) + 0.5,
        kernel=kernel,
        **more,
    )


# --- the oracle: Python floats, loops, and the kernel of mpmath


def pair(h: list[float], w: list[float], theta: float, kernel: str) -> tuple[float, list[float], list[float], float]:
    """K and its derivatives by h, w and θ."""
    product = math.fsum(a * b for a, b in zip(h, w))
    if kernel == "dot":
        return product, w, h, 0.0
    h_length, w_length = math.hypot(*h), math.hypot(*w)
    c = product / (h_length * w_length)
    if kernel == "released" and c <= 0:
        return product, w, h, 0.0
    k, slope = float(exact_k(c, theta)), float(exact_slope(c, theta))
    by_h = [w_length * (k * a / h_length + slope * (b / w_length - c * a / h_length)) for a, b in zip(h, w)]
    by_w = [h_length * (k * b / w_length + slope * (a / h_length - c * b / w_length)) for a, b in zip(h, w)]
    return h_length * w_length * k, by_h, by_w, h_length * w_length * float(exact_by_theta(c, theta))


def logsumexp(scores: list[float]) -> float:
    top = max(scores)
    return top + math.log(math.fsum(math.exp(score - top) for score in scores))


def oracle(p: Problem, by_loss: float = 1.0, by_log_prob: Optional[Tensor] = None) -> list[Tensor]:
    """What :meth:`Problem.solve` gives."""
    H, W, thetas, words = (x.tolist() for x in (p.features, p.vectors, p.theta, p.sense_to_word))
    epsilon_i = p.smoothing / (p.n_words - 1) if p.smoothing else 0.0
    extra = [0.0] * len(H) if by_log_prob is None else by_log_prob.tolist()
    loss, log_prob = 0.0, []
    biases = [0.0] * len(W) if p.bias is None else p.bias.tolist()
    dh, dw, dtheta, db = ([[0.0] * len(row) for row in rows] for rows in (H, W, [thetas], [biases]))
    for n, (h, y, weight) in enumerate(zip(H, p.target.tolist(), p.weight.tolist())):
        pairs = [pair(h, w, theta, p.kernel) for w, theta in zip(W, thetas)]
        scores = [K + b for (K, *_), b in zip(pairs, biases)]
        of_word = [logsumexp([K for K, i in zip(scores, words) if i == word]) for word in range(p.n_words)]
        total = logsumexp(scores)
        log_p = [of_one - total for of_one in of_word]
        log_prob.append(log_p[y])
        share = [(1 - p.smoothing - epsilon_i) * (i == y) + epsilon_i for i in range(p.n_words)]
        loss -= weight * math.fsum(s * lp for s, lp in zip(share, log_p))
        # the derivative of the objective by log P(i), and by K: d log P(i) / dK = P(sense | i) − P(sense)
        by_log_p = [extra[n] * (i == y) - by_loss * weight * s for i, s in enumerate(share)]
        for s, (K, (_, by_h, by_w, by_theta)) in enumerate(zip(scores, pairs)):
            G = by_log_p[words[s]] * math.exp(K - of_word[words[s]]) - math.fsum(by_log_p) * math.exp(K - total)
            dtheta[0][s] += G * by_theta
            db[0][s] += G
            for j in range(len(h)):
                dh[n][j] += G * by_h[j]
                dw[s][j] += G * by_w[j]
    results = (loss, log_prob, dh, dw, dtheta[0], *(() if p.bias is None else (db[0],)))
    return [torch.tensor(x, dtype=torch.float64) for x in results]


NAMES = ("loss", "log_prob", "by features", "by vectors", "by theta", "by bias")


def assert_close(results: list[Tensor], exact: list[Tensor], tolerance: float, floor: float = 1e-12) -> None:
    """Errors relative to the largest magnitude in each tensor, or to ``floor`` if that is larger."""
    assert len(results) == len(exact)
    for name, f, e in zip(NAMES, results, exact):
        assert f.shape == e.shape, name
        if f.numel():
            error = float((f.double() - e.double()).abs().max())
            assert error <= tolerance * max(float(e.abs().max()), floor), f"{name}: error {error:.2g}"
