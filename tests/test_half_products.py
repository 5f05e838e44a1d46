"""Products of half-precision matrices: as exact as float32, on a device that has them, and on one that has not."""

from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kerbs_fairseq.functional.backends import half_products
from kerbs_fairseq.functional.backends.half_products import HALVES, add_product, has_out_dtype, product

SHAPES = [(3, 4, 50), (50, 4, 3), (3, 50, 4), (1, 1, 1), (0, 4, 3), (20, 20, 20)]


def matrices(shape: tuple[int, int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    m, k, n = shape
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(x, generator=generator).to(dtype) for x in ((m, k), (k, n)))
    return a, b, a.double() @ b.double()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_products_are_those_of_float32(dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    a, b, right = matrices(shape, dtype)
    with mock.patch.object(half_products, "BLOCK", 7):
        found, total = product(a, b), torch.ones(right.shape)
        assert add_product(total, a, b) is total
        rows = torch.full((right.size(0), right.size(1) + 3), 5.0)
        product(a, b.t().contiguous().t(), out=rows[:, :-3])
    for result in (found, total - 1, rows[:, :-3]):
        assert result.dtype == torch.float32
        torch.testing.assert_close(result.double(), right, rtol=1e-6, atol=1e-5)
    assert (rows[:, -3:] == 5).all()


def test_what_a_device_has_is_tried() -> None:
    """A fake GPU takes the argument as torch 2.13 does; a CPU has none."""
    has_out_dtype.cache_clear()
    try:
        assert not any(has_out_dtype("cpu", dtype) for dtype in HALVES)
        with FakeTensorMode():
            a = torch.empty(4, 8, device="cuda", dtype=torch.bfloat16)
            if hasattr(torch.ops.aten.mm, "dtype"):
                torch.set_default_dtype(torch.bfloat16)  # which must not matter
                assert has_out_dtype("cuda", torch.bfloat16)
            with mock.patch.object(torch.Tensor, "float", side_effect=AssertionError("a copy in float32")):
                assert torch.mm(a, a.t(), out_dtype=torch.float32).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
        has_out_dtype.cache_clear()


def test_a_summand_in_float32_may_be_refused() -> None:
    """torch 2.8 multiplies into float32, but does not add to it; older versions do neither."""
    a, b, right = matrices((3, 4, 5), torch.bfloat16)
    total = torch.zeros(3, 5)

    def mm(x: Tensor, y: Tensor, out_dtype: torch.dtype) -> Tensor:
        return (x.double() @ y.double()).to(out_dtype)

    def has(device: str, dtype: torch.dtype, adding: bool = False) -> bool:
        return not adding

    with mock.patch.object(half_products, "has_out_dtype", has), mock.patch.object(torch, "mm", mm):
        add_product(total, a, b)
    torch.testing.assert_close(total.double(), right, rtol=1e-6, atol=1e-6)
    has_out_dtype.cache_clear()
    with mock.patch.object(torch, "addmm", side_effect=RuntimeError("self and mat2 must have the same dtype")):
        assert not has_out_dtype("meta", torch.bfloat16, adding=True)
    has_out_dtype.cache_clear()
