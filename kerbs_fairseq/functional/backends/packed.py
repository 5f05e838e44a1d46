"""Repeated products with the same matrix on a CPU: oneDNN packs it once.

torch.mm packs the matrix in every call, which is a third of the work for the few rows of a decoding step.
"""

import torch
from torch import Tensor

from kerbs_fairseq.functional.backends.base import padded


def can_pack(matrix: Tensor) -> bool:
    """Return whether this build of torch can multiply by ``matrix`` with oneDNN."""
    if matrix.device.type != "cpu" or matrix.dtype != torch.float32 or not matrix.numel():
        return False
    known = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return known and torch.backends.mkldnn.is_available() and bool(torch._C._get_mkldnn_enabled())


def packing_pays(matrix: Tensor) -> bool:
    """Return whether products with a packed ``matrix`` are faster than with a :func:`transposed` one.

    On CPUs with AMX, which have 2 MiB of cache per core, torch.mm is faster, and its result can be written to memory
    that is used again. The CPU decides, not a measurement: results have to be the same in every process.
    """
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", None)  # not in every torch
    return can_pack(matrix) and not (has_amx and has_amx())


def transposed(matrix: Tensor) -> Tensor:
    """Return ``matrix`` (S, d) with columns that are contiguous in memory: products read them in that order."""
    return matrix.t().contiguous().t()


class PackedMatrix:
    """A packed copy of ``matrix`` (S, d), optimized for products with about ``rows`` rows."""

    def __init__(self, matrix: Tensor, rows: int) -> None:
        self.size = len(matrix)
        padding = padded(self.size) - self.size  # so that the rows of the product begin at multiples of 64 bytes
        whole = torch.cat([matrix, matrix.new_zeros(padding, matrix.size(1))]) if padding else matrix.contiguous()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(whole.detach(), rows)

    def products(self, features: Tensor) -> Tensor:
        """Compute the inner products (n, d) → (n, S)."""
        table: Tensor = torch.ops.mkldnn._linear_pointwise(features, self.packed, None, "none", [], "")
        return table[:, : self.size]
