"""The decoder's input embedding, tied to the senses: in the place of an ``nn.Embedding``."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional.input_embedding import own_vectors, posterior_weights, usage_weights, weighted
from kerbs_fairseq.functional.words import SenseIndex
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax

INPUTS = ("untied", "usage", "posterior")


class Gathered(NamedTuple):
    """What some words are made of: their senses (..., k), the vectors (..., k, d), θ and bias (..., k) if any."""

    own: Tensor
    vectors: Tensor
    theta: Optional[Tensor]
    bias: Optional[Tensor]

    def steps(self) -> "list[Gathered]":
        """(batch, length, ...) as one (batch, 1, ...) for each step."""
        parts = [[None] * self.own.size(1) if x is None else x.split(1, 1) for x in self]
        return [Gathered(*step) for step in zip(*parts)]

    def detached(self) -> "Gathered":
        """The same without gradients."""
        theta, bias = (None if x is None else x.detach() for x in (self.theta, self.bias))
        return Gathered(self.own, self.vectors.detach(), theta, bias)

    def without_first(self) -> "Gathered":
        """(batch, length, ...) from the second step on."""
        theta, bias = (None if x is None else x[:, 1:] for x in (self.theta, self.bias))
        return Gathered(self.own[:, 1:], self.vectors[:, 1:], theta, bias)


# (module, (words, weights, contexts)) of the innermost SenseInput.given; not on the module: threads may share it
_GIVEN: ContextVar[tuple[Any, tuple[Optional[Gathered], Optional[Tensor], Optional[Tensor]]]] = ContextVar(
    "given", default=(None, (None, None, None))
)


class SenseInput(nn.Module):
    """Words (...) → input vectors (..., d), made of the sense vectors of an output layer; it has nothing of its own.

    The senses of a word are weighted by how much each is used, or, inside :meth:`given`, as said there. The word
    ``padding_idx`` has one sense, which learns nothing from being an input, as in ``nn.Embedding``.
    """

    head: KernelizedBayesianSoftmax

    def __init__(
        self, head: KernelizedBayesianSoftmax, padding_idx: Optional[int] = None, choice: str = "usage"
    ) -> None:
        super().__init__()
        # how the senses are weighted is part of what a model has learned, so a checkpoint says it
        self.register_buffer("choice_id", torch.tensor(INPUTS.index(choice)))
        self.__dict__["head"] = head  # not a submodule: its parameters belong to the output layer
        self.padding_idx, self.embedding_dim, self.num_embeddings = padding_idx, head.in_features, head.n_words
        self._padding_sense: tuple[Optional[SenseIndex], Optional[int]] = (None, None)

    def gather(self, tokens: Tensor) -> Gathered:
        """What the words (...) are made of; once for all steps, as its backward pass fills a whole table."""
        table = self.head.senses
        own = table.index.rows(tokens)
        vectors = own_vectors(table.vectors, own, self.padding_sense())
        theta, bias = (None if x is None else x[own.clamp_min(0)] for x in (table.theta, table.bias))
        return Gathered(own, vectors, theta, bias)

    def padding_sense(self) -> Optional[int]:
        """The sense of the padding word; looked up again only when the map has changed, as it waits for the device."""
        index = self.head.senses.index
        if self._padding_sense[0] is not index:
            at = None if self.padding_idx is None else int(index.order[index.offsets[self.padding_idx]])
            self._padding_sense = index, at
        return self._padding_sense[1]

    def prior(self, words: Gathered) -> Tensor:
        """Weights (..., k) where nothing is known of the context."""
        return usage_weights(self.head.statistics.usage, words.own)

    def posterior(self, contexts: Tensor, words: Gathered) -> Tensor:
        """Weights (..., k) from the contexts (..., d) that were asked to predict the words."""
        kernel = self.head.senses.kernel
        return posterior_weights(contexts, words.vectors, words.theta, words.bias, words.own, kernel)

    @contextlib.contextmanager
    def given(
        self,
        words: Optional[Gathered] = None,
        weights: Optional[Tensor] = None,
        contexts: Optional[Tensor] = None,
    ) -> Iterator[None]:
        """Within this context the ``words`` are gathered already, if there are any.

        They are weighted by ``weights`` (..., k), by the posterior given ``contexts`` (..., d), or by usage.
        """
        before = _GIVEN.set((self, (words, weights, contexts)))
        try:
            yield
        finally:
            _GIVEN.reset(before)

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) → (..., d)."""
        module, given = _GIVEN.get()
        words, weights, contexts = given if module is self else (None, None, None)
        if words is None:
            words = self.gather(tokens)
        if weights is None:
            weights = self.prior(words) if contexts is None else self.posterior(contexts, words)
        return weighted(weights, words.vectors)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self.num_embeddings} words, {self.embedding_dim} features, tied to the senses"
