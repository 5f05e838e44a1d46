"""The install commands of the README, in new environments with the newest and with an old pip, and with uv.

Each takes minutes and downloads what it installs, so `make test` leaves them out: `make test-install`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PACKAGE

pytestmark = pytest.mark.install

ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def documented(heading: str) -> list[str]:
    """The commands of the first code block behind ``heading``."""
    block = re.search(rf"{re.escape(heading)}.*?```(?:bash|sh)\n(.*?)```", README, re.S)
    return [line for line in block[1].splitlines() if line and not line.startswith("#")]


def call(venv: Path, command: str, cwd: Path = ROOT) -> str:
    env = {**os.environ, "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(venv)}
    env["UV_FIND_LINKS"] = env.get("PIP_FIND_LINKS", "")
    done = subprocess.run(shlex.split(command), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.mark.parametrize("installer", ["pip", "pip==23.0.1", "uv"])
def test_documented_install(tmp_path: Path, corpus: Path, installer: str) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    call(venv, f"python -m pip install --quiet --upgrade {installer}")
    for command in documented("### With uv" if installer == "uv" else "### With pip"):
        call(venv, command)
    assert "usage:" in call(venv, "fairseq-train --help", tmp_path)
    assert "No problems found." in call(venv, "kerbs-doctor", tmp_path)
    pairs = corpus / "parallel"
    call(
        venv,
        f"fairseq-preprocess -s src -t tgt --trainpref {pairs}/train --validpref {pairs}/valid --testpref {pairs}/test "
        "--destdir data",
        tmp_path,
    )
    # the plain name, from a folder that has no kerbs_fairseq in it
    out = call(
        venv,
        "fairseq-train data --user-dir kerbs_fairseq --arch lstm --optimizer adam --max-tokens 2000 --max-update 2",
        tmp_path,
    )
    assert "done training" in out
    remove = "uv pip uninstall kerbs-fairseq" if installer == "uv" else "pip uninstall --yes kerbs-fairseq"
    call(venv, remove, tmp_path)
    assert [path for path in venv.rglob("*") if "kerbs" in path.name] == []
