"""The compiled kernels: against plain torch in float64, on sizes that fill whole blocks, with few and many senses."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kerbs_fairseq.functional import decoding
from kerbs_fairseq.functional.backends import build, cpu
from kerbs_fairseq.functional.backends.packed import PackedMatrix, can_pack, packing_pays
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.kernel import KERNELS, sense_scores
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex, word_log_probs
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

PARAMETERS = ("vectors", "theta", "bias")
needs_compiler = pytest.mark.skipif(build.native().library is None, reason=build.native().reason)


def solve(h: Tensor, senses: Senses, target: Tensor, smoothing: float) -> list[Tensor]:
    """Loss, log P and the gradients by features, vectors, θ and bias."""
    tensors = {"vectors": senses.vectors, "theta": senses.theta, "bias": senses.bias}
    leaves = {name: x.detach().clone().requires_grad_() for name, x in tensors.items() if x is not None}
    inputs = [h.detach().clone().requires_grad_(), *leaves.values()]
    loss, log_prob, _ = chunked_loss(inputs[0], replace(senses, **leaves), target, None, smoothing, chunk=7)
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
    bias=st.booleans(),
    most=st.integers(1, 63),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_they_agree_with_plain_float64(
    n: int, V: int, kernel: str, smoothing: float, size: float, spread: float, bias: bool, most: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    many = torch.randint(0, V, (3,), generator=generator).repeat_interleave(most)  # words with many senses
    words = torch.cat([torch.arange(V), torch.randint(0, V, (V,), generator=generator), many])
    words = words[torch.randperm(len(words), generator=generator)]
    h = torch.randn(n, 6, generator=generator) * size
    w = torch.randn(len(words), 6, generator=generator)
    theta = (torch.randn(len(words), generator=generator) * spread).clamp(-8, 8)
    theta = -theta.abs().clamp_min(math.exp(-5)) if kernel == "released" else theta
    target = torch.randint(0, V, (n,), generator=generator)
    b = torch.randn(len(words), generator=generator) if bias else None
    senses = Senses(w, None if kernel == "dot" else theta, b, SenseIndex(words, V), kernel)
    wide = replace(senses, **{x: None if (y := getattr(senses, x)) is None else y.double() for x in PARAMETERS})
    results = solve(h, senses, target, smoothing if V > 1 else 0.0)
    exact = solve(h.double(), wide, target, smoothing if V > 1 else 0.0)
    for f, e in zip(results, exact):
        # scores grow with size, and a score of 200 has an error of 1e-5, whoever computes it in float32
        assert float((f - e).abs().max()) <= 2e-5 * max(1.0, size) * max(float(e.abs().max()), 0.5 * max(1.0, size))
    log_probs = WordScorer(senses)(h)
    scores = sense_scores(h.double(), wide.vectors, wide.theta, kernel, wide.bias)
    expected = word_log_probs(scores, senses.index)
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-5, atol=2e-5 * max(1.0, size))
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(n), rtol=0, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("where", ["features", "vectors", "theta", "bias"])
def test_nan_is_not_lost(where: str) -> None:
    """Training in half precision recognises an overflow by it."""
    inputs = {"features": torch.randn(3, 4), "vectors": torch.randn(1500, 4), "theta": torch.randn(1500)}
    inputs["bias"] = torch.randn(1500)
    inputs[where].flatten()[7] = torch.nan
    index, target = SenseIndex(torch.arange(1500) % 500, 500), torch.tensor([7, 8, 9])
    senses = Senses(*(inputs[name] for name in PARAMETERS), index)
    for smoothing in (0.0, 0.1):
        assert chunked_loss(inputs["features"], senses, target, None, smoothing).loss.isnan()
    assert WordScorer(senses)(inputs["features"]).isnan().any()


def test_only_float32_on_a_cpu_is_compiled() -> None:
    assert not cpu.is_compiled(torch.zeros(1, dtype=torch.float64))
    assert not cpu.is_compiled(torch.zeros(1, device="meta"))


# --- packed products


@pytest.mark.skipif(not can_pack(torch.ones(1, 1)), reason="torch was built without oneDNN")
@pytest.mark.parametrize(("n", "S", "d"), [(1, 1, 1), (3, 17, 5), (7, 64, 33), (160, 1001, 24), (513, 40, 8)])
def test_packed_products_are_products(n: int, S: int, d: int) -> None:
    generator = torch.Generator().manual_seed(n)
    matrix, features = (torch.randn(size, d, generator=generator) for size in (S, n))
    products = PackedMatrix(matrix, 160).products(features)
    torch.testing.assert_close(products, (features.double() @ matrix.double().t()).float())
    assert products.stride(0) % 16 == 0
    features[0] = torch.nan
    assert PackedMatrix(matrix, 160).products(features)[0].isnan().all()


def test_what_is_not_packed() -> None:
    assert not can_pack(torch.ones(2, 2, dtype=torch.float64))
    assert not can_pack(torch.ones(0, 2))
    assert not can_pack(torch.ones(2, 2, device="meta"))


@pytest.mark.skipif(not can_pack(torch.ones(1, 1)), reason="torch was built without oneDNN")
def test_scores_with_and_without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = KernelizedBayesianSoftmax(6, 50, senses=2.5).eval()
    x = torch.randn(9, 6)
    with torch.no_grad():
        results = []
        for pays in (True, False):
            monkeypatch.setattr(decoding, "packing_pays", lambda matrix, pays=pays: pays)
            scorer = layer.word_scorer()
            assert (scorer.packed is not None) == pays
            assert scorer.senses.vectors.t().is_contiguous() != pays
            results.append(layer.log_prob(x, scorer))
        torch.testing.assert_close(*results)


def test_packing_does_not_pay_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    for amx in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx, raising=False)
        assert packing_pays(torch.ones(4, 4)) == (can_pack(torch.ones(4, 4)) and not amx)
