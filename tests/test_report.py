"""kerbs-report: what it reads, what it says, and what it refuses."""

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
from synthetic_runs import JSON_LOG, MOVES, WORDS, checkpoint, dictionary_folder

from kerbs_fairseq.inspection import findings
from kerbs_fairseq.inspection.contexts import Reader
from kerbs_fairseq.inspection.findings import rank_correlation
from kerbs_fairseq.inspection.learned import load
from kerbs_fairseq.report import command, compare, plots
from kerbs_fairseq.report.album import of_widths, of_words
from kerbs_fairseq.report.drawing import INK, PALETTE, Picture, axes, inline, style
from kerbs_fairseq.report.gather import gather
from kerbs_fairseq.report.spaces import Contexts, Kept, candidates, main_axes
from kerbs_fairseq.report.vocabulary import vocabulary
from kerbs_fairseq.runs.checkpoint import parameters


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return dictionary_folder(tmp_path)


@pytest.fixture
def synthetic(tmp_path: Path, data: Path) -> Path:
    (tmp_path / "run").mkdir()
    return checkpoint(tmp_path / "run" / "checkpoint.pt", data)


def softmax(path: Path, **more: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    shared = torch.zeros(5, 4)
    state = {"encoder.embed_tokens.weight": shared, "decoder.embed_tokens.weight": shared, **more}
    torch.save({"model": state, "cfg": {"model": {"_name": "lstm", "dropout": 0.1}}}, path)
    return path


# --- runs


def test_scores_settings_and_parameters(tmp_path: Path, synthetic: Path) -> None:
    (synthetic.parent / "scores.json").write_text(
        '{"bleu": 27.123456, "signature": "nrefs:1|tok:13a", "parameters": 9, "valid_ppl": null}'
    )
    plain = softmax(tmp_path / "plain" / "checkpoint.pt")
    kerbs, stock = gather([synthetic, plain])
    assert kerbs.scores == {"bleu": "27.12", "signature": "nrefs:1|tok:13a"}
    assert (kerbs.name, kerbs.head, stock.name, stock.head) == ("run", "KerBS", "plain", "softmax")
    assert stock.parameters == 20  # a shared table counts once
    table = torch.arange(20.0).view(5, 4)
    twice = {
        "a.weight": table.half(),
        "b.weight": table.half(),
        "norm.weight": torch.ones(4),
        "c.weight": torch.ones(4),
    }
    assert parameters(twice) == 20 + 4 + 4, "half precision saves a shared table as two"
    shared, zero = torch.ones(7), torch.zeros(2, 3)
    assert parameters({"a": shared, "b": shared, "c": zero, "d": zero.clone()}) == 7 + 6 + 6
    assert kerbs.parameters == 12 * 6 + 12  # statistics are not learned
    assert stock.settings == {"arch": "lstm", "dropout": "0.1"}
    assert kerbs.settings["kerbs-senses"] == "2.0"


def test_moves_are_found_where_they_moved_with_the_checkpoint(synthetic: Path) -> None:
    state = torch.load(synthetic, weights_only=False)
    state["cfg"]["model"]["kerbs_move_log"] = "/elsewhere/moves.tsv"
    torch.save(state, synthetic)
    (synthetic.parent / "moves.tsv").write_text(MOVES + "10\t4\tthe\tbank\t0\t-1\n90\t4\tbank\tthe\t0\t-1\n")
    (run,) = gather([synthetic])
    assert run.history.moves == [(10, "the", "bank")]  # the checkpoint is of update 70


@pytest.mark.parametrize("source", ["none", "log", "table"])
def test_moves_of_a_model_that_this_run_began_with_are_not_its_own(synthetic: Path, source: str) -> None:
    state = torch.load(synthetic, weights_only=False)
    state["optimizer_history"] = [{"num_updates": 30}]  # the statistics have counted 70 updates, and 5 moves
    torch.save(state, synthetic)
    if source == "log":
        (synthetic.parent / "train.log").write_text(
            '{"loss": "2", "num_updates": "10", "kerbs_moved_total": "4"}\n'
            '{"loss": "2", "num_updates": "20", "kerbs_moved_total": "5"}\nupdate 20: 1 senses moved: a → b\n'
        )
    table = synthetic.parent / "moves.tsv"
    table.write_text(MOVES + "20\t4\tthe\tbank\t0\t-1\n")
    (run,) = gather([synthetic], move_log=table if source == "table" else None)
    assert run.moved == (None if source == "none" else 1)
    state["optimizer_history"] = [{"num_updates": 70}]
    torch.save(state, synthetic)
    (run,) = gather([synthetic])
    assert run.moved == 5


def test_long_words_have_short_files(synthetic: Path) -> None:
    model = load(synthetic)
    model.words[4] = "a" * 20000
    features, senses = torch.randn(9, 6), torch.full((9,), 4)
    kept = {4: Kept([features], [senses], 9)}
    contexts = Contexts("valid", 9, True, torch.zeros(8), torch.zeros(8), torch.zeros(12), [], {}, kept)
    with style():
        ((_, picture),) = of_words(model, contexts, [4])
    assert picture.name == "word-" + 60 * "a"


def test_names_tell_checkpoints_apart(tmp_path: Path) -> None:
    a, b = softmax(tmp_path / "x" / "a.pt"), softmax(tmp_path / "x" / "b.pt")
    assert [run.name for run in gather([a, b])] == ["x/a", "x/b"]
    assert [run.name for run in gather([a, a])] == ["1. x/a", "2. x/a"]
    seed = tmp_path / "gru-kerbs" / "seed_1"
    seed.mkdir(parents=True)
    (seed / "a.pt").write_bytes(a.read_bytes())
    assert [run.name for run in gather([seed / "a.pt", a])] == ["gru-kerbs/seed_1", "x"]


# --- words and contexts


def test_words_to_plot_are_frequent_with_senses_far_apart(synthetic: Path) -> None:
    model = load(synthetic)
    scores = {}
    for word in WORDS:
        own = model.senses_of(model.find(word))
        unit = torch.nn.functional.normalize(model.vectors[own])
        p = model.share[own]
        scores[word] = float((p @ (1 - unit @ unit.t()) @ p) * torch.log1p(model.counts[model.find(word)].float()))
    best = max(("bank", "river"), key=scores.__getitem__)  # money has one sense; the senses of "the" were never used
    assert model.words[candidates(model)[0]] == best
    assert {model.words[i] for i in candidates(model)} == {"bank", "river"}


def test_main_axes_keep_the_most_of_a_flat_cloud() -> None:
    flat = torch.randn(50, 2, generator=torch.Generator().manual_seed(0)) @ torch.tensor([[3.0, 0, 0, 0], [0, 0, 1, 0]])
    points = main_axes(flat + 5)
    torch.testing.assert_close(torch.cdist(points, points), torch.cdist(flat, flat), atol=2e-3, rtol=1e-3)
    assert points[:, 0].var() > points[:, 1].var()
    assert main_axes(torch.ones(1, 3)).shape == (1, 2)


def test_rank_correlation() -> None:
    a = [1.0, 3, 2, 7]
    assert rank_correlation(a, [x**3 for x in a]) == pytest.approx(1)
    assert rank_correlation(a, [-x for x in a]) == pytest.approx(-1)
    assert rank_correlation(a, [1.0] * 4) == 0
    assert rank_correlation([1.0, 1, 2, 3], [2.0, 2, 5, 9]) == pytest.approx(1), "equal values share a rank"


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_search_has_what_inspect_says(synthetic: Path, tmp_path: Path, data: Path, with_bias: bool) -> None:
    model = load(synthetic)
    assert model.bias is None
    if with_bias:
        raw, rates = torch.linspace(-2, 1, 12), torch.tensor([1_000_000, 3_000_000])
        more = {f"decoder.head.senses.{name}": value for name, value in (("bias_raw", raw), ("rates", rates))}
        model = load(checkpoint(tmp_path / "bias.pt", data, **more))
        torch.testing.assert_close(model.bias, 3 * raw)
        quantiles = findings.everything(model)["bias"]["quantiles"]
        assert (quantiles["0%"], quantiles["100%"]) == (pytest.approx(-6), pytest.approx(3))
        assert "bias" in [picture.name for _, picture in of_widths(model, None)]
    found = vocabulary(model, None)
    assert [word for word, _, _ in found["words"]] == ["the", "money", "river", "bank"]  # by frequency
    words = [word for word, _, _ in found["words"]]
    for word, count, senses in found["words"]:
        detail = findings.word_in_detail(model, word, nearest=4)
        assert count == detail["count"]
        for row, sense in zip(senses, detail["senses"]):
            assert row[:4] == [pytest.approx(sense[name], abs=6e-4) for name in ("theta", "bias", "share", "length")]
            near = list(dict.fromkeys(other["word"] for other in sense["nearest"]))
            assert [words[i] for i in row[4]] == [other for other in near if other in words]


# --- pictures


def test_plots_on_a_page_share_no_ids_and_take_its_colours() -> None:
    with style():
        texts = []
        for name in ("one", "two"):
            figure, ax = axes()
            ax.plot([1, 2], color=PALETTE[0], label="$x_1$ <b> & ▁wort")
            ax.legend()
            texts.append(inline(Picture(name, name, "", figure)))
    ids = [set(re.findall(r'id="([^"]+)"', text)) for text in texts]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip(texts, ids):
        assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
        assert {a or b for a, b in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)} <= own
        assert INK not in text
        assert "var(--c0)" in text
        assert ">$x_1$ &lt;b&gt; &amp; ▁wort<" in text  # as text, and not in the comment above a formula


def test_the_same_plot_is_the_same_file(synthetic: Path) -> None:
    model = load(synthetic)
    with style():
        first, second = (inline(Picture("theta", "", "", plots.theta(model))) for _ in range(2))
    assert first == second


def test_curves_are_compared_by_loss_where_one_has_no_perplexity(tmp_path: Path, synthetic: Path) -> None:
    (synthetic.parent / "train.log").write_text(JSON_LOG)
    runs = gather([synthetic, softmax(tmp_path / "plain" / "checkpoint.pt")])
    runs[1].history.valid_loss = {5: 1.0}
    with style():
        assert compare.validation(runs).axes[0].get_ylabel() == "validation loss (bits per token)"
        assert compare.validation(runs[:1]).axes[0].get_ylabel() == "validation perplexity"


# --- the command


class Elements(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.found.append((tag, dict(attrs)))


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
    elements = Elements(text).found
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
    found = data_of(text)
    words = {word: senses for word, _, senses in found["words"]}
    lines = (corpus / "parallel" / "valid.tgt").read_text().splitlines()
    assert sum(sense[5] for sense in words["the"]) == sum(line.split().count("the") for line in lines)
    for sense in words["the"]:
        for sentence, position, _ in sense[6]:
            assert found["sentences"][sentence].split()[position] == "the"
            shown = found["sentences"][sentence].removesuffix(" </s>")
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
    found = re.search(rf"Contexts of {re.escape(rare)}: a plot needs 3, and there are [012] in [\d,]+ tokens", page)
    assert found, "nothing is left out silently"
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
