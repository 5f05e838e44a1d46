"""Wrong or missing versions of torch, fairseq and others: one line that says what to install."""

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from commands import ENVIRONMENT, PACKAGE, pretend, start

from kerbs_fairseq import requirements

ROOT = PACKAGE.parent


def demanded() -> dict[str, tuple[str, str]]:
    """What setup.py demands, as {package: (range, extra)}; the extra is empty for what the core demands."""
    split = [re.fullmatch(r"([\w-]+)([^;]*)(?:;.*extra == .(\w+).)?.*", x) for x in metadata.requires("kerbs-fairseq")]
    ranges = {match[1]: (match[2].strip(), match[3] or "") for match in split}
    assert {name for name, (_, extra) in ranges.items() if not extra} == {"torch", "numpy"}
    return ranges


@pytest.mark.parametrize(
    ("version", "admitted"),
    [("1.3.2", True), ("1.3.8", True), ("1.3.2+cpu", True), ("1.3.1", False), ("1.4.0", False), ("1.0.7", False)],
)
def test_range(version: str, admitted: bool) -> None:
    need = requirements.Need("x", (1, 3, 2), (1, 4), "")
    assert need.admits(version) is admitted


def test_ranges_are_those_of_setup_py() -> None:
    ranges = demanded()
    for need in requirements.NEEDS:
        if need.package != "fairseq":  # comes by a command of its own
            assert set(ranges[need.package][0].split(",")) == set(need.range().split(","))
        assert need.package in need.install


def test_versions_agree() -> None:
    import kerbs_fairseq

    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == kerbs_fairseq.__version__
    assert f"## {kerbs_fairseq.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("package", "version", "advice"),
    [
        pytest.param("fairseq", "0.10.2", "pip install --no-deps fairseq==0.12.2", marks=pytest.mark.thorough),
        ("torch", "1.13.1", 'pip install "torch>=2.6,<3"'),
        ("hydra-core", "1.0.7", 'pip install "hydra-core>=1.3.2,<1.4" "omegaconf>=2.3,<2.4"'),
        pytest.param(
            "omegaconf",
            "2.0.6",
            'pip install "hydra-core>=1.3.2,<1.4" "omegaconf>=2.3,<2.4"',
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_wrong_version_ends_a_command_with_one_line(tmp_path: Path, package: str, version: str, advice: str) -> None:
    env = pretend(tmp_path, package, version)
    done = start(f"fairseq-train nowhere --user-dir {PACKAGE} --arch transformer", env=env, fresh=True)
    assert done.returncode == 1
    lines = [line for line in done.stderr.splitlines() if "text_to_speech" not in line]
    need = next(need for need in requirements.NEEDS if need.package == package)
    assert lines == [f"kerbs_fairseq: {package} {version} is not supported ({need.range()} is): {advice}"]


def test_program_that_uses_fairseq_gets_an_import_error(tmp_path: Path) -> None:
    env = pretend(tmp_path, "fairseq", "0.10.2")
    program = "import fairseq, kerbs_fairseq"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 1
    assert "NotSupported: kerbs_fairseq: fairseq 0.10.2 is not supported" in done.stderr.splitlines()[-1]


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requirements, "version_of", lambda package: None)
    lines = requirements.faults()
    assert [line.partition(":")[0] for line in lines] == [
        "torch is not installed",
        "hydra-core is not installed",
        "omegaconf is not installed",
        "fairseq is not installed",
    ]
    assert lines[-1].endswith("pip install --no-deps fairseq==0.12.2")


def test_without_fairseq_the_rest_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "fairseq.py").write_text("raise RuntimeError('broken on purpose')\n")
    program = "import kerbs_fairseq.functional; from kerbs_fairseq import plugin; print(plugin.fault)"
    env = {**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0
    expected = f"fairseq cannot be imported (RuntimeError: broken on purpose): {requirements.REINSTALL}"
    assert done.stdout.strip() == expected
    assert not done.stderr
