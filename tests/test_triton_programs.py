"""The Triton kernels: when they can be used, and their programs, compiled for GPUs that need not be there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import triton_oracle as oracle

from kerbs_fairseq.functional.backends import triton as backend

REASON = backend.MISSING or oracle.too_old()
needs_triton = pytest.mark.skipif(bool(REASON), reason=REASON)


def test_says_why_it_cannot_run() -> None:
    if REASON:
        assert backend.available()[0] is not bool(backend.MISSING)
        return
    if not torch.cuda.is_available():
        assert backend.available()[1] in (
            "no GPU that torch can use",
            f"triton {backend.triton.__version__}, interpreted",
        )
    with oracle.interpreter(oracle.load_interpreted()):
        assert backend.available()[0]
        assert backend.available(dtype=torch.float64)[1].startswith("torch.float64 has no Triton kernels")
        with mock.patch.object(backend.triton, "__version__", "2.1.0"):
            assert backend.available()[1] == "triton 2.1.0 is too old: needs 3.0"


def test_without_triton_the_file_can_be_imported() -> None:
    spec = importlib.util.spec_from_file_location("without_triton", backend.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, triton=None):
        spec.loader.exec_module(module)
    able, reason = module.available()
    assert not able
    assert reason.startswith("triton cannot be imported (ModuleNotFoundError")


@needs_triton
@pytest.mark.skipif(backend.interpreted(), reason="the kernels are interpreted")
def test_a_batch_of_another_size_needs_no_other_program() -> None:
    """Sizes that differ from batch to batch do not count for which program it is; those of the model do."""
    kernels = [kernel for name, kernel in vars(backend.kernels).items() if name.endswith("_kernel")]
    assert len(kernels) == 6
    general = {p.name for kernel in kernels for p in kernel.params if p.do_not_specialize}
    special = {p.name for kernel in kernels for p in kernel.params if not p.do_not_specialize}
    assert general == {"n", "n_parts", "n_pairs", "rows_per_part"}
    assert {"S", "V", "width", "D_stride"} < special
    assert not general & special


@needs_triton
def test_compiles_without_spills(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    script = Path(oracle.__file__).with_name("triton_compile.py")
    targets = ("sm_80", "sm_90", "gfx942")
    command = [sys.executable, str(script), *targets]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["target"] for row in rows} == set(targets)
    for row in rows:
        print(*row.values())
        assert row["spilled"] == 0, row
        assert row["shared"] <= 4096, row
        assert row["registers"] <= 144, row  # 128 with Triton 3.9; more than 12 warps on a multiprocessor
