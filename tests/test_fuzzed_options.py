"""Any options, for every tool and for training: an exit code and a line, or success; and no file but the output."""

import shutil
from pathlib import Path
from typing import Any

import inprocess
import pytest
from damages import (
    TOOLS,
    of_average,
    of_dialogs,
    of_inspect,
    of_pairs,
    of_rating_report,
    of_rating_sheets,
    of_report,
    of_sentences,
    of_words,
    tree,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerbs_fairseq.demo import write as demo_corpus
from kerbs_fairseq.runs.errors import UserError

ODD = ["", " ", "-", "--", "-1", "0", "1", "2", "3.5", "1e400", "nan", "-inf", "9" * 30, "a,b", "1,2,3", "0,0,0", "=",
       "a=b", "x=../x", "/", ".", "..", "/dev/null", "/dev/full", "/proc/self/mem", "no/such/folder", "the", "▁the",
       "\x1b[2J", "\u202e", "é", "\udcff", "x" * 300, "None", "true", "*", "%s", "{}", "\n", "$HOME",
       "valid", "test"]  # fmt: skip
values = st.sampled_from(ODD)

# of each tool: options with a value, and without
OPTIONS: dict[Any, tuple[tuple[str, ...], tuple[str, ...]]] = {
    of_inspect: (("--split", "--word", "--contexts", "--samples", "--user-dir", "--data"), ("--json",)),
    of_report: (("--split", "--tokens", "--word", "--words", "--move-log", "--title", "--data"), ()),
    of_average: (("--last",), ("--force", "--trust")),
    of_rating_sheets: (("--sets", "--raters", "--seed", "--delimiter", "--system", "--reference", "--source"), ()),
    of_rating_report: (("--key", "--test", "--against"), ("--partial", "--json")),
    of_pairs: (("--source", "--target", "--valid-set", "--columns", "--max-words", "--most", "--valid"), ()),
    of_dialogs: (("--max-words", "--most"), ()),
    of_sentences: (("--cut", "--seed", "--max-words"), ()),
    of_words: (("--tokens", "--size", "--language"), ()),
}
fuzzed = settings(max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ending(main: Any, arguments: list[str]) -> Any:
    """What a command ends with: nothing if all went well, 2 and a usage, or one line."""
    try:
        main(arguments)
    except SystemExit as stopped:
        code = stopped.code
    else:
        return None
    if code not in (None, 0, 2):
        assert isinstance(code, str), code
        first, *more = code.split("\n")
        assert first.startswith("kerbs-")
        assert all(line.startswith("  ") for line in more)
    return code


def test_every_tool_is_here() -> None:
    assert set(OPTIONS) == set(TOOLS)


@pytest.mark.parametrize("tool", OPTIONS, ids=lambda tool: tool.__name__)
def test_tools(tool: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kerbs_fairseq.report.command.album", lambda *of: iter(()))
    monkeypatch.chdir(tmp_path)
    with_value, without = OPTIONS[tool]
    whole = tmp_path / "whole"
    whole.mkdir()
    main, arguments, _, output = tool(whole)
    if output.is_dir():
        shutil.rmtree(output)
    output.unlink(missing_ok=True)
    before = tree(whole)

    @fuzzed
    @given(
        st.lists(st.tuples(st.sampled_from(with_value), values), max_size=3),
        st.lists(st.sampled_from(without), max_size=2) if without else st.just([]),
        st.booleans(),
    )
    def fuzz(chosen: list[tuple[str, str]], flags: list[str], joined: bool) -> None:
        more = [f"{name}={value}" for name, value in chosen] if joined else [part for one in chosen for part in one]
        ended = ending(main, [*map(str, arguments), *more, *flags])
        after = tree(whole)
        written = {path for path in after if path == output or output in path.parents}
        assert {path: content for path, content in after.items() if path not in written} == before
        assert not written or ended in (None, 0), "half an output"
        assert [*tmp_path.iterdir()] == [whole]
        if output.is_dir():
            shutil.rmtree(output)
        output.unlink(missing_ok=True)

    fuzz()


def test_demo_corpora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = st.sampled_from(["1,1,1", "2,1,1", "0,1,1", "1,1", "a,b,c", "-1,1,1", "", "1e3,1,1", "1,1,1,1", "9" * 5000])

    @fuzzed
    @given(small, small, values)
    def fuzz(parallel: str, mono: str, seed: str) -> None:
        folder = tmp_path / "corpus"
        ended = ending(demo_corpus.main, [str(folder), f"--parallel={parallel}", f"--mono={mono}", f"--seed={seed}"])
        assert [*tmp_path.iterdir()] == ([folder] if ended is None else [])
        shutil.rmtree(folder, ignore_errors=True)

    fuzz()


NUMBERS = ("senses", "min-senses", "max-senses", "power", "min-count", "bias-rate", "theta-init", "theta-bound",
           "chunk", "theta-rate", "seed", "input-passes", "reallocate-every", "reallocate-after", "reallocate-until",
           "decay", "threshold", "split-noise")  # fmt: skip
CHOICES = ("preset", "init", "init-vectors", "bias", "kernel", "input", "strategy", "moved-vector")
of_choices = st.sampled_from(
    [
        "paper",
        "default",
        "frequency",
        "random",
        "uniform",
        "clone",
        "near",
        "zero",
        "log",
        "none",
        "dot",
        "released",
        "untied",
        "usage",
        "posterior",
        "loss",
        "idle",
        "keep",
        "split",
        "x",
        "",
    ]
)
of_numbers = st.sampled_from(["-1", "0", "1", "2", "3", "1.5", "16", "100", "1e-8", "1e9", "-1e9", "nan", "inf", "-inf",
                              "x", "0.5", "1e400", "-0", "40", "2147483648", "9" * 25, ""])  # fmt: skip


def test_options_of_training(pairs: Path) -> None:
    """A model is built and makes an update, or the reason is said; what argparse cannot read ends with 2."""
    built = []

    @settings(fuzzed, max_examples=60)
    @given(
        st.dictionaries(st.sampled_from(NUMBERS), of_numbers, max_size=3),
        st.dictionaries(st.sampled_from(CHOICES), of_choices, max_size=3),
    )
    def fuzz(numbers: dict[str, str], choices: dict[str, str]) -> None:
        options = [f"--kerbs-{name}={value}" for name, value in {**numbers, **choices}.items()]
        command = "--arch kerbs_lstm --criterion kerbs_cross_entropy --optimizer adam --max-update 1"
        try:
            run = inprocess.prepare(pairs, "lstm", " ".join([command, *options]))
            trainer = inprocess.trainer(run)
            trainer.train_step([inprocess.batch(run, 2)])
        except (SystemExit, UserError) as ended:
            said = str(ended)
        except FloatingPointError:
            return  # fairseq's own, for a training that diverges
        else:
            built.append(options)
            return
        assert said == "2" or (said.startswith("kerbs_fairseq: ") and "\n" not in said), said

    fuzz()
    assert built
