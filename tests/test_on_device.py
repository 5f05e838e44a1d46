"""The same on any device: ``make test-gpu`` runs these on a GPU, where nothing is interpreted or pretended.

``KERBS_TEST_DEVICE`` names the device; without it this is the CPU, in small sizes, which shows that the tests run (and
on a CPU ``KERBS_TEST_DEVICE=cpu make test-gpu`` runs nothing else).
Errors are against float64 on the CPU, printed as multiples of those of torch's own log_softmax in the same precision.
"""

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import on_device
import pytest
import torch
import triton_oracle as oracle
from inprocess import batch, prepare, search, trainer
from torch import Tensor
from triton_oracle import Problem, Solution

from kerbs_fairseq.functional.backends import dispatch
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

DEVICE = torch.device(os.environ.get(on_device.VARIABLE, "cpu"))
ON_GPU = DEVICE.type != "cpu"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="needs a GPU: make test-gpu")
FLOAT32, HALVES = torch.float32, (torch.float16, torch.bfloat16)
SMALL = {FLOAT32: 1e-6, torch.float16: 3e-5, torch.bfloat16: 2e-4}
# words with 1 to 64 senses, and a number of senses that no block divides
SENSES = (1, 2, 1, 1, 3, 1, 17, 2) * (400 if ON_GPU else 6) + (64, 1, 5)


@pytest.fixture(scope="module", autouse=True)
def which() -> None:
    name = torch.cuda.get_device_name(DEVICE) if ON_GPU else platform.processor()
    backend = dispatch.describe(torch.zeros(1, 1, device=DEVICE))
    print(f"\n{DEVICE}: {name}, torch {torch.__version__}, CUDA {torch.version.cuda}, backend {backend}")
    if ON_GPU and not os.environ.get(dispatch.VARIABLE):
        assert backend.startswith("triton"), "plain torch is right, but not what a GPU is tested for"


def moved(p: Problem) -> tuple[Tensor, Tensor, Senses, Tensor, Tensor]:
    """Features, vectors, senses, target and weight on the device."""
    h, w = (x.to(DEVICE).requires_grad_() for x in (p.features, p.vectors))
    theta = None if p.kernel == "dot" else p.theta.to(DEVICE).requires_grad_()
    bias = None if p.bias is None else p.bias.to(DEVICE).requires_grad_()
    index = SenseIndex(p.sense_to_word.to(DEVICE), p.n_words)
    return h, w, Senses(w, theta, bias, index, p.kernel), p.target.to(DEVICE), p.weight.to(DEVICE)


def solve(p: Problem) -> Solution:
    h, w, senses, target, weight = moved(p)
    found = chunked_loss(h, senses, target, weight, p.smoothing, chunk=len(h) // 2 + 1)
    found.loss.backward()
    log_probs = WordScorer(senses)(h.detach())
    zero = torch.zeros(len(w))
    rest = (zero if x is None or x.grad is None else x.grad for x in (senses.theta, senses.bias))
    assert h.grad is not None
    assert w.grad is not None
    return Solution(*(x.detach().cpu() for x in (found.log_prob, log_probs, h.grad, w.grad, *rest)))


@pytest.mark.parametrize("size", [0.1, 10.0, 100.0], ids=["flat", "peaked", "large logits"])
@pytest.mark.parametrize("dtype", [FLOAT32, *HALVES], ids=str)
def test_errors_are_those_of_torch_or_smaller(dtype: torch.dtype, size: float) -> None:
    """All of them are printed, also where one is too large."""
    too_large = []
    for kernel, smoothing in ((kernel, smoothing) for kernel in KERNELS for smoothing in (0.0, 0.1)):
        theta = None if dtype == FLOAT32 and size < 100 else 1.0
        p = oracle.problem(48, SENSES, 64, kernel, theta, size, smoothing=smoothing).to(dtype)
        right, ours = oracle.exact(p), solve(p)
        stock = oracle.errors(oracle.by_autograd(p, dtype, FLOAT32), right)
        found = oracle.errors(ours, right)
        multiples = {name: f"{found[name] / max(stock[name], 1e-12):.2f}" for name in Solution._fields}
        print(f"{kernel}, smoothing {smoothing}, {dtype}, size {size:g}: {multiples}")
        allowed = {name: stock[name] + SMALL[dtype] * max(1, size / 10) for name in Solution._fields}
        too_large += [
            f"{kernel}, smoothing {smoothing}, {name}: {found[name]:.1e}, torch {stock[name]:.1e}"
            for name in Solution._fields
            if not found[name] <= allowed[name]  # a NaN is not
        ]
    assert not too_large


def test_repeats_are_equal_to_the_last_bit() -> None:
    p = oracle.problem(40, SENSES, 32, smoothing=0.1)
    once, again = solve(p), solve(p)
    assert all(torch.equal(a, b) for a, b in zip(once, again))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_features_that_are_no_numbers_make_a_loss_that_is_none(value: float) -> None:
    for kernel in KERNELS:
        p = oracle.problem(5, kernel=kernel)
        p.features[2, 1] = value
        h, _, senses, target, weight = moved(p)
        found = chunked_loss(h, senses, target, weight)
        assert bool(found.loss.isnan()), kernel
        assert found.log_prob.isnan().tolist() == [False, False, True, False, False], kernel
        assert bool(WordScorer(senses)(h.detach())[2].isnan().all()), kernel


@pytest.mark.parametrize("precision", ["", "--fp16", "--bf16", "--amp"] if ON_GPU else [""])
def test_a_model_trains_and_searches(pairs: Path, precision: str) -> None:
    options = "--criterion kerbs_cross_entropy --label-smoothing 0.1 --optimizer adam --lr 0.01 --fp16-init-scale 4"
    moves = "--kerbs-reallocate-every 2 --kerbs-reallocate-after 2 --kerbs-threshold -0.5"
    where = "" if ON_GPU else "--cpu"
    run = prepare(pairs, "transformer", f"--arch kerbs_transformer {options} {moves} {where} {precision}")
    run.cfg.common.tpu = False  # --bf16 implies it
    training = trainer(run)
    losses = [float(training.train_step([batch(run, 24)])["loss"]) for _ in range(6)]
    assert losses[-1] < losses[0]
    assert int(run.model.decoder.head.statistics.moves) > 0
    sample = training._prepare_sample(batch(run))[0]
    assert all(sentence for sentence in search(run, sample))


@contextlib.contextmanager
def nothing_waits() -> Iterator[None]:
    """Whatever waits for a GPU is an error; on a CPU nothing does."""
    try:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        if ON_GPU:
            torch.cuda.set_sync_debug_mode("default")


def test_nothing_waits_for_the_gpu() -> None:
    """As torch itself reports it; without a GPU: test_no_waiting.py."""
    layer = KernelizedBayesianSoftmax(64, 500, counts=torch.arange(500, 0, -1)).to(DEVICE)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    h, target = torch.randn(100, 64, device=DEVICE), torch.randint(0, 500, (100,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        layer.loss(h, target, None, 0.1)[0].backward()
        optimizer.step()
        layer.statistics.update()

    step()
    with nothing_waits():
        step()
    layer.eval()
    with torch.no_grad():
        scorer = layer.word_scorer()  # which waits, once in a search
        layer.log_prob(h, scorer)
        with nothing_waits():
            layer.log_prob(h, scorer)
    assert int(layer.statistics.updates) == 2


@needs_gpu
def test_a_decoding_step_can_be_captured_as_a_graph() -> None:
    """After a first step: Triton compiles at the first launch. A larger step takes nothing from the graph."""
    layer = KernelizedBayesianSoftmax(64, 500, counts=torch.arange(500, 0, -1)).to(DEVICE).eval()
    h = torch.randn(10, 64, device=DEVICE)
    with torch.no_grad():
        scorer = layer.word_scorer()
        layer.log_prob(h, scorer)
        torch.cuda.synchronize(DEVICE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(DEVICE), torch.cuda.graph(graph):
            captured = layer.log_prob(h, scorer)
        layer.log_prob(torch.randn(500, 64, device=DEVICE), scorer)
        others = [torch.full((n, 1000), torch.nan, device=DEVICE) for n in (1, 10, 100)]
        h.normal_()
        graph.replay()
        torch.testing.assert_close(captured, layer.log_prob(h, scorer))
        assert all(bool(x.isnan().all()) for x in others), "the graph writes to memory that is not its own"


@pytest.mark.skipif(not ON_GPU or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_gpu_than_the_current_one() -> None:
    """Launches go to the device of the tensors."""
    p = oracle.problem(9, SENSES, 16, smoothing=0.1)
    expected = solve(p)
    with torch.cuda.device((DEVICE.index or 0) ^ 1):
        found = solve(p)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
