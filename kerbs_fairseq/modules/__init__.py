"""``nn.Module``s over :mod:`kerbs_fairseq.functional`, with parameters and buffers. No fairseq."""

from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.mixture_of_softmaxes import MixtureOfSoftmaxes

__all__ = ["KernelizedBayesianSoftmax", "MixtureOfSoftmaxes"]
