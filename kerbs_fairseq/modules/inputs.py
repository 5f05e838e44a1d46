"""The decoder's input embedding, tied to the senses: in the place of an ``nn.Embedding``."""

import contextlib
from collections.abc import Iterator
from typing import Optional

from torch import Tensor, nn

from kerbs_fairseq.functional.inputs import own_vectors, posterior_weights, usage_weights, weighted
from kerbs_fairseq.modules.kerbs import KernelizedBayesianSoftmax


class SenseInput(nn.Module):
    """Words (...) → input vectors (..., d), made of the sense vectors of an output layer; it has nothing of its own.

    The senses of a word are weighted by how much each is used, or, inside :meth:`given`, as said there. The word
    ``padding_idx`` has one sense, which learns nothing from being an input, as in ``nn.Embedding``.
    """

    head: KernelizedBayesianSoftmax

    def __init__(self, head: KernelizedBayesianSoftmax, padding_idx: Optional[int] = None) -> None:
        super().__init__()
        self.__dict__["head"] = head  # not a submodule: its parameters belong to the output layer
        self.padding_idx, self.embedding_dim, self.num_embeddings = padding_idx, head.in_features, head.n_words
        self._padding_sense: tuple[Optional[Tensor], Optional[int]] = (None, None)
        self._weights: Optional[Tensor] = None
        self._contexts: Optional[Tensor] = None

    def own(self, tokens: Tensor) -> Tensor:
        """The senses (..., k) of words (...)."""
        return self.head.senses.slots[tokens]

    def vectors(self, own: Tensor) -> Tensor:
        """Their vectors (..., k, d)."""
        return own_vectors(self.head.senses.vectors, own, self.padding_sense())

    def padding_sense(self) -> Optional[int]:
        """The sense of the padding word; looked up again only when the map has changed, as it waits for the device."""
        slots = self.head.senses.slots
        if self._padding_sense[0] is not slots:
            self._padding_sense = slots, None if self.padding_idx is None else int(slots[self.padding_idx, 0])
        return self._padding_sense[1]

    def prior(self, own: Tensor) -> Tensor:
        """Weights (..., k) where nothing is known of the context."""
        return usage_weights(self.head.statistics.usage, own)

    def posterior(self, contexts: Tensor, own: Tensor, own_w: Tensor) -> Tensor:
        """Weights (..., k) from the contexts (..., d) that were asked to predict the words."""
        table = self.head.senses
        return posterior_weights(contexts, own_w, table.theta, own, table.kernel)

    @contextlib.contextmanager
    def given(self, weights: Optional[Tensor] = None, contexts: Optional[Tensor] = None) -> Iterator[None]:
        """Within this context words are weighted by ``weights`` (..., k), or by the posterior given ``contexts``."""
        self._weights, self._contexts = weights, contexts
        try:
            yield
        finally:
            self._weights = self._contexts = None

    def forward(self, tokens: Tensor) -> Tensor:
        """(...) → (..., d)."""
        own = self.own(tokens)
        own_w = self.vectors(own)
        weights = self._weights
        if weights is None:
            weights = self.prior(own) if self._contexts is None else self.posterior(self._contexts, own, own_w)
        return weighted(weights, own_w)

    def extra_repr(self) -> str:
        """What print(model) shows."""
        return f"{self.num_embeddings} words, {self.embedding_dim} features, tied to the senses"
