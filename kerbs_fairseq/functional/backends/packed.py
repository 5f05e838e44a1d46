"""Products with a matrix that stays the same for several of them: on a CPU, oneDNN packs it once.

torch's own product packs the matrix anew each time. For the few rows of a decoding step that is a third of the work.
"""

import torch
from torch import Tensor

ALIGNMENT = 16  # floats in 64 bytes


def can_pack(matrix: Tensor) -> bool:
    """Whether oneDNN, as torch was built with it, multiplies by this matrix."""
    if matrix.device.type != "cpu" or matrix.dtype != torch.float32 or not matrix.numel():
        return False
    known = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return known and torch.backends.mkldnn.is_available() and bool(torch._C._get_mkldnn_enabled())


class PackedMatrix:
    """The packed form of ``matrix`` (S, d), for products with ``rows`` rows or so. It does not see later changes."""

    def __init__(self, matrix: Tensor, rows: int) -> None:
        self.size = len(matrix)
        padding = -self.size % ALIGNMENT  # so that the rows of the product begin at multiples of 64 bytes
        whole = torch.cat([matrix, matrix.new_zeros(padding, matrix.size(1))]) if padding else matrix.contiguous()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(whole.detach(), rows)

    def products(self, features: Tensor) -> Tensor:
        """(n, d) → (n, S)."""
        table: Tensor = torch.ops.mkldnn._linear_pointwise(features, self.packed, None, "none", [], "")
        return table[:, : self.size]
