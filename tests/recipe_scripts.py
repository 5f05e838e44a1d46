"""Starting the scripts of the recipes, with stand-ins for the commands that they call."""

import shutil
import subprocess
from pathlib import Path

from commands import ENVIRONMENT, PACKAGE, with_stand_ins

RECIPES = Path(__file__).resolve().parent.parent / "recipes"


def start(script: str, *arguments: object, **options: object) -> subprocess.CompletedProcess:
    command = ["bash", str(RECIPES / script), *map(str, arguments)]
    env = with_stand_ins()
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False, **options)


def run(script: str, *arguments: object) -> str:
    done = start(script, *arguments)
    assert done.returncode == 0, f"{script}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def refusal(script: str, *arguments: object) -> str:
    done = start(script, *arguments)
    assert done.returncode != 0
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr


def fake(folder: Path, name: str, script: str) -> dict[str, str]:
    """An environment in which a command is ``script``."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/usr/bin/env bash\n{script}\n")
    (folder / name).chmod(0o755)
    return {**ENVIRONMENT, "PATH": f"{folder}:{ENVIRONMENT['PATH']}"}


def started(script: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    command = ["bash", str(script), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def copied(folder: Path) -> Path:
    """The recipes without an environment beside them, whose commands would be preferred; with the list of arms."""
    shutil.copytree(RECIPES, folder / "recipes")
    (folder / "kerbs_fairseq" / "evaluation").mkdir(parents=True)
    shutil.copy(PACKAGE / "evaluation" / "arms.txt", folder / "kerbs_fairseq" / "evaluation")
    return folder / "recipes"


FAKE_TRAINING = """
printf '<%s>' "$@" >>"$CALLS"; echo >>"$CALLS"
echo '| valid | {"valid_ppl": "9.0"}'
while [ "$1" != --save-dir ]; do shift; done
flock --nonblock "$2/.lock" true 2>/dev/null && echo UNLOCKED >>"$CALLS"
if [ -n "$FAIL" ]; then echo "CUDA out of memory"; exit 1; fi
touch "$2/checkpoint_last.pt"; [ -n "$UNSAVED" ] || echo model >"$2/checkpoint_best.pt"; echo done training
"""
