"""Inputs and outputs of the loss functions."""

from dataclasses import dataclass
from typing import NamedTuple, Optional

from torch import Tensor

from kerbs_fairseq.functional.words import SenseIndex


@dataclass(frozen=True)
class Senses:
    """S senses of V words.

    ``vectors`` (senses, d), ``theta`` (senses,) or None for the kernel ``dot``, ``bias`` (senses,) or None, the index
    from words to senses, and the name of the kernel.
    """

    vectors: Tensor
    theta: Optional[Tensor]
    bias: Optional[Tensor]
    index: SenseIndex
    kernel: str = "paper"

    def __post_init__(self) -> None:
        if self.theta is None and self.kernel != "dot":
            raise ValueError(f"the kernel {self.kernel!r} needs theta; only 'dot' has none")


class Loss(NamedTuple):
    """Σ weight · loss (); log P(target) (tokens,); log P of each sense of the target (tokens, k), no gradient."""

    loss: Tensor
    log_prob: Tensor
    sense_log_prob: Tensor


class Smoothing(NamedTuple):
    """Label smoothing as fairseq defines it: ``nll`` · −log P(target) + ``word`` · Σ_words −log P(word)."""

    nll: float
    word: float

    @classmethod
    def of(cls, epsilon: float, n_words: int) -> "Smoothing":
        """Return the weights for a label smoothing of ``epsilon`` over ``n_words`` words."""
        word = epsilon / max(n_words - 1, 1)
        return cls(1.0 - epsilon - word, word)
