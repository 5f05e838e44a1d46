"""Modules: ``nn.Module``s over :mod:`kerbs_fairseq.functional`, with parameters and buffers. No fairseq."""

from kerbs_fairseq.modules.kerbs import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.mos import MixtureOfSoftmaxes

__all__ = ["KernelizedBayesianSoftmax", "MixtureOfSoftmaxes"]
