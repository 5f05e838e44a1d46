"""KerBS as an output layer, with the interface of ``torch.nn.AdaptiveLogSoftmaxWithLoss``."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional.chunked_loss import Loss, fused_loss
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.initialization import initial_senses, initial_vectors, map_of
from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.functional.reference import reference_loss
from kerbs_fairseq.functional.words import word_log_probs
from kerbs_fairseq.modules.sense_table import SenseTable
from kerbs_fairseq.modules.statistics import SenseStatistics


class Output(NamedTuple):
    """What forward gives: log P(target) of every row (rows,), and the mean of its negative."""

    output: Tensor
    loss: Tensor


class KernelizedBayesianSoftmax(nn.Module):
    """The output layer of the paper: from features to words, through senses.

    Args:
        in_features: size d of a feature vector
        n_words: size V of the vocabulary
        senses: senses a word on average; S = round(senses · V)
        min_senses, max_senses: bounds for every word
        init: first allocation: ``random``, ``uniform`` or ``frequency`` (needs ``counts``)
        init_vectors: first vectors: ``clone`` (the senses of a word start together), ``near`` or ``random``
        kernel: ``paper``, ``dot`` (inner product) or ``released`` (as in the authors' code)
        theta_init, theta_bound: where θ starts, and how far it can go
        counts: how often each word occurs (words,)
        single: words that keep one sense (special symbols)
        word_vectors: vectors (words, d) that the senses start from; drawn if there are none
        chunk: tokens whose scores are in memory at a time; 0 chooses
        reference: use the plain implementation, which keeps all scores in memory
        seed: of allocation and vectors
        decay: β, how fast the statistics forget
    """

    def __init__(
        self,
        in_features: int,
        n_words: int,
        senses: float = 3.0,
        min_senses: int = 1,
        max_senses: int = 4,
        init: str = "random",
        init_vectors: str = "near",
        kernel: str = "paper",
        theta_init: float = 1e-8,
        theta_bound: float = 8.0,
        counts: Optional[Tensor] = None,
        single: Sequence[int] = (),
        word_vectors: Optional[Tensor] = None,
        chunk: int = 0,
        reference: bool = False,
        seed: int = 1,
        decay: float = 0.01,
    ) -> None:
        super().__init__()
        if chunk < 0:
            raise ValueError(f"a chunk of {chunk} tokens: give a positive number, or 0 for an automatic choice")
        numbers = initial_senses(n_words, senses, min_senses, max_senses, init, counts, single, seed)
        sense_to_word = map_of(numbers)
        if word_vectors is None:
            generator = torch.Generator().manual_seed(seed)
            word_vectors = torch.randn(n_words, in_features, generator=generator) * in_features**-0.5
        vectors = initial_vectors(word_vectors.detach(), sense_to_word, init_vectors, seed + 1)
        self.senses = SenseTable(
            vectors, sense_to_word, n_words, max_senses, kernel, theta_init, theta_bound, min_senses, single
        )
        self.statistics = SenseStatistics(n_words, len(vectors), decay)
        self.in_features, self.chunk, self.reference = in_features, chunk, reference
        self._kept: tuple[Optional[WordScorer], Optional[list[tuple[int, int]]]] = (None, None)

    @property
    def n_words(self) -> int:
        """Size of the vocabulary."""
        return self.senses.n_words

    def forward(self, input: Tensor, target: Tensor) -> Output:
        """``input`` (rows, d) or (d,), ``target`` (rows,) or () → log P(target), and the mean loss."""
        if input.size(-1) != self.in_features or input.shape[:-1] != target.shape:
            wanted = (*target.shape, self.in_features)
            raise RuntimeError(f"input has the shape {tuple(input.shape)}, and for this target {wanted} is needed")
        if target.numel() and not (int(target.min()) >= 0 and int(target.max()) < self.n_words):
            raise RuntimeError(f"target values should be in [0, {self.n_words - 1}]")
        rows, words = input.reshape(-1, self.in_features), target.reshape(-1)
        loss, log_prob = self.loss(rows, words)
        return Output(log_prob.reshape(target.shape), loss / max(len(rows), 1))

    def loss(
        self, features: Tensor, target: Tensor, weight: Optional[Tensor] = None, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Σ weight · loss and log P(target): ``features`` (tokens, d), ``target`` (tokens,), ``weight`` (tokens,)."""
        table = self.senses
        arguments = (features, table.vectors, table.theta, table.slots, target, weight, table.kernel, label_smoothing)
        found = reference_loss(*arguments) if self.reference else fused_loss(*arguments, self.chunk)
        if found.loss.requires_grad:  # weights are about to change, perhaps behind their counters of changes
            self._kept = None, None
        if self.training and found.loss.requires_grad:
            self.count_when_differentiated(found, target, weight)
        return found.loss, found.log_prob

    def count_when_differentiated(self, found: Loss, target: Tensor, weight: Optional[Tensor]) -> None:
        """Have the statistics take in a batch with its gradients: ``target`` and ``weight`` (tokens,)."""
        vectors, own_slots = self.senses.vectors, self.senses.slots[target]
        log_prob, sense_log_prob = found.log_prob.detach(), found.sense_log_prob

        def count(by_loss: Optional[Tensor]) -> None:
            # Whoever throws gradients away (a skipped update, too little memory) throws these counts away: no gradient
            # yet means that a new update begins.
            anew = vectors.requires_grad and vectors.grad is None
            self.statistics.count(log_prob, sense_log_prob, own_slots, target, weight, by_loss, anew)

        found.loss.register_hook(count)

    def log_prob(self, input: Tensor) -> Tensor:
        """log P of every word: ``input`` (..., d) → (..., words)."""
        table = self.senses
        rows = input.reshape(-1, self.in_features)
        if torch.is_grad_enabled() or self.reference:  # gradients need all scores
            scores = sense_scores(rows, table.vectors, table.theta, table.kernel)
            found = word_log_probs(scores, table.slots)
        else:
            found = self.word_scorer()(rows, self.chunk)
        return found.reshape(*input.shape[:-1], self.n_words)

    def word_scorer(self) -> WordScorer:
        """For the senses as they are now; kept while evaluating, until a parameter or the map changes."""
        table, parameters = self.senses, list(self.senses.parameters())
        kept, state = self._kept
        countable = not any(p.is_inference() for p in parameters)  # an inference tensor does not count its changes
        now = [(p.data_ptr(), p._version) for p in parameters] if countable and not self.training else None
        if kept is not None and now == state and kept.slots is table.slots:
            return kept
        scorer = WordScorer(table.vectors, table.theta, table.slots, table.kernel)
        self._kept = (scorer, now) if now is not None else (None, None)
        return scorer

    def train(self, mode: bool = True) -> "KernelizedBayesianSoftmax":
        """Also forget what was kept for evaluating: optimizers write to parameters behind their counters of changes."""
        self._kept = None, None
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": (None, None)}  # a copy has parameters of its own

    def predict(self, input: Tensor) -> Tensor:
        """The most probable word: ``input`` (..., d) → (...)."""
        return self.log_prob(input).argmax(-1)
