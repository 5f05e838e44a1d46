"""kerbs-doctor in good and in broken environments."""

import argparse
from pathlib import Path

import pytest
import torch
from commands import ENVIRONMENT, pretend, start

from kerbs_fairseq import requirements
from kerbs_fairseq.cli import doctor
from kerbs_fairseq.functional.backends import triton
from kerbs_fairseq.plugin import fairseq_patches

pytestmark = pytest.mark.e2e


def test_healthy_environment() -> None:
    done = start("kerbs-doctor", fresh=True)
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith("No problems found.")
    assert done.stderr == ""
    for need in requirements.NEEDS:
        assert f"{need.package:<20}{requirements.version_of(need.package)}" in done.stdout
    for patch in fairseq_patches.PATCHES:
        assert f"{patch.name:<20}active" in done.stdout
        assert " ".join(patch.reason.split()) in " ".join(done.stdout.split())


@pytest.mark.parametrize(("package", "version"), [("hydra-core", "1.0.7"), ("torch", "1.13.1")])
def test_wrong_version(tmp_path: Path, package: str, version: str) -> None:
    done = start("kerbs-doctor", env=pretend(tmp_path, package, version), fresh=True)
    assert done.returncode == 1
    assert done.stderr == ""
    assert f"1 problem\n  {package} {version} is not supported" in done.stdout
    assert "checkpoint-load     off: the plugin is not active" in done.stdout


def test_fairseq_that_does_not_import(tmp_path: Path) -> None:
    (tmp_path / "fairseq.py").write_text("raise RuntimeError('broken on purpose')\n")
    done = start("kerbs-doctor", env={**ENVIRONMENT, "PYTHONPATH": str(tmp_path)}, fresh=True)
    assert done.returncode == 1
    assert "broken on purpose" in done.stdout


def test_patches_left_out_are_shown() -> None:
    env = {**ENVIRONMENT, fairseq_patches.SKIP_VARIABLE: "ema-integers", "KERBS_BACKEND": "magic"}
    done = start("kerbs-doctor", env=env)
    assert "KERBS_BACKEND=magic: there are torch, cpu, triton" in done.stdout
    assert done.returncode == 1
    assert f"{'ema-integers':<20}left out by {fairseq_patches.SKIP_VARIABLE}" in done.stdout


def test_backends() -> None:
    done = start("kerbs-doctor", env={**ENVIRONMENT, "KERBS_BACKEND": "tpu"})
    assert done.returncode == 1
    assert "KERBS_BACKEND=tpu asks for one backend" in done.stdout
    assert "1 problem\n  KERBS_BACKEND=tpu: there are torch, cpu, triton; unset it" in done.stdout
    assert "the Triton kernels for a GPU: " in done.stdout or "KerBS on it: Triton kernels" in done.stdout


def test_what_a_gpu_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a card that is there."""
    cuda = {"is_available": lambda: True, "device_count": lambda: 1, "get_device_name": lambda _: "Some Card"}
    cuda["get_device_properties"] = lambda _: argparse.Namespace(total_memory=2**34)
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(triton, "available", lambda *_: (True, "triton 3.9.0"))
    assert list(doctor.devices())[-1] == "cuda:0, Some Card, 16 GiB; KerBS on it: Triton kernels, triton 3.9.0"
    monkeypatch.setattr(triton, "available", lambda *_: (False, "no Triton here"))
    assert list(doctor.devices())[-1].endswith("KerBS on it: plain torch, which is slower: no Triton here")


def test_missing_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.commands, "find", lambda name: None if name == "fairseq-train" else name)
    assert [line.partition(":")[0] for line in doctor.problems()] == ["commands not found"]
