"""The sense table, and the start: how many senses each word gets, and where their vectors begin."""

import copy
import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layers import batch, layer
from torch import nn

from kerbs_fairseq.functional.initialization import (
    INITIAL_MAPS,
    INITIAL_VECTORS,
    InitialAllocation,
    allocate,
    initial_bias,
    initial_senses,
    initial_vectors,
    map_of,
)
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.modules import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.sense_table import SenseTable, SenseTableMisfit

all_kernels = pytest.mark.parametrize("kernel", KERNELS)
D, V, N = 6, 20, 9


# --- the sense table


def table(senses: int = 5, n_words: int = 3, max_senses: int = 3, **options: Any) -> SenseTable:
    sense_to_word = torch.arange(senses) % n_words
    return SenseTable(torch.randn(senses, 4), sense_to_word, n_words, max_senses, **options)


def rows(of: SenseTable) -> list[list[int]]:
    """The senses of each word."""
    return [[s for s in row if s >= 0] for row in of.index.rows(torch.arange(of.n_words)).tolist()]


def assert_index_is_right(of: SenseTable) -> None:
    words = of.sense_to_word.tolist()
    assert rows(of) == [[s for s, i in enumerate(words) if i == word] for word in range(of.n_words)]


def test_the_index_follows_an_edit_in_place() -> None:
    t = table()
    assert rows(t) == [[0, 3], [1, 4], [2]]
    t.sense_to_word[4] = 2
    assert rows(t) == [[0, 3], [1], [2, 4]]
    t.sense_to_word.copy_(torch.tensor([2, 1, 0, 0, 0]))
    assert rows(t) == [[2, 3, 4], [1], [0]]


def test_the_index_follows_a_new_map() -> None:
    t = table()
    assert_index_is_right(t)
    t.sense_to_word = torch.tensor([2, 1, 0, 0, 0])
    assert_index_is_right(t)
    assert t.senses_per_word().tolist() == [3, 1, 1]


def test_the_index_is_made_once_while_the_map_stays() -> None:
    t = table()
    assert t.index is t.index


def test_the_index_follows_a_loaded_state() -> None:
    t, other = table(), table()
    other.sense_to_word.copy_(torch.tensor([2, 1, 0, 0, 0]))
    assert_index_is_right(t)
    t.load_state_dict(other.state_dict())
    assert rows(t) == rows(other) == [[2, 3, 4], [1], [0]]


def test_a_copy_has_an_index_of_its_own() -> None:
    t = table()
    assert_index_is_right(t)
    other = copy.deepcopy(t)
    other.sense_to_word[4] = 2
    assert rows(other) == [[0, 3], [1], [2, 4]]
    assert rows(t) == [[0, 3], [1, 4], [2]]


def test_a_pickled_table_comes_back() -> None:
    t, file = table(), io.BytesIO()
    assert_index_is_right(t)
    torch.save(t, file)
    file.seek(0)
    back = torch.load(file, weights_only=False)
    assert_index_is_right(back)
    assert torch.equal(back.vectors, t.vectors)


def test_other_precisions_keep_the_map_whole() -> None:
    t = table()
    assert_index_is_right(t)
    for change in (t.double, t.half, t.float):
        change()
        assert t.sense_to_word.dtype == torch.long
        t.sense_to_word.copy_(t.sense_to_word.flip(0))
        assert_index_is_right(t)


@all_kernels
def test_a_state_makes_the_round_trip(kernel: str) -> None:
    one, two, (x, y) = layer(kernel=kernel), layer(kernel=kernel, seed=9), batch()
    one.senses.sense_to_word.copy_(one.senses.sense_to_word.flip(0))
    parameters = ["vectors", "bias_raw"] if kernel == "dot" else ["vectors", "theta_raw", "bias_raw"]
    buffers = ("sense_to_word", "kernel_id", "initial_senses", "vocabulary", "ratio", "rates", "map_checksum")
    saved = {name for name in one.state_dict() if not name.startswith("statistics.")}
    assert saved == {f"senses.{name}" for name in (*parameters, *buffers)}
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x, y).output, two(x, y).output)
    assert torch.equal(one.log_prob(x), two.log_prob(x))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (table(6), "the checkpoint has 6 senses, the model has 5"),
        (table(n_words=4), "the checkpoint has senses for 4 words, the model has 3 words"),
        (table(n_words=2), "the checkpoint has senses for 2 words, the model has 3 words"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_and_changes_nothing(saved: SenseTable, message: str) -> None:
    t = table()
    before = copy.deepcopy(t.state_dict())
    with pytest.raises(SenseTableMisfit, match=message):
        nn.ModuleDict({"inner": t}).load_state_dict({f"inner.{k}": v for k, v in saved.state_dict().items()})
    assert all(torch.equal(before[name], value) for name, value in t.state_dict().items())


def test_a_table_with_more_senses_a_word_than_allowed_is_refused() -> None:
    saved, t = table(), table(max_senses=2)
    saved.sense_to_word.copy_(torch.tensor([0, 0, 0, 1, 2]))
    with pytest.raises(SenseTableMisfit, match="a word with 3 senses, the model allows 2"):
        t.load_state_dict(saved.state_dict())
    assert t.misfit(table().state_dict()) is None


def test_a_checkpoint_without_a_bias_is_taken_as_it_is_and_one_with_a_bias_is_not_cut() -> None:
    old, new = table(), table(bias=torch.ones(5))
    known = ("vectors", "theta_raw", "sense_to_word", "kernel_id")  # to version 0.1
    state = {name: value for name, value in old.state_dict().items() if name in known}
    new.load_state_dict(state)
    assert new.bias is None
    assert not new.initial_senses.any(), "unknown"
    with pytest.raises(SenseTableMisfit, match="the checkpoint has a bias for each sense, the model has none"):
        old.load_state_dict(table(bias=torch.ones(5)).state_dict())


def test_a_number_of_senses_that_counts_have_limited_comes_from_the_checkpoint() -> None:
    counts = torch.tensor([30, 1, 1, 1])
    saved = KernelizedBayesianSoftmax(6, 4, senses=2, counts=counts, init="frequency", min_count=10)
    there = KernelizedBayesianSoftmax(6, 4, senses=2, counts=torch.ones(4), init="frequency")  # without its data
    assert len(saved.senses.vectors) < len(there.senses.vectors)
    there.load_state_dict(saved.state_dict())
    x = torch.randn(3, saved.in_features)
    assert torch.equal(there.log_prob(x), saved.log_prob(x))
    there(x, torch.tensor([0, 1, 2])).loss.backward()
    with pytest.raises(SenseTableMisfit, match="senses, the model has"):
        KernelizedBayesianSoftmax(6, 4, senses=3, counts=counts, init="frequency").load_state_dict(saved.state_dict())


def test_another_dictionary_of_the_same_size_is_refused() -> None:
    saved, t = table(vocabulary=1), table(vocabulary=2)
    with pytest.raises(SenseTableMisfit, match="another dictionary of the same size"):
        t.load_state_dict(saved.state_dict())
    t.load_state_dict(table().state_dict())


def test_rates_scale_what_an_optimizer_does_to_theta_and_bias() -> None:
    t = table(bias=torch.arange(5.0), theta_init=0.5, theta_rate=4.0, bias_rate=10.0)
    assert t.theta.tolist() == [0.5] * 5
    assert t.bias.tolist() == [0, 1, 2, 3, 4]
    with torch.no_grad():
        t.theta_raw += 0.01
        t.bias_raw += 0.01
    torch.testing.assert_close(t.theta, torch.full((5,), 0.54))
    torch.testing.assert_close(t.bias, torch.arange(5.0) + 0.1)
    with pytest.raises(SenseTableMisfit, match="rates"):
        table(bias=torch.arange(5.0)).load_state_dict(t.state_dict())
    for rate in (0.0, 1e-7, 1e7, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"rates of \S+ for θ"):
            table(theta_rate=rate)


def test_theta_starts_where_asked_and_is_bounded_or_bent() -> None:
    assert table(theta_init=-0.5).theta.tolist() == [-0.5] * 5
    far = table(theta_bound=3.0)
    torch.nn.init.constant_(far.theta_raw, 100.0)
    assert far.theta.tolist() == [3.0] * 5
    assert table(theta_init=0.0, kernel="released").theta.tolist() == [-1.0] * 5
    assert table(kernel="dot").theta is None


# --- the start: how many senses each word gets


@st.composite
def allocations(draw: st.DrawFn) -> tuple[InitialAllocation, dict[str, Any]]:
    n_words, low, room = draw(st.integers(1, 40)), draw(st.integers(1, 3)), draw(st.integers(0, 3))
    seed = draw(st.integers(0, 10**6))
    ratio, how = low + room * draw(st.floats(0, 1)), draw(st.sampled_from(INITIAL_MAPS))
    return InitialAllocation(ratio, low, low + room, how), {
        "n_words": n_words,
        "counts": torch.randint(0, 1000, (n_words,), generator=torch.Generator().manual_seed(seed)),
        "single": draw(st.lists(st.integers(0, n_words - 1), unique=True, max_size=4)),
        "seed": seed,
    }


@given(asked=allocations())
@settings(max_examples=150, deadline=None)
def test_any_allocation_keeps_its_bounds_and_its_total(asked: tuple[InitialAllocation, dict[str, Any]]) -> None:
    allocation, words = asked
    senses = initial_senses(allocation=allocation, **words)
    assert len(senses) == words["n_words"]
    assert senses[words["single"]].tolist() == [1] * len(words["single"])
    others = [n for word, n in enumerate(senses.tolist()) if word not in words["single"]]
    assert sum(others) == round(allocation.ratio * len(others))
    assert all(allocation.min_senses <= n <= allocation.max_senses for n in others)
    assert torch.equal(senses, initial_senses(allocation=allocation, **words))
    if allocation.how == "uniform" and others:
        assert max(others) - min(others) <= 1
    if allocation.how == "frequency":
        counts = [n for word, n in enumerate(words["counts"].tolist()) if word not in words["single"]]
        more = [(a, b) for a, m in zip(others, counts) for b, n in zip(others, counts) if m > n]
        assert all(a >= b for a, b in more), "a more frequent word has at least as many"


@pytest.mark.parametrize("how", ["random", "uniform"])
def test_the_seed_decides_who_gets_more(how: str) -> None:
    one, two, other = (initial_senses(100, InitialAllocation(2.5, how=how), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_random_allocation_uses_the_whole_range_and_the_global_generator_not_at_all() -> None:
    before = torch.get_rng_state()
    assert initial_senses(1000, InitialAllocation(2.5, max_senses=4)).unique().tolist() == [1, 2, 3, 4]
    assert torch.equal(torch.get_rng_state(), before)


def test_frequency_gives_the_frequent_words_most() -> None:
    counts = torch.tensor([5, 1000, 4, 3, 900, 2])
    by_frequency = InitialAllocation(2, how="frequency")
    assert initial_senses(6, replace(by_frequency, max_senses=4), counts).tolist() == [1, 4, 1, 1, 4, 1]
    assert initial_senses(6, by_frequency, counts).tolist() == [1, 4, 1, 1, 4, 1]
    assert initial_senses(6, replace(by_frequency, power=0.0), counts).sort().values.tolist() == [2] * 6


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=12),
    total=st.integers(0, 60),
    most=st.integers(1, 70),
    power=st.sampled_from([0.0, 0.25, 1.0, 2.0]),
    min_count=st.sampled_from([0.0, 1.0, 7.5]),
)
@settings(max_examples=200, deadline=None)
def test_the_next_sense_goes_where_the_rule_says(
    counts: list[int], total: int, most: int, power: float, min_count: float
) -> None:
    expected = [1] * len(counts)
    while sum(expected) < total:
        may = [i for i, n in enumerate(expected) if n < most and counts[i] >= min_count * (n + 1)]
        if not may:
            break
        expected[max(may, key=lambda i: (counts[i] ** power / expected[i], -expected[i], -i))] += 1
    assert allocate(torch.tensor(counts), total, 1, most, power, min_count).tolist() == expected


def test_words_of_equal_counts_get_senses_in_an_order_that_the_seed_decides() -> None:
    none = torch.zeros(100, dtype=torch.long)
    by_frequency = InitialAllocation(1.5, how="frequency")
    one, two, other = (initial_senses(100, by_frequency, none, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
    assert one.max() == 2
    assert int((one[:50] == 2).sum()) < 40  # not simply the first ones


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"power": -1.0}, "power of the count is -1: it must be from 0 to 10"),
        ({"power": 1000.0}, "power of the count is 1000"),
        ({"min_count": -1.0}, "minimum count per sense is -1"),
        ({"min_count": 51.0}, "no word occurs 102 times"),
        ({"counts": torch.ones(3)}, "counts of 3 words"),
        ({"max_senses": 1}, "1.5 senses per word are outside the bounds"),
        ({"how": "evenly"}, "unknown initial allocation 'evenly': one of frequency, random, uniform"),
    ],
)
def test_an_allocation_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"ratio": 1.5, "how": "frequency", "counts": torch.tensor([1, 2, 3, 100])} | options
    counts = given.pop("counts")
    with pytest.raises(ValueError, match=message):
        initial_senses(4, InitialAllocation(**given), counts)


def test_a_layer_without_counts_refuses_what_only_counts_can_use() -> None:
    for options in ({"power": 0.5}, {"min_count": 2.0}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} has no effect with init='random'"):
            KernelizedBayesianSoftmax(6, 4, senses=2, **options)


def test_a_minimum_count_may_leave_fewer_senses_than_were_asked_for() -> None:
    counts = torch.tensor([1, 2, 3, 100])
    assert initial_senses(4, InitialAllocation(2, how="frequency", min_count=40), counts).tolist() == [1, 1, 1, 2]


def test_a_very_large_maximum_takes_no_longer() -> None:
    for how in ("random", "frequency"):
        senses = initial_senses(3000, InitialAllocation(2, max_senses=10**6, how=how), torch.arange(3000))
        assert int(senses.sum()) == 6000


# --- the start: biases


def test_the_bias_starts_from_the_words_and_keeps_their_probability_if_asked() -> None:
    words, sense_to_word = torch.tensor([0.5, -1.0]), map_of(torch.tensor([1, 4]))
    assert initial_bias(words, sense_to_word, "zero").tolist() == [0.5, -1, -1, -1, -1]
    torch.testing.assert_close(initial_bias(words, sense_to_word, "log"), torch.tensor([0.5, *[-1 - math.log(4)] * 4]))
    assert initial_bias(words, sense_to_word, "none") is None
    with pytest.raises(ValueError, match="unknown bias"):
        initial_bias(words, sense_to_word, "some")


def test_the_map_keeps_the_senses_of_a_word_together() -> None:
    assert map_of(torch.tensor([2, 1, 3])).tolist() == [0, 0, 1, 2, 2, 2]


# --- the start: vectors


def test_clones_start_near_their_word_but_apart_and_a_single_sense_at_it() -> None:
    words = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 0.2
    sense_to_word = map_of(torch.tensor([1, 3] * 25))
    vectors = initial_vectors(words, sense_to_word, "clone")
    distance = (vectors - words[sense_to_word]).norm(dim=1) / math.sqrt(32)
    alone = sense_to_word % 2 == 0
    assert not distance[alone].any()
    centre = torch.zeros_like(words).index_add_(0, sense_to_word, vectors - words[sense_to_word])
    torch.testing.assert_close(centre, torch.zeros_like(centre), rtol=0, atol=1e-6)
    assert 0 < float(distance[~alone].min()) < float(distance[~alone].max()) < 0.02 * 0.2
    assert len(vectors.unique(dim=0)) == 100


def test_near_vectors_keep_their_word_and_part() -> None:
    words = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 0.2
    sense_to_word = map_of(torch.tensor([1, 3] * 25))
    vectors = initial_vectors(words, sense_to_word, "near")
    distance = (vectors - words[sense_to_word]).norm(dim=1) / math.sqrt(32)
    alone = sense_to_word % 2 == 0
    assert not distance[alone].any()
    assert float(distance[~alone].mean()) == pytest.approx(0.5 * float(words.std()), rel=0.05)
    own = torch.cosine_similarity(vectors, words[sense_to_word])
    assert float(own.min()) > 0.7  # each is nearer to its word than chance could be


def test_random_vectors_have_the_spread_of_the_words_and_nothing_else_of_them() -> None:
    words = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 0.2
    sense_to_word = map_of(torch.full((50,), 3))
    vectors = initial_vectors(words, sense_to_word, "random")
    assert vectors.shape == (150, 32)
    assert float(vectors.std()) == pytest.approx(0.2, rel=0.05)
    correlation = torch.corrcoef(torch.stack([vectors.flatten(), words[sense_to_word].flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.05


@pytest.mark.parametrize("how", INITIAL_VECTORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_vectors_are_seeded_and_of_the_type_of_the_words(how: str, dtype: torch.dtype) -> None:
    words, sense_to_word = torch.ones(3, 2, dtype=dtype).cumsum(0), map_of(torch.tensor([2, 1, 2]))
    one, two, other = (initial_vectors(words, sense_to_word, how, seed) for seed in (1, 1, 2))
    assert one.dtype == dtype
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
