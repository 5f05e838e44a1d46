"""Which backend is chosen, and the whole loss through the Triton kernels, in Triton's interpreter."""

import logging
from dataclasses import replace
from pathlib import Path

import layers
import pytest
import torch
import triton_oracle
from inprocess import batch, prepare
from loss_oracle import assert_close, oracle, problem
from torch._subclasses.fake_tensor import FakeTensorMode

from kerbs_fairseq.functional.backends import build, dispatch
from kerbs_fairseq.functional.backends import triton as triton_backend
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.kernel import KERNELS, sense_scores
from kerbs_fairseq.functional.words import word_log_probs
from kerbs_fairseq.runs.errors import UserError

needs_triton = pytest.mark.skipif(bool(triton_backend.MISSING), reason=triton_backend.MISSING)
LOADED = None if triton_backend.MISSING else triton_oracle.load_interpreted()


@needs_triton
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
def test_the_loss_through_triton(monkeypatch: pytest.MonkeyPatch, kernel: str, smoothing: float, bias: bool) -> None:
    monkeypatch.setenv("KERBS_BACKEND", "triton")
    p = problem(kernel=kernel, smoothing=smoothing, bias=bias)
    with triton_oracle.interpreter(LOADED, triton_oracle.SMALL_BLOCKS):
        assert dispatch.backend_of(p.vectors) == "triton"
        results = p.solve(chunk=4)
        log_probs = WordScorer(p.senses)(p.features)
    assert_close(results, oracle(p), 1e-5)
    scores = sense_scores(p.features, p.vectors, p.theta, kernel, p.bias)
    torch.testing.assert_close(log_probs, word_log_probs(scores, p.index), rtol=1e-5, atol=1e-5)


@needs_triton
def test_what_the_kernels_are_given_is_float32_and_contiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever torch's default precision is, and however the targets lie: kernels see pointers, not strides."""
    monkeypatch.setenv("KERBS_BACKEND", "triton")
    p = problem()
    strided = torch.stack([p.target, 1 - p.target.clamp_max(1)], 1).int()[:, 0]
    torch.set_default_dtype(torch.bfloat16)
    try:
        with triton_oracle.interpreter(LOADED, triton_oracle.SMALL_BLOCKS):
            found = replace(p, target=strided).solve(chunk=4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert_close(found, oracle(p), 1e-5)


def test_the_environment_can_ask_for_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem()
    results = []
    for name in ("torch", "cpu") if dispatch.native().library else ("torch",):
        monkeypatch.setenv("KERBS_BACKEND", name)
        assert dispatch.backend_of(p.vectors) == name
        results.append(p.solve())
    for one in results[1:]:
        assert_close(one, results[0], 1e-5)


def test_the_layer_can_be_given_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stronger than the environment, in the loss and in decoding."""
    monkeypatch.setenv("KERBS_BACKEND", "tpu")
    features, target = layers.batch()
    used: list[str] = []
    results = []
    for name in ("torch", "cpu") if dispatch.native().library else ("torch",):
        backend = dispatch.BACKENDS[name]
        of_words, of_loss = (
            lambda *given, make=make, kind=f"{name} {kind}": used.append(kind) or make(*given)
            for kind, make in (("words", backend.word_kernels), ("loss", backend.loss_kernels))
        )
        monkeypatch.setitem(dispatch.BACKENDS, name, backend._replace(word_kernels=of_words, loss_kernels=of_loss))
        layer = layers.layer(backend=name)
        loss = layer(features, target).loss
        with torch.no_grad():
            results.append((loss.detach(), layer.log_prob(features)))
        assert used == [f"{name} loss", f"{name} words"]
        used.clear()
    for other in results[1:]:
        torch.testing.assert_close(other, results[0])


def test_a_backend_of_a_layer_that_cannot_be_used_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"^backend=tpu: there are torch, cpu, triton$"):
        layers.layer(backend="tpu")
    with pytest.raises(ValueError, match=r"^backend=cpu has no effect with reference=True: give one of them$"):
        layers.layer(backend="cpu", reference=True)
    layer = layers.layer(backend="cpu").double()
    features, target = layers.batch()
    with pytest.raises(ValueError, match=r"^backend=cpu cannot be used here: it is for float32 on a CPU; "):
        layer(features.double(), target)
    if dispatch.native().library:
        assert dispatch.describe(layer.float().senses.vectors, "cpu") == "cpu: selected by backend="


def test_a_backend_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem()
    monkeypatch.setenv("KERBS_BACKEND", "tpu")
    with pytest.raises(ValueError, match="KERBS_BACKEND=tpu: there are torch, cpu, triton"):
        p.solve()
    monkeypatch.setenv("KERBS_BACKEND", "cpu")
    with pytest.raises(ValueError, match="KERBS_BACKEND=cpu cannot be used here: it is for float32 on a CPU"):
        replace(p.to(torch.float64)).solve()
    monkeypatch.setenv("KERBS_BACKEND", "triton")
    with pytest.raises(ValueError, match="KERBS_BACKEND=triton cannot be used here: "):
        p.to(torch.float64).solve()


def test_which_backend_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = torch.zeros(3, 2)
    if dispatch.native().library:
        assert dispatch.describe(vectors).startswith("cpu: compiled")
        assert dispatch.describe(vectors.bfloat16()).startswith("cpu: compiled")
    assert dispatch.describe(vectors.double()) == "torch: float64 has no other"
    assert dispatch.describe(vectors.to("meta")) == "torch: meta has no other"
    monkeypatch.setattr(dispatch, "is_compiled", lambda _: False)
    monkeypatch.setattr(dispatch, "native", lambda: build.Native(None, "no compiler"))
    assert dispatch.describe(vectors) == "torch: no compiler"
    monkeypatch.setenv("KERBS_BACKEND", "torch")
    assert dispatch.describe(vectors) == "torch: selected by KERBS_BACKEND"
    monkeypatch.delenv("KERBS_BACKEND")
    monkeypatch.setattr(triton_backend, "available", lambda *_: (True, "triton 3.9.0"))
    dispatch._triton_runs.cache_clear()
    with FakeTensorMode():
        assert dispatch.describe(torch.empty(3, 2, device="cuda", dtype=torch.float16)) == "triton: triton 3.9.0"
        assert dispatch.describe(torch.empty(3, 2, device="cuda").double()) == "torch: float64 has no other"
    dispatch._triton_runs.cache_clear()


def test_a_backend_that_cannot_run_is_one_line(
    pairs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = prepare(pairs, "lstm", "--arch kerbs_lstm --criterion kerbs_cross_entropy")
    monkeypatch.setenv("KERBS_BACKEND", "tpu")
    with pytest.raises(UserError, match=r"^kerbs_fairseq: KERBS_BACKEND=tpu: there are torch, cpu, triton$"):
        run.criterion(run.model, batch(run))
    monkeypatch.setenv("KERBS_BACKEND", "torch")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            run.criterion(run.model, batch(run))
    assert [r.getMessage() for r in caplog.records if "backend" in r.getMessage()] == [
        "backend of the loss: torch: selected by KERBS_BACKEND"
    ]


def test_a_gpu_without_triton_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(triton_backend, "available", lambda *_: (False, "no Triton here"))
    dispatch._triton_runs.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not dispatch._triton_runs(torch.device("cuda:0"))
        assert not dispatch._triton_runs(torch.device("cuda:0"))
    dispatch._triton_runs.cache_clear()
    (record,) = caplog.records
    assert "runs in plain torch, which is slower: no Triton here" in record.getMessage()
