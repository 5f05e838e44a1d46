"""log P of every word without gradients, as decoding needs it: step after step with the same senses."""

from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.dispatch import chunk_size, passes
from kerbs_fairseq.functional.backends.torch import Columns, PlainPasses, Rows
from kerbs_fairseq.functional.kernel import at_least_float32, full_precision
from kerbs_fairseq.functional.words import word_log_probs


class WordScorer:
    """What depends on the senses alone is prepared once: ``vectors`` (S, d), ``theta`` (S,) or None, ``slots`` (V, k).

    It does not see later changes of them.
    """

    @torch.no_grad()
    def __init__(self, vectors: Tensor, theta: Optional[Tensor], slots: Tensor, kernel: str) -> None:
        self.vectors, self.slots, self.kernel = at_least_float32(vectors.detach()), slots, kernel
        self.columns: Optional[Columns] = None
        if theta is not None and kernel != "dot":
            self.columns = Columns.of(self.vectors, at_least_float32(theta.detach()))
        with full_precision(self.vectors.device):
            prepared = passes(slots, self.columns, kernel, self.vectors)
        # the plain ones have memory for one chunk, which must not outlive it, nor be shared by threads
        self.passes = None if isinstance(prepared, PlainPasses) else prepared

    @torch.no_grad()
    def __call__(self, features: Tensor, chunk: int = 0) -> Tensor:
        """(rows, d) → (rows, V); ``chunk`` rows at a time, 0 chooses."""
        features = at_least_float32(features)
        with full_precision(features.device):
            parts = [self.score(part) for part in features.split(chunk or chunk_size(self.vectors))]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def score(self, features: Tensor) -> Tensor:
        """One chunk: (n, d) → (n, V)."""
        D, rows = features @ self.vectors.t(), Rows.of(features, self.kernel)
        if self.passes is None:
            plain = PlainPasses(self.slots, self.columns, self.kernel, self.vectors)
            return word_log_probs(plain.scores(D, rows), self.slots)
        totals = self.passes.totals(D, rows, words=True)
        assert totals.word is not None
        return totals.word.sub_(totals.total.log())
