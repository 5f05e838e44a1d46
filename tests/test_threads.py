"""The loss and the scores by several threads: all other tests run with one."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

WORDS, FEATURES, TOKENS = 1100, 6, 61


@pytest.fixture
def threads() -> Iterator[None]:
    """Leave the number of threads as it was."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def solve(layer: KernelizedBayesianSoftmax, x: Tensor, y: Tensor, smoothing: float) -> list[Tensor]:
    """Loss, log P of the targets, the gradients, and log P of every word."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    loss, output = layer.loss(x, y, label_smoothing=smoothing)
    loss.backward()
    gradients = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
    with torch.no_grad():
        return [loss.detach(), output.detach(), x.grad, *gradients, layer.log_prob(x)]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_threads_share_the_work_and_change_nothing(threads: None, kernel: str, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(3)
    theta = {"theta_init": 0.7} if kernel == "paper" else {}
    layer = KernelizedBayesianSoftmax(FEATURES, WORDS, kernel=kernel, init_vectors="random", **theta)
    x = torch.randn(TOKENS, FEATURES, generator=generator) * 2
    y = torch.randint(0, WORDS, (TOKENS,), generator=generator)
    torch.set_num_threads(1)
    one = solve(layer, x, y, smoothing)
    for number in (2, 5):
        torch.set_num_threads(number)
        for result, expected in zip(solve(layer, x, y, smoothing), one):
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
