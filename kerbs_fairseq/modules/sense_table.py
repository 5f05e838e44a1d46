"""The sense table: a matrix of sense vectors, θ and a bias per sense, and the map from senses to words."""

from collections.abc import Sequence
from typing import Any, Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.kernel import KERNELS, at_least_float32, bounded, check_kernel, released_theta
from kerbs_fairseq.functional.state_names import UNIT
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex
from kerbs_fairseq.modules.saved_state import damage


def checksum(sense_to_word: Tensor) -> Tensor:
    """Return the checksum () of a map (senses,), never 0; computed on its device, without synchronization.

    It is not linear in the map, so that the checksum of a mean of maps is not the mean of their checksums. It is small,
    so that averaging equal checksums does not overflow.
    """
    x = (sense_to_word.long() + 1) * 0x2545F4914F6CDD1D + torch.arange(len(sense_to_word), device=sense_to_word.device)
    x = (x ^ (x >> 29)) * 0x1B8735939E3779B9
    return ((x ^ (x >> 32)).sum() & 0x7FFFFFFF).clamp_min(1)


def map_damage(state_dict: dict[str, Any], prefix: str = "") -> Optional[str]:
    """Return why a saved map does not match its checksum, or None; earlier versions saved no checksum."""
    saved, now = (state_dict.get(prefix + name) for name in (state_names.CHECKSUM, state_names.MAP))
    if saved is None or now is None or damage(state_dict, prefix):  # reported by damage itself
        return None
    if not int(saved) or int(saved) == int(checksum(now)):
        return None
    return (
        "its map from senses to words is not the one that was saved: most likely checkpoints were averaged by a script "
        "that divides the map like a weight; use kerbs-average"
    )


class SenseTable(nn.Module):
    """S senses of V words.

    Parameters: ``vectors`` (senses, d), ``theta_raw`` (senses,) unless the kernel is ``dot``, ``bias_raw`` (senses,)
    unless there is none; θ and the bias are these times ``theta_rate`` and ``bias_rate``, which under Adam are factors
    of their learning rates. Buffers, saved with the model: ``sense_to_word`` (senses,), ``kernel_id`` (),
    ``initial_senses`` (words,) the initial numbers of senses (all 0: unknown), ``vocabulary`` () a fingerprint of the
    dictionary (0: unknown), ``ratio`` () the requested senses per word (0: unknown), ``rates`` (2,) of θ and bias,
    ``map_checksum`` () of the map, set when it is saved (0: unknown). :attr:`index`, from words to senses, is not
    saved; it is rebuilt when the map has changed, in place or by assignment (changes through ``.data`` are not seen).
    """

    sense_to_word: Tensor
    initial_senses: Tensor
    vocabulary: Tensor
    ratio: Tensor
    rates: Tensor
    map_checksum: Tensor

    def __init__(
        self,
        vectors: Tensor,
        sense_to_word: Tensor,
        n_words: int,
        max_senses: int,
        kernel: str = "paper",
        *,
        theta_init: float = 1e-8,
        theta_bound: float = 8.0,
        min_senses: int = 1,
        single: Sequence[int] = (),
        bias: Optional[Tensor] = None,
        ratio: float = 0.0,
        vocabulary: int = 0,
        theta_rate: float = 1.0,
        bias_rate: float = 1.0,
    ) -> None:
        super().__init__()
        check_kernel(kernel)
        if not 0 < theta_bound <= 40:
            raise ValueError(f"the bound of θ is {theta_bound:g}: it must be above 0, and at most 40 in float32")
        if not abs(theta_init) <= theta_bound:
            raise ValueError(f"θ cannot start at {theta_init:g}: its bound is ±{theta_bound:g}")
        if not all(1 / UNIT <= rate <= UNIT for rate in (theta_rate, bias_rate)):  # the range that can be saved
            raise ValueError(
                f"rates of {theta_rate:g} for θ and {bias_rate:g} for the bias: "
                f"from {1 / UNIT:g} to {UNIT:g} are possible"
            )
        self.theta_rate, self.bias_rate = theta_rate, bias_rate
        self.n_words, self.max_senses, self.kernel, self.theta_bound = n_words, max_senses, kernel, theta_bound
        self.min_senses, self.single = min_senses, tuple(single)  # words in single always have one sense
        self.vectors = nn.Parameter(vectors)
        self.theta_raw: Optional[nn.Parameter] = None
        if kernel != "dot":
            self.theta_raw = nn.Parameter(torch.full_like(vectors[:, 0], theta_init / theta_rate))
        self.bias_raw = None if bias is None else nn.Parameter(bias / bias_rate)
        self.register_buffer(state_names.MAP, sense_to_word)
        # θ has another meaning in each kernel, so the kernel is saved in the checkpoint
        self.register_buffer(state_names.KERNEL, torch.tensor(KERNELS.index(kernel)))
        self.register_buffer(state_names.INITIAL, torch.bincount(sense_to_word, minlength=n_words).to(torch.int32))
        self.register_buffer(state_names.VOCABULARY, torch.tensor(vocabulary, dtype=torch.int64))
        self.register_buffer(state_names.RATIO, torch.tensor(round(ratio * UNIT), dtype=torch.int64))
        self.register_buffer(state_names.RATES, torch.tensor([round(theta_rate * UNIT), round(bias_rate * UNIT)]))
        self._index: Optional[tuple[SenseIndex, Tensor, int]] = None  # one tuple: threads may share a model
        self.register_buffer(state_names.CHECKSUM, torch.tensor(0, dtype=torch.int64))

    @property
    def theta(self) -> Optional[Tensor]:
        """θ (senses,) as the kernel uses it; None for ``dot``."""
        if self.theta_raw is None:
            return None
        raw = at_least_float32(self.theta_raw)  # half precision is too coarse for the kernel
        raw = raw if self.theta_rate == 1 else raw * self.theta_rate
        return released_theta(raw) if self.kernel == "released" else bounded(raw, self.theta_bound)

    @property
    def bias(self) -> Optional[Tensor]:
        """The bias (senses,), or None."""
        if self.bias_raw is None or self.bias_rate == 1:
            return self.bias_raw
        return at_least_float32(self.bias_raw) * self.bias_rate

    @property
    def index(self) -> SenseIndex:
        """The index from words to senses."""
        now, kept = self.sense_to_word, self._index
        version = None if now.is_inference() else now._version  # an inference tensor has no version counter
        if kept is not None and kept[1] is now and kept[2] == version:
            return kept[0]
        with torch.inference_mode(False):  # an index built in evaluation must be usable in training
            index = SenseIndex(now.clone(), self.n_words)
        self._index = None if version is None else (index, now, version)
        return index

    def senses(self) -> Senses:
        """Return the inputs of the loss functions."""
        return Senses(self.vectors, self.theta, self.bias, self.index, self.kernel)

    @torch.no_grad()
    def move(self, senses: Tensor, words: Tensor) -> None:
        """Assign ``senses`` (moves,) to ``words`` (moves,) in the map."""
        self.sense_to_word[senses] = words

    def senses_per_word(self) -> Tensor:
        """Return the number of senses of each word (words,)."""
        return torch.bincount(self.sense_to_word, minlength=self.n_words)

    def extra_repr(self) -> str:
        """Return what print(model) shows."""
        senses, d = self.vectors.shape
        bias = "" if self.bias_raw is None else ", bias"
        return f"{senses} senses of {self.n_words} words, {d} features, kernel={self.kernel}{bias}"

    def __getstate__(self) -> dict[str, Any]:
        # the index is not copied: a copy has its own map
        return {**self.__dict__, "_index": None}

    @torch.no_grad()
    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        if self.map_checksum.is_inference():  # an inference tensor cannot be written to
            self.map_checksum = self.map_checksum.clone()
        self.map_checksum.copy_(checksum(self.sense_to_word))
        super()._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        problem = damage(state_dict, prefix) or map_damage(state_dict, prefix) or self.misfit(state_dict, prefix)
        if problem:
            raise SenseTableMisfit(problem)
        self.adapt_to(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def adapt_to(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Adopt the number of senses of a checkpoint, and remove the bias if it has none; called before loading.

        A minimum count may leave fewer senses than requested, and the counts may not be available when a model is
        loaded. Checkpoints of version 0.1 have no bias; buffers that they lack are added to ``state_dict``.
        """
        vectors = state_dict.get(prefix + state_names.VECTORS)
        if vectors is None:
            return
        if len(vectors) != len(self.vectors):
            for name, parameter in self._parameters.items():
                if parameter is not None:
                    shape = (len(vectors), *parameter.shape[1:])
                    setattr(self, name, nn.Parameter(parameter.new_empty(shape), parameter.requires_grad))
            self.sense_to_word = self.sense_to_word.new_zeros(len(vectors))
        if prefix + state_names.BIAS not in state_dict:
            self.bias_raw = None
        for name in (state_names.INITIAL, state_names.VOCABULARY, state_names.RATIO, state_names.CHECKSUM):
            state_dict.setdefault(prefix + name, getattr(self, name) * 0)  # 0: unknown
        state_dict.setdefault(prefix + state_names.RATES, self.rates * 0 + UNIT)

    def misfit(self, state_dict: dict[str, Any], prefix: str = "") -> Optional[str]:
        """Return why a saved table does not fit this one, or None; entries that are missing are not checked."""
        damaged = damage(state_dict, prefix)
        if damaged:
            return damaged
        kernel, bias = (state_dict.get(prefix + name) for name in (state_names.KERNEL, state_names.BIAS))
        if kernel is not None and KERNELS[int(kernel)] != self.kernel:
            return f"the checkpoint has the kernel {KERNELS[int(kernel)]}, the model has {self.kernel}"
        if bias is not None and self.bias_raw is None:
            return "the checkpoint has a bias for each sense, the model has none"
        whole = prefix + state_names.VECTORS in state_dict
        known = whole and state_dict.get(prefix + state_names.RATIO)  # not a checkpoint of version 0.1
        if bias is None and self.bias_raw is not None and known:
            return "the checkpoint has no bias for each sense, the model has one"
        rates = state_dict.get(prefix + state_names.RATES)
        if rates is not None and not torch.equal(rates.cpu(), self.rates.cpu()):
            return f"the checkpoint has the rates {(rates / UNIT).tolist()} of θ and bias, the model has others"
        return self._other_size(state_dict, prefix) or self._other_words(state_dict, prefix)

    def _other_size(self, state_dict: dict[str, Any], prefix: str) -> Optional[str]:
        vectors, ratio = (state_dict.get(prefix + name) for name in (state_names.VECTORS, state_names.RATIO))
        if vectors is not None and vectors.shape[1:] != self.vectors.shape[1:]:
            return f"the checkpoint has vectors of {vectors.size(1)} features, the model has {self.vectors.size(1)}"
        if not ratio:  # version 0.1 gave one sense to the end-of-sentence symbol too
            others = self.n_words - len(self.single) - 1
            same = vectors is not None and len(vectors) == self.n_words - others + round(
                int(self.ratio) / UNIT * others
            )
        else:
            same = bool(ratio == self.ratio)
        if vectors is not None and len(vectors) != len(self.vectors) and not same:
            old = "" if ratio else "; version 0.1 had other defaults, which --kerbs-preset paper gives"
            return f"the checkpoint has {len(vectors)} senses, the model has {len(self.vectors)}{old}"
        return None

    def _other_words(self, state_dict: dict[str, Any], prefix: str) -> Optional[str]:
        names = (state_names.MAP, state_names.RATIO, state_names.VOCABULARY)
        sense_to_word, ratio, vocabulary = (state_dict.get(prefix + name) for name in names)
        if sense_to_word is None:
            return None
        words = int(sense_to_word.max()) + 1
        if words != self.n_words:
            return f"the checkpoint has senses for {words} words, the model has {self.n_words} words"
        if vocabulary is not None and int(vocabulary) and int(self.vocabulary) and vocabulary != self.vocabulary:
            return (
                "the checkpoint was trained with another dictionary of the same size (or averaged by another script "
                "than kerbs-average)"
            )
        return self.out_of_bounds(sense_to_word, old=not ratio)

    def out_of_bounds(self, sense_to_word: Tensor, old: bool = False) -> Optional[str]:
        """Return why a saved map (senses,) violates the bounds on senses per word of this table, or None.

        In an ``old`` map, of version 0.1, the end-of-sentence symbol has one sense whatever the minimum.
        """
        numbers = torch.bincount(sense_to_word)
        most = int(numbers.max())
        if most > self.max_senses:
            return f"the checkpoint has a word with {most} senses, the model allows {self.max_senses}"
        numbers[list(self.single)] = self.min_senses
        fewest = int(numbers.min())
        if fewest < self.min_senses and not (old and int((numbers < self.min_senses).sum()) == 1):
            return f"the checkpoint has a word with {fewest} of at least {self.min_senses} senses"
        return None


class SenseTableMisfit(ValueError):
    """Raised when a checkpoint is damaged or does not fit the model."""
