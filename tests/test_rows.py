"""Editing rows of a parameter: the edit survives the next update under every optimizer of fairseq that runs here."""

import argparse
import math
from typing import Any

import pytest
import torch
from fairseq import optim, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import nn

from kerbs_fairseq.allocation import policy
from kerbs_fairseq.allocation.parameter_rows import ParameterRows
from kerbs_fairseq.allocation.reallocator import Reallocator
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

WRAPPERS = {
    "plain": None,
    "fp16": FP16Optimizer,
    "fp16-flat": FP16Optimizer,
    "bf16": FP16Optimizer,
    "memory-efficient-fp16": MemoryEfficientFP16Optimizer,
    "memory-efficient-bf16": MemoryEfficientFP16Optimizer,
    "amp": AMPOptimizer,
}
OPTIMIZERS = ("adam", "adafactor", "adagrad", "adadelta", "adamax", "nag", "sgd")
S, MOVED = 6, [1, 4]


class Model(nn.Module):
    """Parameters before and behind those that are edited, so that their place in a flat tensor matters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Parameter(torch.randn(3, 2))
        self.vectors = nn.Parameter(torch.randn(S, 4))
        self.theta = nn.Parameter(torch.randn(S))
        self.behind = nn.Parameter(torch.randn(5))


def configuration(optimizer: str, wrapper: str) -> Any:
    momentum = "--momentum 0.9" if optimizer in ("sgd", "nag") else ""
    command = f"data --arch transformer --optimizer {optimizer} --lr 0.01 {momentum}"
    args = options.parse_args_and_arch(options.get_training_parser(), command.split())
    cfg = convert_namespace_to_omegaconf(args)
    cfg.common.bf16 = wrapper.endswith("bf16")
    cfg.common.fp16 = wrapper.endswith("fp16") or wrapper == "fp16-flat"
    cfg.common.fp16_no_flatten_grads = wrapper != "fp16-flat"
    cfg.common.fp16_init_scale = 1
    return cfg


def built(monkeypatch: pytest.MonkeyPatch, optimizer: str, wrapper: str) -> tuple[Model, Any]:
    model = Model()
    cfg = configuration(optimizer, wrapper)
    model.to(torch.bfloat16 if cfg.common.bf16 else torch.float16 if cfg.common.fp16 else torch.float32)
    parameters = list(model.parameters())
    # the flat copy is kept by the number of the GPU; a parameter on a CPU has none
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    if WRAPPERS[wrapper] is None:
        return model, optim.build_optimizer(cfg.optimizer, parameters)
    try:
        return model, WRAPPERS[wrapper].build_optimizer(cfg, parameters)
    except (ValueError, RuntimeError) as error:  # fairseq's own refusal of this pair
        if "nsupported optimizer" not in str(error) and "does not support flat params" not in str(error):
            raise
        pytest.skip(f"fairseq: {error}")


def step(model: Model, optimizer: Any, gradient: float = 1.0) -> None:
    optimizer.zero_grad()
    loss = sum((p.float() * (gradient * torch.arange(1.0, p.numel() + 1).view_as(p))).sum() for p in model.parameters())
    optimizer.backward(loss)
    optimizer.clip_grad_norm(0.0)
    optimizer.step()


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_edit_survives_the_next_update(monkeypatch: pytest.MonkeyPatch, name: str, wrapper: str) -> None:
    model, optimizer = built(monkeypatch, name, wrapper)
    step(model, optimizer)
    moved, others = torch.tensor(MOVED), torch.tensor([i for i in range(S) if i not in MOVED])
    untouched = {n: p.detach().clone() for n, p in model.named_parameters()}
    for parameter, value in ((model.vectors, torch.full((2, 4), 100.0)), (model.theta, 100.0)):
        rows = ParameterRows(optimizer, parameter)
        assert rows.master.shape == parameter.shape
        torch.testing.assert_close(rows.master.to(parameter.dtype), parameter.data)
        assert rows.moments
        for moment in rows.moments:
            assert bool(moment[moved].ne(0).any()) or name == "adadelta"
            moment[others] += 0  # a view, not a copy
        rows.write(moved, value)
        rows.forget(moved)
        again = ParameterRows(optimizer, parameter)  # read where the optimizer keeps them
        assert bool(again.read(moved).eq(100).all())
        for moment in again.moments:
            assert not moment[moved].any()
    for n, p in model.named_parameters():
        rest = others if n in ("vectors", "theta") else slice(None)
        assert torch.equal(p.data[rest], untouched[n][rest]), n
    step(model, optimizer, 1e-3)
    assert bool((model.vectors[moved].float() - 100).abs().lt(5).all())
    assert bool((model.theta[moved].float() - 100).abs().lt(5).all())
    assert bool(model.vectors[others].float().abs().lt(20).all())


@pytest.mark.parametrize("wrapper", ["fp16", "fp16-flat"])
def test_a_frozen_parameter_has_no_copy(monkeypatch: pytest.MonkeyPatch, wrapper: str) -> None:
    cfg = configuration("adam", wrapper)
    model = Model().half()
    model.vectors.requires_grad_(False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    optimizer = FP16Optimizer.build_optimizer(cfg, [p for p in model.parameters() if p.requires_grad])
    rows = ParameterRows(optimizer, model.vectors)
    rows.write(torch.tensor(MOVED), 7.0)
    assert bool((model.vectors[MOVED] == 7).all())


def test_composite_optimizer() -> None:
    from fairseq.optim.composite import CompositeOptimizer

    model = Model()
    cfg = configuration("adam", "plain")
    parts = {
        "senses": optim.build_optimizer(cfg.optimizer, [model.vectors, model.theta]),
        "rest": optim.build_optimizer(cfg.optimizer, [model.before, model.behind]),
    }
    optimizer = argparse.Namespace(optimizer=CompositeOptimizer.__new__(CompositeOptimizer))
    optimizer.optimizer.optimizers = parts
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    for part in parts.values():
        part.step()
    rows = ParameterRows(optimizer, model.vectors)
    assert len(rows.moments) == 2
    rows.forget(torch.tensor(MOVED))
    assert not parts["senses"].optimizer.state[model.vectors]["exp_avg"][MOVED].any()
    assert parts["senses"].optimizer.state[model.vectors]["exp_avg"].any()


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_split_is_in_the_master_copy_and_survives_the_next_update(
    monkeypatch: pytest.MonkeyPatch, wrapper: str
) -> None:
    cfg = configuration("adam", wrapper)
    layer = KernelizedBayesianSoftmax(4, 5, 2, theta_init=0.3)
    layer.to(torch.bfloat16 if cfg.common.bf16 else torch.float16 if cfg.common.fp16 else torch.float32)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    kind, parameters = WRAPPERS[wrapper], list(layer.parameters())
    optimizer = (
        optim.build_optimizer(cfg.optimizer, parameters) if kind is None else kind.build_optimizer(cfg, parameters)
    )

    def learn(scale: float) -> None:
        optimizer.zero_grad()
        h = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).to(layer.senses.vectors.dtype)
        optimizer.backward(layer.loss(h, torch.arange(8) % 5)[0] * scale)
        optimizer.clip_grad_norm(0.0)
        optimizer.step()

    table = layer.senses
    spare = int(table.index.rows(torch.tensor([1]))[0, 0])
    moving = Reallocator(layer, optimizer, 1, 0, strategy="paper", moved_vector="split", split_noise=0.0)
    plan = policy.Strategy(lambda situation: [policy.Move(spare, 3)])
    monkeypatch.setitem(policy.STRATEGIES, "paper", plan)
    learn(1.0)
    before = {name: ParameterRows(optimizer, p).master.clone() for name, p in table.named_parameters()}
    event = moving.step()
    assert event is not None
    own = [s for s in table.index.rows(torch.tensor(3)).tolist() if s >= 0 and s != spare]
    source = max(own, key=lambda s: (float(event.situation.usage[s]), -s))
    for name, parameter in table.named_parameters():
        rows = ParameterRows(optimizer, parameter)
        less = math.log(2) if name == "bias_raw" else 0.0
        expected = (before[name][source].float() - less).to(rows.master.dtype)
        for sense in (source, spare):
            torch.testing.assert_close(rows.master[sense], expected)
            assert torch.equal(rows.master[sense].to(parameter.dtype), parameter.data[sense])
        assert not any(moment[spare].any() for moment in rows.moments)
    learn(1e-7)  # a gradient that changes next to nothing but by what Adam remembers
    for name, parameter in table.named_parameters():
        less = math.log(2) if name == "bias_raw" else 0.0
        torch.testing.assert_close(
            parameter.data[spare].float(), before[name][source].float() - less, rtol=0.02, atol=0.05
        )
