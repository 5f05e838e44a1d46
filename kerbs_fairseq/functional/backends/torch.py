"""The chunk kernels in plain torch, for any device and precision; each operation reads the whole chunk."""

from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import SMALL_THETA, ChunkTotals, FeatureNorms, SenseConstants, mathematics
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import word_log_probs, word_logsumexp


class Workspace:
    """Memory for the tables of a chunk, allocated once: allocating one per operation costs more than the operation."""

    def __init__(self) -> None:
        self.tables: dict[str, Tensor] = {}

    def __call__(self, name: str, like: Tensor) -> Tensor:
        """Return the table ``name`` in the shape of ``like`` (n, S), not initialized."""
        table = self.tables.get(name)
        if table is None or len(table) < len(like):
            table = self.tables[name] = torch.empty_like(like)
        return table[: len(like)]


class TorchKernels:
    """See :class:`kerbs_fairseq.functional.backends.base.ChunkKernels`."""

    def __init__(self, senses: Senses, constants: Optional[SenseConstants]) -> None:
        self.senses, self.constants, self.workspace = senses, constants, Workspace()
        self.sums = senses.vectors.new_zeros(4, len(senses.vectors), dtype=mathematics(senses.vectors.dtype))
        self.posterior: Optional[Tensor] = None

    def forward(self, D: Tensor, norms: FeatureNorms, words: bool) -> ChunkTotals:
        """Compute the totals; F, E, (K − b)/|h| and e^(K − top) of the chunk are kept for :meth:`backward`."""
        X = self.scores(D, norms)
        top = X.amax(1, keepdim=True)
        X.sub_(top)  # the difference of two large log-sum-exps would lose digits
        of_words: tuple[Tensor, ...] = ()
        if words:
            index = self.senses.index
            word = word_logsumexp(X, index)
            self.posterior = torch.exp(X - word[:, index.sense_to_word])
            of_words = word, word.sum(1, keepdim=True), (self.posterior * self.k).sum(1, keepdim=True)
        X.exp_()
        self.X = X
        product = torch.mul(X, self.k, out=self.workspace("product", D))
        return ChunkTotals(top, X.sum(1, keepdim=True), product.sum(1, keepdim=True), *of_words)

    def scores(self, D: Tensor, norms: FeatureNorms) -> Tensor:
        """Compute the scores K (n, S)."""
        self.k = D
        if self.constants is not None:
            self.kernel(D, norms, self.constants)
        K = torch.mul(self.k, norms.norm, out=self.workspace("X", D))
        return K if self.senses.bias is None else K.add_(self.senses.bias)

    def kernel(self, D: Tensor, norms: FeatureNorms, constants: SenseConstants) -> None:
        """Compute F, E and (K − b)/|h| to full relative precision with one exponential."""
        workspace = self.workspace
        half = torch.mul(D, constants.half_theta, out=workspace("E", D)).mul_(norms.inverse).expm1_()
        self.F = torch.add(half, 2, out=workspace("F", D)).mul_(half).mul_(constants.minus_inverse)
        self.E = half.add_(1).square_()
        self.k = torch.mul(self.F, constants.scale, out=workspace("k", D))
        if self.senses.kernel == "released":
            self.k.copy_(torch.where(D > 0, self.k, D * norms.inverse))

    def backward(self, D: Tensor, norms: FeatureNorms, totals: ChunkTotals, scale: Tensor, smooth: Tensor) -> Tensor:
        """Compute the gradient w.r.t. D, in place, from the tables kept by :meth:`forward`."""
        G = self.X.mul_(scale)
        if self.posterior is not None:
            G.sub_(self.posterior.mul_(smooth))
            self.posterior = None
        if self.senses.bias is not None:
            self.sums[3] += G.sum(0)
        if self.constants is None:
            return D.copy_(G)
        self.add_to_sums(G, D, norms, self.constants)
        slope = self.E.mul_(self.constants.slope)
        released = self.senses.kernel == "released"
        return torch.mul(G, slope.masked_fill_(D <= 0, 1.0) if released else slope, out=D)

    def add_to_sums(self, G: Tensor, D: Tensor, norms: FeatureNorms, constants: SenseConstants) -> None:
        """Add the sums over the tokens of the chunk; that of T is from sums of simple products, as c E = c − θcF."""
        workspace, F, h_norm = self.workspace, self.F, norms.norm.squeeze(1)
        C = torch.mul(D, constants.w_inverse, out=workspace("k", D)).mul_(norms.inverse)
        if self.senses.kernel == "released":
            linear = D <= 0
            self.sums[2].addmv_((G * C).masked_fill_(~linear, 0).t(), h_norm)
            G = G.masked_fill(linear, 0)
        product = torch.mul(G, F, out=workspace("product", D))
        SF = product.t().mv(h_norm)
        SFF = product.mul_(F).t().mv(h_norm)
        torch.mul(G, C, out=product)
        SC = product.t().mv(h_norm)
        SCF = torch.mul(product, F, out=workspace("second", D)).t().mv(h_norm)
        SCC = product.mul_(C).t().mv(h_norm)
        SCCF = product.mul_(F).t().mv(h_norm)
        theta = constants.theta
        series = (2 * SCC + 14 * SCF - SFF - 4 * theta * SCCF) / 30
        direct = (SF - SC + theta * SCF) / theta
        self.sums[0] += SF
        self.sums[1] += torch.where(theta.abs() < SMALL_THETA, series, direct)

    def word_log_probs(self, D: Tensor, norms: FeatureNorms) -> Tensor:
        """Compute log P of every word (n, V) in a separate workspace, so that threads can share this object."""
        alone = TorchKernels(self.senses, self.constants)
        return word_log_probs(alone.scores(D, norms), self.senses.index)
