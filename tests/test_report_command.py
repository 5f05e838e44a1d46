"""kerbs-report: its pages, its mistakes, and trained models of every family."""

import html.parser
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from commands import start
from inprocess import LANGUAGE_MODELS, batch, prepare, trainer
from synthetic_runs import checkpoint, softmax

from kerbs_fairseq.inspection.contexts import Reader
from kerbs_fairseq.report import command


class Elements(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.append((tag, dict(attrs)))


def report(*options: object) -> str:
    """Run the command in this process; the text of its page."""
    command.main([*map(str, options)])
    return (Path(options[options.index("-o") + 1]) / "index.html").read_text(encoding="utf-8")


def data_of(text: str) -> dict[str, Any]:
    """What the page's script searches in."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_hostile_words_are_only_words(tmp_path: Path, data: Path) -> None:
    hostile = ["</script><script>alert(1)</script>", "$\\frac{$", "<img/src=x>", "▁&amp;"]
    (data / "dict.tgt.txt").write_text("".join(f"{word} {9 - i}\n" for i, word in enumerate(hostile)))
    path = checkpoint(tmp_path / "odd.pt", data)
    text = report(path, "-o", tmp_path / "out", "--title", "<b>a title</b>")
    assert [word for word, _, _ in data_of(text)["words"]] == hostile
    elements = Elements(text).tags
    assert [tag for tag, _ in elements].count("script") == 2
    assert not {"img", "iframe", "object", "b"} & {tag for tag, _ in elements} - {"b"}
    assert "alert(1)" not in re.sub(r"<script.*?</script>", "", text, flags=re.S).replace("&gt;alert(1)&lt;", "")
    for tag, attributes in elements:  # nothing comes from elsewhere
        for name in ("src", "href", "xlink:href"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    for figure in (tmp_path / "out" / "figures").glob("*.svg"):
        ElementTree.parse(figure)
    assert (tmp_path / "out" / "figures" / "theta.png").read_bytes()[:4] == b"\x89PNG"


def test_without_data_and_logs_it_says_what_is_left_out(
    tmp_path: Path, synthetic: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "dict.tgt.txt").unlink()
    text = report(synthetic, "-o", tmp_path / "out")
    for left_out in (
        "no dictionary was found",
        "no log was found",
        "5 senses moved, but neither",
        "What needs sentences",
    ):
        assert left_out in text, left_out
    printed = capsys.readouterr()
    assert printed.out == f"{tmp_path}/out/index.html\n"
    assert "kerbs-report: drawing" in printed.err


@pytest.mark.parametrize("kernel", ["dot", "released"])
def test_other_kernels_and_old_checkpoints(tmp_path: Path, data: Path, kernel: str) -> None:
    path = checkpoint(tmp_path / "checkpoint.pt", data, kernel)
    state = torch.load(path, weights_only=False)
    for name in [name for name in state["model"] if ".statistics." in name]:
        del state["model"][name]
    state["model"] = {name: t.half() if t.is_floating_point() else t for name, t in state["model"].items()}
    torch.save(state, path)
    text = report(path, "-o", tmp_path / "out")
    assert ("there is no θ" in text) is (kernel == "dot")
    assert (tmp_path / "out" / "figures" / "theta.svg").exists() is (kernel != "dot")


def test_models_without_senses_are_compared(tmp_path: Path) -> None:
    mos = softmax(tmp_path / "mos" / "checkpoint.pt", **{"decoder.head.prior.weight": torch.zeros(2, 2)})
    text = report(softmax(tmp_path / "plain" / "checkpoint.pt"), mos, "-o", tmp_path / "out")
    assert "none of them is KerBS" in text
    assert "MoS" in text


def test_a_report_is_replaced_whole(tmp_path: Path, synthetic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = report(synthetic, "-o", tmp_path / "out", "--title", "first")
    monkeypatch.setattr(command, "page", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        command.main([str(synthetic), "-o", str(tmp_path / "out"), "--title", "second"])
    assert (tmp_path / "out" / "index.html").read_text() == first
    assert not list((tmp_path / "out").rglob("*.new"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("none.pt -o out", "none.pt does not exist"),
        ("plain/checkpoint.pt -o out", "is not a KerBS model but a softmax"),
        ("run/checkpoint.pt -o taken", "cannot write taken"),
        ("run/checkpoint.pt -o out --word bnak", "there is no word 'bnak' among the 8 of the model; did you mean bank"),
        ("run/checkpoint.pt -o out --word </s>", "a special symbol"),
        ("run/checkpoint.pt -o out --data other", "dict.tgt.txt has 5 words, the model has 8"),
        ("run/checkpoint.pt -o out --data nowhere", "--data nowhere is not a directory"),
        ("run/checkpoint.pt -o out --log none.log", "the log none.log cannot be read"),
        ("run/checkpoint.pt -o out --log taken --log taken", "--log was given 2 times, for 1 checkpoints"),
        ("run/checkpoint.pt -o out --move-log taken", "taken is not a table of moves"),
        ("run/checkpoint.pt -o out --tokens 0", "--tokens 0: at least 1"),
    ],
)
def test_mistakes_get_one_line(
    synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    softmax(tmp_path / "plain" / "checkpoint.pt")
    (tmp_path / "taken").write_text("not a folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "dict.tgt.txt").write_text("a 1\n")
    with pytest.raises(SystemExit) as stopped:
        command.main(options.split())
    assert message in str(stopped.value)
    assert "\n" not in str(stopped.value)
    assert not (tmp_path / "out" / "index.html").exists()


# --- trained models


@pytest.mark.e2e
def test_a_trained_model_has_every_part(reported: Path, corpus: Path) -> None:
    text = (reported / "index.html").read_text(encoding="utf-8")
    names = {path.name for path in (reported / "figures").iterdir()}
    expected = "training moves words-over-time senses frequency bias theta kernel spread word-the word-a word-bank "
    expected += "compare-validation compare-senses compare-theta"
    assert names == {f"{name}.{kind}" for name in expected.split() for kind in ("png", "svg")}
    assert text.count("<figure>") == len(expected.split())
    data = data_of(text)
    words = {word: senses for word, _, senses in data["words"]}
    lines = (corpus / "parallel" / "valid.tgt").read_text().splitlines()
    assert sum(sense[5] for sense in words["the"]) == sum(line.split().count("the") for line in lines)
    for sense in words["the"]:
        for sentence, position, _ in sense[6]:
            pieces = data["sentences"][sentence].split("\t")
            assert pieces[position].strip() == "the"
            shown = "".join(pieces).strip()
            assert shown in lines or "<unk>" in shown
    assert "kerbs-senses" in text
    assert "Left out" not in text.partition("Training curves of transformer")[0].partition("<main>")[0]


@pytest.mark.parametrize(
    "base",
    [
        "lstm_lm",
        *(
            pytest.param(name, marks=pytest.mark.thorough)
            for name in ("transformer", "lstm", "transformer_lm", "gru_lm", "bart", "transformer_align")
        ),
    ],
)
def test_every_family_from_half_precision(base: str, joined: Path, text: Path, tmp_path: Path) -> None:
    folder = text if base in LANGUAGE_MODELS else joined  # bart shares its embeddings
    architecture = "kerbs_bart_base" if base == "bart" else f"kerbs_{base}"
    built = prepare(folder, base, f"--arch {architecture} --criterion kerbs_cross_entropy --optimizer adam --lr 0.01")
    training = trainer(built)
    training.train_step([batch(built, 40)])
    path = tmp_path / "checkpoint.pt"
    training.consolidate_optimizer()
    training.save_checkpoint(str(path), {"train_iterator": {"epoch": 1}})
    state = torch.load(path, weights_only=False)
    statistics = ".head.statistics."
    state["model"] = {
        name: t.half() if t.is_floating_point() and statistics not in name else t for name, t in state["model"].items()
    }
    torch.save(state, path)
    text_of_page = report(path, "--data", folder, "--word", "the", "-o", tmp_path / "out")
    the = next(senses for word, _, senses in data_of(text_of_page)["words"] if word == "the")
    assert sum(sense[5] for sense in the) > 10
    assert (tmp_path / "out" / "figures" / "word-the.svg").exists()
    read = [len(part["id"]) for part in Reader(path, folder, "valid").batches(tokens=3)]
    assert sum(read) == 60, "lines that are longer than a batch are read too"


def test_a_word_without_contexts_and_a_broken_model_are_told(text: Path, tmp_path: Path) -> None:
    built = prepare(text, "lstm_lm", "--arch kerbs_lstm_lm --criterion kerbs_cross_entropy --optimizer adam --lr 0.01")
    training, path = trainer(built), tmp_path / "checkpoint.pt"
    training.train_step([batch(built, 40)])
    training.consolidate_optimizer()
    training.save_checkpoint(str(path), {"train_iterator": {"epoch": 1}})
    words = [line.split()[0] for line in (text / "dict.txt").read_text().splitlines()]
    rare = next(word for word in reversed(words) if not word.startswith("madeup"))
    page = report(path, "--data", text, "--word", rare, "-o", tmp_path / "out")
    note = re.search(rf"Contexts of {re.escape(rare)}: a plot needs 3, and there are [012] in [\d,]+ tokens", page)
    assert note, "nothing is left out silently"
    state = torch.load(path, weights_only=False)
    next(value for name, value in state["model"].items() if "embed_tokens" in name).fill_(torch.nan)
    torch.save(state, path)
    with pytest.raises(SystemExit, match="training went wrong"):
        report(path, "--data", text, "-o", tmp_path / "out")


@pytest.mark.e2e
@pytest.mark.thorough
def test_the_command_refuses_with_one_line(tmp_path: Path) -> None:
    done = start(f"kerbs-report {tmp_path}/none.pt -o {tmp_path}/out")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"kerbs-report: {tmp_path}/none.pt does not exist"
    assert "Traceback" not in done.stderr
