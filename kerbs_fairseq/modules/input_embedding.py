"""The decoder's input embedding, tied to the senses of the output layer. It replaces an ``nn.Embedding``."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn import functional

from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.input_embedding import posterior_weights, sense_vectors, usage_weights, weighted
from kerbs_fairseq.functional.words import SenseIndex
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax

INPUTS = ("untied", "usage", "posterior")


class Gathered(NamedTuple):
    """The senses of some words: indices ``senses`` (..., k), vectors (..., k, d), θ and bias (..., k) or None."""

    senses: Tensor
    vectors: Tensor
    theta: Optional[Tensor]
    bias: Optional[Tensor]

    def steps(self) -> "list[Gathered]":
        """Split (batch, length, ...) into one (batch, 1, ...) per step."""
        parts = [[None] * self.senses.size(1) if x is None else x.split(1, 1) for x in self]
        return [Gathered(*step) for step in zip(*parts)]

    def detached(self) -> "Gathered":
        """Return a copy without gradients, which shares the data."""
        theta, bias = (None if x is None else x.detach() for x in (self.theta, self.bias))
        return Gathered(self.senses, self.vectors.detach(), theta, bias)

    def without_first(self) -> "Gathered":
        """Return (batch, length − 1, ...), without the first step."""
        theta, bias = (None if x is None else x[:, 1:] for x in (self.theta, self.bias))
        return Gathered(self.senses[:, 1:], self.vectors[:, 1:], theta, bias)


# (module, (words, weights, contexts)) of the innermost SenseInput.given; not an attribute: threads may share a module
_GIVEN: ContextVar[tuple[Any, tuple[Optional[Gathered], Optional[Tensor], Optional[Tensor]]]] = ContextVar(
    "given", default=(None, (None, None, None))
)


class SenseInput(nn.Module):
    """Input vectors (..., d) of words (...), from the sense vectors of an output layer; it has no parameters.

    The senses of a word are weighted by their usage, or as described in :meth:`given` within that context. The word
    ``padding_idx`` has one sense, which gets no gradient from the input, as in ``nn.Embedding``.
    """

    head: KernelizedBayesianSoftmax

    def __init__(
        self, head: KernelizedBayesianSoftmax, padding_idx: Optional[int] = None, choice: str = "usage"
    ) -> None:
        super().__init__()
        # how the senses are weighted is part of the trained model, so it is saved in the checkpoint
        self.register_buffer(state_names.CHOICE, torch.tensor(INPUTS.index(choice)))
        self.__dict__["head"] = head  # not a submodule: its parameters belong to the output layer
        self.padding_idx, self.embedding_dim, self.num_embeddings = padding_idx, head.in_features, head.n_words
        self._padding_sense: tuple[Optional[SenseIndex], Optional[int]] = (None, None)

    def gather(self, tokens: Tensor) -> Gathered:
        """Gather the senses of the words (...); once for all steps, as each backward pass fills a whole table."""
        table = self.head.senses
        senses = table.index.rows(tokens)
        vectors = sense_vectors(table.vectors, senses, self.padding_sense())
        theta, bias = (None if x is None else x[senses.clamp_min(0)] for x in (table.theta, table.bias))
        return Gathered(senses, vectors, theta, bias)

    def padding_sense(self) -> Optional[int]:
        """Return the sense of the padding word; cached until the map changes, as it synchronizes with the device."""
        index = self.head.senses.index
        if self._padding_sense[0] is not index:
            at = None if self.padding_idx is None else int(index.order[index.offsets[self.padding_idx]])
            self._padding_sense = index, at
        return self._padding_sense[1]

    def prior(self, words: Gathered) -> Tensor:
        """Return weights (..., k) by usage, for use without a context."""
        return usage_weights(self.head.statistics.usage, words.senses)

    def all_by_usage(self) -> Tensor:
        """Return the input vectors (words, d) of all words by usage; less work than :meth:`gather` of many tokens.

        :meth:`gather` pads every token to the largest number of senses of a word, the groups of the index do not.
        """
        table, padding = self.head.senses, self.padding_sense()
        usage, index = self.head.statistics.usage, table.index
        parts = [
            weighted(usage_weights(usage, group.senses), sense_vectors(table.vectors, group.senses, padding))
            for group in index.groups
        ]
        return torch.cat(parts)[index.position]

    def posterior(self, contexts: Tensor, words: Gathered) -> Tensor:
        """Return weights (..., k) given the contexts (..., d) from which the words were predicted."""
        kernel = self.head.senses.kernel
        return posterior_weights(contexts, words.vectors, words.theta, words.bias, words.senses, kernel)

    @contextlib.contextmanager
    def given(
        self,
        words: Optional[Gathered] = None,
        weights: Optional[Tensor] = None,
        contexts: Optional[Tensor] = None,
    ) -> Iterator[None]:
        """Context in which :meth:`forward` uses ``words``, gathered before, if they are given.

        They are weighted by ``weights`` (..., k), else by the posterior given ``contexts`` (..., d), else by usage.
        """
        before = _GIVEN.set((self, (words, weights, contexts)))
        try:
            yield
        finally:
            _GIVEN.reset(before)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the input vectors of ``tokens``: (...) → (..., d)."""
        module, given = _GIVEN.get()
        words, weights, contexts = given if module is self else (None, None, None)
        if words is None:
            largest, total = self.head.senses.index.largest, len(self.head.senses.vectors)
            if weights is None and contexts is None and tokens.numel() * largest > 2 * total:
                return functional.embedding(tokens, self.all_by_usage(), self.padding_idx)
            words = self.gather(tokens)
        if weights is None:
            weights = self.prior(words) if contexts is None else self.posterior(contexts, words)
        return weighted(weights, words.vectors)

    def extra_repr(self) -> str:
        """Return what print(model) shows."""
        return f"{self.num_embeddings} words, {self.embedding_dim} features, tied to the senses"
