"""A user's own --user-dir together with ours."""

from pathlib import Path

import pytest
from command_client import READ_AT_IMPORT
from commands import ENVIRONMENT, PACKAGE, QUICK, run, start

pytestmark = pytest.mark.e2e

OWN = """
from fairseq.models import register_model, register_model_architecture
from fairseq.models.lstm import LSTMModel, base_architecture

import kerbs_fairseq.plugin.models

@register_model("mine")
class Mine(LSTMModel):
    pass


@register_model_architecture("mine", "mine_tiny")
def tiny(args):
    for part in ("encoder", "decoder"):
        setattr(args, part + "_embed_dim", 8)
        setattr(args, part + "_hidden_size", 8)
    args.decoder_out_embed_dim = 8
    base_architecture(args)


kerbs_fairseq.plugin.models.add_twins("mine")
"""


def command(data: Path, save: Path, user_dirs: str) -> str:
    model = "--arch kerbs_mine_tiny --criterion kerbs_cross_entropy --max-update 2"
    return f"fairseq-train {data} {user_dirs} {model} --save-dir {save} {QUICK}"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own_models").mkdir()
    (tmp_path / "own_models" / "__init__.py").write_text(OWN)
    return tmp_path / "own_models"


def test_a_users_folder_that_imports_ours(own: Path, pairs: Path, tmp_path: Path) -> None:
    assert "valid_loss" in run(command(pairs, tmp_path / "save", f"--user-dir {own}"))
    path = f"--path {tmp_path}/save/checkpoint_last.pt"
    assert "H-0" in run(f"fairseq-generate {pairs} --user-dir {own} {path} --batch-size 60")


def test_both_folders_are_named_ours_last(own: Path, pairs: Path, tmp_path: Path) -> None:
    env = {**ENVIRONMENT, READ_AT_IMPORT: ""}  # nothing of ours has been imported before
    assert "valid_loss" in run(command(pairs, tmp_path / "save", f"--user-dir {own} --user-dir {PACKAGE}"), env=env)
    done = start(command(pairs, tmp_path / "save", f"--user-dir=missing --user-dir {PACKAGE}"), env=env)
    assert done.returncode != 0
    assert "--user-dir missing cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr
