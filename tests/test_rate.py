"""kerbs-rate: blinded sheets, and scores that come back to the right system. All sheets here are made up."""

import csv
import io
import itertools
import json
import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Callable, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerbs_fairseq.human_evaluation import cells as rating_cells
from kerbs_fairseq.human_evaluation import command as rate
from kerbs_fairseq.human_evaluation import sheet as rating_sheet

NAMES = ("kerbs", "plain_softmax", "mixture")
Score = Callable[[int, str, str], str]  # rater, input, response


def write(path: Path, lines: list[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8-sig"))  # a mark that must not be shown
    return path


def study(folder: Path, items: int = 8, sets: int = 6, raters: int = 3, options: str = "") -> Path:
    """A synthetic study; every fourth item has the same response from the last two systems."""
    write(folder / "source", [f"question {i}" for i in range(items)])
    for place in range(len(NAMES)):
        responses = [f"answer {i} {min(place, 1) if i % 4 == 0 else place}" for i in range(items)]
        write(folder / f"{place}.txt", responses)
    systems = [f"--system={name}={folder}/{place}.txt" for place, name in enumerate(NAMES)]
    arguments = f"--source {folder}/source -o {folder}/study --sets {sets} --raters {raters} {options}"
    rate.main(["sheet", *arguments.split(), *systems])
    return folder / "study"


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def fill(folder: Path, score: Score, delimiter: str = ",", end: str = "\r\n", code: str = "utf-8-sig") -> None:
    """What raters and their spreadsheet programs do."""
    for path in folder.glob("rater_*.csv"):
        rows = rows_of(path)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, rows[0], delimiter=delimiter, lineterminator=end)
        writer.writeheader()
        for row in rows:
            texts = [rating_cells.unescape(row[column]) for column in ("input", "response")]
            writer.writerow({**row, "score": score(int(path.stem[-1]), *texts)})
        path.write_bytes(text.getvalue().encode(code))


def report(*arguments: object) -> dict:
    """``kerbs-rate report --json``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", io.StringIO())
        rate.main(["report", *map(str, arguments), "--json"])
        return json.loads(rate.sys.stdout.getvalue(), parse_constant=pytest.fail)


def last_digit(rater: int, question: str, response: str) -> str:
    return response[-1]


# ---- the sheets


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
    found = sorted(
        (row["input"], rating_cells.unescape(row["response"])) for row in rows_of(tmp_path / "s/rater_1.csv")
    )
    assert found == [("a", "1"), ("b", "2"), ("b", "x"), ("c", "(empty)"), ("c", "6")]
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


# ---- the way back

LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r"), max_size=12)
TRICKY = st.sampled_from(
    ["=1+1", "-", "'", '"', ",", ";", "\t", '","', "a;b", "\ufeff", "1/2", "٣", "=é", "\x1c", "\0"]
)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_scores_come_back_to_their_systems(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    lines = st.lists(st.one_of(LINES, TRICKY), min_size=count, max_size=count)
    source = [f"{text}{i}" for i, text in enumerate(data.draw(lines))]
    responses = {name: data.draw(lines) for name in NAMES}
    raters = data.draw(st.integers(1, 3))
    seed = data.draw(st.integers(0, 99))

    def score(rater: int, question: str, response: str) -> int:
        return random.Random(f"{seed} {rater} {question} {response}").randrange(3)

    def typed(*of: object) -> str:
        return random.Random(f"{of}").choice(["{}", "{}.0", " {} ", "{},00"]).format(score(*of))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "source", source)
        systems = [f"--system={name}={write(folder / name, lines)}" for name, lines in responses.items()]
        options = f"--source {folder}/source --sets {count} --raters {raters} --seed {seed} -o {folder}/study"
        rate.main(["sheet", *options.split(), *systems])
        fill(folder / "study", typed, data.draw(st.sampled_from(",;\t")), data.draw(st.sampled_from(["\n", "\r\n"])))
        for path in (folder / "study").glob("rater_*.csv"):  # in another order, under another name
            start, *rest = path.read_bytes().splitlines(keepends=True)
            path.with_name(f"my {path.name}").write_bytes(start + b"".join(random.Random(seed).sample(rest, len(rest))))
            path.unlink()
        found = report(folder / "study")
    for name, lines in responses.items():
        shown = [(rating_cells.shown(q), rating_cells.shown(r) or "(empty)") for q, r in zip(source, lines)]
        expected = [[score(rater, *texts) for texts in shown] for rater in range(1, raters + 1)]
        of = found["systems"][name]
        assert of["raters"] == {str(i + 1): pytest.approx(sum(row) / count) for i, row in enumerate(expected)}
        assert of["scores"] == {str(s): sum(row.count(s) for row in expected) for s in (0, 1, 2)}
        assert of["mean"] == pytest.approx(sum(map(sum, expected)) / count / raters)


@pytest.mark.parametrize("code", ["utf-8", "utf-16", "cp1252"])
def test_encodings_that_spreadsheets_save(tmp_path: Path, code: str) -> None:
    one, two = write(tmp_path / "1", ["ä 2", "é 1"]), write(tmp_path / "2", ["ö 0", "ü 0"])
    source = write(tmp_path / "source", ["où ?", "là ?"])
    rate.main(f"sheet --source {source} --system x={one} --system y={two} -o {tmp_path}/s --sets 2".split())
    fill(tmp_path / "s", last_digit, "\t", code=code)
    found = report(tmp_path / "s")["systems"]
    assert (found["x"]["mean"], found["y"]["mean"]) == (1.5, 0)


def change(folder: Path, old: str, new: str, rater: int = 1) -> None:
    path = folder / f"rater_{rater}.csv"
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode())


def test_wrong_scores_are_listed_with_file_and_row(tmp_path: Path) -> None:
    folder = study(tmp_path)
    fill(folder, lambda rater, question, response: "1.5" if rater == 2 and question == "question 3" else "1")
    rows = [i for i, row in enumerate(rows_of(folder / "rater_2.csv"), start=2) if row["input"] == "question 3"]
    with pytest.raises(SystemExit, match="scores other than 0, 1 and 2") as stopped:
        report(folder)
    assert str(stopped.value).splitlines()[1:] == [f"  rater_2.csv, row {i}: '1.5'" for i in rows]


def test_missing_scores_are_listed_or_passed_over(tmp_path: Path) -> None:
    folder = study(tmp_path, items=3, sets=3)
    fill(folder, lambda rater, question, response: "" if (rater, question) == (2, "question 1") else response[-1])
    first = next(i for i, row in enumerate(rows_of(folder / "rater_2.csv"), start=2) if row["input"] == "question 1")
    (folder / "rater_3.csv").unlink()
    with pytest.raises(SystemExit) as stopped:
        report(folder)
    assert str(stopped.value).splitlines() == [
        "kerbs-rate: 11 scores are missing (--partial goes on without them):",
        f"  rater_2.csv, row {first}-{first + 2}",
        "  rater 3, in no sheet: 8",
    ]
    found = report(folder, "--partial")
    assert (found["raters"], found["missing"], found["scores"]) == ([1, 2], 11, 13)
    assert found["systems"]["mixture"]["scores"] == {"0": 0, "1": 2, "2": 3}
    assert found["agreement"]["responses"] == 5


def test_partial_tests_use_raters_who_rated_both(tmp_path: Path) -> None:
    folder = study(tmp_path, items=3, sets=3, raters=2)
    # rater 2 is strict and left out the first system: only rater 1 can be used to compare it
    given_by = {1: lambda response: response[-1], 2: lambda response: "" if response[-1] == "0" else "0"}
    fill(folder, lambda rater, question, response: given_by[rater](response))
    found = report(folder, "--partial", "--test", "mixture", "--baseline", "kerbs")["tests"]["against"]["kerbs"]
    assert (found["sets"], found["difference"]) == (3, pytest.approx(5 / 3))


def test_sheets_of_another_study_are_refused(tmp_path: Path) -> None:
    for name, items in (("a", 8), ("b", 9)):
        (tmp_path / name).mkdir()
        fill(study(tmp_path / name, items=items), last_digit)
    with pytest.raises(SystemExit, match="not of this study"):
        report(*(tmp_path / "a/study").glob("*.csv"), "--key", tmp_path / "b/study/key.json")


def test_a_column_sorted_alone_is_noticed(tmp_path: Path) -> None:
    folder = study(tmp_path)
    fill(folder, last_digit)
    rows = rows_of(folder / "rater_1.csv")
    one, other = rows[0], next(row for row in rows if row["input"] != rows[0]["input"])
    for old, new in ((one, "…"), (other, one["response"]), ({"response": "…"}, other["response"])):
        change(folder, old["response"], new)
    with pytest.raises(SystemExit, match=r"belong to another response id[^\n]*\n  rater_1.csv, row 2: "):
        report(folder)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("response id", "identity", "rater_1.csv is not a rating sheet"),
        ("set,input", "PK,set", None),
    ],
)
def test_changed_headers(tmp_path: Path, old: str, new: str, message: Optional[str]) -> None:
    folder = study(tmp_path)
    fill(folder, last_digit, code="utf-8")
    change(folder, old, new)
    with pytest.raises(SystemExit, match=message or "is a spreadsheet, not text: save it as CSV"):
        report(folder)


def test_other_mistakes_in_reading(tmp_path: Path) -> None:
    folder = study(tmp_path)
    fill(folder, last_digit)
    sheet, key = folder / "rater_1.csv", folder / "key.json"
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "changed.json").write_text(key.read_text().replace('"kerbs"', '"better"'))
    for arguments, message in [
        ([sheet], "need their key: --key"),
        ([sheet, folder], "study is a directory: give one folder, or sheets alone"),
        ([sheet, sheet, "--key", key], "occur twice"),
        ([tmp_path / "nowhere.csv", "--key", key], "nowhere.csv cannot be read: No such file"),
        ([folder, "--key", sheet], "the key .*rater_1.csv cannot be read as JSON"),
        ([folder, "--key", tmp_path / "list.json"], "is not a key of kerbs-rate"),
        ([folder, "--key", tmp_path / "changed.json"], "was changed after it was written"),
        ([folder, "--key", tmp_path / "none.json"], "the key .*none.json cannot be read"),
        ([tmp_path / "empty", "--key", key], "has no sheets"),
        ([folder, "--test", "x"], "no system 'x' in this study: kerbs, plain_softmax, mixture"),
        ([folder, "--baseline", "x"], "no system 'x' in this study"),
        ([folder, "--test", "kerbs", "--baseline", "kerbs"], "kerbs cannot be its own baseline"),
    ]:
        with pytest.raises(SystemExit, match=f"kerbs-rate: .*{message}"):
            report(*arguments)


# ---- what they say


def test_report_in_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = study(tmp_path, items=20, sets=20)
    fill(folder, lambda *of: str(random.Random(f"{of}").randrange(3)))
    capsys.readouterr()
    rate.main(["report", str(folder)])
    out = capsys.readouterr().out
    for text in (
        *NAMES,
        "rater 3",
        "95% interval",
        "kappa",
        "alpha",
        "One-tailed",
        "kerbs is better",
        "paired",
        "Welch",
    ):
        assert text in out
    assert "nan" not in out
    found = report(folder, "--test", "mixture", "--baseline", "plain_softmax")["tests"]
    assert found["system"] == "mixture"
    assert list(found["against"]) == ["plain_softmax"]


@pytest.mark.parametrize(
    ("options", "score", "texts"),
    [
        (
            {},
            lambda *of: "1",
            ["difference is +0.00 in every set", "all scores are the same", "same score in every set"],
        ),
        ({"items": 3, "sets": 3, "raters": 1}, last_digit, ["one rater alone"]),
        ({"items": 1, "sets": 1}, last_digit, ["needs at least two sets"]),
        ({"items": 1, "sets": 1, "raters": 1}, last_digit, ["needs at least two sets", "one rater alone"]),
    ],
    ids=["equal", "one rater", "one set", "one of each"],
)
def test_what_cannot_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture, options: dict, score: Score, texts: list[str]
) -> None:
    folder = study(tmp_path, **options)
    fill(folder, score)
    capsys.readouterr()
    rate.main(["report", str(folder)])
    out = capsys.readouterr().out
    assert all(text in out for text in texts), out
    assert "nan" not in out
    report(folder)  # refuses NaN
