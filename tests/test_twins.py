"""Every kind of twin in the registry: a training step, probabilities that sum to 1, a beam search; or a refusal."""

import argparse
import math
from pathlib import Path

import pytest
import torch
from fairseq import metrics, models
from inprocess import (
    ARCHITECTURES,
    LANGUAGE_MODELS,
    TWINS,
    batch,
    decided,
    kinds,
    log_probs,
    prepare,
    representative,
    search,
    settings_of,
)
from omegaconf import open_dict

from kerbs_fairseq.functional import chunked_loss
from kerbs_fairseq.plugin import models as twins
from kerbs_fairseq.plugin.decoders import features_of
from kerbs_fairseq.plugin.unsupported import REASONS

FAMILIES = {base: base if base in archs else "bart_base" for base, archs in ARCHITECTURES.items()}
KINDS = kinds()
OTHER_SIZES = [twin for twin in TWINS if twin not in KINDS]
FREE_OF_KERBS = {name for name in models.MODEL_REGISTRY if not name.startswith(("kerbs_", "mos_"))}


@pytest.fixture
def data_for(joined: Path, text: Path):
    return lambda base: text if base in LANGUAGE_MODELS else joined


@pytest.mark.parametrize(("base", "arch"), KINDS, ids=[arch for _, arch in KINDS])
def test_every_twin_trains_and_searches(data_for, base: str, arch: str) -> None:
    criterion = "kerbs_cross_entropy" if arch.startswith("kerbs_") else "cross_entropy"
    command = f"--arch {arch} --criterion {criterion}"
    if adaptive_by_default(arch):
        with pytest.raises(ValueError, match="an adaptive softmax"):
            prepare(data_for(base), base, command)
        return
    run = prepare(data_for(base), base, command)
    sample = batch(run)
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    for mode in (True, False):
        run.model.train(mode)
        total = log_probs(run, sample).exp().sum(-1)
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-5, rtol=0)
    run.model.train()
    loss, size, _ = run.criterion(run.model, sample)
    (loss / size).backward()
    unused = [name for name, p in run.model.named_parameters() if p.requires_grad and p.grad is None]
    assert [name for name in unused if "head" in name] == []
    optimizer.step()
    after, _, _ = run.criterion(run.model, sample)
    assert after < loss
    found = search(run, sample, beam=3)
    assert [len(sentence) for sentence in found] == [3] * 6


@pytest.mark.parametrize(("base", "arch"), OTHER_SIZES, ids=[arch for _, arch in OTHER_SIZES])
def test_a_twin_of_other_sizes_is_made_like_the_one_that_is_trained(base: str, arch: str) -> None:
    trained = representative(base, arch)
    assert (base, trained) in KINDS
    assert models.ARCH_MODEL_REGISTRY[arch] is models.ARCH_MODEL_REGISTRY[trained]
    assert models.ARCH_MODEL_NAME_REGISTRY[arch] == models.ARCH_MODEL_NAME_REGISTRY[trained]
    assert settings_of(base, arch) == settings_of(base, trained)
    assert adaptive_by_default(arch) == adaptive_by_default(trained)


def adaptive_by_default(arch: str) -> bool:
    import argparse

    args = argparse.Namespace()
    models.ARCH_CONFIG_REGISTRY[arch](args)
    return getattr(args, "adaptive_softmax_cutoff", None) is not None and "lstm" not in arch


def test_some_architectures_are_adaptive_by_default() -> None:
    assert adaptive_by_default("kerbs_transformer_lm_wiki103")
    assert not adaptive_by_default("kerbs_transformer_lm_gpt")


def test_a_twin_has_the_defaults_of_its_architecture() -> None:
    import argparse

    for base, arch in TWINS:
        prefix, _, stock_arch = arch.partition("_")
        stock, twin = argparse.Namespace(), argparse.Namespace()
        models.ARCH_CONFIG_REGISTRY[stock_arch](stock)
        models.ARCH_CONFIG_REGISTRY[arch](twin)
        assert vars(stock).items() <= vars(twin).items(), f"{base}: {arch}"
        if base not in models.MODEL_DATACLASS_REGISTRY:  # else the dataclass has them
            assert (twin.kerbs_min_senses == 1) if prefix == "kerbs" else (twin.mos_components == 3)


def test_every_model_has_a_twin_or_a_reason() -> None:
    assert set(REASONS) <= FREE_OF_KERBS
    assert set(REASONS) | set(twins.SUPPORTED) == FREE_OF_KERBS


def test_the_support_matrix_names_every_model() -> None:
    matrix = (Path(__file__).parent.parent / "docs" / "support.md").read_text(encoding="utf-8")
    for name in FREE_OF_KERBS:
        assert f"`{name}`" in matrix, name
    for reason in REASONS.values():
        assert reason in matrix


@pytest.mark.parametrize("prefix", ["kerbs", "mos"])
@pytest.mark.parametrize("base", sorted(REASONS))
def test_refused_model_says_why(prefix: str, base: str) -> None:
    architectures = {base, *models.ARCH_MODEL_INV_REGISTRY.get(base, [])}  # some models have no other
    for arch in architectures:
        with pytest.raises(ValueError, match=f"kerbs_fairseq: {prefix}_{base}: "):
            models.ARCH_MODEL_REGISTRY[f"{prefix}_{arch}"].build_model(None, None)


@pytest.mark.parametrize("base", FAMILIES)
def test_one_sense_and_the_inner_product_are_the_softmax(data_for, base: str) -> None:
    arch = FAMILIES[base]
    stock = decided(prepare(data_for(base), base, f"--arch {arch} --criterion cross_entropy"))
    options = "--kerbs-senses 1 --kerbs-kernel dot"
    twin = prepare(data_for(base), base, f"--arch kerbs_{arch} --criterion kerbs_cross_entropy {options}", seed=2)
    state = {k: v for k, v in stock.model.state_dict().items() if k in twin.model.state_dict()}
    decoder = stock.model.decoder
    name = next((n for n in ("output_projection", "fc_out") if getattr(decoder, n, None) is not None), "embed_tokens")
    layer = getattr(decoder, name)
    biased = getattr(layer, "bias", None) is not None
    assert biased == (base in ("lstm", "lstm_lm"))
    if biased:
        state["decoder.head.senses.bias_raw"] = layer.bias.detach().clone()
    state["decoder.head.senses.vectors"] = layer.weight.detach().clone()
    state["decoder.head.senses.sense_to_word"] = torch.arange(len(layer.weight))
    state["decoder.head.senses.kernel_id"] = twin.model.state_dict()["decoder.head.senses.kernel_id"]
    twin.model.load_state_dict(state)
    sample = batch(stock)
    losses, gradients = [], []
    for run in (stock, twin):
        run.model.train()
        loss, _, _ = run.criterion(run.model, sample)
        loss.backward()
        losses.append(loss)
        gradients.append({n: p.grad for n, p in run.model.named_parameters() if p.grad is not None})
    torch.testing.assert_close(losses[0], losses[1])
    if biased:
        torch.testing.assert_close(gradients[1].pop("decoder.head.senses.bias_raw"), layer.bias.grad)
    ours = gradients[1].pop("decoder.head.senses.vectors")
    shared = {n for n, p in stock.model.named_parameters(remove_duplicate=False) if p is layer.weight}
    for key in gradients[1]:  # a shared table has both gradients, that of the input and that of the output
        both = gradients[1][key] + ours if key in shared else gradients[1][key]
        torch.testing.assert_close(both, gradients[0][key], atol=1e-4, rtol=1e-4, msg=key)
    if not shared & gradients[1].keys():
        torch.testing.assert_close(ours, layer.weight.grad, atol=1e-4, rtol=1e-4)
    for (tokens, score), (twin_tokens, twin_score) in zip(
        (h for s in search(stock, sample) for h in s), (h for s in search(twin, sample) for h in s)
    ):
        assert tokens == twin_tokens
        assert score == pytest.approx(twin_score, abs=1e-5)


@pytest.mark.parametrize("base", FAMILIES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_stock_criteria_give_the_same_loss(data_for, base: str, smoothing: float) -> None:
    ours = prepare(
        data_for(base),
        base,
        f"--arch kerbs_{FAMILIES[base]} --criterion kerbs_cross_entropy --label-smoothing {smoothing}",
    )
    name = "label_smoothed_cross_entropy" if smoothing else "cross_entropy"
    option = f"--label-smoothing {smoothing}" if smoothing else ""
    theirs = prepare(data_for(base), base, f"--arch kerbs_{FAMILIES[base]} --criterion {name} {option}")
    sample = batch(ours)
    results = []
    for run in (ours, theirs):
        ours.model.zero_grad()
        loss, size, output = run.criterion(ours.model, sample)
        loss.backward()
        gradients = {n: p.grad.clone() for n, p in ours.model.named_parameters() if p.grad is not None}
        results.append((loss, size, float(output.get("nll_loss", output["loss"])), gradients))
    (loss, size, nll, gradients), (their_loss, their_size, their_nll, their_gradients) = results
    torch.testing.assert_close(loss, their_loss)
    assert size == their_size
    assert nll == pytest.approx(their_nll, rel=1e-5)
    assert gradients.keys() == their_gradients.keys()
    for key in gradients:
        torch.testing.assert_close(gradients[key], their_gradients[key], atol=1e-4, rtol=1e-4, msg=key)


def test_a_model_of_ones_own_gets_its_twins_in_one_line(data_for) -> None:
    from fairseq.models.lstm_lm import LSTMLanguageModel

    class OwnModel(LSTMLanguageModel):
        pass

    models.register_model("own_model_of_a_test")(OwnModel)
    models.register_model_architecture("own_model_of_a_test", "own_arch")(models.ARCH_CONFIG_REGISTRY["lstm_lm"])
    twins.add_twins("own_model_of_a_test")
    run = prepare(data_for("lstm_lm"), "lstm_lm", "--arch kerbs_own_arch --criterion kerbs_cross_entropy")
    assert isinstance(run.model, OwnModel)
    assert run.criterion(run.model, batch(run))[0] > 0


def test_shared_embeddings_give_the_senses_their_start(data_for, caplog: pytest.LogCaptureFixture) -> None:
    run = prepare(
        data_for("transformer"),
        "transformer",
        "--arch kerbs_transformer --share-all-embeddings --kerbs-senses 2 --kerbs-init-vectors clone",
    )
    decoder, encoder = run.model.decoder, run.model.encoder
    assert "shared embeddings: the sense vectors start from the shared table" in caplog.text
    prepare(
        data_for("lstm"),
        "lstm",
        "--arch kerbs_lstm --share-decoder-input-output-embed --kerbs-init-vectors random",
    )
    assert "the sense vectors start on their own, with --kerbs-init-vectors random" in caplog.text
    assert decoder.embed_tokens.weight is encoder.embed_tokens.weight
    table = decoder.head.senses
    start = decoder.embed_tokens.weight[table.sense_to_word]
    spread = float(decoder.embed_tokens.weight.std())
    assert (table.vectors - start).abs().max() < 0.1 * spread
    assert not any(table.vectors is p for n, p in run.model.named_parameters() if "embed_tokens" in n)


@pytest.mark.parametrize(("preset", "ratio", "most", "bias"), [("", 1.5, 16, True), ("paper", 3, 4, False)])
def test_special_symbols_have_one_sense_and_the_others_what_the_preset_says(
    data_for, preset: str, ratio: float, most: int, bias: bool
) -> None:
    run = prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm {preset and '--kerbs-preset ' + preset}")
    table, dictionary = run.model.decoder.head.senses, run.task.target_dictionary
    numbers = table.senses_per_word()
    special = [dictionary.bos(), dictionary.pad(), dictionary.unk()]
    assert numbers[special].tolist() == [1] * 3
    assert int(numbers.sum()) == 3 + round(ratio * (len(dictionary) - 3))
    assert (int(numbers.min()), int(numbers.max())) == (1, most)
    assert (table.bias is not None) == bias
    assert torch.equal(table.initial_senses, numbers.int())
    if not preset:  # the end of a sentence is a frequent word
        assert int(numbers[dictionary.eos()]) == most
    else:
        assert run.cfg.model.kerbs_strategy == "paper"


def test_given_options_are_stronger_than_the_preset(data_for) -> None:
    run = prepare(
        data_for("lstm"), "lstm", "--arch kerbs_lstm --kerbs-preset paper --kerbs-senses 1.5 --kerbs-bias log"
    )
    assert run.model.decoder.head.senses.bias is not None
    assert (run.cfg.model.kerbs_senses, run.cfg.model.kerbs_max_senses) == (1.5, 4)


def test_the_senses_of_an_lstm_start_from_its_bias(data_for) -> None:
    stock = prepare(data_for("lstm"), "lstm", "--arch lstm").model.decoder.fc_out.bias.detach()
    for how, less in (("zero", 0.0), ("log", 1.0)):
        table = prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm --kerbs-bias {how}").model.decoder.head.senses
        expected = stock - less * table.senses_per_word().log()
        torch.testing.assert_close(table.bias.detach(), expected[table.sense_to_word])


def test_the_seed_decides_the_first_allocation_unless_another_is_given(data_for) -> None:
    maps = [
        prepare(
            data_for("lstm"), "lstm", f"--arch kerbs_lstm --kerbs-init random {own}", seed=seed
        ).model.decoder.head.senses.sense_to_word.tolist()
        for seed, own in ((1, ""), (2, ""), (1, "--kerbs-seed 2"), (3, "--kerbs-seed 2"))
    ]
    assert maps[0] != maps[1]
    assert maps[1] == maps[2] == maps[3]


def test_reference_option_gives_the_same_loss(data_for) -> None:
    command = "--arch kerbs_lstm --criterion kerbs_cross_entropy --label-smoothing 0.1"
    fast = prepare(data_for("lstm"), "lstm", command)
    plain = prepare(data_for("lstm"), "lstm", f"{command} --kerbs-reference")
    assert plain.model.decoder.head.reference
    sample = batch(fast)
    losses = [run.criterion(run.model, sample)[0] for run in (fast, plain)]
    torch.testing.assert_close(*losses)


def test_sentence_avg_counts_sentences(data_for) -> None:
    command = "--arch kerbs_lstm --criterion kerbs_cross_entropy"
    by_token = prepare(data_for("lstm"), "lstm", command)
    by_sentence = prepare(data_for("lstm"), "lstm", f"{command} --sentence-avg")
    sample = batch(by_token)
    assert by_token.criterion(by_token.model, sample)[1] == sample["ntokens"] > 6
    assert by_sentence.criterion(by_sentence.model, sample)[1] == 6


def test_losses_are_logged_as_the_stock_criterion_logs_them(data_for) -> None:
    # in bits: per token, but for the loss that is trained with --sentence-avg
    outputs = [
        {"loss": torch.tensor(40.0 * n), "nll_loss": torch.tensor(30.0 * n), "ntokens": 9, "sample_size": 4 * n}
        for n in (1, 2)
    ]
    logged = []
    for name in ("kerbs_cross_entropy", "label_smoothed_cross_entropy"):
        run = prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm --criterion {name} --label-smoothing 0.1")
        with metrics.aggregate(new_root=True) as values:
            type(run.criterion).reduce_metrics(outputs)
        logged.append({key: float(values.get_smoothed_values()[key]) for key in ("loss", "nll_loss", "ppl")})
    assert logged[0] == logged[1]
    assert logged[0]["nll_loss"] == pytest.approx(90 / 18 / math.log(2), abs=1e-3)


@pytest.mark.parametrize("how", ["random", "uniform", "frequency"])
def test_first_allocation_uses_the_dictionary(data_for, how: str) -> None:
    run = prepare(data_for("lstm_lm"), "lstm_lm", f"--arch kerbs_lstm_lm --kerbs-init {how} --kerbs-senses 2")
    numbers = run.model.decoder.head.senses.senses_per_word()
    dictionary = run.task.target_dictionary
    the, rare = dictionary.index("the"), len(dictionary) - 1
    while dictionary[rare].startswith("madeupword"):
        rare -= 1
    if how == "uniform":
        assert set(numbers[4:].tolist()) == {2}
    if how == "frequency":
        assert int(numbers[rare]) == 1
        assert int(numbers[the]) == int(numbers[dictionary.eos()]) == 16
    assert int(numbers.sum()) == 3 + 2 * (len(dictionary) - 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kerbs-senses 0.5", "0.5 senses per word are outside the bounds"),
        ("--kerbs-min-senses 3 --kerbs-max-senses 2", r"the minimum number of senses \(3\) is above the maximum \(2\)"),
        ("--kerbs-min-senses 0", "every word needs at least 1"),
        ("--kerbs-chunk -1", "a chunk of -1 tokens"),
        ("--kerbs-theta-bound 0", "the bound of θ is 0"),
        ("--kerbs-theta-init nan", "θ cannot start at nan"),
        ("--kerbs-theta-init 9", "θ cannot start at 9: it is bound to stay within ±8"),
        ("--kerbs-kernel dot --kerbs-theta-init 1", "--kerbs-theta-init has no effect with --kerbs-kernel dot"),
        ("--kerbs-kernel released --kerbs-theta-bound 2", "--kerbs-theta-bound has no effect with --kerbs-kernel rel"),
        ("--kerbs-reference --kerbs-chunk 5", "--kerbs-chunk has no effect with --kerbs-reference: leave it out"),
        ("--adaptive-softmax-cutoff 50,100", "an adaptive softmax"),
        ("--label-smoothing -0.1", "--label-smoothing -0.1: it must be at least 0 and below 1"),
    ],
)
def test_mistakes_are_explained(data_for, options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm --criterion kerbs_cross_entropy {options}")


@pytest.mark.parametrize(
    ("options", "message"), [("--mos-components 0", "0 components"), ("--mos-dropout -0.1", "a dropout of -0.1")]
)
def test_bad_options_of_a_mixture_are_explained(data_for, options: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.* See the --mos-… options in --help"):
        prepare(data_for("lstm"), "lstm", f"--arch mos_lstm {options}")


@pytest.mark.parametrize("base", FAMILIES)
def test_a_mixture_from_the_identity_starts_as_the_stock_model(data_for, base: str) -> None:
    stock = prepare(data_for(base), base, f"--arch {FAMILIES[base]}")
    twin = prepare(data_for(base), base, f"--arch mos_{FAMILIES[base]} --mos-init identity")
    sample = batch(stock)
    for train in (True, False):
        stock.model.train(train)
        twin.model.train(train)
        torch.testing.assert_close(log_probs(twin, sample), log_probs(stock, sample), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "dropout"),
    [
        ("--dropout 0.3", 0.3),
        ("--dropout 0.3 --mos-dropout 0.1", 0.1),
        ("--dropout 0.3 --mos-init identity", 0.0),
        ("--dropout 0.3 --mos-init identity --mos-dropout 0.2", 0.2),
    ],
)
def test_dropout_of_the_latents_follows_that_of_the_model(data_for, options: str, dropout: float) -> None:
    run = prepare(data_for("gru_lm"), "gru_lm", f"--arch mos_gru_lm {options}")
    assert run.model.decoder.head.dropout.p == dropout


@pytest.mark.parametrize("base", ["lstm", "gru_lm"])  # options as a namespace, and as a dataclass
def test_mixtures_of_version_0_1_are_loaded(data_for, base: str) -> None:
    run = prepare(data_for(base), base, f"--arch mos_{base}")
    state = run.model.state_dict()
    assert {name for name in state if "head" in name} == {
        f"decoder.head.{name}" for name in ("latent.weight", "latent.bias", "prior.weight")
    }
    saved = run.cfg.model
    for name in ("mos_init", "mos_dropout"):  # which a checkpoint of that version does not have
        if isinstance(saved, argparse.Namespace):
            delattr(saved, name)
        else:
            with open_dict(saved):
                del saved[name]
    again = run.task.build_model(saved, from_checkpoint=True)
    again.load_state_dict(state)
    sample = batch(run)
    torch.testing.assert_close(again(**sample["net_input"])[0], run.model(**sample["net_input"])[0])


def test_checkpoint_with_another_vocabulary_is_refused(data_for) -> None:
    run = prepare(data_for("gru_lm"), "gru_lm", "--arch kerbs_gru_lm --kerbs-senses 1")
    state, words = run.model.state_dict(), len(run.task.target_dictionary)
    state["decoder.head.senses.sense_to_word"] = state["decoder.head.senses.sense_to_word"].clamp_max(words - 2)
    state["decoder.head.senses.map_checksum"].zero_()  # unknown
    with pytest.raises(ValueError, match=f"senses for {words - 1} words, the model has {words} words"):
        run.model.load_state_dict(state)


@pytest.mark.parametrize("base", FAMILIES)
def test_word_probabilities_are_sums_over_senses(data_for, base: str) -> None:
    run = prepare(data_for(base), base, f"--arch kerbs_{FAMILIES[base]} --kerbs-theta-init 0.7")
    run.model.eval()
    sample = batch(run)
    with torch.no_grad(), features_of(run.model.decoder):
        h = run.model(**sample["net_input"])[0].double()
    table = run.model.decoder.head.senses
    w, theta, b = (x.detach().double() for x in (table.vectors, table.theta, table.bias))
    cosine = torch.nn.functional.cosine_similarity(h.unsqueeze(2), w, dim=-1)
    a = -theta / (2 * (torch.exp(-theta) + theta - 1))
    K = h.norm(dim=-1, keepdim=True) * w.norm(dim=-1) * a * (torch.exp(-theta * cosine) - 1) + b
    P = torch.softmax(K, -1)
    words = torch.zeros(*P.shape[:2], table.n_words, dtype=P.dtype).index_add_(2, table.sense_to_word, P)
    torch.testing.assert_close(log_probs(run, sample).double().exp(), words, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("base", ["lstm", "transformer_align", *LANGUAGE_MODELS])
def test_beam_scores_are_those_of_forced_decoding(data_for, base: str) -> None:
    run = prepare(data_for(base), base, f"--arch kerbs_{base} --kerbs-theta-init 0.7")
    sample = batch(run)
    found = search(run, sample, beam=5)
    eos = run.task.target_dictionary.eos()
    for sentence, hypotheses in enumerate(found):
        source = sample["net_input"]["src_tokens"][sentence : sentence + 1]
        source = source[source != run.task.source_dictionary.pad()].unsqueeze(0)
        for tokens, score in hypotheses:
            if base in LANGUAGE_MODELS:
                net_input = {"src_tokens": torch.tensor([[eos, *tokens[:-1]]])}
            else:
                net_input = {
                    "src_tokens": source,
                    "src_lengths": torch.tensor([source.size(1)]),
                    "prev_output_tokens": torch.tensor([[eos, *tokens[:-1]]]),
                }
            with torch.no_grad():
                forced = log_probs(run, {"net_input": net_input})[0]
            total = forced.gather(1, torch.tensor(tokens).unsqueeze(1)).sum()
            assert float(total) / len(tokens) == pytest.approx(score, abs=1e-5)


def test_validation_computes_no_gradients(data_for, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = []
    over_chunks = chunked_loss.over_chunks
    monkeypatch.setattr(chunked_loss, "over_chunks", lambda *args: (wanted.append(args[-1]), over_chunks(*args))[1])
    run = prepare(data_for("lstm"), "lstm", "--arch kerbs_lstm --criterion kerbs_cross_entropy")
    run.criterion(run.model, batch(run))
    with torch.no_grad():
        run.criterion(run.model, batch(run))
    assert wanted == [True, False]


@pytest.mark.parametrize(
    ("saved", "loaded", "message"),
    [
        ("kerbs_lstm", "kerbs_lstm --kerbs-kernel released", "has the kernel paper, the model has released"),
        ("kerbs_lstm", "kerbs_lstm --kerbs-kernel dot", "has the kernel paper, the model has dot"),
        ("kerbs_lstm", "mos_lstm", "of a model with another output layer"),
        ("mos_lstm", "kerbs_lstm", "of a model with another output layer"),
    ],
)
def test_checkpoint_of_another_kind_is_refused(data_for, saved: str, loaded: str, message: str) -> None:
    source, to = (prepare(data_for("lstm"), "lstm", f"--arch {arch}") for arch in (saved, loaded))
    with pytest.raises(ValueError, match=message):
        to.model.load_state_dict(source.model.state_dict())


@pytest.mark.parametrize("base", ["gru_lm", "transformer_lm"])
def test_smaller_output_dictionary(data_for, base: str) -> None:
    command = f"--arch kerbs_{base} --criterion kerbs_cross_entropy --output-dictionary-size 100 --kerbs-init frequency"
    run = prepare(data_for(base), base, command)
    assert run.model.decoder.head.n_words == 100
    assert run.criterion(run.model, batch(run))[0] > 0


@pytest.mark.parametrize("kernel", ["paper", "released"])
def test_theta_of_a_half_precision_model_is_bent_in_float32(data_for, kernel: str) -> None:
    run = prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm --kerbs-kernel {kernel} --kerbs-theta-init 1.5")
    table = run.model.decoder.head.senses
    full = table.theta
    half = table.bfloat16().theta
    assert half.dtype == torch.float32
    assert torch.equal(full, half)
    assert table.sense_to_word.dtype == torch.long
