"""Accuracy of words and usage of senses: against loops over tokens in float64, and who is counted when."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.modules import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.statistics import SenseStatistics

V, D = 7, 5
NAMES = ("log_accuracy", "usage", "tokens", "prob", "nll", "sense_prob")


def layer(**more: object) -> KernelizedBayesianSoftmax:
    options = {"theta_init": 0.5, "chunk": 3, **more}
    module = KernelizedBayesianSoftmax(D, V, senses=2, init_vectors="random", **options)
    with torch.no_grad():
        module.senses.bias_raw.normal_(generator=torch.Generator().manual_seed(9))
    return module


def batch(seed: int, n: int = 11) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, D, generator=generator), torch.randint(0, V, (n,), generator=generator)


def counted(module: KernelizedBayesianSoftmax, *batches: tuple[Tensor, Tensor], **more: object) -> None:
    """One update from some batches."""
    module.zero_grad()
    for x, y in batches:
        module.loss(x, y, **more)[0].backward()
    module.statistics.update()


def naively(module: KernelizedBayesianSoftmax, updates: list[list[tuple[Tensor, Tensor]]], beta: float) -> dict:
    """Token by token, in float64: what the statistics are after some updates of a model that does not change."""
    table = module.senses
    words = table.sense_to_word.tolist()
    sums = {name: [0.0] * (len(words) if name in ("usage", "sense_prob") else V) for name in NAMES}
    for batches in updates:
        sums["log_accuracy"] = [(1 - beta) * x for x in sums["log_accuracy"]]
        sums["usage"] = [(1 - beta) * x for x in sums["usage"]]
        for x, y in batches:
            w, theta, b = (part.detach().double() for part in (table.vectors, table.theta, table.bias))
            P = torch.softmax(sense_scores(x.double(), w, theta, table.kernel, b), 1).tolist()
            for probabilities, word in zip(P, y.tolist()):
                own = [(j, p) for j, p in enumerate(probabilities) if words[j] == word]
                total = sum(p for _, p in own)
                sums["log_accuracy"][word] += math.log(total)
                sums["nll"][word] -= math.log(total)
                sums["tokens"][word] += 1
                sums["prob"][word] += total
                for j, p in own:
                    sums["usage"][j] += beta * p
                    sums["sense_prob"][j] += p
    return sums


def assert_equal(module: KernelizedBayesianSoftmax, expected: dict) -> None:
    for name in NAMES:
        torch.testing.assert_close(
            getattr(module.statistics, name), torch.tensor(expected[name]), rtol=1e-5, atol=1e-6, msg=name
        )


@pytest.mark.parametrize("kernel", ["paper", "dot", "released"])
@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_statistics_are_sums_over_tokens(kernel: str, reference: bool, smoothing: float) -> None:
    start = {"theta_init": 0.0} if kernel == "dot" else {}
    module = layer(kernel=kernel, reference=reference, decay=0.3, **start)
    updates = [[batch(1), batch(2, 4)], [batch(3)], [batch(4, 1)]]
    for batches in updates:
        counted(module, *batches, label_smoothing=smoothing)
    if kernel == "dot":
        module.senses.theta_raw = torch.nn.Parameter(torch.zeros(len(module.senses.vectors)))  # for the loops alone
    assert_equal(module, naively(module, updates, 0.3))
    assert int(module.statistics.updates) == 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), min_size=1, max_size=4), st.floats(0.01, 0.99))
def test_any_batches_and_any_decay(sizes: list[tuple[int, int]], beta: float) -> None:
    module = layer(decay=beta)
    batches = [batch(seed, n) for seed, n in sizes]
    counted(module, *batches)
    counted(module, batches[0])
    assert_equal(module, naively(module, [batches, batches[:1]], beta))


def test_padding_is_not_counted() -> None:
    padded, plain = layer(), layer()
    x, y = batch(1)
    weight = torch.ones(len(y))
    weight[4:] = 0
    counted(padded, (x, y), weight=weight)
    counted(plain, (x[:4], y[:4]))
    for name in NAMES:
        torch.testing.assert_close(getattr(padded.statistics, name), getattr(plain.statistics, name))


def test_a_loss_without_gradient_is_not_counted() -> None:
    module = layer()
    loss, _ = module.loss(*batch(1))
    loss *= 0  # what fairseq does with a dummy batch
    loss.backward()
    module.statistics.update()
    assert not any(getattr(module.statistics, name).any() for name in NAMES)


def test_evaluation_is_not_counted() -> None:
    module = layer()
    with torch.no_grad():
        module.loss(*batch(1))
    module.eval().loss(*batch(1))[0].backward()
    assert not module.statistics.in_use


def test_a_forward_pass_that_is_thrown_away_is_not_counted() -> None:
    module, plain = layer(), layer()
    module.loss(*batch(1))  # no backward pass: out of memory, say
    counted(module, batch(2))
    counted(plain, batch(2))
    assert torch.equal(module.statistics.usage, plain.statistics.usage)


def test_counts_die_with_the_gradients_of_a_skipped_update() -> None:
    module, plain = layer(), layer()
    module.loss(*batch(1))[0].backward()
    module.zero_grad()  # gradients overflowed
    counted(module, batch(2), batch(3))
    counted(plain, batch(2), batch(3))
    assert torch.equal(module.statistics.usage, plain.statistics.usage)
    assert float(module.statistics.tokens.sum()) == 22


def test_frozen_vectors_are_counted_all_the_same() -> None:
    module = layer()
    module.senses.vectors.requires_grad_(False)
    counted(module, batch(1), batch(2))
    assert float(module.statistics.tokens.sum()) == 22


def test_gradients_are_those_without_counting() -> None:
    module, (x, y) = layer(), batch(1)
    module.loss(x, y)[0].backward()
    expected = module.senses.vectors.grad.clone()
    module.zero_grad()
    module.eval().loss(x, y)[0].backward()
    assert torch.equal(module.senses.vectors.grad, expected)


@pytest.mark.parametrize("cast", [torch.nn.Module.half, torch.nn.Module.bfloat16])
def test_half_precision_does_not_degrade_them(cast) -> None:
    module = layer(decay=0.123)
    counted(module, batch(1))
    before = {name: value.clone() for name, value in module.statistics.named_buffers()}
    cast(module)
    assert module.senses.vectors.dtype in (torch.float16, torch.bfloat16)
    for name, value in module.statistics.named_buffers():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name]), name
    x, y = batch(2)
    counted(module, (x.to(module.senses.vectors.dtype), y))
    assert module.statistics.usage.dtype == torch.float32


def test_saved_and_loaded() -> None:
    module, other = layer(), layer()
    counted(module, batch(1))
    other.load_state_dict(module.state_dict())
    for name in NAMES:
        assert torch.equal(getattr(module.statistics, name), getattr(other.statistics, name))
    counted(module, batch(2))
    counted(other, batch(2))
    assert torch.equal(module.statistics.usage, other.statistics.usage)


def test_a_checkpoint_without_statistics_can_be_loaded() -> None:
    module, other = layer(), layer()
    state = {key: value for key, value in module.state_dict().items() if "statistics" not in key}
    other.load_state_dict(state)
    assert not other.statistics.usage.any()


def test_a_copy_counts_for_itself() -> None:
    module = layer()
    module.loss(*batch(1))[0].backward()
    twin = copy.deepcopy(module)
    counted(twin, batch(2))
    module.statistics.update()
    assert float(module.statistics.tokens.sum()) == float(twin.statistics.tokens.sum()) == 11
    assert not torch.equal(module.statistics.usage, twin.statistics.usage)


def test_workers_are_summed() -> None:
    module, plain = layer(), layer()
    counted(plain, batch(1), batch(1))
    module.loss(*batch(1))[0].backward()
    module.statistics.update(lambda waiting: waiting.mul_(2))
    torch.testing.assert_close(module.statistics.log_accuracy, plain.statistics.log_accuracy)
    torch.testing.assert_close(module.statistics.usage, plain.statistics.usage)


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, 2.0, float("nan")])
def test_decay_must_lie_between_0_and_1(decay: float) -> None:
    with pytest.raises(ValueError, match="it must lie between 0 and 1"):
        SenseStatistics(3, 4, decay)


def test_another_decay_than_the_checkpoint_is_a_misfit() -> None:
    saved = layer(decay=0.1).statistics.state_dict()
    assert "decay 0.1, not 0.2" in layer(decay=0.2).statistics.misfit(saved)
    assert layer(decay=0.1).statistics.misfit(saved) is None
