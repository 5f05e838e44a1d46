"""The Triton kernels: in Triton's interpreter against float64, and compiled for GPUs that need not be there."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import triton_oracle as oracle
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from triton_oracle import (
    CLOSE,
    SENSES,
    SMALL_BLOCKS,
    THETAS,
    Problem,
    Solution,
    assert_close,
    assert_no_number_shows,
    errors,
    exact,
    interpreter,
    problem,
    solve,
)

from kerbs_fairseq.functional.backends import triton as backend
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.functional.words import CompressedRows, SenseIndex

REASON = backend.MISSING or oracle.too_old()
needs_triton = pytest.mark.skipif(bool(REASON), reason=REASON)
LOADED: Any = None if REASON else oracle.load_interpreted()
FLOAT32, FLOAT16, BFLOAT16 = torch.float32, torch.float16, torch.bfloat16
# one tile holds all tokens of a test: fewer programs for the interpreter
WIDE_BLOCKS = {name: backend.Block(32, 256, 1) for name in backend.BLOCKS} | {"targets": backend.Block(32, 4, 1)}


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Kernels run in the interpreter, with blocks so small that a test has several."""
    with interpreter(LOADED, SMALL_BLOCKS):
        yield


@pytest.fixture
def interpreted_wide() -> Iterator[None]:
    """The same with blocks so large that a test has one or two."""
    with interpreter(LOADED, WIDE_BLOCKS):
        yield


def chunk_totals(
    chunk: backend.Chunk, words: CompressedRows, target: Tensor, smoothing: bool = False
) -> backend.TritonTotals:
    totals = backend.forward(chunk)
    word = backend.word_logsumexp(chunk, totals.top, words) if smoothing else None
    return backend.TritonTotals(totals, backend.target_logsumexp(chunk, totals.top, words, target), word)


def relative(found: Tensor, right: Tensor) -> float:
    """The largest relative error of an element."""
    return float(((found.double() - right).abs() / right.abs().clamp_min(1e-30)).max())


# --- right


@needs_triton
@pytest.mark.usefixtures("interpreted_wide")
@pytest.mark.parametrize(
    ("kernel", "thetas", "within"),
    [("paper", THETAS, 3e-6), ("released", (-6.7e-3, -0.1, -0.5, -1.0, -8.0, -54.6), 2e-5)],
)
def test_every_value_of_the_kernel(kernel: str, thetas: tuple[float, ...], within: float) -> None:
    """One token, so short that scores are small; a sense and word for each θ and cosine, and weights that make G 1."""
    cosines = torch.cat([torch.linspace(-1, 1, 41), torch.tensor([1e-6, -1e-3, 0.09, -0.065])])
    c = cosines.repeat(len(thetas))
    theta = torch.tensor(thetas).repeat_interleave(len(cosines))
    S, h_norm, one = len(c), torch.tensor([2.5e-4]), torch.ones(1)
    vectors = torch.stack([c, (1 - c * c).clamp_min(0).sqrt()], 1) * 1.7
    D = h_norm * vectors[:, 0].unsqueeze(0)
    constants, words = backend.sense_constants(vectors, theta, None, kernel), SenseIndex(torch.arange(S), S).compressed
    chunk = backend.Chunk(D.clone(), h_norm, 1 / h_norm, constants)
    target, sums = torch.zeros(1, dtype=torch.int32), torch.zeros(4, S)
    totals, weights = chunk_totals(chunk, words, target, smoothing=True), backend.TritonWeights(0 * one, 0 * one, -one)
    slope = backend.backward(chunk, totals, weights, target, torch.arange(S, dtype=torch.int32), sums).squeeze(0)
    w_norm = vectors.double().norm(dim=1)
    c, t = (D.squeeze(0) / h_norm.double() / w_norm).requires_grad_(), theta.double().requires_grad_()
    F = c * oracle.phi(-t * c)
    E, minus_T = torch.autograd.grad(F.sum(), (c, t))
    curved = (c > 0) if kernel == "released" else torch.ones_like(c, dtype=torch.bool)
    nothing = torch.zeros_like(c)
    psi = oracle.psi(t.detach())
    assert relative(sums[0] / h_norm, torch.where(curved, F.detach(), nothing)) < within
    assert relative(sums[1] / h_norm, torch.where(curved, -minus_T, nothing)) < 2 * within
    assert relative(sums[2] / h_norm, torch.where(curved, nothing, c.detach())) < 3e-7
    assert relative(slope, torch.where(curved, E / (2 * psi), 1.0)) < within


@needs_triton
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("bias", "smoothing", "pad"), [(True, 0.1, True), (False, 0.0, False)])
def test_loss_and_gradients(kernel: str, bias: bool, smoothing: float, pad: bool) -> None:
    """θ of the grid, words with few and many senses, tails in both directions, NaN in the padding."""
    assert_close(problem(9, SENSES, kernel=kernel, bias=bias, smoothing=smoothing), pad=pad)


@needs_triton
@pytest.mark.usefixtures("interpreted_wide")
def test_words_with_one_to_64_senses() -> None:
    assert_close(problem(4, (1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 33, 64), smoothing=0.1), few=16)


@needs_triton
@pytest.mark.usefixtures("interpreted_wide")
@pytest.mark.parametrize("theta", THETAS)
def test_one_theta_for_all(theta: float) -> None:
    assert_close(problem(3, theta=theta, smoothing=0.1))


@needs_triton
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("n", "senses"), [(1, (1, 2, 3)), (1, (1,)), (3, (1,)), (2, (40,)), (8, (32,) + (1,) * 32), (5, (1, 1))]
)
def test_small_sizes(n: int, senses: tuple[int, ...]) -> None:
    assert_close(problem(n, senses, kernel="paper", smoothing=0.1 if len(senses) > 1 else 0.0))


@needs_triton
@pytest.mark.usefixtures("interpreted")
def test_no_tokens() -> None:
    found = solve(problem(0))
    assert [x.numel() for x in found[:3]] == [0, 0, 0]
    assert not found.vectors.any()
    assert not found.theta.any()


@needs_triton
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("kernel", KERNELS)
def test_zero_vectors_and_zero_weights(kernel: str) -> None:
    p = problem(4, kernel=kernel, smoothing=0.1)
    p.features[1], p.vectors[2], p.vectors[5], p.weight[3] = 0, 0, 0, 0
    assert_close(p)
    p.weight[:] = 0
    found = solve(p)
    assert all(not x.any() for x in found[2:])


@needs_triton
@given(
    n=st.integers(1, 9),
    senses=st.lists(st.sampled_from([1, 1, 1, 2, 3, 4, 17, 40]), min_size=1, max_size=30),
    kernel=st.sampled_from(KERNELS),
    bias=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1]),
    pad=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 20.0]),
    rows=st.sampled_from([1, 4, 16]),
    cols=st.sampled_from([16, 64]),
    warps=st.sampled_from([1, 16, 4096]),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=6, deadline=None)
def test_any_shape(
    n: int,
    senses: list[int],
    kernel: str,
    bias: bool,
    smoothing: float,
    pad: bool,
    size: float,
    rows: int,
    cols: int,
    warps: int,
    seed: int,
) -> None:
    smoothing = smoothing if len(senses) > 1 else 0.0
    p = problem(n, tuple(senses), kernel=kernel, bias=bias, smoothing=smoothing, size=size, seed=seed)
    # Of a word that is almost certain, log P and its gradients are small differences of numbers near 1: the relative
    # error of any float32 softmax grows with 1 / (1 − P).
    doubt = float(-torch.expm1(exact(p).log_prob).min()) if len(senses) > 1 else 1.0
    assume(doubt > 1e-3)
    blocks = {name: backend.Block(rows, cols, 1) for name in backend.BLOCKS}
    with interpreter(LOADED, blocks, warps):
        assert_close(p, 3 * CLOSE * max(size, 1) / doubt, pad=pad)


@needs_triton
@pytest.mark.usefixtures("interpreted")
def test_repeats_are_equal_and_sums_grow() -> None:
    p = problem(9, SENSES, smoothing=0.1)
    once, again = solve(p, decode=False), solve(p, decode=False)
    assert all(torch.equal(a, b) for a, b in zip(once, again))
    constants = backend.sense_constants(p.vectors, p.theta, p.bias, p.kernel)
    words, target, one = SenseIndex(p.sense_to_word, p.n_words).compressed, p.target.int(), torch.ones(9)
    norm = p.features.norm(dim=1)
    found = []
    for start in (torch.zeros(4, constants.S), torch.full((4, constants.S), 64.0)):
        chunk = backend.Chunk(p.features @ p.vectors.t(), norm, 1 / norm, constants)
        totals = chunk_totals(chunk, words, target)
        backend.backward(chunk, totals, backend.TritonWeights(one, one), target, p.sense_to_word.int(), start)
        found.append(start)
    torch.testing.assert_close(found[1] - 64, found[0], rtol=0, atol=2e-5)


@needs_triton
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("padding", [0, 5])
def test_nothing_else_is_written(padding: int) -> None:
    """The interpreter does not check bounds: every result lies between guards."""
    p = problem(5, (1, 3, 4, 2, 1), smoothing=0.1)
    n, S, V, guards = 5, len(p.theta), p.n_words, []

    def guarded(rows: int, cols: int, stride: int) -> Tensor:
        whole = torch.full((rows + 8, stride), 77.0)
        inside = torch.zeros_like(whole, dtype=torch.bool)
        inside[4 : 4 + rows, : stride if padding else cols] = True
        guards.append((whole, inside))
        return whole[4 : 4 + rows, :cols]

    D = guarded(n, S, S + padding)
    assert padding == 0 or S + padding == backend.padded(S)
    D.copy_(p.features @ p.vectors.t())
    norm, order, target, one = p.features.norm(dim=1), p.sense_to_word.int(), p.target.int(), torch.ones(n)
    words = SenseIndex(p.sense_to_word, V).compressed
    chunk = backend.Chunk(D, norm, 1 / norm, backend.sense_constants(p.vectors, p.theta, p.bias))
    sums, log_probs = guarded(4, S, S), guarded(n, V, V)
    backend.word_log_probs(chunk, words, out=log_probs)
    totals = chunk_totals(chunk, words, target, smoothing=True)
    backend.backward(chunk, totals, backend.TritonWeights(one, one, one), target, order, sums)
    for whole, inside in guards:
        assert (whole[~inside] == 77).all()
        assert not (whole[inside] == 77).all()


@needs_triton
@pytest.mark.usefixtures("interpreted_wide")
def test_default_blocks_and_half_log_probs() -> None:
    p = problem(3, (1,) * 300 + (20, 2), d=4)
    with mock.patch.dict(backend.BLOCKS, DEFAULT_BLOCKS):
        assert_close(p)
        norm = p.features.norm(dim=1)
        D, words = p.features @ p.vectors.t(), SenseIndex(p.sense_to_word, p.n_words).compressed
        chunk = backend.Chunk(D, norm, 1 / norm, backend.sense_constants(p.vectors, p.theta, p.bias))
        half = backend.word_log_probs(chunk, words, out=torch.empty(3, p.n_words, dtype=FLOAT16))
        torch.testing.assert_close(half, backend.word_log_probs(chunk, words).half())


DEFAULT_BLOCKS = dict(backend.BLOCKS)


# --- as exact as torch's own log_softmax in the same precision


@needs_triton
@pytest.mark.usefixtures("interpreted_wide")
@pytest.mark.parametrize("size", [0.1, 10.0, 100.0], ids=["flat", "peaked", "large logits"])
@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16], ids=["float32", "float16", "bfloat16"])
def test_no_less_exact_than_log_softmax(dtype: torch.dtype, size: float) -> None:
    """And D in float32, its gradient in half, is at the rounding of the gradients themselves."""
    small = 5e-7 if dtype == FLOAT32 else 1e-4 if dtype == FLOAT16 else 4e-4
    ways: dict[str, dict[str, Any]] = {
        "float32": {"both": {}},
        "float16": {"dD half": {"gradient_dtype": FLOAT16}, "both": {"dtype": FLOAT16}},
        "bfloat16": {
            "dD half": {"round_dD": BFLOAT16},
            "both": {"dtype": BFLOAT16, "gradient_dtype": FLOAT32, "round_dD": BFLOAT16},
        },
    }[str(dtype)[6:]]
    one, several = (1,) * 150, (1, 2, 1, 1, 3, 1, 1, 2) * 15
    cases = [
        ("dot", one, None, 0.0),
        ("dot", several, None, 0.1),
        ("paper", several, 1.0, 0.0),
        ("paper", several, None, 0.1),
    ]
    for kernel, senses, theta, smoothing in cases if dtype == FLOAT32 else cases[::3]:
        p = problem(16, senses, 32, kernel, theta, size, bias=False, smoothing=smoothing).to(dtype)
        right = exact(p)
        stock = errors(oracle.by_autograd(p, dtype, FLOAT32), right)
        for way, options in ways.items():
            solved = solve(p, **options)
            solved = solved._replace(features=solved.features.to(dtype), vectors=solved.vectors.to(dtype))
            ours = errors(solved, right)
            print(kernel, way, {name: f"{ours[name]:.1e} ({stock[name]:.1e})" for name in Solution._fields})
            assert all(ours[name] <= stock[name] + small for name in Solution._fields), (kernel, way, ours, stock)
            if way == "dD half":
                floor = {name: oracle.error(getattr(right, name).to(dtype), getattr(right, name)) for name in ours}
                assert ours["log_prob"] <= 5e-7
                assert ours["features"] <= 2 * floor["features"]
                assert ours["vectors"] <= 2 * floor["vectors"]


@needs_triton
@pytest.mark.usefixtures("interpreted_wide")
def test_with_the_exponential_of_a_gpu() -> None:
    """ex2.approx is right to 2 units in the last place, the interpreter's to half of one."""
    from triton.runtime.interpreter import InterpreterBuilder

    generator = np.random.default_rng(0)

    def approximate(self: Any, arg: Any) -> Any:
        return self.unary_op(arg, lambda x: np.exp2(x) * (1 + generator.choice(units, x.shape)))

    units = np.array([-(2**-22), 0, 2**-22], np.float32)
    with mock.patch.object(InterpreterBuilder, "create_exp2", approximate):
        assert_close(problem(12, SENSES, smoothing=0.1), 2 * CLOSE)


@needs_triton
@pytest.mark.usefixtures("interpreted_wide")
def test_small_weights_in_float16_need_a_gain() -> None:
    """Weights of 2^-14, as a mean over tokens has them: G underflows unless weights are scaled within."""
    p = problem(8, (1, 2) * 40, 16).to(FLOAT16)
    p = replace(p, weight=p.weight * 2**-14)
    right, lost = exact(p), errors(solve(p, FLOAT16), exact(p))
    kept = errors(solve(p, FLOAT16, gain=2.0**14), right)
    assert kept["vectors"] < 1e-3 < lost["vectors"]


# --- wrong input


@needs_triton
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_no_number_shows(kernel: str, value: float) -> None:
    assert_no_number_shows(kernel, value)


@needs_triton
@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("mean", [True, False])
def test_features_too_long_for_float32_show(mean: bool) -> None:
    """Of a length that overflows the cosines would be 0, and all scores numbers."""
    p = problem(3)
    norm = torch.tensor([1.0, torch.inf, 2.0])
    constants = backend.sense_constants(p.vectors, p.theta, p.bias)
    chunk = backend.Chunk(p.features @ p.vectors.t(), norm, 1 / norm, constants)
    assert backend.forward(chunk, mean).total.isnan().tolist() == [False, True, False]


@needs_triton
@pytest.mark.usefixtures("interpreted")
def test_far_below_the_top_is_not_minus_infinity() -> None:
    """e^(K − top) underflows below −87 in float32: a word's log-probability must not."""
    vectors = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    features = torch.tensor([[3000.0, 0.0]])
    p = Problem(features, vectors, torch.zeros(3), None, torch.arange(3), 3, torch.tensor([1]), torch.ones(1))
    found = solve(replace(p, kernel="dot"))
    torch.testing.assert_close(found.log_probs, torch.tensor([[0.0, -6000.0, -3000.0]]))
    torch.testing.assert_close(found.log_prob, torch.tensor([-6000.0]))


@needs_triton
@pytest.mark.usefixtures("interpreted")
def test_wrong_products_are_refused() -> None:
    constants = backend.sense_constants(torch.ones(3, 2), torch.zeros(3))
    one = torch.ones(2)
    with pytest.raises(RuntimeError, match="float64 has no Triton kernels"):
        backend.forward(backend.Chunk(torch.ones(2, 3, dtype=torch.float64), one, one, constants))
    with pytest.raises(ValueError, match="for 3 senses"):
        backend.forward(backend.Chunk(torch.ones(2, 4), one, one, constants))
    with pytest.raises(ValueError, match="for 3 senses"):
        backend.forward(backend.Chunk(torch.ones(3, 2).t(), one, one, constants))
    chunk, word = backend.Chunk(torch.ones(2, 3), one, one, constants), torch.zeros(3, dtype=torch.int32)
    words, target = SenseIndex(word.long(), 1).compressed, word[:2]
    totals, weights = chunk_totals(chunk, words, target), backend.TritonWeights(one, one)
    with pytest.raises(ValueError, match="sums must be"):
        backend.backward(chunk, totals, weights, target, word, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="come together"):
        backend.backward(chunk, totals, weights._replace(word=one), target, word, torch.zeros(4, 3))
    with pytest.raises(ValueError, match="a gradient"):
        backend.backward(chunk, totals, weights, target, word, torch.zeros(4, 3), out=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="unknown kernel"):
        backend.sense_constants(torch.ones(3, 2), torch.zeros(3), kernel="gauss")
