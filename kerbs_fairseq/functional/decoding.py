"""log P of every word without gradients, for decoding: many steps with the same senses."""

import threading
from typing import Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import FeatureNorms, SenseConstants, products_table
from kerbs_fairseq.functional.backends.dispatch import BACKENDS, backend_of, chunk_size
from kerbs_fairseq.functional.backends.half_products import product
from kerbs_fairseq.functional.backends.packed import PackedMatrix, packing_pays, transposed
from kerbs_fairseq.functional.kernel import at_least_float32, full_precision
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex

STEP_ROWS = 160  # typical rows of a decoding step: sentences times beam size
MOST_PACKED_ROWS = 512  # with more rows the plain product is as fast


class WordScorer:
    """Compute log P of every word, with everything that depends only on the senses prepared once.

    The rows of the sense table are copied in the order in which word sums read them, so later changes of the senses
    have no effect. ``keep`` (senses,) is a mask of the senses to use; every word must keep at least one.
    ``backend`` is the name of one; empty: an automatic choice.
    """

    @torch.no_grad()
    def __init__(self, senses: Senses, keep: Optional[Tensor] = None, backend: str = "") -> None:
        self.index = senses.index
        self._memory = threading.local()  # one product table per thread: allocating costs a tenth of the product
        index = senses.index
        order = index.jagged.order
        if keep is not None:
            kept = keep.nonzero().squeeze(1)
            smaller = SenseIndex(index.sense_to_word[kept], index.n_words)
            order = kept[smaller.jagged.order]
        vectors = senses.vectors.detach()[order]
        if vectors.device.type == "cpu":  # no half-precision products there: convert once, not in every step
            vectors = at_least_float32(vectors)
            vectors = vectors if packing_pays(vectors) else transposed(vectors)
        theta, bias = (None if x is None else at_least_float32(x.detach())[order] for x in (senses.theta, senses.bias))
        self.senses = Senses(vectors, theta, bias, SenseIndex(index.sense_to_word[order], index.n_words), senses.kernel)
        with full_precision(vectors.device):
            constants = SenseConstants.of(vectors, theta, senses.kernel)
            self.backend = backend_of(vectors, backend)
            self.kernels = BACKENDS[self.backend].word_kernels(self.senses, constants)
        self.packed = PackedMatrix(vectors, STEP_ROWS) if packing_pays(vectors) else None

    @torch.no_grad()
    def __call__(self, features: Tensor, chunk: int = 0) -> Tensor:
        """Compute (rows, d) → (rows, V), ``chunk`` rows at a time; 0: an automatic choice."""
        if features.dtype != self.senses.vectors.dtype:
            features = at_least_float32(features)
        with full_precision(features.device):
            rows = chunk or chunk_size(self.senses.vectors, self.backend)
            parts = [self.score(part) for part in features.split(rows)]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def score(self, features: Tensor) -> Tensor:
        """Compute one chunk: (n, d) → (n, V)."""
        norms = FeatureNorms.of(features, self.senses.kernel)
        vectors, n = self.senses.vectors, len(features)
        if self.packed is not None and n <= MOST_PACKED_ROWS:
            return self.kernels.word_log_probs(self.packed.products(features), norms)
        D = product(features, vectors.t(), out=self.table(n))
        return self.kernels.word_log_probs(D, norms)

    def table(self, n: int) -> Tensor:
        """Return memory for the products of n rows (n, S); on a CPU that of the previous step is reused.

        It is not reused on a GPU: torch has a memory pool there, other streams may still read a table that would be
        overwritten, and a captured graph needs its table for as long as the graph exists.
        """
        vectors = self.senses.vectors
        if vectors.device.type != "cpu":
            return products_table(n, len(vectors), vectors)
        table: Optional[Tensor] = getattr(self._memory, "table", None)
        if table is None or len(table) < n:
            with torch.inference_mode(False):  # an inference tensor could not be written to later
                table = self._memory.table = products_table(n, len(vectors), vectors)
        return table[:n]

    def __deepcopy__(self, memo: object) -> "WordScorer":
        return self  # shared by copies of a search state: it does not change, and cannot be copied
