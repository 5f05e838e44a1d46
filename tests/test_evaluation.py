"""Scores against sacrebleu's own and against brute force, significance, and the paper's table."""

import math
from pathlib import Path

import numpy as np
import pytest
from evaluated import evaluated_run
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU

from kerbs_fairseq.evaluation import command, sweep
from kerbs_fairseq.evaluation.paper import TASKS, baseline_of, name_of
from kerbs_fairseq.evaluation.scores import Bleu, Perplexity
from kerbs_fairseq.evaluation.significance import paired_bootstrap
from kerbs_fairseq.evaluation.table import markdown, spread
from kerbs_fairseq.runs import logs
from kerbs_fairseq.runs.errors import CLOSED_PIPE, INTERRUPTED, UserError
from kerbs_fairseq.runs.outputs import hypotheses, piece_log_probs, sentence_nll

WORDS = st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat", ",", "."]), min_size=1, max_size=12).map(
    " ".join
)
CORPUS = st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=8)


# --- what fairseq's commands write


def test_hypotheses_come_in_the_order_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "generate-test.txt"
    path.write_text("S-1\tx\nT-1\ty\nH-1\t-0.3\t▁b\tc\nH-1\t-0.9\tworse\nD-1\t-0.3\tb\nH-0\t-0.1\t▁a \nH-2\t-0.1\t\n")
    assert hypotheses(path) == ["▁a", "▁b\tc", ""]
    path.write_text("H-0\t-0.1\ta\nH-2\t-0.1\tb\n")
    with pytest.raises(UserError, match="no sentence 1"):
        hypotheses(path)
    path.write_text("")
    with pytest.raises(UserError, match="no sentence:"):
        hypotheses(path)
    with pytest.raises(UserError, match="cannot be read"):
        hypotheses(tmp_path / "missing")


def test_nll_of_sentences(tmp_path: Path) -> None:
    path = tmp_path / "eval-lm.log"
    path.write_text(
        "2026 | INFO | fairseq_cli.eval_lm | 1 ▁[2] [-0.500000]\t] [-0.250000]\t</s> [-1.000000]\n"
        "2026 | INFO | fairseq_cli.eval_lm | 0 </s> [-2.000000]\n"
        "2026 | INFO | fairseq_cli.eval_lm | Loss (base 2): 8.1, Perplexity: 271.13\n"
    )
    assert sentence_nll(path) == [2.0, 1.75]
    assert piece_log_probs(path) == [("</s>", -2.0), ("▁[2]", -0.5), ("]", -0.25), ("</s>", -1.0)]


def test_best_validation_perplexity(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert logs.best(log) is logs.best(log, "loss") is None
    log.write_text(
        'x | valid | {"epoch": 1, "valid_loss": "3.2", "valid_ppl": "9.5", "valid_best_loss": "1.0"}\n'
        'x | valid | {"epoch": 2, "valid_loss": "3.3", "valid_ppl": "7.25"}\n'
    )
    assert (logs.best(log), logs.best(log, "loss")) == (7.25, 3.2)


def test_number_of_parameters(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    assert logs.parameters(log) is None
    log.write_text("x | num. shared model params: 2,589,152 (num. trained: 9)\nx | num. expert model params: 0\n")
    assert logs.parameters(log) == 2_589_152


# --- scores


@pytest.mark.parametrize("order", [1, 4])
@given(corpus=CORPUS)
def test_bleu_from_sums_is_that_of_sacrebleu(order: int, corpus: list[tuple[str, str]]) -> None:
    outputs, wanted = [h for h, _ in corpus], [r for _, r in corpus]
    scorer = Bleu(order)
    expected = BLEU(max_ngram_order=order).corpus_score(outputs, [wanted]).score
    assert scorer.score(scorer.statistics(outputs, wanted).sum(0)) == pytest.approx(expected)


def test_bleu_1_by_hand() -> None:
    scorer = Bleu(1)
    total = scorer.statistics(["a b x", "c"], ["a b c d", "c d"]).sum(0)  # 3 of 4 words, 4 against 6
    assert scorer.score(total) == pytest.approx(100 * 3 / 4 * math.exp(1 - 6 / 4))
    assert "nrefs:1" in scorer.signature(["a"], ["a"])


def test_perplexity_is_per_word_whatever_the_pieces() -> None:
    scorer = Perplexity()
    total = scorer.statistics([3.0, 5.0], ["two words", "one"]).sum(0)  # three words and two ends
    assert scorer.score(total) == pytest.approx(math.exp(8 / 5))


# --- significance


def test_the_bootstrap_is_that_of_brute_force() -> None:
    generator = np.random.default_rng(3)
    system, baseline = generator.uniform(1, 2, (2, 6, 2)), generator.uniform(1, 2, (3, 6, 2))
    comparison = paired_bootstrap(Perplexity(), system, baseline, samples=200, seed=5)
    drawn = []
    weights = np.random.default_rng(5).multinomial(6, [1 / 6] * 6, size=200)
    for weight in weights:
        chosen = [i for i, times in enumerate(weight) for _ in range(times)]
        means = []
        for of_one in (system, baseline):
            ppl = [math.exp(sum(s[i][0] for i in chosen) / sum(s[i][1] for i in chosen)) for s in of_one]
            means.append(sum(ppl) / len(ppl))
        drawn.append(means[0] - means[1])
    assert comparison.p == (sum(d >= 0 for d in drawn) + 1) / 201
    assert (comparison.low, comparison.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])))


@settings(max_examples=20, deadline=None)
@given(CORPUS)
def test_a_system_is_no_better_than_itself(corpus: list[tuple[str, str]]) -> None:
    one = Bleu(1).statistics([h for h, _ in corpus], [r for _, r in corpus])[None]
    comparison = paired_bootstrap(Bleu(1), one, one, samples=20)
    assert (comparison.difference, comparison.p) == (0, 1)


def test_better_everywhere_is_significant_in_both_directions() -> None:
    good, bad = np.array([[[4.0, 5, 5, 5]] * 30]), np.array([[[1.0, 5, 5, 5]] * 30])
    assert paired_bootstrap(Bleu(1), good, bad).p < 0.01
    assert paired_bootstrap(Bleu(1), bad, good).p == 1
    low, high = np.array([[[1.0, 3]] * 30]), np.array([[[2.0, 3]] * 30])
    assert paired_bootstrap(Perplexity(), low, high).p < 0.01, "a lower perplexity is better"
    with pytest.raises(UserError, match="different test sets"):
        paired_bootstrap(Bleu(1), good, bad[:, :7])


# --- the table


def test_the_table_has_the_papers_figures_and_ours(out: Path) -> None:
    bad, good = ["a x y", "d x y", "g x y"] * 10, ["a b y", "d e y", "g h y"] * 10
    evaluated_run(out, "seq2seq-softmax", 1, bad)
    evaluated_run(out, "seq2seq-softmax", 2, good)
    evaluated_run(out, "seq2seq-kerbs", 1, good)
    evaluated_run(out, "seq2seq-kerbs", 3, good)  # a seed that softmax does not have: not in the difference
    table = markdown("dialog_dailydialog", out, failed=["seq2seq-mos, seed 1", "seq2seq-kerbs, seed 4"])
    rows = {
        line.split(" | ")[1]: line for line in table.splitlines() if line.startswith("| `seq2seq") and "M |" in line
    }
    assert "2.37 M | 16.56 | 50.00 ± 23.57 (2) | 1.50 ± 0.00 (2) | 7.00 ± 0.00 (2) |  |  |" in rows["softmax"]
    assert (
        "| 66.67 ± 0.00 (2), 1 failed | 1.50 ± 0.00 (2) | 7.00 ± 0.00 (2) | +33.33 [+33.33, +33.33] | 0.001 |"
        in (rows["KerBS"])
    )
    assert "| `seq2seq-mos` | MoS |  | 13.73 | 1 failed |  |" in table
    assert "transformer" not in table, "nothing is said of what was not run"
    assert "sig" in table


def test_variants_have_rows_of_their_own(out: Path) -> None:
    good, bad = ["a b y", "d e y", "g h y"] * 10, ["a x y", "d x y", "g x y"] * 10
    evaluated_run(out, "seq2seq-softmax", 1, bad)
    evaluated_run(out, "seq2seq-softmax+wide", 1, good)
    kerbs = evaluated_run(out, "seq2seq-kerbs+wide", 1, good)
    (kerbs / "scores.json").write_text('{"bleu": 1.0, "parameters": null, "valid_ppl": Infinity}')  # logs may not say
    evaluated_run(out, "magic-softmax+wide", 1, good)  # not of this recipe
    evaluated_run(out, "seq2seq-softmax+..", 1, good)  # no name
    table = markdown("dialog_dailydialog", out, ["seq2seq-mos+deep, seed 1"])
    rows = [line for line in table.splitlines() if line.startswith("| ")][:6]
    assert [row.split(" | ")[1] for row in rows[2:]] == ["softmax", "softmax (wide)", "MoS (deep)", "KerBS (wide)"]
    assert "2.37 M | – | 66.67 (1) | " in rows[3], "the paper has no figure for it"
    assert "+33.33" in rows[3], "a variant of the softmax is compared with the softmax itself"
    assert "1 failed" in rows[4]
    assert "(wide) |  | – | 1.00 (1) |  |  | +" in rows[5].replace("-", "+")


def test_compare_shows_outputs_side_by_side(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = evaluated_run(out, "seq2seq-softmax", 1, ["a x y", "same", "g x y"] * 10)
    b = evaluated_run(out, "seq2seq-kerbs", 1, ["a b y", "same", "g h y"] * 10)
    command.main(["compare", "dialog_dailydialog", str(out), str(a), str(b), "--samples", "2"])
    shown = capsys.readouterr().out
    assert "seq2seq-kerbs against seq2seq-softmax: +" in shown
    assert shown.count("reference") == 2
    assert "same" not in shown, "only what differs"
    with pytest.raises(SystemExit, match="has not been evaluated"):
        command.main(["compare", "dialog_dailydialog", str(out), str(a), str(out / "runs" / "seq2seq-mos" / "seed_1")])


def test_a_broken_or_foreign_folder_is_told_from_a_run(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = evaluated_run(out, "seq2seq-softmax", 1, ["a"] * 30)
    aside = good.with_name("seed_1_old")
    aside.mkdir()
    (aside / "scores.json").write_text("{}")
    assert markdown("dialog_dailydialog", out).count("| softmax |") == 1, "what was put aside does not count"
    shorter = evaluated_run(out, "seq2seq-kerbs", 1, ["a"] * 30)
    (shorter / "test.hyp").write_text("a\n")
    with pytest.raises(SystemExit, match=r"seq2seq-kerbs/seed_1: 1 outputs for 30 sentences"):
        command.main(["compare", "dialog_dailydialog", str(out), str(good), str(shorter)])
    (good / "scores.json").write_text('{"bleu": 1')
    with pytest.raises(SystemExit, match=r"scores\.json is broken"):
        command.main(["table", "dialog_dailydialog", str(out)])


def test_score_needs_a_model(out: Path) -> None:
    with pytest.raises(SystemExit, match="train the model first"):
        command.main(["score", "dialog_dailydialog", str(out), str(out / "runs" / "x" / "seed_1")])


def test_spread_is_that_of_a_sample() -> None:
    assert spread([1.0, 2.0, 4.0]) == pytest.approx(np.std([1, 2, 4], ddof=1))
    assert spread([1.0]) == 0


def test_names_of_cells() -> None:
    assert name_of("seq2seq-kerbs-nokernel") == ("seq2seq", "KerBS w/o kernel")
    assert name_of("gru-softmax+3x.wide") == ("gru", "softmax (3x.wide)")
    assert name_of("transformer-softmax-model") == ("transformer", "softmax, wider model")
    assert baseline_of("transformer-kerbs-moves+x") == "transformer-softmax"
    for task in TASKS.values():
        assert set(task.figures) <= set(task.cells)
        assert all(name_of(cell) for cell in task.cells)


# --- running all cells


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Scripts that take the place of the real ones: MoS fails, and a rate of 9 diverges; CELL --out OUT --seed N …"""
    folder = tmp_path / "recipe" / "dialog_dailydialog"
    folder.mkdir(parents=True)
    (folder / "train.sh").write_text(
        'case $1 in *mos*) echo "out of memory"; exit 3 ;; esac\n'
        'run=$3/runs/$1/seed_$5; mkdir -p "$run"; [ -f "$run/trained" ] || echo "$@" >>"$3/calls"\n'
        'rate="${@: -1}"; case $rate in 9) echo "FloatingPointError" | tee "$run/train.log"; exit 1 ;; esac\n'
        '[ -f "$run/training" ] || echo "$rate" >"$run/training"\n'
        '[ "$(cat "$run/training")" = "$rate" ] || { echo "other options"; exit 1; }\n'
        """echo 'x | valid | {"epoch": 3, "valid_loss": "'"$rate"'", "valid_ppl": "7.50"}' | tee "$run/train.log"\n"""
        'touch "$run/trained"\n'
    )
    (folder / "evaluate.sh").write_text(
        'run=$3/runs/$1/seed_$5; echo "$@" >>"$3/evaluations"\n'
        'if [ "$7" = valid ]; then run=$run/valid_lenpen_$9${11:+_min_len_${11}} score=${11}$9\n'
        'else cp "$3/text/test.tgt" "$run/test.hyp"; fi\n'
        'mkdir -p "$run"; echo "{\\"bleu\\": ${score:-100}}" >"$run/scores.json"\n'
    )
    return folder


def swept(*arguments: object) -> object:
    with pytest.raises(SystemExit) as stopped:
        sweep.main([*map(str, arguments)])
    return stopped.value.code


def test_a_failed_cell_does_not_stop_the_others(out: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [recipe, "--out", out, "--seeds", "1,2", "--jobs", "2", "--cells"]
    cells = "seq2seq-softmax,seq2seq-mos,seq2seq-kerbs"
    assert swept(*arguments, cells, "--scale", "small", "--", "--lr", "1") == 1
    shown = capsys.readouterr().out
    assert shown.count("FAILED") == 2
    assert "out of memory" in shown
    assert "to go, about" in shown
    assert "| `seq2seq-mos` | MoS |  | 13.73 | 2 failed |" in (out / "table.md").read_text()
    assert "seq2seq-kerbs, seed 2: epoch 3, valid ppl 7.50" in shown, "progress while it trains"
    calls = (out / "calls").read_text().splitlines()
    assert len(calls) == 4
    assert calls[0].endswith("--scale small -- --lr 1")
    # goes on: nothing of what is done is done again
    assert swept(*arguments, "seq2seq-softmax,seq2seq-kerbs", "--", "--lr", "1") == 0
    assert len((out / "calls").read_text().splitlines()) == 4


def test_rates_and_length_penalties_are_chosen_on_validation(
    out: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [recipe, "--out", out, "--seeds", "2,3", "--cells", "seq2seq-kerbs,seq2seq-softmax+x", "--jobs", "2"]
    grid = ["--lr-grid", "3,9,2", "--lenpen-grid", "0.6,1.4,1", "--min-len-grid", "4,16,8"]
    assert swept(*arguments, *grid, "--", "--fp16") == 0
    shown = capsys.readouterr().out
    assert "4 models and 6 to choose rates, 0 done before" in shown
    assert "seq2seq-kerbs, rate 9: validation loss inf" in shown
    assert "seq2seq-kerbs: rate 2 (validation loss 2.0), at the edge of the grid" in shown
    assert "seq2seq-kerbs: --min-len 16 (BLEU 161.00 on validation), at the edge of the grid" in shown
    assert "seq2seq-kerbs: --lenpen 1.4 (BLEU 161.40 on validation), at the edge of the grid" in shown
    runs = out / "runs"
    assert (runs / "seq2seq-kerbs" / "seed_2" / "training").read_text() == "2\n", "that of the trial"
    assert (runs / "seq2seq-softmax+x.lr3" / "seed_2" / "trained").exists()
    calls = (out / "calls").read_text().splitlines()
    assert len(calls) == 6 + 2, "the first seed is not trained again with the rate that was chosen"
    assert sum(call.endswith("--seed 3 -- --fp16 --lr 2") for call in calls) == 2
    final = [call for call in (out / "evaluations").read_text().splitlines() if "valid" not in call]
    assert [call.split()[-4:] for call in final] == [["--lenpen", "1.4", "--min-len", "16"]] * 4
    assert len((out / "evaluations").read_text().splitlines()) == 4 + 2 * (3 + 3), "one option after the other"
    assert swept(*arguments, *grid, "--", "--fp16") == 0
    assert (out / "calls").read_text().splitlines() == calls, "started again, it has nothing to train"
    assert "0 to go" not in capsys.readouterr().out
    assert swept(*arguments, "--lr-grid", "3,1", "--", "--fp16") == 1, "another winner than that which was trained"
    assert "other options" in capsys.readouterr().out


def test_short_trials_are_not_taken_for_runs(out: Path, recipe: Path) -> None:
    grid = ["--lr-grid", "2,3", "--grid-updates", "50"]
    assert swept(recipe, "--out", out, "--seeds", "1", "--cells", "seq2seq-kerbs", "--updates", "300", *grid) == 0
    calls = [call.split("--updates ")[1:] for call in (out / "calls").read_text().splitlines()]
    assert calls == [["300 ", "50 -- --lr 2"], ["300 ", "50 -- --lr 3"], ["300 -- --lr 2"]]


def test_a_rate_that_fails_for_another_reason_is_not_passed_over(
    out: Path, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ["--cells", "seq2seq-mos,seq2seq-kerbs", "--seeds", "1"]
    assert swept(recipe, "--out", out, *cells, "--lr-grid", "1,2") == 1
    assert "seq2seq-mos: no rate chosen: rate 1, 2 failed; start again to go on" in capsys.readouterr().out
    assert swept(recipe, "--out", out, "--cells", "seq2seq-softmax", "--lr-grid", "9") == 1
    assert "no rate chosen: all rates diverged" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "the same command goes on from here\nkerbs-table: interrupted\n"),
        (OSError(28, "No space left on device"), "kerbs-table: {} cannot be written: No space left on device", ""),
        (BrokenPipeError(), CLOSED_PIPE, ""),
    ],
    ids=["Ctrl-C", "a full disk", "a closed pipe"],
)
def test_a_table_ends_as_other_commands_do(
    out: Path,
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: object,
    said: str,
) -> None:
    def run(_: sweep.Sweep) -> bool:
        raise error

    monkeypatch.setattr(sweep.Sweep, "run", run)
    assert swept(recipe, "--out", out) == (code.format(out) if isinstance(code, str) else code)
    assert capsys.readouterr().err.endswith(said)


def test_a_model_stands_for_all_its_cells() -> None:
    task = TASKS["lm_1b"]
    assert sweep.cells_of("gru", task) == task.cells
    assert sweep.cells_of("gru-kerbs,gru", task)[0] == "gru-kerbs"
    assert sweep.cells_of(None, task) == ["gru-softmax", "gru-mos", "gru-kerbs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cells", "seq2seq-magic"], "there is no cell 'seq2seq-magic'; there are seq2seq-softmax"),
        (["--cells", "seq2seq-kerbs+../x"], r"there is no cell 'seq2seq-kerbs\+\.\./x'"),
        (["--seeds", "one"], "whole numbers"),
        (["--seeds", "1,0"], "whole numbers"),
        (["--jobs", "0"], "at least 1"),
        (["--lr-grid", "fast"], "--lr-grid fast: numbers with commas between them"),
        (["--lenpen-grid", "1,"], "--lenpen-grid 1,: numbers"),
        (["--min-len-grid", "1.5"], "--min-len-grid 1.5: whole numbers from 1 on with commas between them"),
        (["--grid-updates", "9"], "--grid-updates goes with --lr-grid"),
        (["--lr-grid", "1", "--", "--lr", "2"], "--lr-grid and -- --lr cannot be combined"),
    ],
)
def test_mistakes_get_one_line(out: Path, recipe: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        sweep.main([str(recipe), "--out", str(out), *arguments])
    with pytest.raises(SystemExit, match="has no data"):
        sweep.main([str(recipe), "--out", str(out / "other")])
    language_model = recipe.with_name("lm_1b")
    recipe.rename(language_model)
    with pytest.raises(SystemExit, match="a language model is not searched with beams"):
        sweep.main([str(language_model), "--out", str(out), "--lenpen-grid", "1"])
    with pytest.raises(SystemExit, match="is not a recipe"):
        sweep.main([str(out), "--out", str(out)])
