"""Which senses decoding can do without (``--kerbs-prune``)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import D, V, batch, layer

from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.functional.words import word_log_probs
from kerbs_fairseq.modules import KernelizedBayesianSoftmax


@given(share=st.floats(0, 0.99), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_left_out_senses_had_at_most_the_share_of_their_word(share: float, seed: int) -> None:
    made = layer(senses=3)
    usage = torch.rand(len(made.senses.vectors), generator=torch.Generator().manual_seed(seed)) ** 8
    usage[:7] = 0
    made.statistics.usage.copy_(usage)
    keep = made.used_senses(share)
    words = made.senses.sense_to_word
    for word in range(V):
        own, kept = usage[words == word].double(), keep[words == word]
        assert own[kept].max() == own.max()
        assert float(own[~kept].sum()) <= share * float(own.sum()) + 1e-12
        if (~kept).any():
            assert own[~kept].max() <= own[kept].min()


def test_senses_of_rare_words_are_not_lost_to_rounding() -> None:
    """Usage fades by 1 % with every update: that of a word not seen for long is 1e-14 of that of the others, or 0."""
    made = KernelizedBayesianSoftmax(D, 500, senses=3, max_senses=3, init="uniform")
    usage, words = made.statistics.usage, made.senses.sense_to_word
    usage.uniform_(0.05, 0.5, generator=torch.Generator().manual_seed(1))
    usage[words == 499] = torch.tensor([3.7e-14, 4.0e-14, 4.4e-14])
    usage[words == 498] = 0
    usage[words == 497] = torch.tensor([1e-20, 1e-14, 1e-14])
    keep = made.used_senses(0.001)
    assert [keep[words == word].tolist() for word in (497, 498, 499)] == [[False, True, True], [True] * 3, [True] * 3]


@given(st.floats(0.01, 0.9), st.integers(0, 9), st.booleans())
@settings(max_examples=30, deadline=None)
def test_pruning_loses_at_most_its_share_where_usage_was_counted(share: float, seed: int, reference: bool) -> None:
    """After one update of a model in which nothing moved: P of each word, summed over the tokens that it was."""
    made, (x, y) = layer(senses=3, seed=seed, reference=reference), batch(60)
    made.loss(x, y)[0].backward()
    made.statistics.update()
    sums = []
    with torch.no_grad():
        for made.prune in (0.0, share):
            prob = made.log_prob(x).double().exp().gather(1, y.unsqueeze(1)).squeeze(1)
            sums.append(torch.zeros(V, dtype=torch.double).index_add_(0, y, prob))
    assert share < 0.5 or not torch.equal(*sums)
    assert bool((sums[1] >= (1 - share) * sums[0] * (1 - 1e-5)).all())


@pytest.mark.parametrize("reference", [False, True])
def test_pruned_decoding_is_that_of_the_senses_that_are_left(reference: bool) -> None:
    made, (x, _) = layer(senses=3, reference=reference).eval(), batch()
    made.statistics.usage.uniform_(0, 1, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        whole = made.log_prob(x)
        made.prune = 0.5
        pruned = made.log_prob(x)
        keep = made.used_senses(0.5)
        table = made.senses
        scores = sense_scores(x, table.vectors, table.theta, bias=table.bias).masked_fill(~keep, -1e9)
        torch.testing.assert_close(pruned, word_log_probs(scores, table.index), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(pruned, whole)
        made.prune = 0.0
        assert torch.equal(made.log_prob(x), whole)
