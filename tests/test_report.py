"""kerbs-report: what it reads, what it says, and what it refuses."""

import re
from pathlib import Path

import pytest
import torch
from synthetic_runs import JSON_LOG, MOVES, WORDS, checkpoint, softmax

from kerbs_fairseq.inspection import findings
from kerbs_fairseq.inspection.findings import rank_correlation
from kerbs_fairseq.inspection.learned import load
from kerbs_fairseq.report import compare, plots
from kerbs_fairseq.report.album import of_widths, of_words
from kerbs_fairseq.report.drawing import INK, MARKERS, PALETTE, Picture, axes, colour, inline, marker, style
from kerbs_fairseq.report.gather import gather
from kerbs_fairseq.report.spaces import Contexts, Kept, candidates, main_axes
from kerbs_fairseq.report.vocabulary import vocabulary
from kerbs_fairseq.runs.checkpoint import parameters

# --- plots


def test_many_senses_are_told_apart() -> None:
    looks = [(colour(i), marker(i)) for i in range(len(PALETTE) * len(MARKERS))]
    assert len(set(looks)) == len(looks)
    for senses in range(1, 65):
        assert sum(fewest <= senses <= most for fewest, most in plots.SENSE_GROUPS) == 1
    assert len(plots.SENSE_GROUPS) <= len(PALETTE)


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
    searched = vocabulary(model, None)
    assert [word for word, _, _ in searched["words"]] == ["the", "money", "river", "bank"]  # by frequency
    words = [word for word, _, _ in searched["words"]]
    for word, count, senses in searched["words"]:
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
