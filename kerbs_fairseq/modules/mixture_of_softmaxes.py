"""Mixture of softmaxes (Yang et al., 2018), the baseline of the paper, in the log domain."""

from typing import Callable

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional.kernel import at_least_float32

MOS_INITS = ("published", "identity")


class MixtureOfSoftmaxes(nn.Module):
    """P = Σ_k π_k(h) softmax(W f(A_k h + b_k)) over ``components`` k; W is passed at call time, as it may be shared.

    ``init`` "published": f = tanh, as in Yang et al. "identity": f is linear, initially A_k = I and b_k = 0, so that
    every component, and hence the mixture, is the softmax of W h for any π. The π_k differ between contexts from the
    start, so that the components get different gradients and diverge.

    Parameters: ``latent``, the stacked A_k (components · d, d) with the b_k, and ``prior`` (components, d), from
    features to the logits of π. ``dropout`` is applied to f(A_k h + b_k) in training.
    """

    def __init__(self, in_features: int, components: int = 3, dropout: float = 0.0, init: str = "published") -> None:
        super().__init__()
        if components < 1:
            raise ValueError(f"{components} components: a mixture needs at least 1")
        if not 0 <= dropout < 1:
            raise ValueError(f"a dropout of {dropout:g}: it must be at least 0 and below 1")
        if init not in MOS_INITS:
            raise ValueError(f"an initialization {init!r}: there are {', '.join(MOS_INITS)}")
        self.in_features, self.components, self.linear = in_features, components, init == "identity"
        self.latent = nn.Linear(in_features, components * in_features)
        self.prior = nn.Linear(in_features, components, bias=False)
        self.dropout = nn.Dropout(dropout)
        if self.linear:
            with torch.no_grad():
                self.latent.weight.copy_(torch.eye(in_features).repeat(components, 1))
                self.latent.bias.zero_()
                # logits of about 1 for features of norm √d, as after a layer norm
                self.prior.weight.normal_(std=in_features**-0.5)

    def log_prob(self, features: Tensor, project: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute log P of every word (..., words) from ``features`` (..., d); ``project``: (..., d) → (..., words)."""
        log_prior = torch.log_softmax(at_least_float32(self.prior(features)), -1)
        latent = self.latent(features).unflatten(-1, (self.components, self.in_features))
        latent = self.dropout(latent if self.linear else torch.tanh(latent))
        # one component at a time, with a running log-sum-exp, instead of a table of all components
        total = torch.empty(0)
        for k in range(self.components):
            part = torch.log_softmax(at_least_float32(project(latent[..., k, :])), -1) + log_prior[..., k : k + 1]
            total = part if k == 0 else torch.logaddexp(total, part)
        return total
