"""kerbs_fairseq: the Kernelized Bayesian Softmax (KerBS) for torch, and as a plugin for fairseq.

``from kerbs_fairseq import KernelizedBayesianSoftmax, Reallocator`` needs torch alone and changes no other library. The
plugin activates itself where fairseq is used: through ``--user-dir kerbs_fairseq``, when fairseq was imported before
this package, or as soon as it is imported after it (:mod:`kerbs_fairseq.activation`).
"""

from kerbs_fairseq.runs import interrupts

interrupts.watch()

from typing import TYPE_CHECKING, Any  # noqa: E402

from kerbs_fairseq import activation  # noqa: E402

if TYPE_CHECKING:
    from kerbs_fairseq.allocation.reallocator import Reallocator
    from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
    from kerbs_fairseq.modules.mixture_of_softmaxes import MixtureOfSoftmaxes

__version__ = "0.2.0"
__all__ = ["KernelizedBayesianSoftmax", "MixtureOfSoftmaxes", "Reallocator"]


def __getattr__(name: str) -> Any:
    """Import the layers and the Reallocator on access, so that the commands that do not use torch start faster."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kerbs_fairseq import modules
    from kerbs_fairseq.allocation import reallocator

    return getattr(reallocator if name == "Reallocator" else modules, name)


activation.watch()
