"""kerbs-rate report: scores come back to their systems, mistakes in sheets are named, and what is printed."""

import random
import tempfile
from pathlib import Path
from typing import Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import NAMES, Score, fill, last_digit, report, rows_of, study, write

from kerbs_fairseq.human_evaluation import cells as rating_cells
from kerbs_fairseq.human_evaluation import command as rate

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
        said = report(folder / "study")
    for name, lines in responses.items():
        shown = [(rating_cells.shown(q), rating_cells.shown(r) or "(empty)") for q, r in zip(source, lines)]
        expected = [[score(rater, *texts) for texts in shown] for rater in range(1, raters + 1)]
        of = said["systems"][name]
        assert of["raters"] == {str(i + 1): pytest.approx(sum(row) / count) for i, row in enumerate(expected)}
        assert of["scores"] == {str(s): sum(row.count(s) for row in expected) for s in (0, 1, 2)}
        assert of["mean"] == pytest.approx(sum(map(sum, expected)) / count / raters)


@pytest.mark.parametrize("code", ["utf-8", "utf-16", "cp1252"])
def test_encodings_that_spreadsheets_save(tmp_path: Path, code: str) -> None:
    one, two = write(tmp_path / "1", ["ä 2", "é 1"]), write(tmp_path / "2", ["ö 0", "ü 0"])
    source = write(tmp_path / "source", ["où ?", "là ?"])
    rate.main(f"sheet --source {source} --system x={one} --system y={two} -o {tmp_path}/s --sets 2".split())
    fill(tmp_path / "s", last_digit, "\t", code=code)
    said = report(tmp_path / "s")["systems"]
    assert (said["x"]["mean"], said["y"]["mean"]) == (1.5, 0)


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
    said = report(folder, "--partial")
    assert (said["raters"], said["missing"], said["scores"]) == ([1, 2], 11, 13)
    assert said["systems"]["mixture"]["scores"] == {"0": 0, "1": 2, "2": 3}
    assert said["agreement"]["responses"] == 5


def test_partial_tests_use_raters_who_rated_both(tmp_path: Path) -> None:
    folder = study(tmp_path, items=3, sets=3, raters=2)
    # rater 2 is strict and left out the first system: only rater 1 can be used to compare it
    given_by = {1: lambda response: response[-1], 2: lambda response: "" if response[-1] == "0" else "0"}
    fill(folder, lambda rater, question, response: given_by[rater](response))
    said = report(folder, "--partial", "--test", "mixture", "--baseline", "kerbs")["tests"]["against"]["kerbs"]
    assert (said["sets"], said["difference"]) == (3, pytest.approx(5 / 3))


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
    said = report(folder, "--test", "mixture", "--baseline", "plain_softmax")["tests"]
    assert said["system"] == "mixture"
    assert list(said["against"]) == ["plain_softmax"]


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
