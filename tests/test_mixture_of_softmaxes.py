"""The mixture of softmaxes against the weighted sum that it is."""

import copy
from typing import Any

import pytest
import torch
from layers import D, V
from torch import Tensor, nn

from kerbs_fairseq.modules import MixtureOfSoftmaxes
from kerbs_fairseq.modules.mixture_of_softmaxes import MOS_INITS


def mixture_oracle(module: MixtureOfSoftmaxes, W: Tensor, bias: Tensor, h: Tensor) -> Tensor:
    """log P as printed by Yang et al., a plain sum over the components: h (..., d) → (..., words)."""
    pi = torch.softmax(h @ module.prior.weight.t(), -1)
    P = torch.zeros(*h.shape[:-1], len(W), dtype=h.dtype)
    for k in range(module.components):
        part = slice(k * D, (k + 1) * D)
        z = h @ module.latent.weight[part].t() + module.latent.bias[part]
        P = P + pi[..., k : k + 1] * torch.softmax((z if module.linear else torch.tanh(z)) @ W.t() + bias, -1)
    return P.log()


@pytest.mark.parametrize("init", MOS_INITS)
@pytest.mark.parametrize("components", [1, 2, 5])
def test_mixture_and_its_gradients_are_those_of_the_weighted_sum(components: int, init: str) -> None:
    torch.manual_seed(1)
    module, project, x = MixtureOfSoftmaxes(D, components, init=init), nn.Linear(D, V), torch.randn(4, 3, D) * 2
    for parameter in module.parameters():  # as after some training
        parameter.data += torch.randn_like(parameter)
    target = torch.randint(0, V, (4, 3, 1))
    exact, exact_project = copy.deepcopy(module).double(), copy.deepcopy(project).double()
    log_probs = module.log_prob(x, project)
    expected = mixture_oracle(exact, exact_project.weight, exact_project.bias, x.double())
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(4, 3), rtol=0, atol=1e-5)
    log_probs.gather(-1, target).sum().backward()
    expected.gather(-1, target).sum().backward()
    ours, theirs = ([*m.parameters(), *p.parameters()] for m, p in ((module, project), (exact, exact_project)))
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad.double(), other.grad, rtol=1e-3, atol=1e-4)


def test_a_mixture_from_the_identity_starts_as_the_softmax_and_its_components_part() -> None:
    torch.manual_seed(1)
    module, project, x = MixtureOfSoftmaxes(D, 3, init="identity"), nn.Linear(D, V), torch.randn(40, D)
    torch.testing.assert_close(module.log_prob(x, project), torch.log_softmax(project(x), -1), rtol=0, atol=1e-5)
    optimizer, target = torch.optim.Adam(module.parameters(), lr=0.01), torch.randint(0, V, (40, 1))
    for _ in range(30):
        optimizer.zero_grad()
        (-module.log_prob(x, project).gather(1, target).mean()).backward()
        optimizer.step()
    A = module.latent.weight.detach().view(3, D, D)
    moved = (A - torch.eye(D)).norm(dim=(1, 2))
    apart = (A - A.mean(0)).norm(dim=(1, 2))
    assert bool((apart > moved / 4).all()), "each has a direction of its own"


@pytest.mark.parametrize("init", MOS_INITS)
def test_dropout_of_the_latents_is_for_training(init: str) -> None:
    torch.manual_seed(1)
    module, project, x = MixtureOfSoftmaxes(D, 3, dropout=0.5, init=init), nn.Linear(D, V), torch.randn(4, D)
    assert not torch.allclose(module.log_prob(x, project), module.log_prob(x, project))
    seen = []
    module.log_prob(x, lambda z: seen.append(z) or project(z))
    assert 0.2 < float((torch.stack(seen) == 0).float().mean()) < 0.8
    module.eval()
    assert torch.equal(module.log_prob(x, project), module.log_prob(x, project))


def test_mixture_trains_all_its_parameters_and_stays_finite_when_sure() -> None:
    torch.manual_seed(1)
    module, x = MixtureOfSoftmaxes(D, 3), torch.randn(4, D)
    log_prob = module.log_prob(x, lambda h: nn.functional.linear(h, torch.randn(V, D) * 1e4))
    assert bool(log_prob.isfinite().all())
    log_prob[:, 0].sum().backward()
    for parameter in module.parameters():
        assert bool(parameter.grad.isfinite().all())
        assert bool(parameter.grad.any())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 0}, "0 components: a mixture needs at least 1"),
        ({"components": -1}, "-1 components"),
        ({"dropout": 1.0}, "a dropout of 1: it must be at least 0 and below 1"),
        ({"dropout": float("nan")}, "a dropout of nan"),
        ({"init": "magic"}, "an initialization 'magic': there are published, identity"),
    ],
)
def test_bad_options_of_a_mixture_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixtureOfSoftmaxes(D, **options)
