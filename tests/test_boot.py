"""The boot shim: what it changes, and that it changes nothing else."""

import subprocess
import sys

import pytest

NEEDED = pytest.mark.skipif(sys.version_info < (3, 11), reason="the shim is for Python 3.11 and newer")


def python(program: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@NEEDED
def test_fairseq_cannot_be_imported_without_the_shim() -> None:
    taken_out = python("import sys, _kerbs_fairseq_boot as boot; sys.meta_path.remove(boot.Watch); import fairseq")
    assert taken_out.returncode != 0
    assert "mutable default" in taken_out.stderr
    assert python("import fairseq").returncode == 0


@NEEDED
def test_shim_is_there_in_every_process_and_costs_no_import() -> None:
    done = python(
        "import sys, _kerbs_fairseq_boot as boot\n"
        "print(boot.Watch in sys.meta_path, 'dataclasses' in sys.modules, 'typing' in sys.modules)"
    )
    assert done.stdout.split() == ["True", "False", "False"], done.stderr


@NEEDED
@pytest.mark.parametrize("package", ["fairseq", "hydra"])
def test_shim_steps_aside_at_the_first_import(package: str) -> None:
    done = python(
        "import sys, _kerbs_fairseq_boot as boot\n"
        "import json; print(boot.Watch in sys.meta_path)\n"
        f"import {package}; print(boot.Watch in sys.meta_path)"
    )
    assert done.stdout.split()[-2:] == ["True", "False"], done.stderr


@NEEDED
def test_no_other_finder_is_passed_over() -> None:
    done = python(
        "import sys\n"
        "class Next:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        print('asked for', name) if name == 'hydra' else None\n"
        "sys.meta_path.insert(1, Next)\n"
        "import hydra"
    )
    assert "asked for hydra" in done.stdout, done.stderr


@NEEDED
def test_only_the_two_packages_are_changed() -> None:
    done = python(
        "import hydra, dataclasses\n"
        "def make(module):\n"
        "    return dataclasses.dataclass(type('C', (), {'__module__': module, '__annotations__': {}}))\n"
        "for module in ('fairseq.x', 'fairseq', 'hydra.y', 'fairseqlike', '__main__', 'kerbs_fairseq.x'):\n"
        "    print(make(module).__hash__ is None, end=' ')"
    )
    assert done.stdout.split() == ["False", "False", "False", "True", "True", "True"], done.stderr


@NEEDED
def test_a_frozen_or_hashable_dataclass_keeps_its_own_hash() -> None:
    done = python(
        "import hydra, dataclasses\n"
        "C = type('C', (), {'__module__': 'fairseq.x', '__annotations__': {'a': int}})\n"
        "C = dataclasses.dataclass(frozen=True)(C)\n"
        "print(hash(C(1)) == hash(C(1)))"
    )
    assert done.stdout.split() == ["True"], done.stderr
