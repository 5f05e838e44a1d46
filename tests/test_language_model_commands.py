"""The stock language-model commands, fairseq-hydra-train and --store-ema, with the plugin as --user-dir."""

import re
from pathlib import Path

import pytest
import torch
from commands import PACKAGE, SMALL_LSTM_LM, SMALL_TRANSFORMER, run, train

pytestmark = pytest.mark.e2e

LM_TASK = "--task language_modeling --sample-break-mode eos"


def test_eval_lm_by_sentences(text: Path, transformer_lm: Path) -> None:
    out = run(
        f"fairseq-eval-lm {text} --user-dir {PACKAGE} --path {transformer_lm}/checkpoint_best.pt --gen-subset test "
        "--sample-break-mode eos --max-tokens 800"
    )
    loss, ppl = re.search(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", out).groups()
    assert 2 ** float(loss) == pytest.approx(float(ppl), rel=1e-2)
    assert float(ppl) < 400  # the dictionary has about that many words


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_lstm_lm_trains_and_evaluates(text: Path, tmp_path: Path) -> None:
    train(text, SMALL_LSTM_LM, tmp_path, f"{LM_TASK} --max-update 6")
    out = run(
        f"fairseq-eval-lm {text} --user-dir {PACKAGE} --path {tmp_path}/checkpoint_best.pt --gen-subset test "
        "--sample-break-mode eos --max-tokens 800"
    )
    assert "Perplexity" in out


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_hydra_train(text: Path, tmp_path: Path) -> None:
    log = run(
        f"fairseq-hydra-train task=language_modeling task.data={text} model=transformer_lm model.decoder_layers=1 "
        "model.decoder_embed_dim=32 model.decoder_attention_heads=2 model.decoder_ffn_embed_dim=32 optimizer=adam "
        "lr_scheduler=fixed optimization.lr=[0.005] optimization.max_update=3 dataset.max_tokens=800 "
        f"common.user_dir={PACKAGE} checkpoint.save_dir={tmp_path}/save",
        cwd=tmp_path,
    )
    assert "done training" in log
    checkpoint = torch.load(tmp_path / "save" / "checkpoint_last.pt", weights_only=False)
    assert checkpoint["cfg"]["model"]["decoder_embed_dim"] == 32


@pytest.mark.thorough  # with KerBS: test_kerbs_commands.py
def test_ema_follows_the_model(pairs: Path, tmp_path: Path) -> None:
    train(pairs, SMALL_TRANSFORMER, tmp_path, "--max-update 5 --store-ema --ema-decay 0.5")
    checkpoint = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)
    name = "decoder.output_projection.weight"
    model, average = checkpoint["model"][name], checkpoint["extra_state"]["ema"][name]
    assert not torch.equal(model, average)
    assert (model - average).abs().mean() < 0.1 * model.abs().mean()
    log = train(pairs, SMALL_TRANSFORMER, tmp_path, "--max-update 6 --store-ema --ema-decay 0.5")
    assert re.search(r"Loaded checkpoint .* 5 updates", log)
