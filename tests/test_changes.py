"""The table in docs/compatibility.md: all that is changed at run time, and nothing else."""

import fnmatch
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from commands import ENVIRONMENT, PACKAGE

from kerbs_fairseq.plugin import fairseq_patches

ROOT = PACKAGE.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
REPAIRS = [patch.name for patch in fairseq_patches.PATCHES]


class Row(NamedTuple):
    """A row of the table."""

    changed: list[str]  # names, or patterns with *
    by: list[str]
    when: str
    kind: str
    reason: str


def table() -> list[Row]:
    """The rows of the table."""
    cells = [line.strip("|").split("|") for line in re.findall(r"^\| .*\|$", PAGE, re.M) if line.count("|") == 6]
    rows = [[cell.strip() for cell in row] for row in cells[1:]]
    return [Row(re.findall("`(.+?)`", row[0]), re.findall("`(.+?)`", row[1]), *row[2:]) for row in rows]


def same(changed: list[str], rows: list[Row]) -> bool:
    """Whether these are the names in the rows: each fits one of them, and none is without a change."""
    named = [name for row in rows for name in row.changed]
    fitting = {name: fnmatch.filter(changed, name) for name in named}
    return all(fitting.values()) and set(changed) == set().union(*fitting.values())


def module_of(name: str) -> str:
    """The module in which a name is found."""
    module = name
    while module and module not in sys.modules and module != "fairseq_cli.train":
        module = module.rpartition(".")[0]
    return module


def find_out(folder: Path) -> None:
    """Write what tests/changes.py finds out in a new interpreter."""
    names = {name for row in table() for name in row.changed if name.startswith("fairseq")}
    modules = {module_of(name) for name in names} | {"hydra.main"}
    paths = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(ROOT / "boot"), str(ROOT))
    env = {
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(paths),
        fairseq_patches.SKIP_VARIABLE: ",".join(REPAIRS),
    }
    program = Path(__file__).with_name("changes.py")
    command = [sys.executable, "-S", str(program), str(PACKAGE), *sorted(modules)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder.mkdir()
    (folder / "changes.json").write_text(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def changes(once) -> Any:
    """What is changed at each step."""
    return json.loads((once("changes", find_out) / "changes.json").read_text())


def test_the_table_has_all_columns_and_modules() -> None:
    assert len(table()) > len(REPAIRS)
    for row in table():
        assert row.changed, row
        assert row.reason, row
        assert ".pth" in row.when or "--user-dir" in row.when or "import kerbs_fairseq" in row.when, row
        assert re.fullmatch("feature|repair( `[a-z-]+`)?", row.kind), row
        for module in row.by:
            assert (ROOT / f"{module}.py" if "/" in module else PACKAGE / "plugin" / f"{module}.py").exists(), module


def test_every_module_was_imported_before_the_plugin(changes: Any) -> None:
    assert changes["imported"] == [], "import them before the comparison: name them in the fixture"


def test_what_the_boot_shim_changes(changes: Any) -> None:
    for_this_python = sys.version_info >= (3, 11)
    rows = [row for row in table() if ".pth" in row.when and (for_this_python or "3.11" not in row.reason)]
    assert same(changes["boot"], rows), changes["boot"]


def test_what_is_changed_as_long_as_fairseq_is_not_imported(changes: Any) -> None:
    rows = [row for row in table() if "import kerbs_fairseq" in row.when]
    assert same(changes["waiting"], rows), changes["waiting"]


def test_what_the_plugin_changes_without_its_repairs(changes: Any) -> None:
    rows = [row for row in table() if "--user-dir" in row.when.split()[0] and "`" not in row.kind]
    assert same(changes["plugin"], rows), changes["plugin"]
    for name, modules in changes["wrappers"].items():
        named = [module for row in rows if name in row.changed for module in row.by]
        assert not modules or sorted(modules) == sorted(named), name


@pytest.mark.parametrize("repair", REPAIRS)
def test_what_a_repair_changes(changes: Any, repair: str) -> None:
    (row,) = [row for row in table() if row.kind == f"repair `{repair}`"]
    assert same(changes["repairs"][repair], [row]), changes["repairs"][repair]
    (patch,) = [patch for patch in fairseq_patches.PATCHES if patch.name == repair]
    assert patch.make.__module__ == f"kerbs_fairseq.plugin.{row.by[0]}"


def test_nothing_else_is_changed_in_any_module(changes: Any) -> None:
    rows = [row for row in table() if "--user-dir" in row.when.split()[0]]
    assert same(changes["all"], rows), changes["all"]
