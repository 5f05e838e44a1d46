"""The table of what each setting of KerBS is worth."""

import json
from pathlib import Path

from evaluated import evaluated_run

from kerbs_fairseq.evaluation.factors import factors_of
from kerbs_fairseq.evaluation.pages import NOTHING, filled
from kerbs_fairseq.evaluation.results import gather

END = "<!-- end of results -->\n"
PERPLEXITIES = {"softmax": 10.0, "mos": 9.0, "kerbs": 8.0, "kerbs+more": 7.6, "kerbs-moves": 8.8, "kerbs-moves+x": 8.0}


def evaluated(out: Path) -> Path:
    """Cells with these validation perplexities, those of the second seed 10 % higher; the variant has one seed."""
    for cell, ppl in PERPLEXITIES.items():
        for seed in (1,) if "+" in cell else (1, 2):
            folder = evaluated_run(out, f"seq2seq-{cell}", seed, ["a b"] * 30)
            scores = json.loads((folder / "scores.json").read_text())
            (folder / "scores.json").write_text(json.dumps({**scores, "valid_ppl": ppl * (0.9 + 0.1 * seed)}))
            options = "--lr 0.01 --kerbs-senses 2 --kerbs-adam 1 2" if "+" in cell else "--lr 0.01"
            trial = "TRIAL=b=2 " if cell == "kerbs-moves+x" else ""
            (folder / "command").write_text(f"{trial}recipes/x/train.sh CELL --out OUT --seed {seed} -- {options}\n")
    return out


def test_the_table_of_factors(out: Path) -> None:
    results = gather("dialog", "dialog_dailydialog", evaluated(out))
    rows = {line.split(" | ")[1]: line.split(" | ") for line in factors_of(results).splitlines()}
    assert list(rows)[2:] == [f"`seq2seq-{cell}`" for cell in PERPLEXITIES if cell != "mos"]
    assert rows["`seq2seq-softmax`"][4:] == ["+25.0 % ± 0.0", " |"]
    assert rows["`seq2seq-kerbs`"][0] == "| the defaults"
    assert rows["`seq2seq-kerbs`"][3:] == ["8.40 ± 0.57 (2)", "", "−20.0 % ± 0.0 |"]
    assert rows["`seq2seq-kerbs+more`"][0] == "| `--kerbs-senses 2 --kerbs-adam 1 2`"
    assert rows["`seq2seq-kerbs+more`"][3:] == ["7.60 (1)", "−5.0 %", "−24.0 % |"], "of the seeds that both have"
    assert rows["`seq2seq-kerbs-moves`"][0] == "| KerBS, senses move"
    assert rows["`seq2seq-kerbs-moves+x`"][0] == "| KerBS, senses move, `TRIAL=b=2 --kerbs-senses 2 --kerbs-adam 1 2`"
    assert rows["`seq2seq-kerbs-moves`"][4] == "+10.0 % ± 0.0"


def test_a_page_has_variants_among_the_factors_alone(out: Path) -> None:
    results = gather("dialog", "dialog_dailydialog", evaluated(out))
    page = f"<!-- results: dialog -->\n{END}<!-- factors: dialog -->\n{END}<!-- factors: other -->\n{END}"
    main, factors, missing, _ = filled(page, {"dialog": results}).split(END)
    assert "seq2seq-kerbs-moves" in main
    assert "+more" not in main
    assert factors_of(results) in factors
    assert NOTHING in missing
