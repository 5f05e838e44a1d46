"""The compiled passes: against the plain ones in float64, on sizes that fill whole blocks; and how they come about."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kerbs_fairseq.functional.backends import compiled
from kerbs_fairseq.functional.backends import cpu as native
from kerbs_fairseq.functional.backends import dispatch as choice
from kerbs_fairseq.functional.chunked_loss import fused_loss
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.kernel import KERNELS, sense_scores
from kerbs_fairseq.functional.words import slots_of, word_log_probs

needs_compiler = pytest.mark.skipif(native.native().library is None, reason=native.native().reason)


def solve(
    h: Tensor, w: Tensor, theta: Tensor, slots: Tensor, target: Tensor, kernel: str, smoothing: float
) -> list[Tensor]:
    """Loss, log P and the gradients by features, vectors and θ."""
    inputs = [x.detach().clone().requires_grad_() for x in (h, w, theta)]
    t = None if kernel == "dot" else inputs[2]
    loss, log_prob, _ = fused_loss(inputs[0], inputs[1], t, slots, target, kernel=kernel, smoothing=smoothing, chunk=7)
    loss.backward()
    return [loss.detach(), log_prob.detach()] + [x.grad for x in inputs if x.grad is not None]


@needs_compiler
@given(
    n=st.integers(1, 20),
    V=st.sampled_from([1, 170, 171, 400, 511, 512, 513, 1100]),
    kernel=st.sampled_from(KERNELS),
    smoothing=st.sampled_from([0.0, 0.1]),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    spread=st.sampled_from([0.0, 1e-8, 0.1, 4.0]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_they_agree_with_plain_float64(
    n: int, V: int, kernel: str, smoothing: float, size: float, spread: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    words = torch.cat([torch.arange(V), torch.randint(0, V, (2 * V,), generator=generator)])
    words = words[torch.randperm(len(words), generator=generator)]
    slots = slots_of(words, V, int(words.bincount().max()))
    h = torch.randn(n, 6, generator=generator) * size
    w = torch.randn(len(words), 6, generator=generator)
    theta = (torch.randn(len(words), generator=generator) * spread).clamp(-8, 8)
    theta = -theta.abs().clamp_min(math.exp(-5)) if kernel == "released" else theta
    target = torch.randint(0, V, (n,), generator=generator)
    found = solve(h, w, theta, slots, target, kernel, smoothing if V > 1 else 0.0)
    exact = solve(h.double(), w.double(), theta.double(), slots, target, kernel, smoothing if V > 1 else 0.0)
    for f, e in zip(found, exact):
        # scores grow with size, and a score of 200 has an error of 1e-5, whoever computes it in float32
        assert float((f - e).abs().max()) <= 2e-5 * max(1.0, size) * max(float(e.abs().max()), 0.1)
    t = None if kernel == "dot" else theta
    log_probs = WordScorer(w, t, slots, kernel)(h)
    wide = word_log_probs(sense_scores(h.double(), w.double(), None if t is None else t.double(), kernel), slots)
    torch.testing.assert_close(log_probs.double(), wide, rtol=1e-5, atol=2e-5 * max(1.0, size))
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(n), rtol=0, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("where", ["features", "vectors", "theta"])
def test_nan_is_not_lost(where: str) -> None:
    """Training in half precision recognises an overflow by it."""
    inputs = {"features": torch.randn(3, 4), "vectors": torch.randn(1500, 4), "theta": torch.randn(1500)}
    inputs[where].flatten()[7] = torch.nan
    slots, target = slots_of(torch.arange(1500) % 500, 500, 3), torch.tensor([7, 8, 9])
    for smoothing in (0.0, 0.1):
        assert fused_loss(*inputs.values(), slots, target, smoothing=smoothing).loss.isnan()
    scorer = WordScorer(inputs["vectors"], inputs["theta"], slots, "paper")
    assert scorer(inputs["features"]).isnan().any()


def test_only_float32_on_a_cpu_is_compiled() -> None:
    assert not native.is_native(torch.zeros(1, dtype=torch.float64))
    assert not native.is_native(torch.zeros(1, device="meta"))


# --- torch.compile, as GPUs have it, tried out on a CPU


@pytest.mark.e2e
@needs_compiler
def test_torch_compile_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "released"  # which is the paper's for half of the pairs, and the inner product for the others
    generator = torch.Generator().manual_seed(5)
    words = torch.arange(40).repeat(3)[torch.randperm(120, generator=generator)]
    slots, target = slots_of(words, 40, 4), torch.randint(0, 40, (17,), generator=generator)
    h, w = torch.randn(17, 6, generator=generator) * 3, torch.randn(120, 6, generator=generator)
    theta = -torch.rand(120, generator=generator) * 4
    exact = solve(h.double(), w.double(), theta.double(), slots, target, kernel, 0.1)
    exact_log_probs = WordScorer(w.double(), theta.double(), slots, kernel)(h.double())
    monkeypatch.setattr(choice, "is_native", lambda like: False)
    monkeypatch.setattr(choice, "compiles", lambda device: True)
    for a, b in zip(solve(h, w, theta, slots, target, kernel, 0.1), exact):
        assert float((a - b).abs().max()) <= 2e-5 * max(float(b.abs().max()), 0.1)
    torch.testing.assert_close(WordScorer(w, theta, slots, kernel)(h).double(), exact_log_probs, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_the_trial_on_a_device_compares_with_the_plain_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "functions", lambda: (compiled.totals_of, compiled.gradient_of))
    for kernel in KERNELS:
        assert compiled.agrees(torch.device("cpu"), kernel, words=True)
        assert compiled.agrees(torch.device("cpu"), kernel, words=False)
    wrong = lambda *a: tuple(2 * x for x in compiled.gradient_of(*a))  # noqa: E731
    monkeypatch.setattr(compiled, "functions", lambda: (compiled.totals_of, wrong))
    assert not compiled.agrees(torch.device("cpu"), "paper", words=False)


def test_a_device_that_does_not_compile_is_said(caplog: pytest.LogCaptureFixture) -> None:
    compiled.compiles.cache_clear()
    assert not compiled.compiles(torch.device("cuda:0") if not torch.cuda.is_available() else torch.device("xpu:7"))
    assert "plain torch" in caplog.text
    assert not compiled.compiles(torch.device("cpu"))
    compiled.compiles.cache_clear()
