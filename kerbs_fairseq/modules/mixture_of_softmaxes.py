"""Mixture of softmaxes (Yang et al., 2018), the baseline of the paper, in the log domain."""

from typing import Callable

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional.kernel import at_least_float32


class MixtureOfSoftmaxes(nn.Module):
    """P = Σ_k π_k(h) softmax(W tanh(A_k h)) over ``components`` k; W is given at call time, as it may be shared.

    Parameters: ``latent``, the A_k stacked (components · d, d), and ``prior``, from features to π (components, d).
    """

    def __init__(self, in_features: int, components: int = 3) -> None:
        super().__init__()
        if components < 1:
            raise ValueError(f"{components} components: a mixture needs at least 1")
        self.in_features, self.components = in_features, components
        self.latent = nn.Linear(in_features, components * in_features)
        self.prior = nn.Linear(in_features, components, bias=False)

    def log_prob(self, features: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """log P of every word: ``features`` (..., d) and ``project``: (..., d) → (..., words) give (..., words)."""
        log_prior = torch.log_softmax(at_least_float32(self.prior(features)), -1)
        latent = torch.tanh(self.latent(features)).unflatten(-1, (self.components, self.in_features))
        # one component after the other: a running log-sum-exp instead of a table of all of them
        total = torch.empty(0)
        for k in range(self.components):
            part = torch.log_softmax(at_least_float32(project(latent[..., k, :])), -1) + log_prior[..., k : k + 1]
            total = part if k == 0 else torch.logaddexp(total, part)
        return total
