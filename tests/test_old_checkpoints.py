"""Checkpoints of version 0.1, in data/v0.1, load, generate and resume as they did there.

They were made by version 0.1 with its defaults (3 senses per word, allocated at random, no bias): 8 updates with
``--kerbs-reallocate-every 2 --kerbs-reallocate-after 2``, and expected.json by generating from them and going on to 14.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from commands import PACKAGE, run, start

pytestmark = pytest.mark.e2e

DATA = Path(__file__).parent / "data" / "v0.1"
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))
MODELS = {
    "transformer": "--arch kerbs_transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 8 "
    "--encoder-ffn-embed-dim 8 --encoder-attention-heads 2 --decoder-embed-dim 8 --decoder-ffn-embed-dim 8 "
    "--decoder-attention-heads 2 --dropout 0",
    "lstm": "--arch kerbs_lstm --encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 8 "
    "--encoder-hidden-size 8 --decoder-hidden-size 8 --dropout 0",
}
TRAINING = (
    "--criterion kerbs_cross_entropy --optimizer adam --lr 0.01 --max-tokens 200 --no-progress-bar --log-format json "
    "--no-epoch-checkpoints --seed 3 --kerbs-reallocate-every 2 --kerbs-reallocate-after 2 --cpu --max-update 14"
)


@pytest.mark.parametrize("model", MODELS)
def test_it_generates_what_it_did(model: str) -> None:
    options = "--beam 3 --cpu --no-progress-bar --max-len-b 10"
    output = run(f"fairseq-generate {DATA}/pairs --user-dir {PACKAGE} --path {DATA}/{model}.pt {options}")
    hypotheses = sorted(
        (int(i), float(score), text) for i, score, text in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", output, re.M)
    )
    assert [(i, text) for i, _, text in hypotheses] == [(i, text) for i, _, text in EXPECTED[model]["hypotheses"]]
    for (_, score, _), (_, before, _) in zip(hypotheses, EXPECTED[model]["hypotheses"]):
        assert score == pytest.approx(before, abs=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_it_resumes_as_it_did(model: str, tmp_path: Path) -> None:
    shutil.copy(DATA / f"{model}.pt", tmp_path / "checkpoint_last.pt")
    command = f"fairseq-train {DATA}/pairs --user-dir {PACKAGE} {MODELS[model]} {TRAINING} --save-dir {tmp_path}"
    log = run(f"{command} --kerbs-preset paper --kerbs-seed 1")
    (loss,) = re.findall(r'"valid_num_updates": "14".*', log)[:1] and re.findall(r'"valid_loss": "([\d.]+)"', log)[-1:]
    assert float(loss) == pytest.approx(float(EXPECTED[model]["valid_loss"]), abs=2e-3)
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["model"]
    words = saved["decoder.head.senses.sense_to_word"]
    assert int(saved["decoder.head.statistics.moves"]) == EXPECTED[model]["moves"]
    assert int((words * torch.arange(len(words))).sum()) == EXPECTED[model]["map_sum"]
    norm = float(saved["decoder.head.senses.vectors"].double().norm())
    assert norm == pytest.approx(EXPECTED[model]["vectors_norm"], rel=1e-5)
    assert "decoder.head.senses.bias_raw" not in saved


def test_with_the_new_defaults_it_says_which_ones_to_use(tmp_path: Path) -> None:
    shutil.copy(DATA / "lstm.pt", tmp_path / "checkpoint_last.pt")
    done = start(f"fairseq-train {DATA}/pairs --user-dir {PACKAGE} {MODELS['lstm']} {TRAINING} --save-dir {tmp_path}")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "version 0.1 had other defaults, which --kerbs-preset paper gives" in done.stderr
