"""Small layers and batches for the tests of modules."""

from typing import Any

import torch
from torch import Tensor

from kerbs_fairseq.modules import KernelizedBayesianSoftmax

D, V, N = 6, 20, 9


def layer(**options: Any) -> KernelizedBayesianSoftmax:
    made = KernelizedBayesianSoftmax(D, V, **{"init_vectors": "random", **options})
    with torch.no_grad():
        for seed, parameter in ((2, made.senses.theta_raw), (3, made.senses.bias_raw)):
            if parameter is not None:
                parameter.normal_(generator=torch.Generator().manual_seed(seed))
    return made


def batch(n: int = N) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(n, D, generator=generator) * 3, torch.randint(0, V, (n,), generator=generator)
