"""From senses to words: the index, and log-probabilities against sums over senses."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kerbs_fairseq.functional.words import SenseIndex, pick, pick_targets, target_log_probs, word_log_probs

MAP = torch.tensor([2, 0, 2, 1, 2, 0])


@st.composite
def maps(draw: st.DrawFn) -> tuple[Tensor, int]:
    """A map from senses to words in any order, each word with 1 to 64 senses, and the number of words."""
    senses = draw(st.lists(st.one_of(st.integers(1, 5), st.integers(1, 64)), min_size=1, max_size=12))
    words = [word for word, count in enumerate(senses) for _ in range(count)]
    return torch.tensor(draw(st.permutations(words))), len(senses)


def scores_for(sense_to_word: Tensor, seed: int, n: int = 4, scale: float = 3.0, **how: torch.dtype) -> Tensor:
    return torch.randn(n, len(sense_to_word), generator=torch.Generator().manual_seed(seed), **how) * scale


def brute_force(scores: Tensor, sense_to_word: Tensor, n_words: int) -> list[list[float]]:
    """log P(word), one word and one sense after the other."""
    table = []
    for row in scores.tolist():
        top = max(row)
        mass = [math.exp(K - top) for K in row]
        own = [[m for m, i in zip(mass, sense_to_word.tolist()) if i == word] for word in range(n_words)]
        table.append([math.log(math.fsum(m) / math.fsum(mass)) for m in own])
    return table


# --- the index


def test_rows_hold_the_senses_of_a_word_in_order_and_then_nothing() -> None:
    index = SenseIndex(MAP, 3)
    assert index.largest == 3
    assert index.rows(torch.tensor([0, 1, 2])).tolist() == [[1, 5, -1], [3, -1, -1], [0, 2, 4]]
    assert index.rows(torch.tensor([[2], [1]])).tolist() == [[[0, 2, 4]], [[3, -1, -1]]]


def test_a_word_without_senses_has_an_empty_row() -> None:
    assert SenseIndex(torch.tensor([2, 0]), 4).rows(torch.arange(4)).tolist() == [[1], [-1], [0], [-1]]


@given(made=maps())
@settings(max_examples=60, deadline=None)
def test_every_form_of_the_index_is_the_map_the_other_way_round(made: tuple[Tensor, int]) -> None:
    sense_to_word, n_words = made
    index = SenseIndex(sense_to_word, n_words)
    own = [[s for s, i in enumerate(sense_to_word.tolist()) if i == word] for word in range(n_words)]
    order, offsets = index.order.tolist(), index.offsets.tolist()
    assert [order[a:b] for a, b in itertools.pairwise(offsets)] == own
    assert index.largest == max(map(len, own))
    grouped = {}
    for group in index.groups:
        k = group.senses.size(1)
        for word, row in zip(group.words.tolist(), group.senses.tolist()):
            grouped[word] = [s for s in row if s >= 0]
            assert k == 1 or k < 2 * len(grouped[word]), "less than half of a row is empty"
    assert [grouped[word] for word in range(n_words)] == own
    assert torch.equal(torch.cat([g.words for g in index.groups])[index.position], torch.arange(n_words))
    first, several, others, starts, empty, order = index.jagged
    by_rounds = {word: [] if word in empty else [sense] for word, sense in enumerate(first.tolist())}
    for begin, end in itertools.pairwise(starts):
        for word, sense in zip(several.tolist(), others[begin:end].tolist()):
            by_rounds[word].append(sense)
    assert [by_rounds[word] for word in range(n_words)] == own
    assert sorted(order.tolist()) == list(range(len(sense_to_word)))


# --- picking


def test_pick_lines_scores_up_by_word_and_fills_with_minus_infinity() -> None:
    scores = torch.arange(12.0).reshape(2, 6)
    none = -math.inf
    assert pick(scores, SenseIndex(MAP, 3).rows(torch.arange(3))).tolist() == [
        [[1, 5, none], [3, none, none], [0, 2, 4]],
        [[7, 11, none], [9, none, none], [6, 8, 10]],
    ]


@given(made=maps(), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_pick_targets_is_pick_at_the_targets(made: tuple[Tensor, int], seed: int) -> None:
    sense_to_word, n_words = made
    scores, index = scores_for(sense_to_word, seed), SenseIndex(sense_to_word, n_words)
    target = torch.randint(0, n_words, (4,), generator=torch.Generator().manual_seed(seed))
    expected = pick(scores, index.rows(torch.arange(n_words)))[torch.arange(4), target]
    assert torch.equal(pick_targets(scores, index.rows(target)), expected)


# --- probabilities


@given(made=maps(), seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_word_log_probs_are_sums_over_senses(made: tuple[Tensor, int], seed: int) -> None:
    sense_to_word, n_words = made
    scores = scores_for(sense_to_word, seed, dtype=torch.float64)
    index = SenseIndex(sense_to_word, n_words)
    expected = torch.tensor(brute_force(scores, sense_to_word, n_words), dtype=torch.float64)
    torch.testing.assert_close(word_log_probs(scores, index), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(word_log_probs(scores.float(), index), expected.float(), rtol=1e-5, atol=1e-5)
    target = torch.randint(0, n_words, (4,), generator=torch.Generator().manual_seed(seed))
    own = expected.gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(target_log_probs(scores, index, target), own, rtol=1e-12, atol=1e-12)


@given(made=maps(), seed=st.integers(0, 1000), scale=st.sampled_from([0.0, 1.0, 10.0, 1e4]))
@settings(max_examples=40, deadline=None)
def test_probabilities_sum_to_1(made: tuple[Tensor, int], seed: int, scale: float) -> None:
    sense_to_word, n_words = made
    scores = scores_for(sense_to_word, seed, scale=scale)
    sums = word_log_probs(scores, SenseIndex(sense_to_word, n_words)).exp().sum(1)
    torch.testing.assert_close(sums, torch.ones(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_ten_thousand_lose_nothing_to_infinity(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1e4, -1e4, -1e4, 0, 1e4, -1e4], [-1e4] * 6, [1e4] * 6], dtype=dtype, requires_grad=True)
    index = SenseIndex(MAP, 3)
    log_probs = word_log_probs(scores, index)
    impossible, unlikely, even = -2e4, -1e4, math.log(3 / 6)
    expected = [
        [impossible, unlikely - math.log(2), 0],
        [math.log(2 / 6), math.log(1 / 6), even],
        [math.log(2 / 6), math.log(1 / 6), even],
    ]
    torch.testing.assert_close(log_probs, torch.tensor(expected, dtype=dtype), rtol=1e-4, atol=2e-3)
    targets = torch.stack([target_log_probs(scores, index, torch.full((3,), word)) for word in range(3)], 1)
    torch.testing.assert_close(targets, log_probs)
    for total in (log_probs.sum(), targets.sum()):
        (gradient,) = torch.autograd.grad(total, scores, retain_graph=True)
        assert bool(gradient.isfinite().all())


def test_gradients_are_those_of_a_difference_of_log_sum_exps() -> None:
    scores = scores_for(MAP, 1, dtype=torch.float64).requires_grad_()
    index = SenseIndex(MAP, 3)
    assert torch.autograd.gradcheck(lambda s: word_log_probs(s, index), scores)
    assert torch.autograd.gradcheck(lambda s: target_log_probs(s, index, torch.tensor([0, 1, 2, 2])), scores)


def test_one_sense_each_is_softmax() -> None:
    order = torch.tensor([3, 1, 0, 2])
    scores = scores_for(order, 1)
    expected = torch.log_softmax(scores[:, order.argsort()], 1)
    torch.testing.assert_close(word_log_probs(scores, SenseIndex(order, 4)), expected)


def test_one_word_is_certain() -> None:
    only = torch.zeros(5, dtype=torch.long)
    log_probs = word_log_probs(scores_for(only, 1), SenseIndex(only, 1))
    torch.testing.assert_close(log_probs, torch.zeros(4, 1), rtol=0, atol=1e-6)


def test_no_tokens_are_no_trouble() -> None:
    index = SenseIndex(MAP, 3)
    assert word_log_probs(torch.empty(0, 6), index).shape == (0, 3)
    assert target_log_probs(torch.empty(0, 6), index, torch.empty(0, dtype=torch.long)).shape == (0,)
