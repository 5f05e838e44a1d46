"""KerBS as an output layer, with the interface of ``torch.nn.AdaptiveLogSoftmaxWithLoss``."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.backends.dispatch import check_backend
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.eager import eager
from kerbs_fairseq.functional.initialization import (
    InitialAllocation,
    initial_bias,
    initial_senses,
    initial_vectors,
    map_of,
)
from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.functional.reference import reference_loss
from kerbs_fairseq.functional.types import Loss
from kerbs_fairseq.functional.words import word_log_probs
from kerbs_fairseq.modules.sense_table import SenseTable
from kerbs_fairseq.modules.statistics import SenseStatistics


class Scorer:
    """A word scorer of a layer, and what tells whether the layer has changed since it was made.

    Version counters do not count changes through ``.data``, so small tensors are compared, and the vectors by a number
    per row. That takes a twentieth of the time of making a scorer.
    """

    def __init__(self, layer: "KernelizedBayesianSoftmax") -> None:
        keep = layer.used_senses(layer.prune) if layer.prune else None
        self.scorer = WordScorer(layer.senses.senses(), keep, layer.backend)
        self.settings, self.tensors = self.state(layer)
        self.tensors = [x.clone() for x in self.tensors]

    @staticmethod
    def state(layer: "KernelizedBayesianSoftmax") -> tuple[tuple[Any, ...], list[Tensor]]:
        """Return the settings and tensors that a scorer depends on; of the vectors a weighted sum of each row."""
        table = layer.senses
        vectors = table.vectors.detach()
        sums = vectors @ torch.linspace(1, 2, vectors.size(1), device=vectors.device).to(vectors.dtype)
        others = (table.theta, table.bias, table.sense_to_word, layer.statistics.usage if layer.prune else None)
        return (layer.prune, layer.backend), [sums, *(x.detach() for x in others if x is not None)]

    def fits(self, layer: "KernelizedBayesianSoftmax") -> bool:
        """Return whether the layer is what it was."""
        settings, tensors = self.state(layer)
        return settings == self.settings and all(
            x.device == y.device and x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(tensors, self.tensors)
        )


# not an attribute of the layer, since a scorer cannot be pickled
_SCORERS: "WeakKeyDictionary[KernelizedBayesianSoftmax, Scorer]" = WeakKeyDictionary()


class Output(NamedTuple):
    """Result of forward: log P(target) of every row (rows,), and the mean of −log P(target) ()."""

    output: Tensor
    loss: Tensor


class KernelizedBayesianSoftmax(nn.Module):
    """The output layer of the paper: from features to word probabilities, through senses.

    Args:
        in_features: size d of a feature vector
        n_words: size V of the vocabulary
        senses: senses per word on average, without the words in ``single``; ``min_count`` may leave fewer
        min_senses, max_senses: bounds for every word that is not in ``single``
        init: initial allocation: ``frequency`` (needs ``counts``), ``random`` or ``uniform``; None: by frequency if
            there are counts, else at random
        power, min_count: for ``frequency``: the next sense goes to the word with the largest count^power / senses, but
            not if the word would have fewer than ``min_count`` occurrences per sense
        init_vectors: initial vectors: ``near`` (the senses of a word start near each other), ``clone`` or ``random``
        kernel: ``paper``, ``dot`` (inner product) or ``released`` (as in the authors' code)
        bias: initial bias of a sense: ``zero``, or ``log`` for −log of its word's senses; ``none``: no bias
        theta_init, theta_bound: initial θ, and the bound of |θ|
        counts: how often each word occurs (words,)
        single: words that keep one sense (special symbols)
        word_vectors: vectors (words, d) from which the sense vectors are initialized; None: random
        word_bias: biases (words,) that are added to the initial biases of the senses
        chunk: tokens whose scores are in memory at a time; 0: an automatic choice
        reference: use the plain implementation, which keeps all scores in memory
        backend: ``torch``, ``cpu`` or ``triton``; empty: the fastest that works, or that of ``KERBS_BACKEND``
        seed: seed of the allocation and the vectors
        decay: β, the decay of the moving statistics
        theta_rate, bias_rate: factors of the learning rates of θ and bias, under optimizers that normalize gradients
        vocabulary: a fingerprint of the dictionary, saved with the model; 0: unknown
    """

    def __init__(
        self,
        in_features: int,
        n_words: int,
        senses: float = 1.5,
        *,
        min_senses: int = 1,
        max_senses: int = 16,
        init: Optional[str] = None,
        init_vectors: str = "near",
        kernel: str = "paper",
        bias: str = "zero",
        theta_init: float = 1e-8,
        theta_bound: float = 8.0,
        counts: Optional[Tensor] = None,
        single: Sequence[int] = (),
        word_vectors: Optional[Tensor] = None,
        word_bias: Optional[Tensor] = None,
        chunk: int = 0,
        reference: bool = False,
        backend: str = "",
        seed: int = 1,
        decay: float = 0.01,
        power: float = 1.0,
        min_count: float = 0.0,
        vocabulary: int = 0,
        theta_rate: float = 1.0,
        bias_rate: float = 1.0,
    ) -> None:
        super().__init__()
        if in_features < 1 or n_words < 1:
            raise ValueError(f"{in_features} features and {n_words} words: at least one of each is needed")
        if any(not 0 <= word < n_words for word in single):
            raise ValueError(f"single={list(single)}: these words must be in [0, {n_words - 1}]")
        if chunk < 0:
            raise ValueError(f"a chunk of {chunk} tokens: give a positive number, or 0 for an automatic choice")
        check_backend(backend)
        if backend and reference:
            raise ValueError(f"backend={backend} has no effect with reference=True: give one of them")
        if word_vectors is None:
            generator = torch.Generator().manual_seed(seed)
            word_vectors = torch.randn(n_words, in_features, generator=generator) * in_features**-0.5
        for name, given, shape in (
            ("word_vectors", word_vectors, (n_words, in_features)),
            ("word_bias", word_bias, (n_words,)),
        ):
            if given is not None and tuple(given.shape) != shape:
                raise ValueError(f"{name} has the shape {tuple(given.shape)}, and {shape} is needed")
        init = init or ("random" if counts is None else "frequency")
        allocation = InitialAllocation(senses, min_senses, max_senses, init, power, min_count)
        numbers = initial_senses(n_words, allocation, counts, single, seed)
        sense_to_word = map_of(numbers)
        vectors = initial_vectors(word_vectors.detach(), sense_to_word, init_vectors, seed + 1)
        of_words = torch.zeros_like(vectors[:1, 0]).repeat(n_words) if word_bias is None else word_bias.detach()
        self.senses = SenseTable(
            vectors,
            sense_to_word,
            n_words,
            max_senses,
            kernel,
            theta_init=theta_init,
            theta_bound=theta_bound,
            min_senses=min_senses,
            single=single,
            bias=initial_bias(of_words, sense_to_word, bias),
            ratio=senses,
            vocabulary=vocabulary,
            theta_rate=theta_rate,
            bias_rate=bias_rate,
        )
        self.statistics = SenseStatistics(n_words, len(vectors), decay)
        self.in_features, self.chunk, self.reference = in_features, chunk, reference
        self.backend, self.prune = backend, 0.0
        self.for_inference = False  # whether a word scorer is kept

    @property
    def n_words(self) -> int:
        """Size of the vocabulary."""
        return self.senses.n_words

    def forward(self, input: Tensor, target: Tensor) -> Output:
        """Return log P(target) and the mean loss: ``input`` (rows, d) or (d,), ``target`` (rows,) or ()."""
        if input.size(-1) != self.in_features or input.shape[:-1] != target.shape:
            wanted = (*target.shape, self.in_features)
            raise RuntimeError(f"input has the shape {tuple(input.shape)}, and for this target {wanted} is needed")
        rows, words = input.reshape(-1, self.in_features), target.reshape(-1)
        loss, log_prob = self.loss(rows, words)
        return Output(log_prob.reshape(target.shape), loss / max(len(rows), 1))

    @eager
    def loss(
        self, features: Tensor, target: Tensor, weight: Optional[Tensor] = None, label_smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """Return Σ weight · loss and log P(target): ``features`` (tokens, d), ``target`` and ``weight`` (tokens,)."""
        self.check(features, target, label_smoothing)
        if weight is not None and weight.shape != target.shape:
            raise RuntimeError(f"weight has the shape {tuple(weight.shape)}, and {tuple(target.shape)} is needed")
        senses = self.senses.senses()
        if self.reference:
            result = reference_loss(features, senses, target, weight, label_smoothing)
        else:
            result = chunked_loss(features, senses, target, weight, label_smoothing, self.chunk, self.backend)
        if self.training and result.loss.requires_grad:
            self.count_when_differentiated(result, target, weight)
        return result.loss, result.log_prob

    def check(self, features: Tensor, target: Tensor, label_smoothing: float) -> None:
        """Raise an error for inputs that the loss is not defined for; does not synchronize with a GPU."""
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"a label smoothing of {label_smoothing:g}: it must be at least 0 and below 1")
        if features.dim() != 2 or features.size(1) != self.in_features or features.shape[:1] != target.shape:
            wanted = (*target.shape, self.in_features)
            raise RuntimeError(f"input has the shape {tuple(features.shape)}, and for this target {wanted} is needed")
        if target.dtype != torch.long:
            raise RuntimeError(f"target has the type {target.dtype}, and torch.int64 is needed")
        message = f"target values should be in [0, {self.n_words - 1}]"
        within = ((target >= 0) & (target < self.n_words)).all()
        if target.device.type != "cpu":
            torch._assert_async(within, message)
        elif not bool(within):
            raise RuntimeError(message)

    def count_when_differentiated(self, result: Loss, target: Tensor, weight: Optional[Tensor]) -> None:
        """Count the batch in the statistics when its loss is differentiated: ``target``, ``weight`` (tokens,)."""
        vectors, target_senses = self.senses.vectors, self.senses.index.rows(target)
        log_prob, sense_log_prob = result.log_prob.detach(), result.sense_log_prob

        def count(by_loss: Optional[Tensor]) -> None:
            # If gradients are dropped (a skipped update, out of memory), so are these counts: no gradient yet means
            # that a new update begins.
            anew = vectors.requires_grad and vectors.grad is None
            self.statistics.count(log_prob, sense_log_prob, target_senses, target, weight, by_loss, anew)

        result.loss.register_hook(count)

    @eager
    def log_prob(self, input: Tensor, scorer: Optional[WordScorer] = None) -> Tensor:
        """Compute log P of every word: ``input`` (..., d) → (..., words).

        For many steps with the same weights and without gradients, make a :meth:`word_scorer` once and pass it.
        """
        if not input.dim() or input.size(-1) != self.in_features:
            raise RuntimeError(f"input has the shape {tuple(input.shape)}, and (..., {self.in_features}) is needed")
        rows = input.reshape(-1, self.in_features)
        if torch.is_grad_enabled() or (self.reference and not self.prune):  # gradients need all scores
            senses = self.senses.senses()
            scores = sense_scores(rows, senses.vectors, senses.theta, senses.kernel, senses.bias)
            log_probs = word_log_probs(scores, senses.index)
        else:
            log_probs = (scorer or self.word_scorer())(rows, self.chunk)
        return log_probs.reshape(*input.shape[:-1], self.n_words)

    def adapt_to(self, state_dict: dict[str, Any], prefix: str = "") -> None:
        """Adopt the number of senses and the bias of a checkpoint; see :meth:`SenseTable.adapt_to`."""
        self.senses.adapt_to(state_dict, prefix + state_names.SENSES)
        if self.statistics.n_senses != len(self.senses.vectors):
            self.statistics.resize(len(self.senses.vectors))

    def word_scorer(self) -> WordScorer:
        """Return a scorer for the current senses.

        It is made anew each time, or with ``for_inference`` if the senses have changed: it is a second sense table,
        which training has no memory for.
        """
        made = _SCORERS.get(self) if self.for_inference else None
        if made is None or not made.fits(self):
            made = Scorer(self)
        if self.for_inference:
            _SCORERS[self] = made
        return made.scorer

    @torch.no_grad()
    def used_senses(self, share: float) -> Tensor:
        """Return a mask (senses,) of the senses that remain if the least used senses of each word are pruned.

        Those pruned have together at most ``share`` of the word's usage in training; its most used sense remains. A
        word without any usage keeps all its senses.
        """
        table, usage = self.senses, self.statistics.usage.double()
        index = table.index
        total = torch.zeros(self.n_words, dtype=usage.dtype, device=usage.device)
        total = total.index_add_(0, table.sense_to_word, usage)[table.sense_to_word]
        # relative to the word: the usage of a rare word would be lost in a sum with that of other words
        part = torch.where(total > 0, usage / total, torch.ones_like(usage))
        # sorted by word, then by usage: the running sum within a word is the total one minus its value before the word
        order = torch.argsort(part, stable=True)
        order = order[torch.argsort(table.sense_to_word[order], stable=True)]
        words = table.sense_to_word[order]
        running = part[order].cumsum(0)
        before = torch.cat([running.new_zeros(1), running])[index.offsets[words]]
        keep = running - before > share
        keep[index.offsets[1:] - 1] = True
        return torch.zeros_like(keep).index_put_((order,), keep)

    def predict(self, input: Tensor) -> Tensor:
        """Return the most probable word: ``input`` (..., d) → (...)."""
        return self.log_prob(input).argmax(-1)
