"""From senses to words: the table of slots, and log-probabilities against sums over senses."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kerbs_fairseq.functional.words import pick, pick_own, slots_of, target_log_probs, word_log_probs

MAP = torch.tensor([2, 0, 2, 1, 2, 0])


@st.composite
def maps(draw: st.DrawFn) -> tuple[Tensor, int]:
    """A map from senses to words in any order, each word with at least one sense, and the number of words."""
    senses = draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    words = [word for word, count in enumerate(senses) for _ in range(count)]
    return torch.tensor(draw(st.permutations(words))), len(senses)


def most(sense_to_word: Tensor) -> int:
    return int(sense_to_word.bincount().max())


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


# --- slots


def test_slots_hold_the_senses_of_a_word_in_order_and_then_nothing() -> None:
    assert slots_of(MAP, 3, 4).tolist() == [[1, 5, -1, -1], [3, -1, -1, -1], [0, 2, 4, -1]]


def test_a_word_without_senses_has_an_empty_row() -> None:
    assert slots_of(torch.tensor([2, 0]), 4, 2).tolist() == [[1, -1], [-1, -1], [0, -1], [-1, -1]]


@given(made=maps(), room=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_slots_are_the_map_the_other_way_round(made: tuple[Tensor, int], room: int) -> None:
    sense_to_word, n_words = made
    slots = slots_of(sense_to_word, n_words, most(sense_to_word) + room)
    assert slots.shape == (n_words, most(sense_to_word) + room)
    for word, row in enumerate(slots.tolist()):
        own = [sense for sense, i in enumerate(sense_to_word.tolist()) if i == word]
        assert row == own + [-1] * (len(row) - len(own))


# --- picking


def test_pick_lines_scores_up_by_word_and_fills_with_minus_infinity() -> None:
    scores = torch.arange(12.0).reshape(2, 6)
    none = -math.inf
    assert pick(scores, slots_of(MAP, 3, 3)).tolist() == [
        [[1, 5, none], [3, none, none], [0, 2, 4]],
        [[7, 11, none], [9, none, none], [6, 8, 10]],
    ]


@given(made=maps(), seed=st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_pick_own_is_pick_at_the_targets(made: tuple[Tensor, int], seed: int) -> None:
    sense_to_word, n_words = made
    scores, slots = scores_for(sense_to_word, seed), slots_of(sense_to_word, n_words, 5)
    target = torch.randint(0, n_words, (4,), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(pick_own(scores, slots[target]), pick(scores, slots)[torch.arange(4), target])


# --- probabilities


@given(made=maps(), seed=st.integers(0, 1000), room=st.integers(0, 2))
@settings(max_examples=60, deadline=None)
def test_word_log_probs_are_sums_over_senses(made: tuple[Tensor, int], seed: int, room: int) -> None:
    sense_to_word, n_words = made
    scores = scores_for(sense_to_word, seed, dtype=torch.float64)
    slots = slots_of(sense_to_word, n_words, most(sense_to_word) + room)
    expected = torch.tensor(brute_force(scores, sense_to_word, n_words), dtype=torch.float64)
    torch.testing.assert_close(word_log_probs(scores, slots), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(word_log_probs(scores.float(), slots), expected.float(), rtol=1e-5, atol=1e-5)
    target = torch.randint(0, n_words, (4,), generator=torch.Generator().manual_seed(seed))
    own = expected.gather(1, target.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(target_log_probs(scores, slots, target), own, rtol=1e-12, atol=1e-12)


@given(made=maps(), seed=st.integers(0, 1000), scale=st.sampled_from([0.0, 1.0, 10.0, 1e4]))
@settings(max_examples=40, deadline=None)
def test_probabilities_sum_to_1(made: tuple[Tensor, int], seed: int, scale: float) -> None:
    sense_to_word, n_words = made
    scores = scores_for(sense_to_word, seed, scale=scale)
    sums = word_log_probs(scores, slots_of(sense_to_word, n_words, 5)).exp().sum(1)
    torch.testing.assert_close(sums, torch.ones(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_of_ten_thousand_lose_nothing_to_infinity(dtype: torch.dtype) -> None:
    scores = torch.tensor([[1e4, -1e4, -1e4, 0, 1e4, -1e4], [-1e4] * 6, [1e4] * 6], dtype=dtype, requires_grad=True)
    slots = slots_of(MAP, 3, 4)
    found = word_log_probs(scores, slots)
    impossible, unlikely, even = -2e4, -1e4, math.log(3 / 6)
    expected = [
        [impossible, unlikely - math.log(2), 0],
        [math.log(2 / 6), math.log(1 / 6), even],
        [math.log(2 / 6), math.log(1 / 6), even],
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=1e-4, atol=2e-3)
    targets = torch.stack([target_log_probs(scores, slots, torch.full((3,), word)) for word in range(3)], 1)
    torch.testing.assert_close(targets, found)
    for total in (found.sum(), targets.sum()):
        (gradient,) = torch.autograd.grad(total, scores, retain_graph=True)
        assert bool(gradient.isfinite().all())


def test_gradients_are_those_of_a_difference_of_log_sum_exps() -> None:
    scores = scores_for(MAP, 1, dtype=torch.float64).requires_grad_()
    slots = slots_of(MAP, 3, 4)
    assert torch.autograd.gradcheck(lambda s: word_log_probs(s, slots), scores)
    assert torch.autograd.gradcheck(lambda s: target_log_probs(s, slots, torch.tensor([0, 1, 2, 2])), scores)


def test_one_sense_each_is_softmax() -> None:
    order = torch.tensor([3, 1, 0, 2])
    scores = scores_for(order, 1)
    expected = torch.log_softmax(scores[:, order.argsort()], 1)
    torch.testing.assert_close(word_log_probs(scores, slots_of(order, 4, 1)), expected)


def test_one_word_is_certain() -> None:
    only = torch.zeros(5, dtype=torch.long)
    found = word_log_probs(scores_for(only, 1), slots_of(only, 1, 5))
    torch.testing.assert_close(found, torch.zeros(4, 1), rtol=0, atol=1e-6)


def test_no_tokens_are_no_trouble() -> None:
    slots = slots_of(MAP, 3, 4)
    assert word_log_probs(torch.empty(0, 6), slots).shape == (0, 3)
    assert target_log_probs(torch.empty(0, 6), slots, torch.empty(0, dtype=torch.long)).shape == (0,)
