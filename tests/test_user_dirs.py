"""A user's own --user-dir together with ours."""

import os
import subprocess
import sys
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


NOTHING_OF_OURS = {**ENVIRONMENT, READ_AT_IMPORT: ""}  # has been imported before


@pytest.mark.thorough  # ours first: below
def test_both_folders_are_named_ours_last(own: Path, pairs: Path, tmp_path: Path) -> None:
    both = command(pairs, tmp_path / "save", f"--user-dir {own} --user-dir {PACKAGE}")
    assert "valid_loss" in run(both, env=NOTHING_OF_OURS)


def test_a_folder_that_is_not_there(pairs: Path, tmp_path: Path) -> None:
    both = command(pairs, tmp_path / "save", f"--user-dir=missing --user-dir {PACKAGE}")
    done = start(both, env=NOTHING_OF_OURS)
    assert done.returncode != 0
    assert "--user-dir missing cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr


# --- the boot shim of these sources, which may be newer than the one that is installed

SHIM = {
    **ENVIRONMENT,
    "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent / "boot"), os.environ.get("PYTHONPATH", "")]),
}


def test_both_folders_are_named_ours_first(own: Path, pairs: Path, tmp_path: Path) -> None:
    (own / "__init__.py").write_text(OWN.partition("import kerbs_fairseq")[0])  # a model, and nothing about us
    folders = f"--user-dir {PACKAGE} --user-dir {own}"
    both = command(pairs, tmp_path / "save", folders).replace("kerbs_mine_tiny", "kerbs_lstm --decoder-hidden-size 8")
    assert "valid_loss" in run(both, env=SHIM, fresh=True)


def at_boot(arguments: str, then: str) -> subprocess.CompletedProcess:
    """What the shim does at the first import of hydra, which is quicker than fairseq's."""
    program = f"import sys; sys.argv = {['/bin/fairseq-train', *arguments.split()]}; import hydra; {then}"
    return subprocess.run([sys.executable, "-c", program], env=SHIM, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--user-dir /x/kerbs_fairseq/ d --user-dir a --lr 1", "--user-dir a d --user-dir /x/kerbs_fairseq/ --lr 1"),
        (
            "--user-dir=kerbs_fairseq --user-dir a --user-dir=b",
            "--user-dir=a --user-dir b --user-dir=kerbs_fairseq",
        ),
        ("d --user-dir a --user-dir kerbs_fairseq", "d --user-dir a --user-dir kerbs_fairseq"),
        ("d --user-dir b --user-dir a --user-dir", "d --user-dir b --user-dir a --user-dir"),
    ],
)
def test_ours_is_put_last(given: str, expected: str) -> None:
    done = at_boot(given, "print(*sys.argv[1:])")
    assert done.stdout.split() == expected.split(), done.stderr


def test_another_folder_alone_that_does_not_import_us() -> None:
    line = "fairseq-train: kerbs_lstm is of kerbs_fairseq: add --user-dir kerbs_fairseq to the command"
    model = "--user-dir a --arch kerbs_lstm"
    assert at_boot(model, "sys.exit('unknown')").stderr.splitlines()[-2:] == ["unknown", line]
    assert line not in at_boot(model, "import kerbs_fairseq").stderr  # the folder did it
    assert line not in at_boot("--user-dir a --arch lstm", "sys.exit('unknown')").stderr
