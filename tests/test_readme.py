"""What the README shows: its Python runs, its options are all there, its links lead somewhere."""

import re

import pytest
from commands import PACKAGE
from fairseq.dataclass.utils import gen_parser_from_dataclass

from kerbs_fairseq.plugin.options import PRESETS, KerbsOptions, MosOptions

ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("number", range(len(re.findall(r"```python\n", README))))
def test_python_runs(number: int) -> None:
    code = re.findall(r"```python\n(.*?)```", README, re.S)[number]
    exec(compile(code, "README.md", "exec"), {})


def test_every_option_is_listed_with_its_default() -> None:
    import argparse

    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for options in (KerbsOptions, MosOptions):
        parser = argparse.ArgumentParser()
        gen_parser_from_dataclass(parser, options())
        for action in parser._actions:
            name = action.option_strings[0]
            if not name.startswith(("--kerbs", "--mos")):
                continue
            assert action.help, f"{name} has no help"
            row = re.search(rf"^\| `{name}` \| ([^|]+) \|", page, re.M)
            assert row, f"{name} is not in docs/options.md"
            if isinstance(action.default, bool):
                assert row[1] == "off", name
            elif isinstance(action.default, (int, float)):
                assert float(row[1]) == action.default, name
            elif action.choices and action.default is not None:
                assert row[1] == f"`{action.default}`", name
    for name, default in PRESETS["default"].items():
        shown = [f"{x:g}" if isinstance(x, (int, float)) else f"`{x}`" for x in (default, PRESETS["paper"][name])]
        assert f"| `--{name.replace('_', '-')}` | {' | '.join(shown)} |" in page, name


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 160


def test_links_to_files_are_not_broken() -> None:
    for page in [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "recipes").rglob("*.md"),
        ROOT / "CONTRIBUTING.md",
    ]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
