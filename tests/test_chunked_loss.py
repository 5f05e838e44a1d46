"""The chunked loss: against loops over senses with an exact kernel, against the plain one, and its memory."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Optional

import pytest
import torch
from commands import ENVIRONMENT
from fairseq.criterions.label_smoothed_cross_entropy import label_smoothed_nll_loss
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kernel_oracle import COSINES, THETAS, exact_k, exact_slope, precision, relative_error
from loss_oracle import Loss, Problem, assert_close, oracle, problem
from torch import Tensor

from kerbs_fairseq.functional.backends import build, cpu
from kerbs_fairseq.functional.backends.base import SenseConstants, kernel_values
from kerbs_fairseq.functional.backends.dispatch import BACKENDS, chunk_size
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.kernel import KERNELS, sense_scores
from kerbs_fairseq.functional.reference import reference_loss
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex, word_log_probs

all_kernels = pytest.mark.parametrize("kernel", KERNELS)
smoothings = pytest.mark.parametrize("smoothing", [0.0, 0.1])
# for what does not depend on it: float64, which has one, and what is decided elsewhere
no_backend = pytest.mark.parametrize("backend", ["plain"], indirect=True)


@pytest.fixture(params=["compiled", "plain"], scope="module", autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Everything here holds for both backends of the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(cpu, "native", lambda: build.Native(None, "not wanted"))
        elif build.native().library is None:
            pytest.skip(f"no compiled kernels: {build.native().reason}")
        yield request.param


# --- against the oracle


@all_kernels
@smoothings
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("loss", [chunked_loss, reference_loss])
def test_every_kernel_agrees_with_loops_over_senses(kernel: str, smoothing: float, bias: bool, loss: Loss) -> None:
    p = problem(kernel=kernel, smoothing=smoothing, bias=bias)
    assert_close(p.solve(loss), oracle(p), 1e-5)
    wide = p.to(torch.float64)
    assert_close(wide.solve(loss), oracle(wide), 1e-7)


@smoothings
@pytest.mark.parametrize("theta", THETAS)
def test_float32_is_right_at_every_theta(theta: float, smoothing: float) -> None:
    p = problem(smoothing=smoothing)
    p.theta = torch.full_like(p.theta, theta)
    exact = oracle(p)
    assert_close(p.solve(), exact, 1e-5)
    assert_close(p.solve(reference_loss), exact, 1e-5)


@pytest.mark.parametrize("theta", [0.05, 0.15, 0.199, 0.201, 0.3, 0.5])
def test_the_two_ways_to_the_theta_gradient_meet(theta: float) -> None:
    p = problem()
    p.theta = torch.where(torch.arange(15) % 2 == 0, theta, -theta)
    assert_close(p.solve(), oracle(p), 1e-5)
    wide = p.to(torch.float64)
    assert_close(wide.solve(), oracle(wide), 5e-6)  # what the series leaves out, in any precision


@no_backend
@precision
@pytest.mark.parametrize("theta", THETAS)
def test_the_fast_kernel_and_its_slope_are_exact_at_every_point(
    theta: float, dtype: torch.dtype, tolerance: float
) -> None:
    c = torch.tensor([COSINES], dtype=dtype).t().contiguous()
    t, one = torch.tensor([theta], dtype=dtype), torch.ones(1, 1, dtype=dtype)
    values = kernel_values(c, one, SenseConstants.of(one, t, "paper"), "paper")
    points = [(c, float(t)) for c in c.flatten().tolist()]
    assert relative_error(values.k.flatten(), [exact_k(*point) for point in points]) <= tolerance
    assert relative_error(values.slope.flatten(), [exact_slope(*point) for point in points]) <= tolerance


@all_kernels
@smoothings
def test_log_prob_can_be_differentiated_alone_and_with_the_loss(kernel: str, smoothing: float) -> None:
    p = problem(kernel=kernel, smoothing=smoothing)
    by_log_prob = torch.randn(len(p.target), generator=torch.Generator().manual_seed(3))
    assert_close(p.solve(by_loss=0.0, by_log_prob=by_log_prob), oracle(p, 0.0, by_log_prob), 1e-5)
    assert_close(p.solve(by_loss=1.7, by_log_prob=by_log_prob), oracle(p, 1.7, by_log_prob), 1e-5)
    assert_close(p.solve(by_loss=-3.0), oracle(p, -3.0), 1e-5)


@all_kernels
@smoothings
def test_asked_twice_it_answers_twice(kernel: str, smoothing: float) -> None:
    p = problem(kernel=kernel, smoothing=smoothing)
    inputs = [x.clone().requires_grad_() for x in ([p.features, p.vectors, p.bias] + [p.theta] * (kernel != "dot"))]
    senses = replace(p.senses, vectors=inputs[1], bias=inputs[2], theta=None if kernel == "dot" else inputs[3])
    loss = chunked_loss(inputs[0], senses, p.target, p.weight, smoothing).loss
    first = [g.clone() for g in torch.autograd.grad(loss, inputs, torch.tensor(2.0), retain_graph=True)]
    for a, b in zip(torch.autograd.grad(loss, inputs, torch.tensor(3.0)), first):
        torch.testing.assert_close(a, b * 1.5)


@no_backend
@all_kernels
@smoothings
def test_gradcheck(kernel: str, smoothing: float) -> None:
    p = problem(n=4, d=3, kernel=kernel, smoothing=smoothing).to(torch.float64)

    def loss(h: Tensor, w: Tensor, b: Tensor, t: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
        return chunked_loss(h, replace(p.senses, vectors=w, theta=t, bias=b), p.target, p.weight, smoothing, 3)[:2]

    inputs = [p.features, p.vectors, p.bias] + ([] if kernel == "dot" else [p.theta])
    assert torch.autograd.gradcheck(loss, [x.requires_grad_() for x in inputs])


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    p = problem()
    p.theta.requires_grad_()
    chunked_loss(p.features, p.senses, p.target).loss.backward()
    torch.testing.assert_close(p.theta.grad, replace(p, weight=torch.ones(7), theta=p.theta.detach()).solve()[4])
    p.theta, p.bias = p.theta.detach(), p.bias.requires_grad_()
    chunked_loss(p.features, p.senses, p.target).loss.backward()
    torch.testing.assert_close(p.bias.grad, replace(p, weight=torch.ones(7), bias=p.bias.detach()).solve()[5])
    p.bias = p.bias.detach()
    loss, log_prob, _ = chunked_loss(p.features, p.senses, p.target)
    assert not loss.requires_grad
    assert not log_prob.requires_grad


# --- label smoothing, weights, padding


@all_kernels
def test_label_smoothing_is_fairseqs(kernel: str) -> None:
    p = problem(kernel=kernel, smoothing=0.3)
    p.weight[:2], p.weight[2:] = 0, 1
    pad = 0
    p.target[:2], p.target[2:] = pad, p.target[2:].clamp_min(1)
    log_probs = word_log_probs(sense_scores(p.features, p.vectors, p.theta, kernel, p.bias), p.index)
    theirs, nll = label_smoothed_nll_loss(log_probs, p.target, 0.3, ignore_index=pad)
    loss, log_prob, *_ = p.solve()
    torch.testing.assert_close(loss, theirs)
    torch.testing.assert_close(-(log_prob * p.weight).sum(), nll)


@all_kernels
@smoothings
def test_tokens_of_weight_zero_leave_no_trace(kernel: str, smoothing: float) -> None:
    p = problem(n=9, kernel=kernel, smoothing=smoothing)
    kept = torch.tensor([True, False, True, True, False, False, True, True, False])
    p.weight[~kept] = 0
    less = replace(p, features=p.features[kept], target=p.target[kept], weight=p.weight[kept])
    results, expected = p.solve(chunk=4), less.solve(chunk=4)
    assert torch.equal(results[2][~kept], torch.zeros_like(results[2][~kept]))
    results[1], results[2] = results[1][kept], results[2][kept]
    assert_close(results, expected, 1e-6)


@all_kernels
@smoothings
def test_a_batch_of_padding_alone_costs_nothing_and_teaches_nothing(kernel: str, smoothing: float) -> None:
    p = problem(kernel=kernel, smoothing=smoothing)
    p.weight.zero_()
    loss, _, *gradients = p.solve()
    assert float(loss) == 0
    assert all(not gradient.any() for gradient in gradients)


def test_no_weight_is_weight_one() -> None:
    p = problem()
    loss, *_ = chunked_loss(p.features, p.senses, p.target)
    torch.testing.assert_close(loss, replace(p, weight=torch.ones(7)).solve()[0])


# --- chunks, sizes and maps


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    senses = draw(st.lists(st.one_of(st.integers(1, 4), st.integers(1, 64)), min_size=1, max_size=7))
    n, d = draw(st.integers(0, 9)), draw(st.integers(1, 5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    kernel = draw(st.sampled_from(KERNELS))
    total, V = sum(senses), len(senses)
    theta = torch.randn(total, generator=generator, dtype=torch.float64) * draw(st.sampled_from([0.0, 1e-8, 0.1, 3.0]))
    words = torch.arange(V).repeat_interleave(torch.tensor(senses))
    return Problem(
        features=torch.randn(n, d, generator=generator, dtype=torch.float64) * 2,
        vectors=torch.randn(total, d, generator=generator, dtype=torch.float64),
        theta=-theta.abs() if kernel == "released" else theta.clamp(-8, 8),
        bias=torch.randn(total, generator=generator, dtype=torch.float64) if draw(st.booleans()) else None,
        sense_to_word=words[torch.randperm(total, generator=generator)],
        n_words=V,
        target=torch.randint(0, V, (n,), generator=generator),
        weight=torch.rand(n, generator=generator, dtype=torch.float64),
        kernel=kernel,
        smoothing=draw(st.sampled_from([0.0, 0.1])) if V > 1 else 0.0,
    )


@given(p=problems(), chunk=st.integers(0, 12))
@example(p=problem().to(torch.float64), chunk=7)
@example(p=problem().to(torch.float64), chunk=100)
@example(p=problem(n=0).to(torch.float64), chunk=3)
@settings(max_examples=150, deadline=None)
def test_any_map_any_size_any_chunk_gives_what_the_reference_gives(p: Problem, chunk: int) -> None:
    by_log_prob = p.weight - 0.5
    results = p.solve(by_log_prob=by_log_prob, chunk=chunk)
    expected = p.solve(reference_loss, by_log_prob=by_log_prob)
    assert_close(results[:4] + results[5:], expected[:4] + expected[5:], 1e-10, floor=1.0)
    assert_close(results, expected, 1e-5, floor=1.0)  # for θ a series is cut off


@given(p=problems(), chunk=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_the_chunk_size_changes_nothing(p: Problem, chunk: int) -> None:
    p = p.to(torch.float32)
    assert_close(p.solve(chunk=chunk), p.solve(chunk=100), 1e-5, floor=1.0)


@no_backend
@given(senses=st.integers(0, 10**8), device=st.sampled_from(["cpu", "meta"]), backend=st.sampled_from(list(BACKENDS)))
def test_automatic_chunks_shrink_as_senses_grow_and_never_vanish(senses: int, device: str, backend: str) -> None:
    size = chunk_size(torch.empty(1, device=device).expand(senses), backend)
    assert size >= 16
    assert size == 16 or size * senses <= 2**26


@pytest.mark.parametrize("loss", [chunked_loss, reference_loss])
def test_one_word_is_certain(loss: Loss) -> None:
    p = replace(problem(), n_words=1, sense_to_word=torch.zeros(15, dtype=torch.long))
    p.target.zero_()
    value, log_prob, *gradients = p.solve(loss)
    for x in (value, log_prob, *gradients):
        torch.testing.assert_close(x, torch.zeros_like(x), rtol=0, atol=1e-4)


def test_one_sense_each_and_no_kernel_is_a_softmax_with_bias() -> None:
    p = replace(problem(kernel="dot"), n_words=15, sense_to_word=torch.randperm(15), weight=torch.ones(7))
    at = p.sense_to_word.argsort()
    h, w, b = (x.clone().requires_grad_() for x in (p.features, p.vectors, p.bias))
    expected = torch.nn.functional.cross_entropy(h @ w[at].t() + b[at], p.target, reduction="sum")
    expected.backward()
    loss, _, dh, dw, _, db = p.solve()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(dh, h.grad)
    torch.testing.assert_close(dw, w.grad)
    torch.testing.assert_close(db, b.grad)


@smoothings
def test_clones_with_a_bias_of_minus_log_n_are_the_softmax(smoothing: float) -> None:
    generator = torch.Generator().manual_seed(1)
    h, w, b = (torch.randn(size, generator=generator) for size in ((9, 6), (5, 6), (5,)))
    n = torch.tensor([1, 2, 64, 3, 17])
    words = torch.arange(5).repeat_interleave(n)
    words = words[torch.randperm(len(words), generator=generator)]
    senses = Senses(w[words], None, (b - n.log())[words], SenseIndex(words, 5), "dot")
    target = torch.tensor([0, 1, 2, 3, 4, 2, 2, 1, 0])
    loss, log_prob, _ = chunked_loss(h, senses, target, label_smoothing=smoothing)
    log_probs = torch.log_softmax(h @ w.t() + b, 1)
    torch.testing.assert_close(log_prob, log_probs.gather(1, target.unsqueeze(1)).squeeze(1), rtol=1e-6, atol=1e-6)
    expected, _ = label_smoothed_nll_loss(log_probs, target.unsqueeze(1), smoothing)
    torch.testing.assert_close(loss, expected.sum() if expected.dim() else expected, rtol=1e-6, atol=1e-6)


@all_kernels
@smoothings
def test_no_tokens_no_loss_and_zero_gradients(kernel: str, smoothing: float) -> None:
    loss, log_prob, dh, dw, dtheta, db = problem(n=0, kernel=kernel, smoothing=smoothing).solve()
    assert float(loss) == 0
    assert log_prob.shape == (0,)
    assert dh.shape == (0, 5)
    assert not dw.any()
    assert not dtheta.any()
    assert not db.any()


def test_a_word_without_senses_is_no_trouble_to_the_others() -> None:
    p = problem()
    p.n_words = 7  # the last one has none
    loss, log_prob, *gradients = p.solve()
    assert_close([loss, log_prob, *gradients], oracle(replace(p, n_words=6)), 1e-5)


# --- what training can throw at it


@all_kernels
@smoothings
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_gradients_of_its_own_type_from_float32(
    dtype: torch.dtype, kernel: str, smoothing: float
) -> None:
    p = problem(kernel=kernel, smoothing=smoothing)
    p.features[0] *= 40
    p = p.to(dtype)
    loss, log_prob, *gradients = p.solve()
    assert loss.dtype == log_prob.dtype == torch.float32
    for gradient, exact in zip(gradients, oracle(p)[2:]):
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient, exact.to(dtype), rtol=2e-2, atol=float(exact.abs().max()) * 1e-2)


@all_kernels
@smoothings
def test_zero_vectors_are_finite_and_as_in_the_reference(kernel: str, smoothing: float) -> None:
    p = problem(kernel=kernel, smoothing=smoothing)
    p.features[2], p.vectors[3] = 0, 0
    results = p.solve()
    assert all(bool(x.isfinite().all()) for x in results)
    assert_close(results, p.solve(reference_loss), 1e-5)


@smoothings
def test_hopeless_tokens_have_finite_losses_and_gradients(smoothing: float) -> None:
    p = problem(kernel="dot", smoothing=smoothing)
    p.features *= 2000
    results = p.solve()
    assert float(results[1].min()) < -1000
    assert_close(results, oracle(p), 1e-5)


# --- memory

PEAK = """
import resource, sys, torch
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex
S, d = 20_000, 32
vectors = torch.randn(S, d, requires_grad=True)
theta = torch.zeros(S, requires_grad=True)
bias = torch.zeros(S, requires_grad=True)
senses = Senses(vectors, theta, bias, SenseIndex(torch.arange(S) % (S // 2), S // 2))

def step(n):
    for smoothing in (0.0, 0.1):
        features, target = torch.randn(n, d, requires_grad=True), torch.randint(0, S // 2, (n,))
        chunked_loss(features, senses, target, None, smoothing).loss.backward()

step(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(int(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@no_backend
@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss differs")
def test_peak_memory_does_not_grow_with_tokens_times_senses() -> None:
    growth = {}
    for n in (2048, 16384):
        command = [sys.executable, "-c", PEAK, str(n)]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        growth[n] = int(done.stdout) * 1024
    table = (16384 - 2048) * 20_000 * 4
    assert growth[16384] - growth[2048] < table / 10, growth
    assert growth[16384] < table / 5, growth


def test_autocast_leaves_the_loss_and_the_scores_in_float32() -> None:
    torch.manual_seed(0)
    h, w, theta, bias = torch.randn(5, 16), torch.randn(20, 16), torch.randn(20), torch.randn(20)
    senses = Senses(w, theta, bias, SenseIndex(torch.arange(20) % 7, 7))
    target = torch.randint(0, 7, (5,))
    plain = chunked_loss(h, senses, target)[0], sense_scores(h, w, theta, bias=bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = chunked_loss(h, senses, target)[0], sense_scores(h, w, theta, bias=bias)
    for a, b in zip(plain, cast):
        assert b.dtype == torch.float32
        assert torch.equal(a, b)
