"""The embedding of words from the vectors of their senses, without a decoder."""

import pytest
import torch

from kerbs_fairseq.functional.input_embedding import usage_weights
from kerbs_fairseq.modules import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.input_embedding import SenseInput


def test_usage_weights() -> None:
    own = torch.tensor([[0, 1, -1], [2, 3, 4], [5, -1, -1]])
    usage = torch.tensor([3.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    expected = torch.tensor([[0.75, 0.25, 0], [1 / 3, 1 / 3, 1 / 3], [1, 0, 0]])
    torch.testing.assert_close(usage_weights(usage, own), expected)


@pytest.mark.parametrize("size", [1e-30, 1e-38, 1e-40, 1e-43])
def test_usage_weights_of_a_word_long_unseen(size: float) -> None:
    weights = usage_weights(torch.tensor([2 * size, size]), torch.tensor([[0, 1, -1]]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(1))
    assert float(weights[0, 0]) == pytest.approx(2 / 3, rel=0.02)


@pytest.mark.parametrize("most", [1, 3, 64])
def test_many_tokens_are_not_padded_to_the_largest_number_of_senses(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of all words has no more than twice the senses; what it gives, and its gradients, are the same."""
    counts = torch.ones(50)
    counts[7] = 1e6
    head = KernelizedBayesianSoftmax(6, 50, senses=1 + (most - 1) / 50, max_senses=most, counts=counts)
    head.statistics.usage.uniform_()
    embed = SenseInput(head, padding_idx=1)
    tokens = torch.randint(0, 50, (40, 9))
    tokens[:, 0] = 7

    def solve() -> tuple[torch.Tensor, torch.Tensor]:
        head.zero_grad()
        value = embed(tokens)
        (value * torch.arange(6.0)).sum().backward()
        return value.detach(), head.senses.vectors.grad.clone()

    assert head.senses.index.largest == most
    with monkeypatch.context() as patch:
        patch.setattr(SenseInput, "gather", lambda *_: pytest.fail("padded"))
        ours = solve()
    words = embed.gather(tokens)
    with embed.given(words=words):
        expected = solve()
    torch.testing.assert_close(ours, expected)
    torch.testing.assert_close(embed(tokens[:1, :1]), expected[0][:1, :1])  # few tokens are gathered
