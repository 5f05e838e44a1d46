"""Statistics of how well words are predicted and how much senses are used, for reallocation (section 4.2 of the paper).

Counting is cheap, as the loss computes all the probabilities anyway. A batch is counted when its loss is
differentiated, so that evaluation is not counted, nor are batches whose loss is multiplied by zero, as fairseq does
with its dummy batches. Counts are accumulated, like gradients, until the parameters are updated.
"""

import math
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional import state_names
from kerbs_fairseq.modules.saved_state import damage

OF_SENSES = (state_names.USAGE, state_names.SENSE_PROB)
OF_WORDS = (state_names.LOG_ACCURACY, state_names.TOKENS, state_names.PROB, state_names.NLL)


class Counts(NamedTuple):
    """Sums over target tokens; ``log_prob``, ``prob`` and ``tokens`` (words,), ``sense_prob`` (senses,)."""

    log_prob: Tensor
    prob: Tensor
    tokens: Tensor
    sense_prob: Tensor

    @classmethod
    def of(cls, flat: Tensor, n_words: int) -> "Counts":
        """Return views of one tensor (3 · words + senses,), which can be summed over workers at once."""
        return cls(*flat.split([n_words, n_words, n_words, len(flat) - 3 * n_words]))


class SenseStatistics(nn.Module):
    """Moving statistics of V words and S senses, saved with the model; they stay float32 if the model is cast.

    Buffers: ``log_accuracy`` (words,) is log P of the paper, ``usage`` (senses,) its U; ``tokens``, ``prob`` and
    ``nll`` = −log P (words,) and ``sense_prob`` (senses,) are plain sums since the last event. ``decay`` is β,
    ``updates`` the number of counted updates, ``moves`` the number of moves of senses.
    """

    log_accuracy: Tensor
    usage: Tensor
    tokens: Tensor
    prob: Tensor
    nll: Tensor
    sense_prob: Tensor
    decay: Tensor
    updates: Tensor
    moves: Tensor

    def __init__(self, n_words: int, n_senses: int, decay: float = 0.01) -> None:
        super().__init__()
        if not 0 < decay < 1:
            raise ValueError(f"the decay β of the statistics is {decay:g}: it must lie between 0 and 1")
        self.n_words, self.n_senses = n_words, n_senses
        for name in OF_WORDS:
            self.register_buffer(name, torch.zeros(n_words, dtype=torch.float32))
        for name in OF_SENSES:
            self.register_buffer(name, torch.zeros(n_senses, dtype=torch.float32))
        self.register_buffer(state_names.DECAY, torch.tensor(decay, dtype=torch.float32))
        self.register_buffer(state_names.UPDATES, torch.tensor(0))
        self.register_buffer(state_names.MOVES, torch.tensor(0))
        self.in_use = False  # whether training uses a loss that counts; the same on every worker
        self._waiting: Optional[Tensor] = None  # pending counts of the next update, the flat tensor of Counts
        self._beta = decay  # of this run: reading the buffer would synchronize with the device

    def count(
        self,
        log_prob: Tensor,
        sense_log_prob: Tensor,
        target_senses: Tensor,
        target: Tensor,
        weight: Optional[Tensor],
        by_loss: Optional[Tensor],
        anew: bool,
    ) -> None:
        """Add a batch to the pending counts, which ``anew`` resets first; does not synchronize with the device.

        ``log_prob``, ``target``, ``weight`` (tokens,), ``sense_log_prob`` and ``target_senses`` (tokens, k). Tokens of
        weight 0 (padding) are not counted, and none are if ``by_loss`` (), the gradient w.r.t. the loss, is 0 or None.
        """
        self.in_use = True
        if by_loss is None:  # the log-probabilities were differentiated, not the loss
            return
        if self._waiting is None or self._waiting.device != log_prob.device:
            self._waiting = torch.zeros(3 * self.n_words + self.n_senses, dtype=torch.float32, device=log_prob.device)
        elif anew:
            self._waiting.zero_()
        waiting = Counts.of(self._waiting, self.n_words)
        live = (by_loss != 0).float()
        live = live.expand(len(target)) if weight is None else live * (weight != 0).float()
        log_prob, sense_prob = log_prob.float(), sense_log_prob.float().exp()
        waiting.log_prob.index_add_(0, target, log_prob * live)
        waiting.prob.index_add_(0, target, log_prob.exp() * live)
        waiting.tokens.index_add_(0, target, live)
        # −1 (no sense) becomes sense 0 with log P = −∞, which adds nothing
        senses = target_senses.clamp_min(0).flatten()
        waiting.sense_prob.index_add_(0, senses, (sense_prob * live.unsqueeze(1)).flatten())

    def resize(self, n_senses: int) -> None:
        """Change the number of senses; the statistics of senses and the pending counts are reset."""
        self.n_senses, self._waiting = n_senses, None
        for name in OF_SENSES:
            setattr(self, name, getattr(self, name).new_zeros(n_senses))

    def forget_waiting(self) -> None:
        """Reset the pending counts, for an update that is not made."""
        if self._waiting is not None:
            self._waiting.zero_()

    @torch.no_grad()
    def update(self, sum_over_workers: Optional[Callable[[Tensor], object]] = None) -> None:
        """Add the pending counts, summed over all workers, after an update of the parameters: Eqs. 12 and 13.

        As printed in the paper, log P has no β on its second term: it is a discounted sum, which is lowest for frequent
        words that are badly predicted.
        """
        if self._waiting is None:  # e.g. out of memory; this worker still has to take part in the sum
            self._waiting = torch.zeros(3 * self.n_words + self.n_senses, dtype=torch.float32, device=self.usage.device)
        if sum_over_workers is not None:
            sum_over_workers(self._waiting)
        counts = Counts.of(self._waiting, self.n_words)
        self.log_accuracy.mul_(1 - self._beta).add_(counts.log_prob)
        self.usage.mul_(1 - self._beta).add_(counts.sense_prob, alpha=self._beta)
        self.tokens.add_(counts.tokens)
        self.prob.add_(counts.prob)
        self.nll.sub_(counts.log_prob)
        self.sense_prob.add_(counts.sense_prob)
        self.updates.add_(1)
        self._waiting.zero_()

    @torch.no_grad()
    def forget(self, everything: bool) -> None:
        """Reset the sums since the last event; with ``everything`` also the moving statistics."""
        for name in state_names.RECENT + (state_names.MOVING if everything else ()):
            getattr(self, name).zero_()

    def _apply(self, fn: Any, recurse: bool = True) -> "SenseStatistics":
        # --fp16 and --bf16 cast every float buffer, and small increments are lost in a half-precision sum
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, value in before.items():
            cast = self._buffers[name]
            if value is not None and cast is not None:
                self._buffers[name] = value.to(cast.device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_waiting": None}

    def misfit(self, state_dict: dict[str, Any], prefix: str = "") -> Optional[str]:
        """Return why saved statistics do not fit, or None."""
        damaged = damage(state_dict, prefix)
        if damaged:
            return damaged
        saved = state_dict.get(prefix + state_names.DECAY)
        if saved is not None and not math.isclose(float(saved), self._beta, rel_tol=1e-5):
            return f"the checkpoint's statistics were made with the decay {float(saved):g}, not {self._beta:g}"
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        usage = state_dict.get(prefix + state_names.USAGE)
        if usage is not None and len(usage) != self.n_senses:  # see SenseTable.adapt_to
            self.resize(len(usage))
        for name, value in self._buffers.items():  # missing in checkpoints of version 0.1: counting starts now
            state_dict.setdefault(prefix + name, value)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
