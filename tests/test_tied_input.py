"""The input made of senses, Eqs. 6 and 7: every decoder against a reference that does one step after the other."""

from pathlib import Path
from typing import Any, Optional

import pytest
import torch
from inprocess import (
    FAMILIES,
    LANGUAGE_MODELS,
    SMALL,
    Run,
    batch,
    decided,
    generator_options,
    kinds,
    log_probs,
    prepare,
    search,
)
from torch import Tensor, nn

from kerbs_fairseq.modules.input_embedding import SenseInput
from kerbs_fairseq.plugin.decoders import features_of

RECURRENT = ("lstm", "lstm_lm", "gru_lm")
tied = pytest.mark.parametrize("choice", ["usage", "posterior"])
families = pytest.mark.parametrize("base", FAMILIES)


@pytest.fixture
def make(joined: Path, text: Path):
    def build(base: str, options: str, arch: Optional[str] = None, used: bool = True) -> Run:
        arch = arch or f"kerbs_{FAMILIES[base]}"
        data = text if base in LANGUAGE_MODELS else joined
        run = prepare(data, base, f"--arch {arch} --criterion kerbs_cross_entropy {options}")
        if used and arch.startswith("kerbs_"):
            usage = run.model.decoder.head.statistics.usage
            usage.copy_(torch.rand(usage.shape, generator=torch.Generator().manual_seed(5)))
            bias = run.model.decoder.head.senses.bias_raw
            if bias is not None:
                torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(6))
        return run

    return build


class Given(nn.Module):
    """In place of an embedding: input vectors that are known already."""

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = vectors

    def forward(self, tokens: Tensor) -> Tensor:
        return self.vectors[:, -tokens.size(1) :]


def weights_of(h: Optional[Tensor], word: int, head: Any) -> tuple[Tensor, Tensor]:
    """(weights, vectors) of the senses of one word after one context, as the equations print them."""
    senses = [j for j, i in enumerate(head.senses.sense_to_word.tolist()) if i == word]
    w, theta, b = head.senses.vectors[senses], head.senses.theta[senses], head.senses.bias[senses]
    if h is None:
        usage = head.statistics.usage[senses].to(w.dtype)
        return usage / usage.sum(), w
    cosine = (w @ h) / (w.norm(dim=1) * h.norm())
    a = -theta / (2 * (torch.exp(-theta) + theta - 1))
    K = h.norm() * w.norm(dim=1) * (a * torch.exp(-theta * cosine) - a) + b
    return torch.exp(K) / torch.exp(K).sum(), w


def one_step_after_the_other(run: Run, net_input: dict[str, Tensor], choice: str, through_weights: bool) -> Tensor:
    """Features (batch, length, d): each step from all inputs up to it, without any state kept between steps."""
    decoder, head = run.model.decoder, run.model.decoder.head
    embed, decoder_choice = decoder.embed_tokens, decoder.input_choice
    tokens = net_input.get("prev_output_tokens", net_input["src_tokens"])
    pad = run.task.target_dictionary.pad()
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    more = {}
    if "prev_output_tokens" in net_input:
        more["encoder_out"] = run.model.encoder(net_input["src_tokens"], net_input["src_lengths"])
    try:
        decoder.input_choice = "untied"
        for t in range(tokens.size(1)):
            rows = []
            for b, word in enumerate(tokens[:, t].tolist()):
                h = outputs[-1][b] if outputs and choice == "posterior" else None
                weights, w = weights_of(h, word, head)
                vector = (weights if through_weights else weights.detach()) @ w
                rows.append(vector.detach() if word == pad else vector)
            inputs.append(torch.stack(rows))
            decoder.embed_tokens = Given(torch.stack(inputs, 1))
            features, _ = decoder.extract_features(tokens[:, : t + 1], **more)
            outputs.append(features[:, -1])
    finally:
        decoder.embed_tokens, decoder.input_choice = embed, decoder_choice
    return torch.stack(outputs, 1)


def features(run: Run, net_input: dict[str, Tensor]) -> Tensor:
    with features_of(run.model.decoder):
        return run.model(**net_input)[0]


@tied
@families
def test_decoder_equals_the_reference_in_values_and_gradients(make, base: str, choice: str) -> None:
    long = "--kerbs-input-passes 99" if choice == "posterior" and base not in RECURRENT else ""
    run = make(base, f"--kerbs-input {choice} {long} --kerbs-theta-init 0.7 --kerbs-init-vectors random")
    run.model.double().train()
    sample = batch(run, 3)
    exact = one_step_after_the_other(run, sample["net_input"], choice, through_weights=base in RECURRENT)
    direction = torch.randn(exact.shape, dtype=exact.dtype, generator=torch.Generator().manual_seed(2))
    gradients = []
    for h in (exact, features(run, sample["net_input"])):
        torch.testing.assert_close(h, exact, rtol=0, atol=1e-6)
        run.model.zero_grad()
        (h * direction).sum().backward(retain_graph=True)
        gradients.append({n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name in gradients[0]:
        torch.testing.assert_close(gradients[1][name], gradients[0][name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("base", ["transformer", "transformer_lm"])
def test_each_pass_makes_one_more_step_exact(make, base: str) -> None:
    senses = "--kerbs-senses 3 --kerbs-max-senses 4 --kerbs-init random --kerbs-init-vectors random"
    run = make(base, f"--kerbs-input posterior --kerbs-theta-init 0.7 {senses}")
    run.model.double()
    with torch.no_grad():
        run.model.decoder.head.senses.vectors.mul_(8)  # so that weights depend much on contexts
    sample = batch(run, 2)
    exact = one_step_after_the_other(run, sample["net_input"], "posterior", False)
    length = exact.size(1)
    run.model.train()
    for passes in (1, 2, length):
        run.model.decoder.input_passes = passes
        wrong = (features(run, sample["net_input"]) - exact).detach().abs().amax((0, 2))
        assert bool((wrong[: passes + 1] < 3e-7).all())  # usage is float32
        if passes < 3:
            assert float(wrong[passes + 1 :].max()) > 1e-6
    run.model.decoder.input_passes = 1
    run.model.eval()  # until the weights stand still, whatever the number of passes in training
    torch.testing.assert_close(features(run, sample["net_input"]), exact, rtol=0, atol=1e-5)


@tied
@families
def test_incremental_decoding_equals_the_reference(make, base: str, choice: str) -> None:
    run = make(base, f"--kerbs-input {choice} --kerbs-theta-init 0.7 --kerbs-init-vectors random")
    sample = batch(run, 4)
    optimizer = torch.optim.Adam(run.model.parameters(), lr=0.02)
    for _ in range(25):  # until it has learned that sentences end, each at its time
        optimizer.zero_grad()
        loss, size, _ = run.criterion(run.model.train(), sample)
        (loss / size).backward()
        optimizer.step()
    for beam in (1, 5):
        beams = search(run, sample, beam)
        for module in run.model.modules():  # fairseq leaves it set behind a search
            if hasattr(module, "beam_size"):
                module.beam_size = 1
        lengths = {len(tokens) for hypotheses in beams for tokens, _ in hypotheses}
        assert beam == 1 or len(lengths) > 1
        for i, hypotheses in enumerate(beams):
            for tokens, score in hypotheses[:2]:
                assert score == pytest.approx(forced(run, sample, i, tokens, choice), abs=1e-5)


def forced(run: Run, sample: dict[str, Any], i: int, tokens: list[int], choice: str) -> float:
    """The mean log P of a hypothesis for sentence i, by the reference."""
    dictionary = run.task.target_dictionary
    before = torch.tensor([[dictionary.eos(), *tokens[:-1]]])
    source = sample["net_input"]["src_tokens"][i : i + 1]
    net_input = {"src_tokens": before}
    if "prev_output_tokens" in sample["net_input"]:
        source = source[source != dictionary.pad()].unsqueeze(0)
        lengths = torch.tensor([source.size(1)])
        net_input = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": before}
    with torch.no_grad():
        h = one_step_after_the_other(run, net_input, choice, False)
        scores = run.model.decoder.head.log_prob(h)[0]
    return float(scores.gather(1, torch.tensor(tokens).unsqueeze(1)).mean())


@pytest.mark.parametrize("base", ["lstm", "transformer"])
def test_prefixes_and_ensembles(make, base: str) -> None:
    options = "--kerbs-input posterior --kerbs-theta-init 0.7 --kerbs-init-vectors random"
    one, two = make(base, options), make(base, f"{options} --kerbs-seed 7")
    sample = batch(one, 4)
    prefix = sample["target"][:, :2]
    for models in ([one.model], [one.model, two.model]):
        for model in models:
            model.eval()
        generator = one.task.build_generator(models, generator_options(3))
        beams = one.task.inference_step(generator, models, sample, prefix_tokens=prefix)
        for i, hypotheses in enumerate(beams):
            tokens = hypotheses[0]["tokens"].tolist()
            assert tokens[:2] == prefix[i].tolist()
            scores = [forced_probabilities(run, sample, i, tokens) for run in (one, two)[: len(models)]]
            expected = torch.stack(scores).exp().mean(0).log().mean()
            assert float(hypotheses[0]["score"]) == pytest.approx(float(expected), abs=1e-5)


def forced_probabilities(run: Run, sample: dict[str, Any], i: int, tokens: list[int]) -> Tensor:
    """Log P of each token of a hypothesis (length,), by forced decoding."""
    dictionary = run.task.target_dictionary
    source = sample["net_input"]["src_tokens"][i : i + 1]
    source = source[source != dictionary.pad()].unsqueeze(0)
    before = torch.tensor([[dictionary.eos(), *tokens[:-1]]])
    net_input = {"src_tokens": source, "src_lengths": torch.tensor([source.size(1)]), "prev_output_tokens": before}
    with torch.no_grad():
        return log_probs(run, {"net_input": net_input})[0].gather(1, torch.tensor(tokens).unsqueeze(1)).squeeze(1)


@pytest.mark.parametrize("choice", ["untied", "usage", "posterior"])
@pytest.mark.parametrize("base", ["transformer", "transformer_lm", "lstm", "lstm_lm", "gru_lm"])
def test_one_sense_is_the_tied_embedding_of_the_stock_model(make, base: str, choice: str) -> None:
    stock = decided(make(base, "--share-decoder-input-output-embed", arch=base))
    stock_criterion = prepare_stock_criterion(stock)
    options = f"--kerbs-senses 1 --kerbs-kernel dot --kerbs-bias none --kerbs-input {choice}"
    options += " --share-decoder-input-output-embed"
    twin = make(base, options)
    table = stock.model.decoder.embed_tokens.weight
    state = {**twin.model.state_dict(), **{k: v for k, v in stock.model.state_dict().items() if "output_proj" not in k}}
    state = {k: v for k, v in state.items() if k in twin.model.state_dict()}
    state["decoder.head.senses.vectors"] = table.detach().clone()
    twin.model.load_state_dict(state)
    sample = batch(stock)
    losses, gradients = [], []
    for run, criterion in ((stock, stock_criterion), (twin, twin.criterion)):
        run.model.train()
        loss, _, _ = criterion(run.model, sample)
        loss.backward()
        losses.append(loss)
        gradients.append({n: p.grad for n, p in run.model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[0], losses[1])
    ours = gradients[1].pop("decoder.head.senses.vectors")
    if choice == "untied":
        ours = ours + gradients[1].pop("decoder.embed_tokens.weight")
    torch.testing.assert_close(ours, table.grad, atol=1e-4, rtol=1e-4)
    for name, gradient in gradients[1].items():
        torch.testing.assert_close(gradient, gradients[0][name], atol=1e-4, rtol=1e-4, msg=name)
    for ours_found, theirs in zip(search(twin, sample), search(stock, sample)):
        assert [tokens for tokens, _ in ours_found] == [tokens for tokens, _ in theirs]


def prepare_stock_criterion(stock: Run) -> Any:
    from fairseq.criterions.cross_entropy import CrossEntropyCriterion

    return CrossEntropyCriterion(stock.task, sentence_avg=False)


ALL = [(base, arch) for base, arch in kinds() if arch.startswith("kerbs_") and "wiki103" not in arch]


@pytest.mark.parametrize(("base", "arch"), ALL, ids=[arch for _, arch in ALL])
def test_every_twin_takes_a_step_with_the_posterior(make, base: str, arch: str) -> None:
    run = make(base, "--kerbs-input posterior", arch=arch)
    assert isinstance(run.model.decoder.embed_tokens, SenseInput)
    assert "decoder.embed_tokens.weight" not in run.model.state_dict()
    sample = batch(run)
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.05)
    run.model.train()
    loss, size, _ = run.criterion(run.model, sample)
    (loss / size).backward()
    optimizer.step()
    assert run.criterion(run.model, sample)[0] < loss


@pytest.mark.parametrize("base", ["lstm", "gru_lm"])
def test_recurrent_decoders_gather_once_for_all_steps(make, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # the backward pass of each look-up fills a table of all senses
    calls = []
    gather = SenseInput.gather
    monkeypatch.setattr(
        SenseInput, "gather", lambda self, tokens: (calls.append(tokens.shape), gather(self, tokens))[1]
    )
    run = make(base, "--kerbs-input posterior")
    sample = batch(run)
    features(run, sample["net_input"])
    assert len(calls) == 1


def test_a_moved_sense_changes_the_input_of_two_words(make) -> None:
    run = make("gru_lm", "--kerbs-input usage --kerbs-init-vectors random")
    table, embed = run.model.decoder.head.senses, run.model.decoder.embed_tokens
    words = torch.arange(table.n_words)
    before = embed(words)
    numbers = table.senses_per_word()
    giver, taker = int((numbers > 2).nonzero()[-1]), int((numbers < 3).nonzero()[-1])
    table.move(table.index.rows(torch.tensor([giver]))[0, :1], torch.tensor([taker]))
    changed = (embed(words) != before).any(1).nonzero().flatten().tolist()
    assert changed == sorted([giver, taker])


def test_padding_learns_nothing_from_being_an_input(make) -> None:
    run = make("gru_lm", "--kerbs-input usage")
    embed, table = run.model.decoder.embed_tokens, run.model.decoder.head.senses
    pad = run.task.target_dictionary.pad()
    embed(torch.tensor([pad, 7])).sum().backward()
    padding, other = table.index.rows(torch.tensor([pad, 7]))[:, 0].tolist()
    assert not table.vectors.grad[padding].any()
    assert bool(table.vectors.grad[other].any())


def test_only_the_senses_at_hand_are_touched(make) -> None:
    run = make("gru_lm", "--kerbs-input posterior")
    embed, table = run.model.decoder.embed_tokens, run.model.decoder.head.senses
    with embed.given(contexts=torch.randn(2, 16)):
        embed(torch.tensor([7, 9])).sum().backward()
    rows = table.vectors.grad.any(1).nonzero().flatten().tolist()
    assert set(rows) <= set(table.index.rows(torch.tensor([7, 9])).flatten().tolist())


def test_half_precision_inputs(make) -> None:
    run = make("gru_lm", "--kerbs-input posterior --kerbs-theta-init 0.7 --kerbs-init-vectors random")
    embed, tokens, contexts = run.model.decoder.embed_tokens, torch.arange(4, 60), torch.randn(56, 16)
    with embed.given(contexts=contexts):
        exact = embed(tokens)
        run.model.bfloat16()
    with embed.given(contexts=contexts.bfloat16()):
        half = embed(tokens)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), exact, rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("base", "options", "message"),
    [
        ("lstm", "--decoder-out-embed-dim 24", "have 16 and 24: make --decoder-embed-dim"),
        ("gru_lm", "--decoder-embed-dim 24", "have 24 and 16: make --decoder-embed-dim"),
        ("transformer", "--decoder-output-dim 32", "have 16 and 32: make --decoder-embed-dim"),
        ("transformer", "--kerbs-input-passes 0", "--kerbs-input-passes 0: at least 1"),
        ("lstm", "--kerbs-input-passes 2", "--kerbs-input-passes has no effect but for Transformers"),
        ("gru_lm", "--output-dictionary-size 100", "leave out --output-dictionary-size"),
        ("transformer_lm", "--character-embeddings", "--adaptive-input or --character-embeddings"),
    ],
)
def test_mistakes_are_explained(make, base: str, options: str, message: str) -> None:
    assert base in SMALL
    with pytest.raises(ValueError, match=message):
        make(base, f"--kerbs-input posterior {options}")


def test_loaded_input_vectors_are_not_ignored(make, tmp_path: Path) -> None:
    (tmp_path / "vectors").write_text("1 16\nthe " + "0.5 " * 16 + "\n")
    options = f"--kerbs-input usage --decoder-embed-path {tmp_path}/vectors"
    with pytest.raises(ValueError, match="--decoder-embed-path has no effect with --kerbs-input usage"):
        make("lstm", options)
    run = make("lstm", f"{options} --share-decoder-input-output-embed --kerbs-senses 1")
    word = run.task.target_dictionary.index("the")
    assert run.model.decoder.embed_tokens(torch.tensor([word])).tolist() == [[0.5] * 16]


@pytest.mark.parametrize(
    ("saved", "loaded"), [("untied", "usage"), ("usage", "untied"), ("usage", "posterior"), ("posterior", "usage")]
)
def test_checkpoint_with_another_kind_of_input(make, saved: str, loaded: str) -> None:
    one, other = (make("lstm", f"--kerbs-input {choice}") for choice in (saved, loaded))
    with pytest.raises(ValueError, match=f"the checkpoint has the input {saved}, the model has {loaded}"):
        other.model.load_state_dict(one.model.state_dict())
