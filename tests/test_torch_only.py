"""The core in an environment with torch and what torch requires, nothing else; when the plugin activates."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from commands import BIN, ENVIRONMENT, PACKAGE, pretend

ROOT = PACKAGE.parent
ABSENT = ("fairseq", "hydra", "omegaconf", "matplotlib", "sentencepiece", "sacrebleu", "scipy", "rich", "triton")

CORE_PROGRAM = f"""
import signal, sys
before = [*sys.meta_path], sys.excepthook, signal.getsignal(signal.SIGINT)
import kerbs_fairseq
assert "torch" not in sys.modules
from kerbs_fairseq import KernelizedBayesianSoftmax, MixtureOfSoftmaxes, Reallocator
import torch
layer = KernelizedBayesianSoftmax(4, 9)
print(layer.log_prob(torch.randn(2, 4)).shape)
assert not [name for name in {ABSENT} if name in sys.modules]
assert not [name for name in sys.modules if name.startswith("kerbs_fairseq.plugin")]
added = [finder for finder in sys.meta_path if finder not in before[0]]  # waits for fairseq
assert [type(finder).__module__ for finder in added] == ["kerbs_fairseq.activation"], added
assert before[1:] == (sys.excepthook, signal.getsignal(signal.SIGINT))
"""


def closure(package: str, seen: set[str]) -> None:
    """``package`` and what it requires on this machine."""
    name = re.sub(r"[-_.]+", "-", package).lower()
    try:
        required = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # for another platform
        return
    seen.add(name)
    for line in required:
        other = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if "extra ==" not in line and re.sub(r"[-_.]+", "-", other).lower() not in seen:
            closure(other, seen)


@pytest.fixture(scope="module")
def torch_only(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A Python whose packages are those of torch, numpy and this one."""
    folder = tmp_path_factory.mktemp("site-packages")
    packages: set[str] = set()
    for package in ("torch", "numpy"):
        closure(package, packages)
    for package in packages:
        for file in metadata.files(package) or []:
            top = file.parts[0]
            if top != ".." and not (folder / top).exists():
                (folder / top).symlink_to(Path(str(file.locate())).parents[len(file.parts) - 1] / top)
    (folder / "kerbs_fairseq").symlink_to(PACKAGE)
    program = "import sys; sys.path.insert(0, sys.argv[1]); del sys.argv[:2]; exec(sys.argv[0])"
    return [sys.executable, "-I", "-S", "-c", program, str(folder)]


def run(command: list[str], env: dict[str, str] = ENVIRONMENT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def test_core_without_anything_but_torch(torch_only: list[str]) -> None:
    done = run([*torch_only, CORE_PROGRAM])
    assert (done.stdout, done.stderr) == ("torch.Size([2, 9])\n", "")
    missing = run([*torch_only, "import fairseq"])
    assert "No module named 'fairseq'" in missing.stderr


def test_core_changes_nothing_where_fairseq_is_installed() -> None:
    done = run([sys.executable, "-c", CORE_PROGRAM])
    assert (done.stdout, done.stderr) == ("torch.Size([2, 9])\n", "")


def test_example_trains_and_moves_senses(torch_only: list[str], tmp_path: Path) -> None:
    program = ROOT / "examples" / "language_model.py"
    assert len(program.read_text().splitlines()) <= 80
    words = [f"w{i % 7} w{i % 11} w{i * i % 13} stop" for i in range(400)]
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("\n".join(words) + "\n")
    start = f"import runpy; runpy.run_path({str(program)!r}, run_name='__main__')"
    arguments = [str(tmp_path / "train.txt"), str(tmp_path / "valid.txt"), "--epochs", "40", "--size", "16"]
    done = run([*torch_only, start, *arguments])
    assert done.returncode == 0, done.stderr
    perplexity = {name: float(x) for name, x in re.findall(r"(\w+): validation perplexity ([\d.]+)", done.stdout)}
    assert perplexity.keys() == {"softmax", "kerbs"}
    assert max(perplexity.values()) < 8  # 14 words: it has learned something
    assert int(re.search(r"(\d+) senses moved", done.stdout)[1]) > 0


def test_example_for_transformers() -> None:
    pytest.importorskip("transformers")
    program = ROOT / "examples" / "finetune_huggingface.py"
    assert len(program.read_text().splitlines()) <= 80
    done = run([sys.executable, str(program), "--updates", "60"])
    assert done.returncode == 0, done.stderr
    start, stock, kerbs = (float(x) for x in re.findall(r"loss ([\d.]+)", done.stdout))
    assert max(stock, kerbs) < start


def test_missing_package_is_one_line_that_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('gone', name='matplotlib')\n")
    done = run([str(BIN / "kerbs-report"), "--help"], {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)})
    expected = 'kerbs-report: matplotlib is not installed: pip install "kerbs-fairseq[report]"\n'
    assert (done.returncode, done.stderr) == (1, expected)


REGISTERED = "from fairseq.models import ARCH_MODEL_REGISTRY as r; print('kerbs_transformer' in r)"


@pytest.mark.parametrize(
    "program",
    [
        f"import fairseq, kerbs_fairseq; {REGISTERED}",
        f"import kerbs_fairseq, fairseq; {REGISTERED}",
        f"import kerbs_fairseq; {REGISTERED}",
        f"from kerbs_fairseq.plugin.models import add_twins; {REGISTERED}",
        f"import kerbs_fairseq.activation as a; assert a.activate() is None; {REGISTERED}",
    ],
    ids=["fairseq first", "fairseq after", "a submodule after", "through the plugin", "by hand"],
)
def test_plugin_activates_with_fairseq(program: str) -> None:
    done = run([sys.executable, "-c", program])
    assert done.stdout.splitlines()[-1:] == ["True"], done.stderr


def test_plugin_stays_off_without_fairseq() -> None:
    program = "import kerbs_fairseq, sys; print('fairseq' in sys.modules, 'kerbs_fairseq.plugin' in sys.modules)"
    assert run([sys.executable, "-c", program]).stdout == "False False\n"


def test_unsupported_fairseq_imported_after_the_core_is_a_warning(tmp_path: Path) -> None:
    env = pretend(tmp_path, "fairseq", "0.10.2")
    done = run([sys.executable, "-c", "import kerbs_fairseq, fairseq; print(fairseq.__name__)"], env)
    assert done.stdout == "fairseq\n"
    assert done.stderr.count("the fairseq plugin is off: fairseq 0.10.2 is not supported") == 1


def test_old_torch_is_one_clear_error(tmp_path: Path) -> None:
    env = pretend(tmp_path, "torch", "1.13.1")
    done = run([sys.executable, "-c", "from kerbs_fairseq import KernelizedBayesianSoftmax"], env)
    assert done.returncode == 1
    message = "kerbs_fairseq: torch 1.13.1 is not supported (>=2.6,<3 is): pip install"
    assert message in done.stderr.splitlines()[-1]
    done = run([str(BIN / "kerbs-average"), "--help"], env)
    assert done.returncode == 1
    assert done.stderr.startswith(f"kerbs-average: {message}")
    assert len(done.stderr.splitlines()) == 1
