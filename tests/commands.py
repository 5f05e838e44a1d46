"""Console commands as a user starts them, small models to start them on, and what is asked of their results."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Optional

import command_client
import torch

PACKAGE = Path(__file__).resolve().parent.parent / "kerbs_fairseq"
BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # as in an activated environment
    "OMP_NUM_THREADS": "1",  # the tests themselves run in parallel
}

SMALL_TRANSFORMER = (
    "--arch transformer_iwslt_de_en --encoder-layers 1 --decoder-layers 1 "
    "--encoder-embed-dim 32 --encoder-ffn-embed-dim 32 --encoder-attention-heads 2 "
    "--decoder-embed-dim 32 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2"
)
SMALL_LSTM = (
    "--arch lstm_wiseman_iwslt_de_en --encoder-embed-dim 32 --decoder-embed-dim 32 --decoder-out-embed-dim 32 "
    "--encoder-hidden-size 32 --decoder-hidden-size 32"
)
SMALL_TRANSFORMER_LM = (
    "--arch transformer_lm --decoder-layers 1 --decoder-embed-dim 32 --decoder-input-dim 32 --decoder-output-dim 32 "
    "--decoder-ffn-embed-dim 32 --decoder-attention-heads 2"
)
SMALL_LSTM_LM = "--arch lstm_lm --decoder-embed-dim 32 --decoder-hidden-size 32 --decoder-out-embed-dim 32"
QUICK = (
    "--optimizer adam --lr 0.005 --max-tokens 800 --no-progress-bar --log-format json --no-epoch-checkpoints --seed 3"
)

MOVING = "--criterion kerbs_cross_entropy --kerbs-reallocate-every 5 --kerbs-reallocate-after 5 --kerbs-threshold -1"
MAP = "decoder.head.senses.sense_to_word"
# Never initialised or never used by fairseq itself, and so different between equal runs.
MEANINGLESS = ("_float_tensor", "in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias", "fc1_", "fc2_")


def console_commands() -> list[Path]:
    """The console commands of fairseq and kerbs_fairseq."""
    return sorted([*BIN.glob("fairseq-*"), *BIN.glob("kerbs-*")])


@functools.cache
def server() -> Path:
    """The folder of this process's command_server.py, with stand-ins for console commands in ``bin``."""
    folder = Path(tempfile.mkdtemp(prefix="kerbs-"))
    (folder / "bin").mkdir()
    client = Path(command_client.__file__)
    programs = {path.name: f'-IS "{client}" "{folder}" "{path}"' for path in console_commands()}
    for name, arguments in {**programs, "python": ""}.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (folder / "bin" / name).chmod(0o700)
    # functions, for scripts that put other folders before ours on their PATH
    functions = (f'{name}() {{ "{folder}/bin/{name}" "$@"; }}\n' for name in programs)
    (folder / "functions.sh").write_text("".join(functions))
    process = subprocess.Popen(
        [sys.executable, str(client.with_name("command_server.py")), str(folder)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    def end() -> None:
        process.communicate()
        shutil.rmtree(folder)

    atexit.register(end)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n", process.communicate()
    return folder


def with_stand_ins(env: dict[str, str] = ENVIRONMENT) -> dict[str, str]:
    """An environment in which scripts and other commands that start console commands start their stand-ins."""
    return {**env, "PATH": f"{server() / 'bin'}{os.pathsep}{env['PATH']}", "BASH_ENV": str(server() / "functions.sh")}


def launch(
    command: list[str],
    *,
    fresh: bool = False,
    env: dict[str, str] = ENVIRONMENT,
    cwd: Optional[Path] = None,
    input: str = "",
    timeout: float = 300,
) -> subprocess.CompletedProcess:
    """Run a Python program in a fork of a process that has imported fairseq or, if ``fresh``, in a new interpreter.

    Fresh is for what depends on the start of the interpreter, on PYTHONPATH or on signals.
    """
    if fresh:
        options = {"env": env, "cwd": cwd, "input": input, "timeout": timeout}
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert env.get("PYTHONPATH") == os.environ.get("PYTHONPATH"), "read when the interpreter starts"
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        given.write(input)
        given.seek(0)
        files = [given.fileno(), out.fileno(), err.fileno()]
        code = command_client.ask(str(server()), command, with_stand_ins(env), str(cwd or Path.cwd()), files, timeout)
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def start(command: str, **options: object) -> subprocess.CompletedProcess:
    """Run a command line with this environment's console commands, whatever its exit code; see :func:`launch`."""
    name, *arguments = command.split()
    return launch([str(BIN / name), *arguments], **options)


def run(command: str, **options: object) -> str:
    """Run a command line that must succeed; what it printed on both streams."""
    done = start(command, **options)
    assert done.returncode == 0, f"$ {command}\nexit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def refused(command: str, message: str) -> None:
    """Run a command line that must fail with ``message`` and without a traceback."""
    done = start(command)
    assert done.returncode != 0, done.stdout
    assert "Traceback" not in done.stderr, done.stderr
    assert message in done.stderr


def train(data: Path, model: str, save: Path, options: str, **more: object) -> str:
    """fairseq-train with the plugin and settings that take seconds."""
    return run(f"fairseq-train {data} --user-dir {PACKAGE} {model} --save-dir {save} {QUICK} {options}", **more)


def generate(pairs: Path, path: object, options: str, **more: object) -> str:
    """fairseq-generate with the plugin, on the test set."""
    return run(f"fairseq-generate {pairs} --user-dir {PACKAGE} --path {path} --batch-size 30 {options}", **more)


def by_two(pairs: Path, model: str, save: Path, options: str) -> str:
    """The command line of fairseq-train in two processes."""
    return (
        f"torchrun --nproc_per_node 2 --standalone --no-python "
        f"fairseq-train {pairs} --user-dir {PACKAGE} {model} --save-dir {save} {QUICK} {options} "
        "--distributed-backend gloo --cpu"
    )


def twin(model: str, prefix: str = "kerbs") -> str:
    """The options of a model, for its twin."""
    return model.replace("--arch ", f"--arch {prefix}_")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """What the last checkpoint has of the model."""
    model = torch.load(folder / "checkpoint_last.pt", weights_only=False)["model"]
    return {name: value for name, value in model.items() if not any(part in name for part in MEANINGLESS)}


def pretend(folder: Path, package: str, version: str) -> dict[str, str]:
    """An environment in which ``package`` says that it has ``version``."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return {**ENVIRONMENT, "PYTHONPATH": str(folder)}
