"""Small layers and batches for the tests of modules."""

from typing import Any

import torch
from torch import Tensor

from kerbs_fairseq.modules import KernelizedBayesianSoftmax

D, V, N = 6, 20, 9


def layer(**options: Any) -> KernelizedBayesianSoftmax:
    made = KernelizedBayesianSoftmax(D, V, **{"init_vectors": "random", **options})
    if made.senses.theta_raw is not None:
        with torch.no_grad():
            made.senses.theta_raw.normal_(generator=torch.Generator().manual_seed(2))
    return made


def batch(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, D, generator=generator) * 3, torch.randint(0, V, (n,), generator=generator)
