"""Every kind of twin in the registry: a training step, probabilities that sum to 1, a beam search; or a refusal."""

import argparse
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils, models, options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from inprocess import (
    TWINS,
    batch,
    kinds,
    log_probs,
    parse,
    prepare,
    representative,
    search,
    settings_of,
    trainer,
)

from kerbs_fairseq.plugin import models as twins
from kerbs_fairseq.plugin.unsupported import REASONS

KINDS = kinds()
OTHER_SIZES = [twin for twin in TWINS if twin not in KINDS]
FREE_OF_KERBS = {name for name in models.MODEL_REGISTRY if not name.startswith(("kerbs_", "mos_"))}
ALL_OF_THE_PAPER = (
    "--kerbs-preset paper --kerbs-senses 3 --kerbs-max-senses 4 --kerbs-init random --kerbs-init-vectors random "
    "--kerbs-bias none --kerbs-reallocate-every 100 --kerbs-strategy paper --kerbs-moved-vector keep"
)


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
    beams = search(run, sample, beam=3)
    assert [len(sentence) for sentence in beams] == [3] * 6


@pytest.mark.parametrize(("base", "arch"), OTHER_SIZES, ids=[arch for _, arch in OTHER_SIZES])
def test_a_twin_of_other_sizes_is_made_like_the_one_that_is_trained(base: str, arch: str) -> None:
    trained = representative(base, arch)
    assert (base, trained) in KINDS
    assert models.ARCH_MODEL_REGISTRY[arch] is models.ARCH_MODEL_REGISTRY[trained]
    assert models.ARCH_MODEL_NAME_REGISTRY[arch] == models.ARCH_MODEL_NAME_REGISTRY[trained]
    assert settings_of(base, arch) == settings_of(base, trained)
    assert adaptive_by_default(arch) == adaptive_by_default(trained)


def adaptive_by_default(arch: str) -> bool:

    args = argparse.Namespace()
    models.ARCH_CONFIG_REGISTRY[arch](args)
    return getattr(args, "adaptive_softmax_cutoff", None) is not None and "lstm" not in arch


def test_some_architectures_are_adaptive_by_default() -> None:
    assert adaptive_by_default("kerbs_transformer_lm_wiki103")
    assert not adaptive_by_default("kerbs_transformer_lm_gpt")


def test_a_twin_has_the_defaults_of_its_architecture() -> None:

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
    assert run.cfg.model.kerbs_reallocate_every == (100 if preset else 0)
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


def test_what_pruning_does_not_prune_is_said(data_for, caplog: pytest.LogCaptureFixture) -> None:
    def prepared(prefix: str, share: str = "") -> Any:
        run = prepare(data_for("lstm"), "lstm", f"--arch {prefix}lstm")
        caplog.clear()
        command = f"data --path model.pt {share and f'--kerbs-prune {share}'}"
        args = options.parse_args_and_arch(options.get_generation_parser(), command.split())
        if prefix == "kerbs_":
            head = run.model.decoder.head
            head.statistics.updates.add_(1)
            head.statistics.usage.fill_(float(share != "0.8"))
        run.model.prepare_for_inference_(convert_namespace_to_omegaconf(args))
        return run.model

    for prefix in ("", "mos_"):
        prepared(prefix, "0.9")
        assert "--kerbs-prune has no effect: the model has no senses" in caplog.text
    assert prepared("kerbs_", "0.8").decoder.head.prune == 0
    assert "--kerbs-prune has no effect: the model has no statistics of its senses" in caplog.text
    assert prepared("kerbs_", "0.9").decoder.head.prune == 0.9
    assert "--kerbs-prune 0.9 leaves out" in caplog.text
    assert prepared("kerbs_").decoder.head.prune == 0  # what an earlier command of this process asked for is over


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


@pytest.mark.parametrize("base", ["lstm_lm", "transformer_lm"])
def test_a_trained_model_needs_no_counts(
    text: Path, base: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where it is used there may be no training data, and a dictionary of words that all have the count 1."""
    caplog.set_level("INFO")
    minimum = "--kerbs-min-count 40"
    run = prepare(text, base, f"--arch kerbs_{base} --optimizer sgd --lr 0.1 {minimum}")
    training = trainer(run)
    training.consolidate_optimizer()
    training.save_checkpoint(str(tmp_path / "model.pt"), {})
    words = (text / "dict.txt").read_text(encoding="utf-8")
    (tmp_path / "dict.txt").write_text(re.sub(r" \d+$", " 1", words, flags=re.M), encoding="utf-8")
    loaded, *_ = checkpoint_utils.load_model_ensemble_and_task([str(tmp_path / "model.pt")], {"data": str(tmp_path)})
    senses = [model.decoder.head.senses.senses_per_word() for model in (run.model, loaded[0])]
    assert torch.equal(*senses)
    asked = 3 + round(1.5 * (len(senses[0]) - 3))
    assert f"{asked} senses asked for, {senses[0].sum()} allocated" in caplog.text
    assert "counts of the dictionary" not in caplog.text
    cfg = convert_namespace_to_omegaconf(parse(tmp_path, base, f"--arch kerbs_{base} {minimum}"))
    with pytest.raises(ValueError, match="no word occurs 80 times"):  # but a new training needs them
        tasks.setup_task(cfg.task).build_model(cfg.model)
    assert caplog.text.count("senses are allocated by the counts of the dictionary") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--kerbs-senses 0.5", "0.5 senses per word are outside the bounds"),
        ("--kerbs-min-senses 3 --kerbs-max-senses 2", r"the minimum number of senses \(3\) is above the maximum \(2\)"),
        ("--kerbs-min-senses 0", "every word needs at least 1"),
        ("--kerbs-chunk -1", "a chunk of -1 tokens"),
        ("--kerbs-theta-bound 0", "the bound of θ is 0"),
        ("--kerbs-theta-init nan", "θ cannot start at nan"),
        ("--kerbs-theta-init 9", "θ cannot start at 9: its bound is ±8"),
        ("--kerbs-kernel dot --kerbs-theta-init 1", "--kerbs-theta-init has no effect with --kerbs-kernel dot"),
        ("--kerbs-kernel released --kerbs-theta-bound 2", "--kerbs-theta-bound has no effect with --kerbs-kernel rel"),
        ("--kerbs-reference --kerbs-chunk 5", "--kerbs-chunk has no effect with --kerbs-reference: leave it out"),
        ("--kerbs-init random --kerbs-power 0.5", "--kerbs-power has no effect with --kerbs-init random and"),
        ("--kerbs-init random --kerbs-min-count 5", "--kerbs-min-count has no effect with --kerbs-init random"),
        (
            "--kerbs-reallocate-every 100 --kerbs-moved-vector keep --kerbs-split-noise 0.1",
            "--kerbs-split-noise has no effect with --kerbs-moved-ve",
        ),
        ("--kerbs-bias none --kerbs-bias-rate 2", "--kerbs-bias-rate has no effect with --kerbs-bias none"),
        ("--kerbs-kernel dot --kerbs-theta-rate 2", "--kerbs-theta-rate has no effect with --kerbs-kernel dot"),
        (
            "--kerbs-move-log x",
            "--kerbs-move-log has no effect with --kerbs-reallocate-every 0, the default: set that to",
        ),
        ("--kerbs-strategy loss --kerbs-threshold -5", "--kerbs-threshold has no effect with --kerbs-strategy loss"),
        ("--kerbs-senses 1 --kerbs-power 0.5", "--kerbs-power has no effect with --kerbs-senses 1: .* exactly 1"),
        ("--kerbs-senses 4 --kerbs-max-senses 4 --kerbs-min-count 2", "--kerbs-min-count has no effect .* exactly 4"),
        ("--kerbs-senses 1 --kerbs-init random", "--kerbs-init has no effect with --kerbs-senses 1: .* exactly 1"),
        ("--kerbs-senses 1 --kerbs-max-senses 8", "--kerbs-max-senses has no effect with --kerbs-senses 1"),
        ("--kerbs-power 11", "power of the count is 11: it must be from 0 to 10"),
        ("--kerbs-theta-rate inf", "rates of inf for θ and 1 for the bias: from 1e-06 to 1e\\+06 are possible"),
        ("--kerbs-theta-rate 1e14", "rates of 1e\\+14 for θ"),
        ("--kerbs-bias-rate 1e-7", "rates of 1 for θ and 1e-07 for the bias"),
        (
            "--kerbs-reallocate-every 9 --kerbs-split-noise inf",
            "--kerbs-split-noise inf: it must be 0 or more, and finite",
        ),
        (f"{ALL_OF_THE_PAPER} --kerbs-power 0.5", "--kerbs-power has no effect with --kerbs-init random and"),
        ("--adaptive-softmax-cutoff 50,100", "an adaptive softmax"),
        ("--label-smoothing -0.1", "--label-smoothing -0.1: it must be at least 0 and below 1"),
    ],
)
def test_mistakes_are_explained(data_for, options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm --criterion kerbs_cross_entropy {options}")


def test_checkpoint_with_another_vocabulary_is_refused(data_for) -> None:
    run = prepare(data_for("gru_lm"), "gru_lm", "--arch kerbs_gru_lm --kerbs-senses 1")
    state, words = run.model.state_dict(), len(run.task.target_dictionary)
    state["decoder.head.senses.sense_to_word"] = state["decoder.head.senses.sense_to_word"].clamp_max(words - 2)
    state["decoder.head.senses.map_checksum"].zero_()  # unknown
    with pytest.raises(ValueError, match=f"senses for {words - 1} words, the model has {words} words"):
        run.model.load_state_dict(state)


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
def test_theta_of_a_half_precision_model_is_bounded_in_float32(data_for, kernel: str) -> None:
    run = prepare(data_for("lstm"), "lstm", f"--arch kerbs_lstm --kerbs-kernel {kernel} --kerbs-theta-init 1.5")
    table = run.model.decoder.head.senses
    full = table.theta
    half = table.bfloat16().theta
    assert half.dtype == torch.float32
    assert torch.equal(full, half)
    assert table.sense_to_word.dtype == torch.long
