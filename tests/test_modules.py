"""KerBS as an output layer, and the mixture of softmaxes."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from layers import D, N, V, batch, layer
from torch import nn

from kerbs_fairseq.functional.backends import build, cpu
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.modules import KernelizedBayesianSoftmax

all_kernels = pytest.mark.parametrize("kernel", KERNELS)


# --- the interface of torch.nn.AdaptiveLogSoftmaxWithLoss


def test_the_interface_is_that_of_adaptive_softmax() -> None:
    theirs, ours = nn.AdaptiveLogSoftmaxWithLoss(D, V, [5, 10], div_value=2), layer()
    for x, y in ((batch()), (batch()[0][0], batch()[1][0])):
        a, b = theirs(x, y), ours(x, y)
        assert a._fields == b._fields
        assert [part.shape for part in a] == [part.shape for part in b]
    x, _ = batch()
    assert theirs.log_prob(x).shape == ours.log_prob(x).shape == (N, V)
    assert theirs.predict(x).shape == ours.predict(x).shape == (N,)


@all_kernels
@pytest.mark.parametrize("reference", [False, True])
def test_output_is_the_log_prob_of_the_target_and_loss_its_mean(kernel: str, reference: bool) -> None:
    module, (x, y) = layer(kernel=kernel, reference=reference), batch()
    output, loss = module(x, y)
    torch.testing.assert_close(output, module.log_prob(x).gather(1, y.unsqueeze(1)).squeeze(1))
    torch.testing.assert_close(loss, -output.mean())


def test_one_vector_is_a_batch_of_one() -> None:
    module, (x, y) = layer(), batch()
    output, loss = module(x[0], y[0])
    assert output.shape == loss.shape == ()
    torch.testing.assert_close(output, module(x, y).output[0])
    torch.testing.assert_close(loss, -output)
    torch.testing.assert_close(module.log_prob(x[0]), module.log_prob(x)[0])
    assert module.predict(x[0]) == module.predict(x)[0]


def test_batches_of_any_shape() -> None:
    module, (x, y) = layer(), batch(12)
    many, places = x.reshape(2, 3, 2, D), y.reshape(2, 3, 2)
    torch.testing.assert_close(module.log_prob(many), module.log_prob(x).reshape(2, 3, 2, V))
    assert torch.equal(module.predict(many), module.predict(x).reshape(2, 3, 2))
    torch.testing.assert_close(module(many, places).output, module(x, y).output.reshape(2, 3, 2))
    assert module.log_prob(x[:0]).shape == (0, V)
    empty = module(x[:0], y[:0])
    assert empty.output.shape == (0,)
    assert empty.loss.item() == 0


def test_input_and_target_must_be_of_one_length() -> None:
    x, y = batch()
    with pytest.raises(RuntimeError, match="input has the shape"):
        layer()(x, y[:-1])


@all_kernels
@pytest.mark.parametrize("train", [True, False])
def test_probabilities_sum_to_1(kernel: str, train: bool) -> None:
    module, (x, _) = layer(kernel=kernel).train(train), batch()
    torch.testing.assert_close(module.log_prob(x).exp().sum(1), torch.ones(N), rtol=0, atol=1e-5)


def test_predict_is_the_most_probable_word() -> None:
    module, (x, _) = layer(), batch()
    assert torch.equal(module.predict(x), module.log_prob(x).argmax(1))


@all_kernels
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_reference_gives_the_same_loss_and_gradients(kernel: str, label_smoothing: float) -> None:
    fast, plain = layer(kernel=kernel, chunk=4), layer(kernel=kernel, reference=True)
    plain.load_state_dict(fast.state_dict())
    x, y = batch()
    results = []
    for module in (fast, plain):
        h = x.clone().requires_grad_()
        loss, log_prob = module.loss(h, y, torch.linspace(0, 1, N), label_smoothing)
        loss.backward()
        results.append([loss.detach(), log_prob.detach(), h.grad, *(p.grad for p in module.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@all_kernels
def test_gradients_reach_input_and_every_parameter(kernel: str) -> None:
    module, (x, y) = layer(kernel=kernel), batch()
    for objective in (lambda: module(x, y).loss, lambda: module(x, y).output, lambda: module.log_prob(x)[:, 0]):
        module.zero_grad()
        x.requires_grad_().grad = None
        objective().sum().backward()
        assert len(list(module.parameters())) == (2 if kernel == "dot" else 3)
        for tensor in (x, *module.parameters()):
            assert bool(tensor.grad.isfinite().all())
            assert bool(tensor.grad.any())


@pytest.mark.parametrize("chunk", [0, 1, 4, 100])
def test_chunks_change_no_log_prob(chunk: int) -> None:
    module, (x, _) = layer(chunk=chunk), batch()
    with_gradient = module.log_prob(x)
    with torch.no_grad():
        torch.testing.assert_close(module.eval().log_prob(x), with_gradient.detach())
    assert with_gradient.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_float32_out(dtype: torch.dtype) -> None:
    module, (x, y) = layer().to(dtype), batch()
    x = x.to(dtype).requires_grad_()
    output, loss = module(x, y)
    assert output.dtype == loss.dtype == module.log_prob(x).dtype == torch.float32
    loss.backward()
    assert x.grad.dtype == module.senses.vectors.grad.dtype == dtype


@all_kernels
@pytest.mark.parametrize("reference", [False, True])
def test_it_learns_a_word_with_two_separate_meanings(kernel: str, reference: bool) -> None:
    # word 0 in two opposite places and word 1 between them: no single vector for word 0 tells them apart
    places = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    x, y = places.repeat(8, 1), torch.tensor([0, 0, 1, 1]).repeat(8)
    module = KernelizedBayesianSoftmax(
        2, 2, 2, max_senses=2, init_vectors="random", kernel=kernel, reference=reference, seed=3
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(150):
        optimizer.zero_grad()
        module(x, y).loss.backward()
        optimizer.step()
    assert module(x, y).loss.item() < 0.05
    assert torch.equal(module.predict(x), y)


def test_the_same_seed_gives_the_same_layer() -> None:
    one, two, other = (KernelizedBayesianSoftmax(D, V, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["senses.vectors"], other["senses.vectors"])
    assert not torch.equal(one["senses.sense_to_word"], other["senses.sense_to_word"])


def test_making_a_layer_leaves_the_global_random_numbers_alone() -> None:
    before = torch.get_rng_state()
    KernelizedBayesianSoftmax(D, V)
    assert torch.equal(torch.get_rng_state(), before)


def test_given_word_vectors_are_where_the_senses_start() -> None:
    words = torch.randn(V, D)
    module = KernelizedBayesianSoftmax(D, V, 1, word_vectors=words)
    assert torch.equal(module.senses.vectors.detach(), words)


def test_print_says_what_it_is() -> None:
    assert "30 senses of 20 words, 6 features, kernel=paper, bias" in str(layer())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"senses": 5, "max_senses": 4}, "5 senses per word are outside the bounds: between 1 and 4"),
        ({"senses": 0.5}, "0.5 senses per word are outside the bounds"),
        ({"senses": 2, "min_senses": 3}, "2 senses per word are outside the bounds: between 3 and 16"),
        ({"senses": math.nan}, "outside the bounds"),
        ({"min_senses": 4, "max_senses": 3}, r"minimum number of senses \(4\) is above the maximum \(3\)"),
        ({"min_senses": 0}, "minimum number of senses is 0"),
        ({"kernel": "gauss"}, "unknown kernel 'gauss': one of paper, dot, released"),
        ({"init": "zipf"}, "unknown initial allocation 'zipf': one of frequency, random, uniform"),
        ({"init": "frequency"}, "needs the words' counts"),
        ({"init_vectors": "zeros"}, "unknown initial vectors 'zeros': one of clone, near, random"),
        ({"chunk": -1}, "a chunk of -1 tokens"),
        ({"bias": "some"}, "unknown bias 'some': one of zero, log, none"),
        ({"word_vectors": torch.zeros(V + 1, D)}, r"word_vectors has the shape \(21, 6\), and \(20, 6\) is needed"),
        ({"word_bias": torch.zeros(V + 1)}, r"word_bias has the shape \(21,\), and \(20,\) is needed"),
        ({"theta_bound": 0.0}, "bound of θ is 0"),
        ({"theta_bound": -8.0}, "bound of θ is -8"),
        ({"theta_bound": 41.0}, "bound of θ is 41"),
        ({"theta_bound": math.nan}, "bound of θ is nan"),
    ],
)
def test_bad_options_are_refused_with_the_reason(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelizedBayesianSoftmax(D, V, **options)


# --- unusual use, input and options


def test_evaluating_in_inference_mode_does_not_spoil_training() -> None:
    layer = KernelizedBayesianSoftmax(4, 10)
    x, y = torch.randn(3, 4), torch.tensor([1, 2, 3])
    with torch.inference_mode():
        layer.log_prob(x)
    layer(x, y).loss.backward()
    assert layer.senses.vectors.grad is not None


def test_a_layer_made_in_inference_mode_works_there() -> None:
    with torch.inference_mode():
        layer = KernelizedBayesianSoftmax(4, 10)
        total = layer.log_prob(torch.randn(3, 4)).exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(3))


@pytest.mark.parametrize(
    ("input_shape", "target", "message"),
    [
        ((2, 8), [0, 0, 0, 0], r"the shape \(2, 8\), and for this target \(4, 4\) is needed"),
        ((2, 4), [0, -1], r"target values should be in \[0, 9\]"),
        ((2, 4), [0, 10], r"target values should be in \[0, 9\]"),
        ((2, 4), [0.0, 1.0], "target has the type torch.float32"),
        ((2, 4), [True, False], "target has the type torch.bool"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(input_shape: tuple[int, int], target: list[int], message: str) -> None:
    module, x, y = KernelizedBayesianSoftmax(4, 10), torch.randn(input_shape), torch.tensor(target)
    for refuses in (module, module.loss):
        with pytest.raises(RuntimeError, match=message):
            refuses(x, y)


def test_no_features_no_words_and_a_smoothing_of_two_are_refused() -> None:
    for sizes in ((0, 10), (4, 0)):
        with pytest.raises(ValueError, match="at least one of each"):
            KernelizedBayesianSoftmax(*sizes)
    with pytest.raises(ValueError, match="label smoothing of 2"):
        KernelizedBayesianSoftmax(4, 10).loss(torch.randn(1, 4), torch.tensor([1]), label_smoothing=2.0)
    with pytest.raises(ValueError, match=r"single=\[50\]: these words must be in \[0, 9\]"):
        KernelizedBayesianSoftmax(4, 10, single=[50])
    with pytest.raises(RuntimeError, match=r"weight has the shape \(1, 1\), and \(1,\) is needed"):
        KernelizedBayesianSoftmax(4, 10).loss(torch.randn(1, 4), torch.tensor([1]), torch.ones(1, 1))
    for shape in ((5, 8), (5, 9), ()):
        with pytest.raises(RuntimeError, match=r"and \(..., 4\) is needed"):
            KernelizedBayesianSoftmax(4, 10).log_prob(torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_another_default_dtype_changes_nothing_but_the_parameters(dtype: torch.dtype) -> None:
    x, y = torch.randn(5, D), torch.tensor([0, 1, 2, 3, 4])
    torch.set_default_dtype(dtype)
    try:
        made = layer()
        loss = made(x.to(dtype), y).loss
        loss.backward()
    finally:
        torch.set_default_dtype(torch.float32)
    assert made.senses.vectors.dtype == made.senses.vectors.grad.dtype == dtype
    assert made.statistics.usage.dtype == torch.float32
    expected = copy.deepcopy(made).double()(x.double(), y).loss
    torch.testing.assert_close(loss.double(), expected, rtol=2e-2, atol=0)


def test_features_a_billion_times_as_long_are_right() -> None:
    made, (x, y) = layer(), batch()
    output, exact = made(x * 1e9, y).output, copy.deepcopy(made).double()(x.double() * 1e9, y).output
    torch.testing.assert_close(output.double(), exact, rtol=1e-5, atol=1e4)


def test_one_word_can_be_smoothed() -> None:
    layer = KernelizedBayesianSoftmax(4, 1)
    loss, _ = layer.loss(torch.randn(3, 4), torch.zeros(3, dtype=torch.long), label_smoothing=0.1)
    assert float(loss) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("for_inference", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_evaluating_never_serves_old_weights(plain: bool, for_inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain:
        monkeypatch.setattr(cpu, "native", lambda: build.Native(None, "not wanted"))
    made = layer(senses=2).eval()
    made.for_inference = for_inference
    x = torch.randn(5, D)

    def is_right() -> bool:
        with torch.no_grad():
            log_probs = made.log_prob(x)
        return torch.allclose(log_probs, made.log_prob(x).detach(), atol=1e-5)  # with gradients by another way

    assert is_right()
    with torch.inference_mode():
        made.log_prob(x)
    assert is_right()
    for change in (
        lambda: made.senses.vectors.mul_(2),
        lambda: made.senses.theta_raw.add_(1),
        lambda: made.senses.move(torch.tensor([0]), made.senses.sense_to_word[-1:].clone()),
        lambda: made.load_state_dict(layer(senses=2, seed=7).state_dict()),
        lambda: made.double().float(),
    ):
        with torch.no_grad():
            change()
        assert is_right()
    # whoever averages or interpolates weights, as fairseq's optimizers do, writes to .data, which no counter sees
    alias = made.senses.vectors.data
    for change in (
        lambda: alias.mul_(0.5),
        lambda: made.senses.bias_raw.data.copy_(torch.randn(len(alias))),
        lambda: setattr(made.senses.vectors, "data", torch.randn_like(alias)),
    ):
        change()
        assert is_right()


def test_a_copy_and_a_pickle_have_weights_of_their_own() -> None:
    made = layer(senses=2).eval()
    x = torch.randn(5, D)
    with torch.no_grad():
        expected = made.log_prob(x)
        for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert torch.equal(other.log_prob(x), expected)
            other.senses.vectors.mul_(2)
            assert not torch.equal(other.log_prob(x), expected)
        assert torch.equal(made.log_prob(x), expected)


def test_a_scorer_is_kept_for_inference_alone() -> None:
    made = layer(senses=2).eval()
    assert made.word_scorer() is not made.word_scorer()
    made.for_inference = True
    kept = made.word_scorer()
    assert made.word_scorer() is kept
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert other.word_scorer() is not kept
    made.prune = 0.3
    made.statistics.usage.uniform_()
    pruned = made.word_scorer()
    assert pruned is not kept
    assert made.word_scorer() is pruned
    made.statistics.usage.data.mul_(torch.rand(len(made.statistics.usage)))  # other senses are left out
    assert made.word_scorer() is not pruned
