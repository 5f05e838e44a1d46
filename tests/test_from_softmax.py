"""A model that starts from a stock one predicts what that did; senses as a softmax; what does not fit is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from inprocess import LANGUAGE_MODELS, Run, batch, decided, log_probs, prepare, trainer

from kerbs_fairseq.functional import from_softmax
from kerbs_fairseq.functional.kernel import sense_scores
from kerbs_fairseq.functional.words import SenseIndex, word_log_probs
from kerbs_fairseq.plugin import pretrained, starting
from kerbs_fairseq.runs.errors import UserError

MODELS = {
    "transformer": ("transformer", ""),
    "all embeddings shared": ("transformer", "--share-all-embeddings"),
    "output shared": ("transformer", "--share-decoder-input-output-embed"),
    "transformer_align": ("transformer_align", ""),
    "lstm, with a bias": ("lstm", ""),
    "lstm, shared": ("lstm", "--share-decoder-input-output-embed"),
    "bart": ("bart_base", ""),
    "transformer_lm": ("transformer_lm", ""),
    "transformer_lm, shared": ("transformer_lm", "--share-decoder-input-output-embed"),
    "adaptive input": ("transformer_lm", "--adaptive-input --adaptive-input-cutoff 20,50"),
    "lstm_lm": ("lstm_lm", ""),
    "gru_lm": ("gru_lm", ""),
}


def scores_of(weight: torch.Tensor, bias: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(features @ weight.t() + bias, -1)


def words_of(rows: from_softmax.Weights, sense_to_word: torch.Tensor, n: int, features: torch.Tensor) -> torch.Tensor:
    scores = sense_scores(features, rows.vectors, None, "dot", rows.bias)
    return word_log_probs(scores, SenseIndex(sense_to_word, n))


@pytest.fixture
def table() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "weight": torch.randn(5, 4, generator=generator, dtype=torch.double),
        "bias": torch.randn(5, generator=generator, dtype=torch.double),
        "features": torch.randn(50, 4, generator=generator, dtype=torch.double),
        "sense_to_word": torch.tensor([0, 1, 1, 2, 3, 3, 3, 4]),
    }


@pytest.mark.parametrize("shares", ["equal", "given"])
def test_senses_predict_what_the_softmax_does_and_back(table: dict[str, torch.Tensor], shares: str) -> None:
    words = table["sense_to_word"]
    share = None if shares == "equal" else torch.tensor([1, 0.25, 0.75, 1, 0.5, 0.125, 0.375, 1])
    rows = from_softmax.senses_of(table["weight"], table["bias"], words, share)
    expected = scores_of(table["weight"], table["bias"], table["features"])
    torch.testing.assert_close(words_of(rows, words, 5, table["features"]), expected, atol=1e-6, rtol=0)
    assert from_softmax.inexact(rows.vectors, torch.zeros(8), words, 5) is None
    usage = torch.rand(8)  # whatever it is: equal senses have the shares of their biases
    back = from_softmax.softmax_of(rows, words, 5, usage)
    torch.testing.assert_close(back.vectors, table["weight"])
    torch.testing.assert_close(back.bias, table["bias"], atol=1e-6, rtol=0)


def test_parted_senses_have_a_softmax_below_them(table: dict[str, torch.Tensor]) -> None:
    words, weight = table["sense_to_word"], table["weight"]
    rows = from_softmax.senses_of(weight, table["bias"], words)
    apart = from_softmax.noise(weight, words, 3)
    torch.testing.assert_close(torch.zeros_like(weight).index_add(0, words, apart), torch.zeros_like(weight))
    rows = rows._replace(vectors=rows.vectors + 0.5 * apart)
    assert from_softmax.inexact(rows.vectors, None, words, 5) == "2 of 5 words have senses with different vectors"
    assert from_softmax.inexact(weight, torch.tensor([0.1, 0]), torch.arange(5), 5) == (
        "1 of 2 senses have a θ other than 0"
    )
    usage = torch.rand(8, dtype=torch.double)
    softmax = from_softmax.softmax_of(rows, words, 5, usage)
    raw = table["features"] @ rows.vectors.t() + rows.bias
    of_words = torch.stack([torch.logsumexp(raw[:, words == i], 1) for i in range(5)], 1)
    bound = table["features"] @ softmax.vectors.t() + softmax.bias
    assert bool((bound <= of_words + 1e-9).all())
    # tight where the senses have the shares of their usage: solve for such a context of word 1
    log_odds = (usage[1] / usage[2]).log() - rows.bias[1] + rows.bias[2]
    difference = rows.vectors[1] - rows.vectors[2]
    h = difference * log_odds / difference.square().sum()
    exact = torch.logsumexp(rows.vectors[1:3] @ h + rows.bias[1:3], 0)
    torch.testing.assert_close(h @ softmax.vectors[1] + softmax.bias[1], exact)


def test_senses_part_towards_the_clusters_of_their_contexts() -> None:
    generator = torch.Generator().manual_seed(2)
    centres = torch.tensor([[4.0, 0, 0], [-4.0, 0, 0]])
    cluster = (torch.rand(400, generator=generator) < 0.25).long()
    features = centres[cluster] + torch.randn(400, 3, generator=generator) * 0.1
    weight = torch.randn(3, 3, generator=generator)
    words = torch.tensor([0, 1, 1, 2, 2])
    parts = from_softmax.along_contexts(weight, words, features, torch.ones(400).long(), seed=5)
    first, second = parts.directions[1:3]
    assert torch.cosine_similarity(first, second, 0) < -0.99  # about the mean of all contexts
    assert min(torch.cosine_similarity(first, c, 0) for c in centres) < -0.99
    assert sorted(parts.share[1:3].tolist()) == pytest.approx(
        sorted(((torch.bincount(cluster) + 1) / 402).tolist()), abs=1e-6
    )
    assert torch.equal(parts.share[3:], torch.tensor([0.5, 0.5]))  # word 2 has no contexts: noise
    torch.testing.assert_close(parts.directions[3:], from_softmax.noise(weight, words, 5)[3:])


def both(data: Path, arch: str, options: str, more: str = "") -> tuple[Run, Run]:
    """A stock model, and its twin that has loaded the stock model's state."""
    base = "bart" if arch == "bart_base" else arch
    stock = decided(prepare(data, base, f"--arch {arch} {options}"))
    with torch.no_grad():
        for name, parameter in stock.model.named_parameters():
            if name.endswith("fc_out.bias"):
                parameter.normal_()
    twin = prepare(data, base, f"--arch kerbs_{arch} {options} {more}", seed=2)
    twin.model.load_state_dict(stock.model.state_dict(), model_cfg=twin.cfg.model)
    return stock, twin


def difference(stock: Run, twin: Run) -> float:
    sample = batch(stock, 20)
    stock.model.eval()
    twin.model.eval()
    with torch.no_grad():
        return float((log_probs(stock, sample) - log_probs(twin, sample)).abs().max())


@pytest.mark.parametrize(("arch", "options"), MODELS.values(), ids=MODELS)
def test_without_noise_a_twin_predicts_what_the_stock_model_does(
    joined: Path, text: Path, arch: str, options: str
) -> None:
    data = text if arch in LANGUAGE_MODELS else joined
    stock, twin = both(data, arch, options, "--kerbs-senses 2 --kerbs-start-noise 0")
    assert len(twin.model.decoder.head.senses.vectors) > 1.9 * twin.model.decoder.head.n_words
    assert difference(stock, twin) <= 1e-5


@pytest.mark.parametrize("options", ["--kerbs-bias-rate 3", "--kerbs-kernel dot --kerbs-init uniform"])
def test_whatever_the_bias_and_the_kernel(text: Path, options: str) -> None:
    stock, twin = both(text, "lstm_lm", "", f"{options} --kerbs-start-noise 0")
    assert difference(stock, twin) <= 1e-5


@pytest.mark.parametrize("choice", ["usage", "posterior"])
def test_a_tied_input_starts_from_the_shared_table(text: Path, choice: str) -> None:
    more = f"--kerbs-input {choice} --kerbs-start-noise 0"
    stock, twin = both(text, "transformer_lm", "--share-decoder-input-output-embed", more)
    assert difference(stock, twin) <= 1e-5
    with pytest.raises(UserError, match="a table of its own for the input"):
        both(text, "transformer_lm", "", more)


def test_noise_is_as_asked_for_and_sums_to_zero(text: Path) -> None:
    stock, twin = both(text, "transformer_lm", "", "--kerbs-start-noise 0.3")
    weight = stock.model.decoder.output_projection.weight.detach()
    table = twin.model.decoder.head.senses
    apart = table.vectors.detach() - weight[table.sense_to_word]
    several = (table.senses_per_word() > 1)[table.sense_to_word]
    assert float(apart[several].std() / weight.std()) == pytest.approx(0.3, rel=0.05)
    assert not bool(apart[~several].any())
    assert difference(stock, twin) > 1e-4


class FakeTrainer:
    """What a trainer shows to a model that it loads."""

    def __init__(self, run: Run) -> None:
        self.task, self.cfg = run.task, run.cfg


@pytest.mark.parametrize("split", ["noise", "contexts"])
def test_the_noise_is_the_most_that_costs_little(text: Path, split: str, caplog: pytest.LogCaptureFixture) -> None:
    options = "--arch kerbs_transformer_lm"
    stock = prepare(text, "transformer_lm", "--arch transformer_lm")
    weight = stock.model.decoder.output_projection.weight
    twin = prepare(text, "transformer_lm", options)
    twin.model.load_state_dict(stock.model.state_dict(), model_cfg=twin.cfg.model)
    features, targets = starting.Corpus(twin.task, twin.model, "valid", 10**6).contexts()
    optimizer = torch.optim.Adam([weight], lr=0.1)
    for _ in range(100):  # until it is right, and sure of it: noise costs more than is allowed
        loss = torch.nn.functional.cross_entropy(features @ weight.t(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    twin = prepare(text, "transformer_lm", f"{options} --kerbs-start-split {split}")
    caplog.set_level("INFO")
    with pretrained.at_work(FakeTrainer(twin), reset_optimizer=True):
        twin.model.load_state_dict(stock.model.state_dict(), model_cfg=twin.cfg.model)
    *_, line = [r.getMessage() for r in caplog.records if "started from a softmax" in r.getMessage()]
    corpus = starting.Corpus(twin.task, twin.model, "valid", 10**6)
    before = float(torch.nn.functional.cross_entropy(features @ weight.detach().t(), targets)) / 0.6931472
    after = corpus.loss()
    assert after <= before * (1 + starting.MOST) + 1e-6
    assert f"from {before:.4f} to {after:.4f} bits per token ({100 * (after / before - 1):+.2f} %)" in line
    assert not torch.equal(twin.model.decoder.head.senses.vectors, weight[twin.model.decoder.head.senses.sense_to_word])
    if split == "noise":
        assert "by 0.5 standard" not in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kerbs-bias none", "--kerbs-bias none cannot keep"),
        ("--kerbs-bias log", "--kerbs-bias has no effect where training starts from a softmax: leave it out"),
        ("--kerbs-init-vectors clone", "--kerbs-init-vectors has no effect where training starts from a softmax"),
        ("--kerbs-kernel released", "--kerbs-kernel released has no θ"),
        ("--kerbs-theta-init 0.5", "--kerbs-theta-init: a model that starts from a softmax"),
        ("--kerbs-start-noise -1", "--kerbs-start-noise -1: it must be 0 or more"),
        ("--kerbs-start-noise 0 --kerbs-start-split contexts", "--kerbs-start-split contexts has no effect"),
        ("--kerbs-start-split contexts", "--kerbs-start-split contexts needs a training set"),
        ("--kerbs-head-rate 0", "--kerbs-head-rate 0: it must be above 0"),
    ],
)
def test_what_a_softmax_cannot_start_is_refused(text: Path, options: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        both(text, "transformer_lm", "", options)


def test_a_trainer_says_why_a_checkpoint_does_not_fit(text: Path, joined: Path, tmp_path: Path) -> None:
    def state_of(run: Run, **changes: Any) -> Path:
        state = {"model": {**run.model.state_dict(), **changes}, "cfg": None, "optimizer_history": [{"num_updates": 1}]}
        state |= {"extra_state": {"train_iterator": {"epoch": 1}}, "last_optimizer_state": {}}
        state["optimizer_history"][0] |= {"optimizer_name": "Adam", "lr_scheduler_state": {}, "criterion_name": "x"}
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.pt"
        torch.save(state, path)
        return path

    adam = "--optimizer adam --cpu"
    stock = prepare(text, "transformer_lm", f"--arch transformer_lm {adam}")
    twin = prepare(text, "transformer_lm", f"--arch kerbs_transformer_lm {adam}")
    cases = [
        (twin, state_of(stock), False, "its optimizer's state has no place for senses"),
        (twin, state_of(stock, extra=torch.zeros(2)), True, "does not fit the architecture: it has in addition extra"),
        (stock, state_of(twin), True, "is of a KerBS model, and the model here has a softmax"),
        (
            prepare(joined, "lstm", f"--arch kerbs_lstm {adam}"),
            state_of(stock),
            True,
            "does not fit|has 16 features|has .* words",
        ),
    ]
    for run, path, reset, message in cases:
        with pytest.raises(UserError, match=message):
            trainer(run).load_checkpoint(str(path), reset_optimizer=reset)
    path = tmp_path / "0.pt"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        trainer(twin).load_checkpoint(str(path), reset_optimizer=True)


def test_the_rate_of_the_head_scales_its_steps_alone(text: Path) -> None:
    moved = {}
    for rate in (1.0, 0.25):
        command = "--arch kerbs_transformer_lm --criterion kerbs_cross_entropy --optimizer adam --lr 0.01 --cpu"
        run = prepare(text, "transformer_lm", f"{command} --kerbs-head-rate {rate} --kerbs-reallocate-every 0")
        before = {name: value.detach().clone() for name, value in run.model.named_parameters()}
        trainer(run).train_step([batch(run)])
        moved[rate] = {name: value.detach() - before[name] for name, value in run.model.named_parameters()}
    vectors = "decoder.head.senses.vectors"
    torch.testing.assert_close(moved[0.25][vectors], moved[1.0][vectors] * 0.25, atol=1e-7, rtol=1e-4)
    others = [name for name in moved[1.0] if name != vectors]
    assert all(torch.equal(moved[1.0][name], moved[0.25][name]) for name in others)
