"""The packages: data flows one way, and docs/design.md says which package imports what."""

import ast
import re
import sys
from pathlib import Path

import pytest
from commands import PACKAGE

CORE = ("functional", "modules", "allocation")
DESIGN = (PACKAGE.parent / "docs" / "design.md").read_text()
ROW = re.compile(r"^\| `kerbs_fairseq/(\w+)/` \| [^|]+ \| ([^|]+) \|$", re.MULTILINE)
IMPORTS = {name: re.findall(r"\w+", names) for name, names in ROW.findall(DESIGN)}  # in the order of the table
FILES = {name: sorted((PACKAGE / name).rglob("*.py")) for name in IMPORTS}


def imported(path: Path) -> set[str]:
    """Other packages of ours, and those of others that are not of the standard library."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    ours = {name.split(".")[1] for name in names if name.startswith("kerbs_fairseq.")} & IMPORTS.keys()
    others = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"kerbs_fairseq"}
    return (ours | others) - {path.relative_to(PACKAGE).parts[0]}


@pytest.mark.parametrize("name", IMPORTS)
def test_a_package_imports_what_the_design_says(name: str) -> None:
    assert sorted(set().union(*map(imported, FILES[name]))) == sorted(IMPORTS[name])


def test_imports_go_one_way() -> None:
    before: set[str] = set()
    for name, names in IMPORTS.items():
        assert set(names) & IMPORTS.keys() <= before, f"{name} imports a package that stands below it"
        before.add(name)
    assert tuple(IMPORTS)[:3] == CORE
    assert set().union(*(IMPORTS[name] for name in CORE)) <= {*CORE, "torch", "triton"}


def test_every_package_is_known() -> None:
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} == set(IMPORTS)


def test_files_are_small() -> None:
    sizes = {path: len(path.read_text().splitlines()) for files in FILES.values() for path in files}
    assert {path.name: size for path, size in sizes.items() if size > 400} == {}


def test_no_test_imports_a_test() -> None:
    for path in Path(__file__).parent.glob("*.py"):
        assert not re.findall(r"^\s*(?:from|import) test_\w+", path.read_text(), re.MULTILINE), path.name
