"""The Reallocator: senses that move under any torch optimizer, without fairseq."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kerbs_fairseq.allocation import policy
from kerbs_fairseq.allocation.policy import Move
from kerbs_fairseq.allocation.reallocator import Reallocator, rounds, situation_of
from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

D, V = 6, 30
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, 0.01),
}


def layer(**options: Any) -> KernelizedBayesianSoftmax:
    return KernelizedBayesianSoftmax(D, V, **{"senses": 2, "theta_init": 0.3, **options})


def learn(
    module: KernelizedBayesianSoftmax, optimizer: torch.optim.Optimizer, seed: int, dtype: torch.dtype = torch.float32
) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(40, D, generator=generator, dtype=dtype), torch.randint(0, V, (40,), generator=generator)
    optimizer.zero_grad()
    module(x, y).loss.backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("every", "after", "until", "expected"),
    [(2, 3, 0, [4, 6, 8, 10]), (2, 0, 6, [2, 4, 6]), (3, 5, 9, [6, 9]), (0, 0, 0, []), (1, 9, 0, [9, 10])],
)
def test_when_senses_move(every: int, after: int, until: int, expected: list[int]) -> None:
    module = layer()
    moving = Reallocator(module, torch.optim.SGD(module.parameters(), 0.1), every, after, until)
    assert [update for update in range(1, 11) if moving.is_time(update)] == expected


def moments(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> list[Tensor]:
    state = optimizer.state[parameter].values()
    return [x for x in state if torch.is_tensor(x) and x.dim() and len(x) == len(parameter)]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("moved_vector", ["keep", "split"])
def test_senses_move_under_any_optimizer(name: str, moved_vector: str) -> None:
    module = layer()
    optimizer = OPTIMIZERS[name](module.parameters())
    moving = Reallocator(module, optimizer, every=3, after=0, moved_vector=moved_vector, threshold=-1.0)
    table, first = module.senses, module.senses.sense_to_word.clone()
    for update in (1, 2):
        learn(module, optimizer, update)
        assert moving.step() is None
    learn(module, optimizer, 3)
    before = copy.deepcopy(module.state_dict())
    event = moving.step()
    assert event is not None
    assert event.update == 3
    assert len(event.moves) > 3
    senses = [move.sense for move in event.moves]
    assert torch.equal(table.sense_to_word[senses], torch.tensor([move.word for move in event.moves]))
    assert int((table.sense_to_word != first).sum()) == len(senses) == int(module.statistics.moves)
    for parameter in table.parameters():
        state = moments(optimizer, parameter)
        assert len(state) >= 1
        assert not any(moment[senses].any() for moment in state)
        assert all(moment.any() for moment in state)
    if moved_vector == "keep":
        assert torch.equal(table.vectors, before["senses.vectors"])
        assert torch.equal(table.bias_raw, before["senses.bias_raw"])
        assert table.theta_raw[senses].tolist() == pytest.approx([1e-8] * len(senses))
    learn(module, optimizer, 4)
    assert moving.step() is None


@pytest.mark.parametrize("bias", ["zero", "none"])
def test_what_a_split_makes_of_a_sense(bias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = layer(bias=bias)
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    table, usage = module.senses, module.statistics.usage
    source = int(table.index.rows(torch.tensor([5]))[0, 0])
    usage[source] = 100.0
    spare = next(s for s, w in enumerate(table.sense_to_word.tolist()) if w != 5 and table.senses_per_word()[w] > 1)
    monkeypatch.setitem(policy.STRATEGIES, "one", policy.Strategy(lambda situation: [Move(spare, 5)]))
    learn(module, optimizer, 1)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    moving = Reallocator(module, optimizer, 1, 0, strategy="one", moved_vector="split", split_noise=0.5)
    moving.step()
    w, v = before["senses.vectors"][source], table.vectors.detach()
    torch.testing.assert_close((v[source] + v[spare]) / 2, w)  # the mean stays
    away = float((v[source] - w).std() / before["senses.vectors"].std())
    assert 0.2 < away < 1.0
    assert float(table.theta_raw[spare]) == float(table.theta_raw[source]) == float(before["senses.theta_raw"][source])
    if bias == "none":
        assert table.bias is None
    else:
        expected = float(before["senses.bias_raw"][source]) - math.log(2)
        assert table.bias_raw[[source, spare]].tolist() == pytest.approx([expected] * 2)
    assert float(usage[source]) == float(usage[spare]) == pytest.approx(0.99 * 100 / 2, rel=0.01)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_a_split_without_noise_keeps_the_sum_over_the_senses_of_the_word(
    rate: float, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if what is trained is a fraction of θ and of the bias, and if a word gets several senses at once."""
    module = layer(theta_rate=rate, bias_rate=rate, max_senses=8).double()
    optimizer = torch.optim.Adam(module.parameters(), 0.01)
    table, contexts = module.senses, torch.randn(9, D, dtype=torch.float64)
    several = (table.senses_per_word() > 1).tolist()
    spare = [s for s, w in enumerate(table.sense_to_word.tolist()) if w != 5 and several[w]]
    givers = table.sense_to_word[spare].tolist()
    spare = [next(s for s, w in zip(spare, givers) if w == giver) for giver in sorted(set(givers))][:number]
    learn(module, optimizer, 1, torch.float64)

    def score_of_the_word() -> Tensor:
        senses = table.senses()
        scores = sense_scores(contexts, senses.vectors, senses.theta, senses.kernel, senses.bias)
        return scores[:, table.sense_to_word == 5].logsumexp(1).detach()

    monkeypatch.setitem(policy.STRATEGIES, "one", policy.Strategy(lambda situation: [Move(s, 5) for s in spare]))
    before = score_of_the_word()
    Reallocator(module, optimizer, 1, 0, strategy="one", moved_vector="split", split_noise=0).step()
    assert int(module.statistics.moves) == number
    torch.testing.assert_close(score_of_the_word(), before, rtol=0, atol=1e-12)


def test_theta_of_a_moved_sense_starts_at_zero_whatever_its_rate() -> None:
    module = layer(theta_rate=5.0)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    learn(module, optimizer, 1)
    event = Reallocator(module, optimizer, 1, 0, moved_vector="keep", threshold=-1.0).step()
    assert event is not None
    moved = [move.sense for move in event.moves]
    assert module.senses.theta[moved].tolist() == pytest.approx([1e-8] * len(moved))


def test_a_word_that_gets_several_senses_splits_the_most_used_each_time() -> None:
    module = layer()
    situation = situation_of(module)
    own = [s for s, w in enumerate(situation.sense_to_word.tolist()) if w == 3]
    others = [s for s, w in enumerate(situation.sense_to_word.tolist()) if w != 3][:3]
    situation.usage[own] = 0.1
    situation.usage[own[0]] = 8.0
    made = rounds([Move(sense, 3) for sense in others], situation)
    # 8 → 4 and 4, then each of them, the lower number first
    assert [(a, b) for moved, source in made for a, b in zip(moved, source)] == [
        (others[0], own[0]),
        (others[1], min(own[0], others[0])),
        (others[2], max(own[0], others[0])),
    ]
    for moved, source in made:
        assert len(set(source)) == len(source)
        assert not set(moved) & set(source)


@pytest.mark.parametrize("strategy", ["paper", "loss"])
def test_a_resumed_run_makes_the_same_moves(strategy: str) -> None:
    def run(module: KernelizedBayesianSoftmax, optimizer: Any, moving: Reallocator, updates: range) -> None:
        for update in updates:
            learn(module, optimizer, update)
            moving.step()

    def fresh() -> tuple[KernelizedBayesianSoftmax, Any, Reallocator]:
        module = layer(init_vectors="random")
        optimizer = torch.optim.Adam(module.parameters(), 0.05)
        return (
            module,
            optimizer,
            Reallocator(module, optimizer, every=4, after=3, strategy=strategy, moved_vector="split"),
        )

    whole = fresh()
    run(*whole, range(20))
    assert int(whole[0].statistics.moves) > 0
    begun = fresh()
    run(*begun, range(10))
    resumed = fresh()
    for new, old in zip(resumed, begun):
        new.load_state_dict(copy.deepcopy(old.state_dict()))
    run(*resumed, range(10, 20))
    for (name, a), b in zip(whole[0].state_dict().items(), resumed[0].state_dict().values()):
        assert torch.equal(a, b), name


def test_mistakes_are_explained() -> None:
    module = layer()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for options, message in (
        ({"strategy": "best"}, "unknown strategy 'best': one of idle, loss, paper, released"),
        ({"moved_vector": "copy"}, "unknown moved vector 'copy': one of keep, split"),
        ({"every": -1}, "^every=-1: must be a number of updates, or 0 for never$"),
        ({"every": 1.5}, "^every=1.5: must be a whole number of updates$"),
        ({"until": None}, "^until=None: must be a whole number of updates$"),
        ({"after": -1}, "^after=-1: must be a number of updates, at least 0$"),
        ({"after": 10, "until": 9}, "^until=9: must not be before after=10; 0 means no end$"),
        ({"threshold": 1.0}, "^threshold=1: log P is never above 0"),
        ({"moved_vector": "split", "split_noise": -1.0}, "split noise of -1"),
        ({"moved_vector": "split", "split_noise": math.inf}, "split noise of inf"),
        ({"moved_vector": "keep", "split_noise": 0.1}, "split_noise has no effect with moved_vector='keep'"),
        ({"strategy": "loss", "threshold": -5.0}, "threshold has no effect with strategy='loss'"),
        ({"strategy": "loss", "power": -1.0}, "power of the count is -1"),
    ):
        with pytest.raises(ValueError, match=message):
            Reallocator(module, optimizer, **options)
    with pytest.raises(TypeError, match="optimizer=None: must be the optimizer that trains the layer"):
        Reallocator(module, None)
    with pytest.raises(ValueError, match="the optimizer does not hold a parameter of the layer"):
        Reallocator(module, torch.optim.SGD(layer().parameters(), 0.1))
    moving = Reallocator(module, optimizer, 1, 0)
    with pytest.raises(RuntimeError, match="there are no statistics"):
        moving.step()
    learn(module, optimizer, 1)
    assert moving.step() is not None
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(RuntimeError, match="there are no statistics since the last event: train with the loss"):
        moving.step()
    assert torch.equal(module.senses.sense_to_word, before["senses.sense_to_word"])
    assert torch.equal(module.senses.vectors, before["senses.vectors"])
    module.to("meta")
    with pytest.raises(RuntimeError, match="moved from cpu to meta"):
        moving.step()
