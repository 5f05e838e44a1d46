"""The element-wise part of the loss over a chunk of tokens: first the totals of each token, then the gradient.

D (n, S) are the inner products of n features with S vectors, c = D / (|h| |w|) the cosines, F = c φ(−θc), so that the
kernel is k = F / (2ψ), E = e^(−θc) = ∂F/∂c, K = |h| |w| k the scores, G the gradient of the loss by K. The gradient by
θ needs T = Σ_n G c² φ'(−θc) for every sense. c² φ' = (F − c E) / θ loses all digits as θ → 0, so for small |θ| a series
takes its place, which agrees with it up to θ³:

    c² φ'(−θc) = c²/15 + 7cF/15 − F²/30 − 2θc²F/15 + O(θ⁴ c⁶ / 2700).

:class:`PlainPasses` runs on any device in any precision. cpu.cpp says the same for float32 on a CPU.
"""

from typing import NamedTuple, Optional, Protocol

import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import TINY, psi, psi_prime
from kerbs_fairseq.functional.words import pick

SMALL_THETA = 0.2  # where both ways to c² φ' are equally good in float32
# In the place of θ = 0: F = (1 − e^(−θc)) / θ is exact to the last digit for any other θ, and so small a one changes no
# digit; the squares of still smaller ones are denormal numbers, which take ten times as long.
NO_ZERO = {torch.float32: 1e-12, torch.float64: 1e-20}


class Columns(NamedTuple):
    """What the kernel needs to know of each sense, each (S,); the order is that of cpu.cpp."""

    half_theta: Tensor  # −θ / (2|w|)
    minus_inverse: Tensor  # −1/θ
    scale: Tensor  # |w| / (2ψ)
    slope: Tensor  # 1 / (2ψ)
    theta: Tensor  # without zeros
    w_inverse: Tensor  # 1 / |w|

    @classmethod
    def of(cls, vectors: Tensor, theta: Tensor) -> "Columns":
        """From vectors (S, d) and θ (S,)."""
        length = torch.linalg.vector_norm(vectors, dim=1)
        w_inverse, slope = length.clamp_min(TINY).reciprocal(), 0.5 / psi(theta)
        tiny = NO_ZERO[theta.dtype]
        no_zero = torch.where(theta.abs() < tiny, tiny, theta)
        return cls(-0.5 * no_zero * w_inverse, -1 / no_zero, length * slope, slope, no_zero, w_inverse)

    def at(self, own: Tensor) -> "Columns":
        """Of the senses ``own`` (n, k) only, each (n, k)."""
        return Columns(*(column[own] for column in self))


class Rows(NamedTuple):
    """|h| (n, 1) and 1 / |h| (n, 1) of the features; 1 for the kernel ``dot``, whose K is D."""

    length: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, features: Tensor, kernel: str) -> "Rows":
        """From features (n, d)."""
        if kernel == "dot":
            one = features.new_ones(len(features), 1)
            return cls(one, one)
        length = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        return cls(length, length.clamp_min(TINY).reciprocal())

    def part(self, at: slice) -> "Rows":
        """Of a chunk."""
        return Rows(self.length[at], self.inverse[at])


class Totals(NamedTuple):
    """Of each token: the largest score, Σ e^(K − top), Σ e^(K − top) K/|h|; the rest only if words were asked for.

    All (n, 1) but ``word`` (n, V), which is log Σ e^(K − top) over the senses of each word. ``word_mean`` is
    Σ_words Σ_senses P(sense | word) K/|h|.
    """

    top: Tensor
    total: Tensor
    mean: Tensor
    word: Optional[Tensor] = None
    word_sum: Optional[Tensor] = None
    word_mean: Optional[Tensor] = None


class Passes(Protocol):
    """For one visit to all chunks."""

    sums: Tensor  # (3, S): Σ_n G|h| times F, times c² φ', and times c where the kernel is the inner product

    def totals(self, D: Tensor, rows: Rows, words: bool) -> Totals:
        """First pass; leaves D (n, S) as it is. ``words``: whether those totals are wanted."""

    def gradient(self, D: Tensor, rows: Rows, totals: Totals, factor: Tensor, less: Tensor) -> Tensor:
        """Second pass over the same chunk: the gradient by D (n, S), in the place of D; adds to ``sums``.

        G = factor e^(K − top), less ``less`` P(sense | word) if the totals have words; both (n, 1).
        """


class Bent(NamedTuple):
    """Of pairs of a token and a sense: K/|h|, ∂K/∂D, and what G|h| is multiplied by in the three ``sums``."""

    k: Tensor
    slope: Tensor
    F: Tensor
    T: Tensor
    plain: Tensor


def bend(D: Tensor, inverse: Tensor, columns: Optional[Columns], kernel: str) -> Bent:
    """Every step of the kernel, for a few pairs: D and the columns are (n, k), ``inverse`` is (n, 1)."""
    nothing = torch.zeros_like(D)
    if columns is None:
        return Bent(D, torch.ones_like(D), nothing, nothing, nothing)
    half = torch.expm1(D * inverse * columns.half_theta)
    c, F, E = D * inverse * columns.w_inverse, (half + 2) * half * columns.minus_inverse, (half + 1).square()
    series = (c * (2 * c + 14 * F - 4 * columns.theta * c * F) - F * F) / 30
    T = torch.where(columns.theta.abs() < SMALL_THETA, series, (c * E - F) * columns.minus_inverse)
    bent = Bent(F * columns.scale, E * columns.slope, F, T, nothing)
    if kernel == "paper":
        return bent
    straight = Bent(D * inverse, torch.ones_like(D), nothing, nothing, c)
    return Bent(*(torch.where(D > 0, a, b) for a, b in zip(bent, straight)))


def by_length_and_theta(sums: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
    """The gradients by |w| and by θ, from the sums (3, S); (S,) each."""
    SF, ST, plain = sums
    w_length, theta = columns.scale / columns.slope, columns.theta
    by_inverse = -columns.slope * (psi_prime(theta) / psi(theta))  # d(1/2ψ)/dθ
    return columns.slope * SF + plain, w_length * (SF * by_inverse - columns.slope * ST)


class Room:
    """Memory for the tables of a chunk, allocated once: a fresh one for every step costs more than the step."""

    def __init__(self) -> None:
        self.tables: dict[str, Tensor] = {}

    def __call__(self, name: str, like: Tensor) -> Tensor:
        """The table ``name``, of the shape of ``like`` (n, S); what is in it may be anything."""
        table = self.tables.get(name)
        if table is None or len(table) < len(like):
            table = self.tables[name] = torch.empty_like(like)
        return table[: len(like)]


class PlainPasses:
    """The passes in torch, each step over the whole chunk."""

    def __init__(self, slots: Tensor, columns: Optional[Columns], kernel: str, like: Tensor) -> None:
        self.slots, self.columns, self.kernel, self.room = slots, columns, kernel, Room()
        self.sums = like.new_zeros(3, len(like))

    def totals(self, D: Tensor, rows: Rows, words: bool) -> Totals:
        """First pass; keeps F, E, K/|h| and e^(K − top) of the chunk for the second."""
        X = self.scores(D, rows)
        top = X.amax(1, keepdim=True)
        X.sub_(top)  # the difference of two large log-sum-exps would lose digits
        found: tuple[Tensor, ...] = ()
        if words:
            by_word = pick(X, self.slots)  # (n, V, k)
            word = torch.logsumexp(by_word, 2)
            self.posterior = by_word.sub_(word.unsqueeze(2)).exp_().flatten(1)
            slots = self.slots.clamp_min(0).flatten()
            word_mean = (self.posterior * self.k[:, slots]).sum(1, keepdim=True)
            found = word, word.sum(1, keepdim=True), word_mean
        X.exp_()
        self.X = X
        part = torch.mul(X, self.k, out=self.room("part", D))
        return Totals(top, X.sum(1, keepdim=True), part.sum(1, keepdim=True), *found)

    def scores(self, D: Tensor, rows: Rows) -> Tensor:
        """K (n, S)."""
        self.k = D
        if self.columns is not None:
            self.curve(D, rows, self.columns)
        return torch.mul(self.k, rows.length, out=self.room("X", D))

    def curve(self, D: Tensor, rows: Rows, columns: Columns) -> None:
        """F, E and K/|h|, to full relative precision from one exponential."""
        room = self.room
        half = torch.mul(D, columns.half_theta, out=room("E", D)).mul_(rows.inverse).expm1_()
        self.F = torch.add(half, 2, out=room("F", D)).mul_(half).mul_(columns.minus_inverse)
        self.E = half.add_(1).square_()
        self.k = torch.mul(self.F, columns.scale, out=room("k", D))
        if self.kernel == "released":
            self.k.copy_(torch.where(D > 0, self.k, D * rows.inverse))

    def gradient(self, D: Tensor, rows: Rows, totals: Totals, factor: Tensor, less: Tensor) -> Tensor:
        """Second pass, after the first over the same chunk."""
        G = self.X.mul_(factor)
        if totals.word is not None:
            G.index_add_(1, self.slots.clamp_min(0).flatten(), self.posterior.mul_(less), alpha=-1)
        if self.columns is None:
            return D.copy_(G)
        self.add_to_sums(G, D, rows, self.columns)
        slope = self.E.mul_(self.columns.slope)
        return torch.mul(G, slope.masked_fill_(D <= 0, 1.0) if self.kernel == "released" else slope, out=D)

    def add_to_sums(self, G: Tensor, D: Tensor, rows: Rows, columns: Columns) -> None:
        """Sum over the tokens of the chunk; T from sums of simple products, as c E = c − θcF."""
        room, F, along = self.room, self.F, rows.length.squeeze(1)
        C = torch.mul(D, columns.w_inverse, out=room("k", D)).mul_(rows.inverse)
        if self.kernel == "released":
            straight = D <= 0
            self.sums[2].addmv_((G * C).masked_fill_(~straight, 0).t(), along)
            G = G.masked_fill(straight, 0)
        part = torch.mul(G, F, out=room("part", D))
        SF = part.t().mv(along)
        SFF = part.mul_(F).t().mv(along)
        torch.mul(G, C, out=part)
        SC = part.t().mv(along)
        SCF = torch.mul(part, F, out=room("product", D)).t().mv(along)
        SCC = part.mul_(C).t().mv(along)
        SCCF = part.mul_(F).t().mv(along)
        theta = columns.theta
        series = (2 * SCC + 14 * SCF - SFF - 4 * theta * SCCF) / 30
        direct = (SF - SC + theta * SCF) / theta
        self.sums[0] += SF
        self.sums[1] += torch.where(theta.abs() < SMALL_THETA, series, direct)
