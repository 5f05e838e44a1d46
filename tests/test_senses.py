"""The sense table, and the start: how many senses each word gets, and where their vectors begin."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_modules import batch, layer
from torch import nn

from kerbs_fairseq.functional.initialization import (
    INITIAL_MAPS,
    INITIAL_VECTORS,
    initial_senses,
    initial_vectors,
    map_of,
)
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.functional.words import slots_of
from kerbs_fairseq.modules.sense_table import SenseTable, SenseTableMisfit

all_kernels = pytest.mark.parametrize("kernel", KERNELS)
D, V, N = 6, 20, 9


# --- the sense table


def table(senses: int = 5, n_words: int = 3, max_senses: int = 3, **options: Any) -> SenseTable:
    sense_to_word = torch.arange(senses) % n_words
    return SenseTable(torch.randn(senses, 4), sense_to_word, n_words, max_senses, **options)


def assert_slots_are_right(of: SenseTable) -> None:
    assert torch.equal(of.slots, slots_of(of.sense_to_word, of.n_words, of.max_senses))


def test_slots_follow_an_edit_in_place() -> None:
    t = table()
    assert t.slots.tolist() == [[0, 3, -1], [1, 4, -1], [2, -1, -1]]
    t.sense_to_word[4] = 2
    assert t.slots.tolist() == [[0, 3, -1], [1, -1, -1], [2, 4, -1]]
    t.sense_to_word.copy_(torch.tensor([2, 1, 0, 0, 0]))
    assert t.slots.tolist() == [[2, 3, 4], [1, -1, -1], [0, -1, -1]]


def test_slots_follow_a_new_map() -> None:
    t = table()
    assert_slots_are_right(t)
    t.sense_to_word = torch.tensor([2, 1, 0, 0, 0])
    assert_slots_are_right(t)
    assert t.senses_per_word().tolist() == [3, 1, 1]


def test_slots_are_made_once_while_the_map_stays() -> None:
    t = table()
    assert t.slots is t.slots


def test_slots_follow_a_loaded_state() -> None:
    t, other = table(), table()
    other.sense_to_word.copy_(torch.tensor([2, 1, 0, 0, 0]))
    assert_slots_are_right(t)
    t.load_state_dict(other.state_dict())
    assert t.slots.tolist() == other.slots.tolist() == [[2, 3, 4], [1, -1, -1], [0, -1, -1]]


def test_a_copy_has_slots_of_its_own() -> None:
    t = table()
    assert_slots_are_right(t)
    other = copy.deepcopy(t)
    other.sense_to_word[4] = 2
    assert other.slots.tolist() == [[0, 3, -1], [1, -1, -1], [2, 4, -1]]
    assert t.slots.tolist() == [[0, 3, -1], [1, 4, -1], [2, -1, -1]]


def test_a_pickled_table_comes_back() -> None:
    t, file = table(), io.BytesIO()
    assert_slots_are_right(t)
    torch.save(t, file)
    file.seek(0)
    back = torch.load(file, weights_only=False)
    assert_slots_are_right(back)
    assert torch.equal(back.vectors, t.vectors)


def test_other_precisions_keep_the_map_whole() -> None:
    t = table()
    assert_slots_are_right(t)
    for change in (t.double, t.half, t.float):
        change()
        assert t.sense_to_word.dtype == torch.long
        t.sense_to_word.copy_(t.sense_to_word.flip(0))
        assert_slots_are_right(t)


@all_kernels
def test_a_state_makes_the_round_trip(kernel: str) -> None:
    one, two, (x, y) = layer(kernel=kernel), layer(kernel=kernel, seed=9), batch()
    one.senses.sense_to_word.copy_(one.senses.sense_to_word.flip(0))
    parameters = ["vectors"] if kernel == "dot" else ["vectors", "theta_raw"]
    saved = {name for name in one.state_dict() if not name.startswith("statistics.")}
    assert saved == {f"senses.{name}" for name in (*parameters, "sense_to_word", "kernel_id")}
    two.load_state_dict(one.state_dict())
    assert torch.equal(one(x, y).output, two(x, y).output)
    assert torch.equal(one.log_prob(x), two.log_prob(x))


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (table(6), "the checkpoint has 6 senses of 4 features, the model has 5 of 4"),
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


def test_theta_starts_where_asked_and_is_bounded_or_bent() -> None:
    assert table(theta_init=-0.5).theta.tolist() == [-0.5] * 5
    far = table(theta_bound=3.0)
    torch.nn.init.constant_(far.theta_raw, 100.0)
    assert far.theta.tolist() == [3.0] * 5
    assert table(theta_init=0.0, kernel="released").theta.tolist() == [-1.0] * 5
    assert table(kernel="dot").theta is None


# --- the start: how many senses each word gets


@st.composite
def allocations(draw: st.DrawFn) -> dict[str, Any]:
    n_words, low, room = draw(st.integers(1, 40)), draw(st.integers(1, 3)), draw(st.integers(0, 3))
    seed = draw(st.integers(0, 10**6))
    return {
        "n_words": n_words,
        "ratio": low + room * draw(st.floats(0, 1)),
        "min_senses": low,
        "max_senses": low + room,
        "how": draw(st.sampled_from(INITIAL_MAPS)),
        "counts": torch.randint(0, 1000, (n_words,), generator=torch.Generator().manual_seed(seed)),
        "single": draw(st.lists(st.integers(0, n_words - 1), unique=True, max_size=4)),
        "seed": seed,
    }


@given(asked=allocations())
@settings(max_examples=150, deadline=None)
def test_any_allocation_keeps_its_bounds_and_its_total(asked: dict[str, Any]) -> None:
    senses = initial_senses(**asked)
    assert len(senses) == asked["n_words"]
    assert senses[asked["single"]].tolist() == [1] * len(asked["single"])
    others = [n for word, n in enumerate(senses.tolist()) if word not in asked["single"]]
    assert sum(others) == round(asked["ratio"] * len(others))
    assert all(asked["min_senses"] <= n <= asked["max_senses"] for n in others)
    assert torch.equal(senses, initial_senses(**asked))
    if asked["how"] == "uniform" and others:
        assert max(others) - min(others) <= 1
    if asked["how"] == "frequency":
        counts = [n for word, n in enumerate(asked["counts"].tolist()) if word not in asked["single"]]
        more = [(a, b) for a, m in zip(others, counts) for b, n in zip(others, counts) if m > n]
        assert all(a >= b for a, b in more), "a more frequent word has at least as many"


@pytest.mark.parametrize("how", ["random", "uniform"])
def test_the_seed_decides_who_gets_more(how: str) -> None:
    one, two, other = (initial_senses(100, 2.5, how=how, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_random_allocation_uses_the_whole_range_and_the_global_generator_not_at_all() -> None:
    before = torch.get_rng_state()
    assert initial_senses(1000, 2.5).unique().tolist() == [1, 2, 3, 4]
    assert torch.equal(torch.get_rng_state(), before)


def test_frequency_gives_the_frequent_words_most() -> None:
    counts = torch.tensor([5, 1000, 4, 3, 900, 2])
    assert initial_senses(6, 2, how="frequency", counts=counts).tolist() == [1, 4, 1, 1, 4, 1]


def test_the_map_keeps_the_senses_of_a_word_together() -> None:
    assert map_of(torch.tensor([2, 1, 3])).tolist() == [0, 0, 1, 2, 2, 2]


# --- the start: vectors


def test_clones_start_near_their_word_but_apart_and_a_single_sense_at_it() -> None:
    words = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 0.2
    sense_to_word = map_of(torch.tensor([1, 3] * 25))
    found = initial_vectors(words, sense_to_word, "clone")
    distance = (found - words[sense_to_word]).norm(dim=1) / math.sqrt(32)
    alone = sense_to_word % 2 == 0
    assert not distance[alone].any()
    assert 0 < float(distance[~alone].min()) < float(distance[~alone].max()) < 0.02 * 0.2
    assert len(found.unique(dim=0)) == 100


def test_near_vectors_keep_their_word_and_part() -> None:
    words = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 0.2
    sense_to_word = map_of(torch.tensor([1, 3] * 25))
    found = initial_vectors(words, sense_to_word, "near")
    distance = (found - words[sense_to_word]).norm(dim=1) / math.sqrt(32)
    alone = sense_to_word % 2 == 0
    assert not distance[alone].any()
    assert float(distance[~alone].mean()) == pytest.approx(0.5 * float(words.std()), rel=0.05)
    own = torch.cosine_similarity(found, words[sense_to_word])
    assert float(own.min()) > 0.7  # each is nearer to its word than chance could be


def test_random_vectors_have_the_spread_of_the_words_and_nothing_else_of_them() -> None:
    words = torch.randn(50, 32, generator=torch.Generator().manual_seed(1)) * 0.2
    sense_to_word = map_of(torch.full((50,), 3))
    found = initial_vectors(words, sense_to_word, "random")
    assert found.shape == (150, 32)
    assert float(found.std()) == pytest.approx(0.2, rel=0.05)
    correlation = torch.corrcoef(torch.stack([found.flatten(), words[sense_to_word].flatten()]))[0, 1]
    assert abs(float(correlation)) < 0.05


@pytest.mark.parametrize("how", INITIAL_VECTORS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_vectors_are_seeded_and_of_the_type_of_the_words(how: str, dtype: torch.dtype) -> None:
    words, sense_to_word = torch.ones(3, 2, dtype=dtype).cumsum(0), map_of(torch.tensor([2, 1, 2]))
    one, two, other = (initial_vectors(words, sense_to_word, how, seed) for seed in (1, 1, 2))
    assert one.dtype == dtype
    assert torch.equal(one, two)
    assert not torch.equal(one, other)
