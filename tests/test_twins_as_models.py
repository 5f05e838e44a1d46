"""Twins in the places of fairseq's own models: in programs, pickles, TorchScript, other tasks, other criteria."""

import copy
import importlib
import io
import pickle
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import metrics, models, utils
from fairseq.sequence_generator import SequenceGenerator
from inprocess import LANGUAGE_MODELS, Run, batch, prepare, search, trainer

from kerbs_fairseq.plugin.models import SUPPORTED
from kerbs_fairseq.runs.errors import UserError

ARCHITECTURES = {base: "bart_base" if base == "bart" else base for base in SUPPORTED}
SCRIPTED = [base for base in SUPPORTED if base in ("transformer", "bart", "lstm")]  # what fairseq itself can compile
EXAMPLES = Path(importlib.import_module("fairseq").__file__).parent / "examples"


@pytest.fixture
def make(joined: Path, text: Path):
    def build(base: str, options: str = "", **more: Any) -> Run:
        data = text if base in LANGUAGE_MODELS else joined
        run = prepare(data, base, f"--arch kerbs_{ARCHITECTURES[base]} --kerbs-senses 2 {options}", **more)
        run.model.eval()
        return run

    return build


@torch.no_grad()
def predicted(model: Any, sample: dict[str, Any]) -> torch.Tensor:
    return model.get_normalized_probs(model(**sample["net_input"]), log_probs=True)


@pytest.mark.parametrize(
    ("prefix", "base"),
    [
        *(("kerbs", base) for base in SUPPORTED),
        *(
            pytest.param("mos", base, marks=() if base in ("transformer", "lstm_lm") else pytest.mark.thorough)
            for base in SUPPORTED
        ),
    ],
)
def test_a_bare_namespace_is_filled(make, base: str, prefix: str) -> None:
    run = make(base)
    options = vars(run.cfg.model) if isinstance(run.cfg.model, Namespace) else run.cfg.model
    bare = Namespace(**{name: value for name, value in options.items() if not name.startswith("kerbs_")})
    model = models.MODEL_REGISTRY[f"{prefix}_{base}"].build_model(bare, run.task)
    if prefix == "kerbs":
        assert len(model.decoder.head.senses.vectors) == pytest.approx(1.5 * model.decoder.head.n_words, abs=3)
    again = pickle.loads(pickle.dumps(model.eval()))
    sample = batch(run)
    assert torch.equal(predicted(again, sample), predicted(model, sample))
    assert type(again) is type(model)
    assert type(again.decoder) is type(model.decoder)


def test_a_model_is_saved_whole_and_copied_while_it_trains(make) -> None:
    run = make("transformer", "--criterion kerbs_cross_entropy --optimizer adam --cpu --kerbs-reallocate-after 0 "
               "--kerbs-reallocate-every 1")  # fmt: skip
    trained = trainer(run)
    trained.train_step([batch(run)])
    file = io.BytesIO()
    torch.save(run.model, file)
    assert file.tell() < 4 * sum(p.numel() * p.element_size() for p in run.model.parameters())  # without the optimizer
    file.seek(0)
    for other in (torch.load(file, weights_only=False), copy.deepcopy(run.model)):
        assert torch.equal(predicted(other.eval(), batch(run)), predicted(run.model.eval(), batch(run)))
        assert other.decoder.head.senses.vectors is not run.model.decoder.head.senses.vectors
    trained.train_step([batch(run, first=6)])


@pytest.mark.parametrize(
    ("base", "options"),
    [
        pytest.param(base, options, marks=() if base == "transformer" or not options else pytest.mark.thorough)
        for base in SCRIPTED
        for options in ("", "--kerbs-kernel dot", "--kerbs-input usage --kerbs-kernel released")
    ],
)
def test_torchscript_gives_what_eager_mode_does(make, base: str, options: str) -> None:
    run = make(base, f"{options} {'' if 'dot' in options else '--kerbs-theta-init 0.7'}")
    sample = batch(run)
    expected = predicted(run.model, sample)
    scripted = torch.jit.script(run.model)
    with torch.no_grad():
        compiled = torch.log_softmax(scripted(**sample["net_input"])[0], -1)
    torch.testing.assert_close(compiled, expected, atol=2e-6, rtol=1e-6)
    assert hasattr(run.model.decoder, "head")  # the model itself is as it was
    assert torch.equal(predicted(run.model, sample), expected)


def test_a_compiled_generator_finds_the_same_beams(make) -> None:
    run = make("transformer")
    sample = batch(run)
    generator = SequenceGenerator([run.model], run.task.target_dictionary, beam_size=3, max_len_b=12)
    beams = torch.jit.script(generator)({"net_input": sample["net_input"]})
    assert [[h["tokens"].tolist() for h in sentence] for sentence in beams] == [
        [tokens for tokens, _ in sentence] for sentence in search(run, sample, 3)
    ]


def test_the_posterior_is_not_compiled(make) -> None:
    with pytest.raises(UserError, match="--kerbs-input posterior cannot be compiled by TorchScript"):
        torch.jit.script(make("transformer", "--kerbs-input posterior").model)


@pytest.mark.parametrize(
    ("smoothing", "options"),
    [
        (0.1, "--ignore-prefix-size 2"),
        (0.0, "--report-accuracy"),
        *(
            pytest.param(*both, marks=pytest.mark.thorough)
            for both in ((0.0, ""), (0.1, ""), (0.0, "--ignore-prefix-size 2"), (0.1, "--report-accuracy"))
        ),
    ],
)
def test_the_criterion_does_what_the_stock_one_does(make, smoothing: float, options: str) -> None:
    smooth = f"--label-smoothing {smoothing} {options}"
    run = make("lstm", f"--criterion kerbs_cross_entropy {smooth}")
    stock = make("lstm", f"--criterion label_smoothed_cross_entropy {smooth}").criterion
    sample = batch(run)
    best, target = predicted(run.model, sample).argmax(-1), sample["target"]
    some = target.ne(run.task.target_dictionary.pad()) & (torch.arange(target.size(1)) % 3 == 0)
    sample["target"] = torch.where(some, best, target)  # so that some are right
    for reduce in (True, False):
        value, size, logged = run.criterion(run.model, sample, reduce=reduce)
        expected, stock_size, stock_logged = stock(run.model, sample, reduce=reduce)
        assert size == stock_size
        torch.testing.assert_close(value, expected.reshape(value.shape), atol=1e-4, rtol=1e-5)
        torch.testing.assert_close(logged["nll_loss"], stock_logged["nll_loss"].reshape(logged["nll_loss"].shape))
        assert value.dim() == (0 if reduce else 1)
        if "accuracy" in options and reduce:
            assert int(logged["n_correct"]) == stock_logged["n_correct"]
            assert int(some.sum()) <= int(logged["n_correct"]) < int(logged["total"])
            assert int(logged["total"]) == stock_logged["total"]
            with metrics.aggregate() as shown:
                run.criterion.reduce_metrics([logged, logged])
            assert shown.get_smoothed_value("accuracy") == pytest.approx(
                100 * int(logged["n_correct"]) / int(logged["total"]), abs=1e-3
            )
    value.sum().backward()
    assert run.model.decoder.head.senses.vectors.grad is not None


def test_a_mixture_of_experts_calls_the_criterion(joined: Path) -> None:
    utils.import_user_module(Namespace(user_dir=str(EXAMPLES / "translation_moe" / "translation_moe_src")))
    options = "--arch kerbs_transformer --criterion kerbs_cross_entropy --task translation_moe --method hMoElp "
    options += "--mean-pool-gating-network --num-experts 2 --mean-pool-gating-network-encoder-dim 16 "
    options += "--mean-pool-gating-network-dropout 0.1"
    run = prepare(joined, "transformer", options)
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    optimizer.backward = lambda loss: loss.backward()
    sample = batch(run)
    before, _, _ = run.task.train_step(sample, run.model, run.criterion, optimizer, 0)
    optimizer.step()
    after, _, _ = run.task.valid_step(sample, run.model, run.criterion)
    assert after < before


def test_quantization_noise(make) -> None:
    noise = "--quant-noise-pq 0.5 --quant-noise-pq-block-size 4"
    run = make("transformer", f"--criterion kerbs_cross_entropy --optimizer adam --lr 0.01 --cpu {noise}")
    trained = trainer(run)
    sample = batch(run)
    losses = [float(trained.train_step([sample])["loss"]) for _ in range(5)]
    assert losses[-1] < losses[0]
    assert predicted(run.model.eval(), sample).exp().sum(-1).allclose(torch.ones(1))


def with_mask(run: Run) -> Run:
    """The same BART as its pretraining has it: with <mask> at the end of the dictionary."""
    for dictionary in {id(d): d for d in (run.task.source_dictionary, run.task.target_dictionary)}.values():
        dictionary.add_symbol("<mask>")
    torch.manual_seed(5)
    return run._replace(model=run.task.build_model(run.cfg.model).eval())


@pytest.mark.parametrize("pretrained_with", ["kerbs_bart_base", "bart_base"])
def test_bart_goes_from_denoising_to_translation(make, joined: Path, pretrained_with: str) -> None:
    pretrained = with_mask(prepare(joined, "bart", f"--arch {pretrained_with}"))
    run = make("bart", "--kerbs-senses 1.5 --kerbs-start-noise 0", seed=9)
    words = len(run.task.target_dictionary)
    state = pretrained.model.state_dict()
    assert len(state["decoder.embed_tokens.weight"]) == words + 1
    run.model.load_state_dict(dict(state), model_cfg=run.cfg.model)
    sample = batch(run)
    before = predicted(pretrained.model, sample)
    expected = torch.log_softmax(before[..., :words], -1)  # the probability of <mask> goes to the others
    torch.testing.assert_close(predicted(run.model, sample), expected, atol=1e-5, rtol=1e-5)
    assert int(run.model.decoder.head.senses.sense_to_word.max()) == words - 1
    again = make("bart", "--kerbs-senses 1.5", seed=9)
    again.model.load_state_dict(run.model.state_dict(), model_cfg=again.cfg.model)
