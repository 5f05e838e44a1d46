"""The sense table: one matrix of sense vectors, a θ for each, and the map from senses to words."""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional.kernel import KERNELS, at_least_float32, bounded, check_kernel, released_theta
from kerbs_fairseq.functional.words import slots_of

MAP_NAME = "sense_to_word"


class SenseTable(nn.Module):
    """S senses of V words.

    Parameters: ``vectors`` (senses, d), ``theta_raw`` (senses,) unless the kernel is ``dot``. Buffer: ``sense_to_word``
    (senses,), saved with the model. ``slots`` (words, max_senses), the lookup the other way round, is derived from it
    whenever it has changed, in place or as a whole (but not by way of ``.data``), and never saved.
    """

    def __init__(
        self,
        vectors: Tensor,
        sense_to_word: Tensor,
        n_words: int,
        max_senses: int,
        kernel: str = "paper",
        theta_init: float = 1e-8,
        theta_bound: float = 8.0,
        min_senses: int = 1,
        single: Sequence[int] = (),
    ) -> None:
        super().__init__()
        check_kernel(kernel)
        if not 0 < theta_bound <= 40:
            raise ValueError(f"the bound of θ is {theta_bound:g}: it must lie above 0, and at 40 float32 ends")
        if not abs(theta_init) <= theta_bound:
            raise ValueError(f"θ cannot start at {theta_init:g}: it is bound to stay within ±{theta_bound:g}")
        self.n_words, self.max_senses, self.kernel, self.theta_bound = n_words, max_senses, kernel, theta_bound
        self.min_senses, self.single = min_senses, tuple(single)  # words in single have one sense, always
        self.vectors = nn.Parameter(vectors)
        self.theta_raw: Optional[nn.Parameter] = None
        if kernel != "dot":
            self.theta_raw = nn.Parameter(torch.full_like(vectors[:, 0], theta_init))
        self.sense_to_word: Tensor
        self.register_buffer(MAP_NAME, sense_to_word)
        # θ means something else to each kernel, so a checkpoint says which one it is for
        self.register_buffer("kernel_id", torch.tensor(KERNELS.index(kernel)))
        self._slots: Optional[Tensor] = None
        self._slots_are_of: tuple[Any, ...] = ()

    @property
    def theta(self) -> Optional[Tensor]:
        """θ (senses,) as the kernel uses it; None for ``dot``."""
        if self.theta_raw is None:
            return None
        raw = at_least_float32(self.theta_raw)  # half precision is too coarse for what follows
        return released_theta(raw) if self.kernel == "released" else bounded(raw, self.theta_bound)

    @property
    def slots(self) -> Tensor:
        """The senses of each word (words, max_senses), −1 where it has no more."""
        now = self.sense_to_word
        version = None if now.is_inference() else now._version  # an inference tensor does not count its changes
        if (
            self._slots is None
            or version is None
            or now is not self._slots_are_of[0]
            or version != self._slots_are_of[1]
        ):
            with torch.inference_mode(False):  # a table made while evaluating must serve training afterwards
                self._slots = slots_of(now, self.n_words, self.max_senses)
            self._slots_are_of = (now, version)
        return self._slots

    @torch.no_grad()
    def move(self, senses: Tensor, words: Tensor) -> None:
        """Give ``senses`` (moves,) to ``words`` (moves,)."""
        self.sense_to_word[senses] = words

    def senses_per_word(self) -> Tensor:
        """How many senses each word has (words,)."""
        return torch.bincount(self.sense_to_word, minlength=self.n_words)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        senses, d = self.vectors.shape
        return f"{senses} senses of {self.n_words} words, {d} features, kernel={self.kernel}"

    def __getstate__(self) -> dict[str, Any]:
        # the derived table is not copied along: a copy has a map of its own
        return {**self.__dict__, "_slots": None, "_slots_are_of": ()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        problem = self.misfit(state_dict, prefix)
        if problem:
            raise SenseTableMisfit(problem)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def misfit(self, state_dict: dict[str, Any], prefix: str = "") -> Optional[str]:
        """Why a saved table does not fit into this one, or None; what is not in ``state_dict`` is not looked at."""
        sense_to_word, vectors, kernel = (state_dict.get(prefix + name) for name in (MAP_NAME, "vectors", "kernel_id"))
        if kernel is not None and KERNELS[int(kernel)] != self.kernel:
            return f"the checkpoint has the kernel {KERNELS[int(kernel)]}, the model has {self.kernel}"
        if vectors is not None and vectors.shape != self.vectors.shape:
            (saved, d), (here, d_here) = vectors.shape, self.vectors.shape
            return f"the checkpoint has {saved} senses of {d} features, the model has {here} of {d_here}"
        if sense_to_word is None:
            return None
        words = int(sense_to_word.max()) + 1
        if words != self.n_words:
            return f"the checkpoint has senses for {words} words, the model has {self.n_words} words"
        return self.out_of_bounds(sense_to_word)

    def out_of_bounds(self, sense_to_word: Tensor) -> Optional[str]:
        """Which word of a saved map (senses,) has too many senses or too few for this table, or None."""
        numbers = torch.bincount(sense_to_word)
        most = int(numbers.max())
        if most > self.max_senses:
            return f"the checkpoint has a word with {most} senses, the model allows {self.max_senses}"
        numbers[list(self.single)] = self.min_senses
        fewest = int(numbers.min())
        if fewest < self.min_senses:
            return f"the checkpoint has a word with {fewest} of at least {self.min_senses} senses"
        return None


class SenseTableMisfit(ValueError):
    """A checkpoint with another vocabulary or another number of senses than the model."""
