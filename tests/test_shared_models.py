"""One model in several threads of a program, and weights that are changed between two searches."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
from inprocess import Run, batch, log_probs, prepare, search
from torch import Tensor

ROUNDS = 8


@pytest.fixture
def often() -> Iterator[None]:
    """Let threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@torch.no_grad()
def answers(run: Run, sample: dict[str, Any]) -> list[Any]:
    """What a model says of a batch: teacher-forced, by the criterion, by beam search."""
    loss, _, _ = run.criterion(run.model, sample)
    return [log_probs(run, sample), loss, search(run, sample, beam=2)]


def same(results: Any, expected: Any) -> bool:
    if isinstance(expected, Tensor):
        return results.shape == expected.shape and torch.allclose(results, expected, atol=1e-5)
    if isinstance(expected, float):
        return abs(results - expected) < 1e-4
    if isinstance(expected, (list, tuple)):
        return len(results) == len(expected) and all(map(same, results, expected))
    return results == expected


@pytest.mark.parametrize("base", ["transformer", "lstm"])
@pytest.mark.parametrize("choice", ["posterior", "untied"])
def test_threads_share_a_model(often: None, joined: Path, base: str, choice: str) -> None:
    run = prepare(joined, base, f"--arch kerbs_{base} --criterion kerbs_cross_entropy --kerbs-input {choice}")
    run.model.eval()
    samples = [batch(run, 2, first) for first in (0, 9)]
    expected = [answers(run, sample) for sample in samples]
    assert not same(*expected)
    wrong: list[object] = []

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            try:
                if not same(answers(run, samples[number]), expected[number]):
                    wrong.append("another answer")
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def interpolate(head: Any, other: dict[str, Tensor]) -> None:
    for name, parameter in head.named_parameters():
        parameter.data.mul_(0.5).add_(other[name], alpha=0.5)


def replace(head: Any, other: dict[str, Tensor]) -> None:
    for name, parameter in head.named_parameters():
        parameter.data = other[name].clone()


@pytest.mark.parametrize("change", [interpolate, replace])
def test_a_search_sees_weights_that_were_written_past_autograd(
    joined: Path, change: Callable[[Any, dict[str, Tensor]], None]
) -> None:
    run = prepare(joined, "lstm", "--arch kerbs_lstm --criterion kerbs_cross_entropy")
    run.model.eval()
    sample, head = batch(run, 2), run.model.decoder.head
    before = answers(run, sample)
    generator = torch.Generator().manual_seed(1)
    change(head, {name: torch.randn(p.shape, generator=generator) for name, p in head.named_parameters()})
    after = answers(run, sample)
    assert not same(after, before)
    loaded = prepare(joined, "lstm", "--arch kerbs_lstm --criterion kerbs_cross_entropy")
    loaded.model.load_state_dict(run.model.state_dict())
    loaded.model.eval()
    assert same(after, answers(loaded, sample)), "as a model that has had these weights from the start"
