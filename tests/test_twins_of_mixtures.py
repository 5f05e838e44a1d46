"""The twins ``mos_X``: their start, their dropout, and checkpoints of version 0.1."""

import argparse

import pytest
import torch
from inprocess import FAMILIES, batch, log_probs, prepare
from omegaconf import open_dict


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
