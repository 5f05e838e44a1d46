"""Which senses move: against Algorithm 1 written naively, and what must hold whatever the numbers are."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Optional

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kerbs_fairseq.allocation import policy
from kerbs_fairseq.allocation.policy import Move, Situation, problem_of
from kerbs_fairseq.functional.initialization import allocate

STRATEGIES = ("paper", "released", "idle")


@st.composite
def situations(draw: st.DrawFn) -> Situation:
    """Few distinct numbers, so that there are ties; some words special, some never seen."""
    n_words = draw(st.integers(1, 12))
    low = draw(st.integers(1, 3))
    high = draw(st.integers(low, 4))
    single = draw(st.sets(st.integers(0, n_words - 1), max_size=3))
    numbers = [1 if i in single else draw(st.integers(low, high)) for i in range(n_words)]
    words = [i for i, n in enumerate(numbers) for _ in range(n)]
    few = st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0])
    by_word = st.lists(few, min_size=n_words, max_size=n_words)
    by_sense = st.lists(few, min_size=len(words), max_size=len(words))
    tokens = draw(by_word)
    return Situation(
        sense_to_word=torch.tensor(draw(st.permutations(words))),
        log_accuracy=-torch.tensor(draw(by_word)),
        usage=torch.tensor(draw(by_sense)),
        tokens=torch.tensor(tokens),
        prob=torch.tensor([n / 2 for n in tokens]),
        nll=torch.tensor(draw(by_word)),
        sense_prob=torch.tensor(draw(by_sense)),
        min_senses=low,
        max_senses=high,
        single=tuple(sorted(single)),
        threshold=draw(st.sampled_from([None, 0.0, -0.3, -2.0])),
    )


def naively(s: Situation, words: list[int], usage: list[float], limit: Optional[int]) -> list[Move]:
    """Give each word in turn the least used sense, looking at all of them every time."""
    owner = s.sense_to_word.tolist()
    moves: list[Move] = []
    for i in words:
        if len(moves) == limit:
            break
        if i in s.single or owner.count(i) >= s.max_senses:
            continue
        spare = [
            (usage[j], j)
            for j, giver in enumerate(owner)
            if giver != i
            and giver not in s.single
            and owner.count(giver) > s.min_senses
            and j not in {move.sense for move in moves}
        ]
        if spare:
            _, j = min(spare)
            owner[j] = i
            moves.append(Move(j, i))
    return moves


def algorithm_1(s: Situation) -> list[Move]:
    accuracy = s.log_accuracy.tolist()
    order = sorted(range(s.n_words), key=lambda i: (accuracy[i], i))
    below = 0.0 if s.threshold is None else s.threshold
    limit = max(1, round(0.005 * s.n_words)) if s.threshold is None else None
    return naively(s, [i for i in order if accuracy[i] < below], s.usage.tolist(), limit)


@settings(max_examples=400)
@given(situations())
def test_paper_is_algorithm_1(situation: Situation) -> None:
    assert policy.paper(situation) == algorithm_1(situation)


@settings(max_examples=300)
@given(situations(), st.sampled_from(STRATEGIES))
def test_what_every_event_keeps(situation: Situation, name: str) -> None:
    before = [x.clone() for x in vars(situation).values() if isinstance(x, torch.Tensor)]
    moves = policy.STRATEGIES[name].plan(situation)
    after = situation.sense_to_word.clone()
    for sense, word in moves:
        after[sense] = word
    numbers = torch.bincount(after, minlength=situation.n_words).tolist()
    assert sum(numbers) == len(situation.sense_to_word)
    for i, n in enumerate(numbers):
        low, high = (1, 1) if i in situation.single else (situation.min_senses, situation.max_senses)
        assert low <= n <= high
    assert len({move.sense for move in moves}) == len(moves)
    assert problem_of(moves, situation) is None
    assert policy.STRATEGIES[name].plan(situation) == moves
    for old, now in zip(before, (x for x in vars(situation).values() if isinstance(x, torch.Tensor))):
        assert torch.equal(old, now)


def world(n_words: int = 1000, senses: int = 2, **more: object) -> Situation:
    generator = torch.Generator().manual_seed(1)
    return Situation(
        sense_to_word=torch.arange(n_words).repeat_interleave(senses),
        log_accuracy=-torch.rand(n_words, generator=generator),
        usage=torch.rand(n_words * senses, generator=generator),
        tokens=torch.arange(n_words).float(),
        prob=torch.arange(n_words) * torch.rand(n_words, generator=generator),
        nll=torch.rand(n_words, generator=generator),
        sense_prob=torch.rand(n_words * senses, generator=generator),
        **more,
    )


def test_without_a_threshold_the_worst_words_that_have_room_get_one() -> None:
    s = world()
    worst = torch.argsort(s.log_accuracy)[:5].tolist()
    assert [move.word for move in policy.paper(s)] == worst
    # a word at the maximum does not keep the others waiting
    full = s.sense_to_word.clone()
    full[[2 * 600, 2 * 601]] = worst[0]
    assert [move.word for move in policy.paper(replace(s, sense_to_word=full))] == [
        *worst[1:],
        torch.argsort(s.log_accuracy)[5].item(),
    ]


def test_a_threshold_takes_all_words_below_it_worst_first() -> None:
    s = world(threshold=-0.9)
    moves = policy.paper(s)
    below = [i for i in torch.argsort(s.log_accuracy).tolist() if s.log_accuracy[i] < -0.9]
    assert [move.word for move in moves] == below
    assert len(below) > 50
    assert moves[0].sense == int(s.usage.argmin())


def test_ties_go_to_the_lower_number() -> None:
    s = replace(world(8, threshold=-0.5), log_accuracy=torch.full((8,), -1.0), usage=torch.zeros(16))
    # sense 2 is the first that word 0 does not have; then it has three, of which words 1 and 2 take the first two
    assert policy.paper(s)[:3] == [Move(2, 0), Move(0, 1), Move(1, 2)]


def test_everything_idle_and_nothing_to_move() -> None:
    idle = replace(world(50, threshold=-0.1), usage=torch.zeros(100))
    assert problem_of(policy.paper(idle), idle) is None
    never_seen = replace(world(50), log_accuracy=torch.zeros(50))
    assert policy.paper(never_seen) == []
    assert policy.paper(replace(world(50, senses=1), threshold=-0.1)) == []  # nobody has one to spare
    assert policy.paper(replace(world(50, senses=4), threshold=-0.1)) == []  # nobody has room


def test_released_prefers_frequent_well_predicted_words_above_the_median() -> None:
    s = world()
    moves = policy.released(s)
    mean = s.prob.double() / s.tokens.double()
    value = (mean * s.tokens.double().sqrt()).nan_to_num(0)
    value[s.tokens <= 500] = -1
    assert [move.word for move in moves] == torch.argsort(value, descending=True)[:5].tolist()
    assert moves[0].sense == int(s.sense_prob.argmin())


def test_released_gives_nothing_to_words_at_the_median() -> None:
    s = replace(world(50), tokens=torch.full((50,), 8.0), prob=torch.full((50,), 4.0))
    assert policy.released(s) == []
    s.tokens[7] += 1
    assert [move.word for move in policy.released(s)] == [7]


def test_idle_gives_only_what_is_not_used_to_words_that_use_all() -> None:
    # words 0 and 1 use both senses, 2 uses one, 3 too but has never been seen of late: its numbers are tiny
    s = Situation(
        sense_to_word=torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]),
        log_accuracy=torch.tensor([-1.0, -9.0, -50.0, -2.0]),
        usage=torch.tensor([0.5, 0.4, 0.2, 0.2, 0.9, 0.01, 3e-42, 3e-42]),
        tokens=torch.ones(4),
        prob=torch.ones(4),
        nll=torch.ones(4),
        sense_prob=torch.ones(8),
        threshold=-0.5,
    )
    assert policy.idle(s) == [Move(5, 1)]  # word 2 is worst, but has an idle sense; it goes to the next worst
    assert policy.paper(s)[0] == Move(6, 2)  # the paper takes a sense that a rare word uses


@given(situation=situations(), power=st.sampled_from([0.5, 1.0]), margin=st.sampled_from([1.0, 1.25, 3.0]))
@settings(max_examples=150, deadline=None)
def test_loss_goes_on_until_no_sense_is_worth_more_elsewhere(situation: Situation, power: float, margin: float) -> None:
    situation = replace(situation, power=power)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "MARGIN", margin)
        moves = policy.loss(situation)
    before, after = situation.sense_to_word, situation.sense_to_word.clone()
    for sense, word in moves:
        after[sense] = word
    had, has = (torch.bincount(x, minlength=situation.n_words).tolist() for x in (before, after))
    cost = (situation.nll.double() ** power).tolist()
    words = [i for i in range(situation.n_words) if i not in situation.single]
    further = {i: cost[i] / has[i] for i in words if has[i] < situation.max_senses}
    last = {i: cost[i] / (has[i] - 1) for i in words if has[i] > situation.min_senses}
    for i, value in further.items():
        assert all(value <= margin * other + 1e-12 for j, other in last.items() if i != j)
    for i in words:
        gone = [float(situation.usage[s]) for s in range(len(before)) if before[s] == i and after[s] != i]
        stay = [float(situation.usage[s]) for s in range(len(before)) if before[s] == i and after[s] == i]
        assert not (gone and has[i] > had[i]), "nobody gives and gets"
        assert not gone or max(gone) <= min(stay), "the least used go"
    if margin == 1.0 and words:
        bounds = situation.min_senses, situation.max_senses
        fair = allocate(situation.nll[words], sum(has[i] for i in words), *bounds, power).tolist()
        values = [
            sorted(cost[i] / m for i, n in zip(words, numbers) for m in range(bounds[0], n))
            for numbers in (fair, [has[i] for i in words])
        ]
        assert values[0] == pytest.approx(values[1]), "the allocation that the rule makes from the start"


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        ([Move(99, 0)], "there is no sense 99"),
        ([Move(4, 3), Move(4, 5)], "sense 4 moves twice"),
        ([Move(4, 2)], "sense 4 belongs to word 2 already"),
        ([Move(4, 7)], "a special symbol keeps its one sense"),
        ([Move(4, 3), Move(5, 3)], "word 2 would have 0 senses"),
        ([Move(i, 6) for i in (0, 2, 4)], "word 6 would have 5 senses, outside 1 to 4"),
    ],
)
def test_what_a_strategy_may_not_do(moves: list[Move], message: str) -> None:
    situation = replace(world(8), single=(7,))
    assert problem_of(moves, situation) is not None
    assert message in str(problem_of(moves, situation))


def test_a_strategy_has_one_name() -> None:
    with pytest.raises(ValueError, match="there is a strategy 'paper' already"):
        policy.register_strategy("paper")(lambda situation: [])


def test_the_example_of_the_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "STRATEGIES", dict(policy.STRATEGIES))
    page = (Path(__file__).parent.parent / "docs" / "allocation.md").read_text(encoding="utf-8")
    exec(re.search(r"```python\n(import torch\n.*?)```", page, re.S)[1], {})
    assert policy.STRATEGIES["one"].threshold, "a strategy may use one unless it says that it does not"
    (move,) = policy.STRATEGIES["one"].plan(world())
    assert move == Move(int(world().usage.argmin()), 999)  # the least used, to the most frequent
    full = replace(world(senses=4), max_senses=4)
    assert policy.STRATEGIES["one"].plan(full) == []


def test_a_large_vocabulary_is_planned_without_looking_at_all_senses_for_each_word() -> None:
    s = replace(world(30_000, senses=3), threshold=-0.5)
    moves = policy.paper(s)
    assert len(moves) > 10_000  # naively, 10^9 comparisons
    assert problem_of(moves, s) is None
