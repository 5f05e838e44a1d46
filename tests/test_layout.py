"""The rooms of the package: data flows one way, and nothing later in that line is imported by anything earlier."""

import ast
from pathlib import Path

import pytest
from commands import PACKAGE

# each room with the rooms of the package that it may import from
CORE = {"functional", "modules", "allocation"}
MAY_IMPORT = {
    "functional": set(),
    "modules": {"functional"},
    "allocation": {"functional", "modules"},
    "runs": {"functional"},
    "plugin": CORE | {"runs"},
    "corpora": {"runs"},
    "evaluation": {"corpora", "runs"},
    "inspection": CORE | {"plugin", "runs"},
    "human_evaluation": {"runs"},
    "report": CORE | {"plugin", "runs", "inspection"},
    "demo": CORE | {"plugin", "runs", "inspection", "report"},
    "cli": CORE | {"plugin", "runs"},
}
WITHOUT_FAIRSEQ = CORE | {"runs", "corpora", "evaluation", "human_evaluation"}
FILES = [path for room in MAY_IMPORT for path in sorted((PACKAGE / room).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    for name in imported(path):
        package, _, rest = name.partition(".")
        assert not (package in ("fairseq", "fairseq_cli") and room in WITHOUT_FAIRSEQ), f"{room} imports {name}"
        other = rest.partition(".")[0]
        if package == "kerbs_fairseq" and other in MAY_IMPORT:
            assert other == room or other in MAY_IMPORT[room], f"{room} imports {name}"


def test_every_room_is_known() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(MAY_IMPORT)


def test_files_are_small() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in FILES}
    assert {path.name: size for path, size in sizes.items() if size > 400} == {}
