"""Nothing waits for the device: a training step, the hook without an event, what is logged, a decoding step.

Everything runs on torch's ``meta`` device, where tensors have shapes and no values: whatever needs a value on the host
(``.item()``, ``bool()``, ``nonzero``, a boolean index, ``bincount``, a copy to the CPU) is an error there, and code
that asks whether it is on a CPU takes the way of a GPU. Copies from the host, which wait too, are looked for on top.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any, Callable, Optional
from unittest import mock

import pytest
import torch
from fairseq import metrics
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kerbs_fairseq.functional.backends import dispatch
from kerbs_fairseq.functional.backends import triton as triton_backend
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.words import SenseIndex
from kerbs_fairseq.modules import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin.criterion import KerbsCrossEntropy
from kerbs_fairseq.plugin.log_probs import LogProbs
from kerbs_fairseq.plugin.update_hook import UpdateHook

META = torch.device("meta")
D, V, N = 16, 30, 12


class NoCopiesFromTheHost(TorchDispatchMode):
    """An error where a tensor of the host goes to the device; numbers may, as arguments of kernels."""

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None) -> Any:
        flat = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        found = func(*args, **(kwargs or {}))
        to_device = isinstance(found, Tensor) and found.device == META
        if to_device and any(x.device.type == "cpu" and not x._is_zerotensor() and x.dim() for x in flat):
            raise AssertionError(f"{func} copies from the host")
        if func.overloadpacket in (torch.ops.aten._to_copy, torch.ops.aten.copy_) and to_device:
            assert all(x.device == META for x in flat), f"{func} copies from the host"
        return found


class NoListsFromTheHost(TorchFunctionMode):
    """An error where a list of the host becomes a tensor of the device."""

    def __torch_function__(self, func: Any, _: Any, args: Any = (), kwargs: Optional[dict[str, Any]] = None) -> Any:
        found = func(*args, **(kwargs or {}))
        copies = func in (torch.tensor, torch.as_tensor, Tensor.new_tensor)
        assert not copies or found.device != META, "a list is copied from the host"
        return found


@contextlib.contextmanager
def nothing_waits() -> Iterator[None]:
    with NoCopiesFromTheHost(), NoListsFromTheHost():
        yield


def on_meta(layer: KernelizedBayesianSoftmax) -> KernelizedBayesianSoftmax:
    """The layer with an index of its map, as it is between two events: both were made when senses moved."""
    index = layer.senses.index
    for cached in ("groups", "position", "jagged", "compressed"):
        getattr(index, cached)
    layer.to(META)

    def moved(x: Any) -> Any:
        if isinstance(x, Tensor):
            return x.to(META)
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(moved, x))
        return [moved(item) for item in x] if isinstance(x, list) else x

    index.__dict__.update({name: moved(value) for name, value in vars(index).items()})
    layer.senses._index = index, layer.senses.sense_to_word, layer.senses.sense_to_word._version
    return layer


@pytest.fixture(params=["torch", "triton"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Triton's kernels are not launched: what is around them is what could wait."""
    monkeypatch.setenv("KERBS_BACKEND", request.param)
    if request.param == "triton":
        if triton_backend.MISSING:
            pytest.skip(triton_backend.MISSING)
        monkeypatch.setattr(triton_backend, "available", lambda *_: (True, "pretended"))
        launched: list[str] = []

        class Kernel:
            def __init__(self, name: str) -> None:
                self.name = name

            def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
                assert all(isinstance(x, int) for x in grid)
                return lambda *_, **__: launched.append(self.name)

        names = [name for name in vars(triton_backend.kernels) if name.endswith("_kernel")]
        monkeypatch.setattr(triton_backend, "kernels", types.SimpleNamespace(**{name: Kernel(name) for name in names}))
        yield request.param
        assert {"forward_kernel", "words_kernel"} & set(launched)
    else:
        yield request.param


def layer_of(kernel: str = "paper", dtype: torch.dtype = torch.float32) -> KernelizedBayesianSoftmax:
    counts = torch.arange(V, 0, -1)
    layer = KernelizedBayesianSoftmax(D, V, senses=3, max_senses=20, kernel=kernel, counts=counts, single=[0])
    return on_meta(layer.to(dtype))


def decoder_of(layer: KernelizedBayesianSoftmax) -> Any:
    return types.SimpleNamespace(head=layer, dictionary=types.SimpleNamespace(symbols=["a"] * V))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("kernel", "smoothing", "dtype"),
    [
        ("paper", 0.1, torch.float16),
        ("paper", 0.0, torch.float32),
        ("dot", 0.0, torch.bfloat16),
        ("released", 0.1, torch.float32),
    ],
)
def test_training_step(kernel: str, smoothing: float, dtype: torch.dtype) -> None:
    """Criterion, gradients, optimizer, hook without an event, and the metrics."""
    layer = layer_of(kernel, dtype)
    decoder, optimizer = decoder_of(layer), torch.optim.SGD(layer.parameters(), lr=0.1)
    task = types.SimpleNamespace(target_dictionary=types.SimpleNamespace(pad=lambda: 1))
    criterion = KerbsCrossEntropy(task, False, smoothing)
    settings: dict[str, Any] = {"every": 4, "after": 4, "until": 0, "strategy": "paper"}
    hook = UpdateHook(settings, None)
    layer.statistics.in_use = True
    with nothing_waits(), metrics.aggregate(new_root=True) as shown:
        for update in (1, 2, 3):
            optimizer.zero_grad()
            for _ in range(2):  # --update-freq
                features = torch.empty(3, 4, D, device=META, dtype=dtype, requires_grad=True)
                target = torch.empty(3, 4, device=META, dtype=torch.long)
                loss, nll = criterion.losses(decoder, features, target)
                loss.backward()
                assert features.grad is not None
                assert features.grad.dtype == dtype
            optimizer.step()
            hook.after_update(decoder, optimizer, update)
            criterion.reduce_metrics([{"loss": loss.detach(), "nll_loss": nll, "ntokens": 12, "sample_size": 12}])
    assert "kerbs_idle" in shown
    assert "nll_loss" in shown
    with pytest.raises((RuntimeError, NotImplementedError)):  # the log itself waits, when it is printed
        shown.get_smoothed_values()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decoding_step(dtype: torch.dtype) -> None:
    """The senses do not change between steps: what depends on them is made before, and found again."""
    layer = layer_of(dtype=dtype).eval()
    index = layer.senses.index
    with mock.patch("kerbs_fairseq.functional.decoding.SenseIndex", return_value=index):
        scorer = WordScorer(layer.senses.senses())
    with torch.no_grad(), nothing_waits():
        for _ in range(2):
            log_probs = LogProbs.of(layer.log_prob(torch.empty(5, D, device=META, dtype=dtype), scorer))
            assert log_probs.shape == (5, V)
    assert not vars(scorer._memory), "memory that is written to again: other streams and captured graphs may use it"


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: torch.bincount(x.long()),
        torch.unique,
        lambda x: torch.repeat_interleave(x, x.long()),
        lambda x: x + torch.ones(3).to(META),
        lambda x: torch.tensor([1.0, 2.0], device=META),
        lambda x: x.new_tensor([1.0, 2.0]),
        lambda x: SenseIndex(x.long(), 5),
    ],
)
def test_whatever_waits_is_noticed(waits: Callable[[Tensor], Any]) -> None:
    with nothing_waits(), pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
        waits(torch.ones(3, device=META))


def test_the_fallback_of_a_gpu_is_what_is_tested_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERBS_BACKEND", raising=False)
    assert dispatch.backend_of(torch.empty(3, 2, device=META)) == "torch"
