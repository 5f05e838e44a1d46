"""Models, tasks and options that cannot be had with KerBS, each said in one line by fairseq-train."""

import importlib
import json
import shutil
from pathlib import Path

import pytest
from command_client import READ_AT_IMPORT
from commands import ENVIRONMENT, PACKAGE, QUICK, start

pytestmark = pytest.mark.e2e

EXAMPLES = Path(importlib.import_module("fairseq").__file__).parent / "examples"
TWINS = """
from fairseq import models
from kerbs_fairseq.plugin.models import add_twins

for name in ("transformer_pointer_generator", "laser_lstm"):
    if name in models.MODEL_REGISTRY:
        add_twins(name)
"""


def refused(data: object, options: str) -> str:
    """The only line that fairseq-train, with nothing of ours imported before, ends with."""
    command = f"fairseq-train {data} {options} --user-dir {PACKAGE} --criterion kerbs_cross_entropy {QUICK} --cpu"
    done = start(command, env={**ENVIRONMENT, READ_AT_IMPORT: ""})
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("kerbs_fairseq: "))
    return line


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A user's folder that asks for twins of models of fairseq's examples."""
    (tmp_path / "twins_of_examples").mkdir()
    (tmp_path / "twins_of_examples" / "__init__.py").write_text(TWINS)
    return tmp_path / "twins_of_examples"


@pytest.mark.parametrize("head", ["kerbs", pytest.param("mos", marks=pytest.mark.thorough)])
def test_scalar_quantization(pairs: Path, head: str) -> None:
    line = refused(pairs, f"--arch {head}_transformer_iwslt_de_en --quant-noise-scalar 0.5")
    assert "--quant-noise-scalar cannot be used with KerBS or MoS" in line
    assert line.endswith("leave it out, or use --quant-noise-pq")


def test_online_backtranslation(joined: Path, tmp_path: Path) -> None:
    shutil.copy(joined / "dict.src.txt", tmp_path / "dict.txt")
    task = "--task online_backtranslation --mono-langs src,tgt --valid-lang-pairs src-tgt"
    line = refused(tmp_path, f"{task} --arch kerbs_transformer_iwslt_de_en --share-all-embeddings")
    assert "--task online_backtranslation adds words to the model's last matrix after it is built" in line


def test_a_pointer_generator(joined: Path, own: Path) -> None:
    model = "--arch kerbs_transformer_pointer_generator --alignment-layer -1 --alignment-heads 1 --encoder-layers 1"
    folders = f"--user-dir {EXAMPLES}/pointer_generator/pointer_generator_src --user-dir {own}"
    line = refused(joined, f"{folders} {model} --source-position-markers 10 --decoder-layers 1")
    assert "output layer of TransformerPointerGeneratorDecoder also needs attn, src_tokens, p_gens: it mixes" in line


def test_laser(joined: Path, own: Path, tmp_path: Path) -> None:
    words = {f"{side}_vocab": f"{joined}/dict.{side}.txt" for side in ("src", "tgt")}
    (tmp_path / "laser.json").write_text(json.dumps({**words, "train": [{"id": 0}]}))
    folders = f"--user-dir {EXAMPLES}/laser/laser_src --user-dir {own}"
    line = refused(tmp_path / "laser.json", f"{folders} --task laser --arch kerbs_laser_lstm")
    assert "LSTMDecoder has no output_layer(features): its last matrix is part of its forward" in line
