"""The packages: data flows one way, and docs/design.md says which package or module imports what."""

import ast
import re
import sys
from pathlib import Path

import pytest
from commands import PACKAGE

CORE = ("functional", "modules", "allocation")
DESIGN = (PACKAGE.parent / "docs" / "design.md").read_text()
ROW = re.compile(r"^\| `kerbs_fairseq/(\w+)(/|\.py)` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
ROWS = [(name, kind, re.findall(r"\w+", names)) for name, kind, names in ROW.findall(DESIGN)]
IMPORTS = {name: names for name, kind, names in ROWS if kind == "/"}  # packages, in the order of the table
MODULES = {name: names for name, kind, names in ROWS if kind == ".py"}  # beside the packages
FILES = {name: sorted((PACKAGE / name).rglob("*.py")) for name in IMPORTS}
LEAVES = ("runs/errors.py", "runs/interrupts.py")  # all that the modules beside the packages import of runs
PYTHON = ("kerbs_fairseq", "tests", "benchmarks", "boot", "build_support", "examples")


def imported_names(path: Path) -> set[str]:
    """The full name of everything that is imported."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported(path: Path) -> set[str]:
    """Other packages and modules of ours, and packages of others that are not of the standard library."""
    names = imported_names(path)
    known = IMPORTS.keys() | MODULES.keys()
    ours = {name.split(".")[1] for name in names if name.startswith("kerbs_fairseq.")} & known
    others = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"kerbs_fairseq"}
    return (ours | others) - {path.relative_to(PACKAGE).parts[0]}


@pytest.mark.parametrize("name", IMPORTS)
def test_a_package_imports_what_the_design_says(name: str) -> None:
    assert sorted(set().union(*map(imported, FILES[name]))) == sorted(IMPORTS[name])


@pytest.mark.parametrize("name", MODULES)
def test_a_module_beside_the_packages_imports_what_the_design_says(name: str) -> None:
    path = PACKAGE / f"{name}.py"
    assert sorted(imported(path)) == sorted(MODULES[name])
    of_runs = {tuple(full.split(".")[1:3]) for full in imported_names(path) if full.startswith("kerbs_fairseq.runs.")}
    assert {"/".join(parts) + ".py" for parts in of_runs} <= set(LEAVES)


@pytest.mark.parametrize("name", LEAVES)
def test_what_these_modules_import_of_runs_needs_the_standard_library_alone(name: str) -> None:
    names = imported_names(PACKAGE / name)
    leaves = {f"kerbs_fairseq.{leaf.removesuffix('.py').replace('/', '.')}" for leaf in LEAVES}
    others = {full for full in names if full.split(".")[0] not in sys.stdlib_module_names}
    assert others <= leaves


def test_imports_go_one_way() -> None:
    before: set[str] = set()
    for name, names in IMPORTS.items():
        assert set(names) & IMPORTS.keys() <= before, f"{name} imports a package that stands below it"
        before.add(name)
    assert tuple(IMPORTS)[:3] == CORE
    assert set().union(*(IMPORTS[name] for name in CORE)) <= {*CORE, "requirements", "torch", "triton"}


def test_every_package_is_known() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(IMPORTS)
    assert {path.stem for path in PACKAGE.glob("*.py")} == set(MODULES)


def test_python_files_are_small() -> None:
    paths = [path for folder in PYTHON for path in (PACKAGE.parent / folder).rglob("*.py")]
    sizes = {path: len(path.read_text().splitlines()) for path in paths}
    assert {path.name: size for path, size in sizes.items() if size > 400} == {}


def test_no_test_imports_a_test() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        assert not re.findall(r"^\s*(?:from|import) test_\w+", path.read_text(), re.MULTILINE), path.name
