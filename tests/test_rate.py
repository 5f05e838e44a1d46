"""kerbs-rate: blinded sheets, and scores that come back to the right system. All sheets here are made up."""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from studies import NAMES, fill, last_digit, report, rows_of, study, write

from kerbs_fairseq.human_evaluation import cells as rating_cells
from kerbs_fairseq.human_evaluation import command as rate
from kerbs_fairseq.human_evaluation import sheet as rating_sheet


def test_no_rater_can_tell_systems_apart(tmp_path: Path) -> None:
    folder = study(tmp_path, items=60, sets=50)
    key = json.loads((folder / "key.json").read_text())
    assert {path.name for path in folder.iterdir()} == {
        "key.json",
        "INSTRUCTIONS.md",
        *(f"rater_{i}.csv" for i in (1, 2, 3)),
    }
    for path in folder.iterdir():
        assert path.name == "key.json" or not any(name.encode() in path.read_bytes() for name in NAMES)
    orders = []
    for rater in (1, 2, 3):
        rows = rows_of(folder / f"rater_{rater}.csv")
        assert all(row["score"] == "" for row in rows)
        assert [int(row["set"]) for row in rows] == sorted(int(row["set"]) for row in rows)
        by_set = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row["set"])]
        assert len(by_set) == 50
        first = Counter(key["responses"][group[0]["response id"]]["systems"][0] for group in by_set)
        assert min(first[name] for name in NAMES) > 5, "each system comes first now and then"
        orders.append([[row["input"] for row in rows], [row["response"] for row in rows]])
    for one, other in itertools.combinations(orders, 2):
        assert one[0] != other[0]
        assert sorted(one[1]) == sorted(other[1])
    ids = [row["response id"] for rater in (1, 2, 3) for row in rows_of(folder / f"rater_{rater}.csv")]
    assert len(set(ids)) == len(ids)
    assert sorted(ids) == sorted(key["responses"])


def test_same_seed_same_study(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        (tmp_path / name).mkdir()
        study(tmp_path / name, options=f"--seed {seed}")
    texts = [(tmp_path / name / "study" / "rater_2.csv").read_bytes() for name in "abc"]
    assert texts[0] == texts[1] != texts[2]


def test_an_input_comes_once_and_shared_responses_are_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = write(tmp_path / "source", ["a", "b", "a", "", " a ", "c"])
    one, two = write(tmp_path / "1", list("123456")), write(tmp_path / "2", ["1", "x", "y", "z", "z", ""])
    rate.main(f"sheet --source {source} --system x={one} --system y={two} -o {tmp_path}/s --sets 3 --raters 1".split())
    assert "1 responses are the same" in capsys.readouterr().out
    shown = sorted(
        (row["input"], rating_cells.unescape(row["response"])) for row in rows_of(tmp_path / "s/rater_1.csv")
    )
    assert shown == [("a", "1"), ("b", "2"), ("b", "x"), ("c", "(empty)"), ("c", "6")]
    with pytest.raises(SystemExit, match="there are 3 different inputs, and --sets asks for 4"):
        rate.main(f"sheet --source {source} --system x={one} --system y={two} -o {tmp_path}/t --sets 4".split())
    assert not (tmp_path / "t").exists()


def test_the_scale_and_the_reference_are_explained(tmp_path: Path) -> None:
    write(tmp_path / "human", [f"human {i}" for i in range(8)])
    folder = study(tmp_path, options=f"--reference {tmp_path}/human")
    text = (folder / "INSTRUCTIONS.md").read_text()
    assert all(f"| {score} |" in text for score in (0, 1, 2))
    assert "`reference`" in text
    for row in rows_of(folder / "rater_1.csv"):
        assert row["reference"].split()[1] == row["input"].split()[1] == row["response"].split()[1]
    fill(folder, last_digit)
    assert set(report(folder)["systems"]) == set(NAMES)


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+x", "-x", "@x", "'x", "''", "＝x", "﹢x", "1/2", "12", "3 May", "1e5", "true", "5 %"]
    + [f"{c}=1+1" for c in " \t\r\x00\u00a0\u00ad\u200b\u200f\u2028\u2060\u3164\ufe0f\ufeff\U000e0020"],
)
def test_cells_that_spreadsheets_would_change(text: str) -> None:
    assert rating_cells.escape(text) == f"'{text}"


@pytest.mark.parametrize("text", ["", "hello", "I am 5", "x=1", "maybe", "(empty)", "a - b", "…"])
def test_cells_that_stay(text: str) -> None:
    assert rating_cells.escape(text) == text


@given(st.text())
def test_escaped_cells_come_back(text: str) -> None:
    cell = rating_cells.escape(text)
    assert rating_cells.unescape(cell) == text
    assert not cell.startswith(("=", "+", "-", "@"))


def test_filled_sheets_are_never_overwritten(tmp_path: Path) -> None:
    folder = study(tmp_path)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(SystemExit, match="study exists"):
        study(tmp_path)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_whole_folder_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, rows: list, delimiter: str) -> None:
        path.touch()
        if path.name == "rater_2.csv":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(rating_sheet.cells, "write", full)
    with pytest.raises(SystemExit, match=r"cannot write .*study: No space left"):
        study(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.txt", "1.txt", "2.txt", "source"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--system a=a --system b=short", "same number of lines: source has 3, a has 3, short has 2"),
        ("--system a=a --system b=a --reference short", "source has 3, a has 3, a has 3, short has 2"),
        ("--system a=a --system b=missing", "missing cannot be read: No such file"),
        ("--system a=a --system b=latin", r"latin is not UTF-8 \(byte 1\)"),
        ("--system a=a", "a comparison needs two systems"),
        ("--system a=a --system a=b", "--system a is given twice"),
        ("--system a --system b=a", "--system a: write it as NAME=FILE"),
        ("--system a=a --system b=a --sets 0", "--sets 0: at least 1"),
        ("--system a=a --system b=a --raters 0", "--raters 0: at least 1"),
        ("--system a=a --system b=a -o a/study", "cannot write a/study: File exists"),
    ],
)
def test_mistakes_in_making(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("source"), list("123"))
    write(Path("a"), list("456"))
    write(Path("short"), list("45"))
    Path("latin").write_bytes(b"a\xe9\nb\nc\n")
    output = [] if "-o" in arguments else ["-o", "study"]
    with pytest.raises(SystemExit, match=f"^kerbs-rate: .*{message}"):
        rate.main(["sheet", "--source", "source", "--sets", "2", *output, *arguments.split()])
    assert not Path("study").exists()
    assert not list(tmp_path.glob(".*"))
