"""Perplexities of groups of pieces, against sums by hand."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kerbs_fairseq.evaluation import command
from kerbs_fairseq.evaluation.words import OCCURRENCES, SENSES, interval, names_of

COUNTS = {"a": 20_000, "b": 150, "c": 150, "d": 0}
TEXT = ["a", "b", "a", "</s>", "c", "<unk>", "</s>"]
LOG_PROBS = {"a": -0.5, "b": -3.0, "c": -4.0, "<unk>": -6.0, "</s>": -0.25}


def scored_run(out: Path, cell: str, log_probs: dict[str, float], text: Sequence[str] = TEXT) -> Path:
    """An evaluated model with these log P of its pieces, and two sentences."""
    folder = out / "runs" / cell / "seed_1"
    folder.mkdir(parents=True)
    end = text.index("</s>") + 1
    lines = [
        f"x | INFO | fairseq_cli.eval_lm | {i} " + "\t".join(f"{piece} [{log_probs[piece]:.6f}]" for piece in pieces)
        for i, pieces in enumerate([text[:end], text[end:]])
    ]
    (folder / "eval-lm.log").write_text("\n".join(lines[::-1]) + "\n")
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "binary").mkdir()
    (tmp_path / "binary" / "dict.txt").write_text("".join(f"{word} {n}\n" for word, n in COUNTS.items()))
    return tmp_path


def with_senses(folder: Path, senses: list[int]) -> None:
    """Save a model with this number of senses per word, those of the four special symbols first."""
    words = torch.repeat_interleave(torch.arange(len(senses)), torch.tensor(senses))
    layer = {"decoder.head.senses.vectors": torch.zeros(len(words), 2), "decoder.head.senses.sense_to_word": words}
    torch.save({"model": layer}, folder / "checkpoint_best.pt")


def test_groups_by_occurrences_and_senses(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    softmax = scored_run(out, "gru-softmax", LOG_PROBS)
    kerbs = scored_run(out, "gru-kerbs", {**LOG_PROBS, "b": -2.5, "c": -4.25, "</s>": -0.3})
    with_senses(kerbs, [1, 1, 7, 1, 16, 2, 1, 1])
    command.main(["words", str(out), str(softmax), str(kerbs)])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line]
    by_name = {row[0]: row[1:] for row in rows}

    def percent(difference: float) -> str:
        return f"{100 * (math.exp(difference) - 1):+.1f} %".replace("-", "−")

    assert by_name["all pieces"][1:] == ["gru-softmax, seed 1", "gru-kerbs, seed 1"]
    assert by_name["all"] == ["7", f"{math.exp(14.5 / 7):.2f}", percent((-0.5 + 0.25 + 0.1) / 7)]
    assert by_name["</s>"] == ["2", f"{math.exp(0.25):.2f}", percent(0.05)]
    assert by_name["10,000 and more"] == ["2", f"{math.exp(0.5):.2f}", "+0.0 %"]
    assert by_name["100 to 299"] == ["2", f"{math.exp(3.5):.2f}", percent(-0.125)]
    assert by_name["up to 9"] == ["1", f"{math.exp(6):.2f}", "+0.0 %"], "what is not in the dictionary"
    assert by_name["16 and more"] == ["2", f"{math.exp(0.5):.2f}", "+0.0 %"]
    assert by_name["5 to 15"] == by_name["</s>"]
    assert by_name["2"] == ["1", f"{math.exp(3):.2f}", percent(-0.5)]
    assert by_name["1"] == ["2", f"{math.exp(5):.2f}", percent(0.125)]
    for group in ("1,000 to 9,999", "3 to 4"):
        assert group not in by_name, "it has no piece"


def test_without_a_model_with_senses(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["words", str(out), str(scored_run(out, "gru-softmax", LOG_PROBS))])
    shown = capsys.readouterr().out
    assert "occurrences in training" in shown
    assert "senses" not in shown


def test_names_of_groups() -> None:
    assert names_of(SENSES) == ["16 and more", "5 to 15", "3 to 4", "2", "1", "0"]
    for ends in (OCCURRENCES, SENSES):
        assert {interval(n, ends) for n in range(20_000)} == set(names_of(ends))


def test_mistakes(out: Path) -> None:
    softmax = scored_run(out, "gru-softmax", LOG_PROBS)
    other = scored_run(out, "gru-mos", LOG_PROBS, [*TEXT[2:], "a", "</s>"])
    with pytest.raises(SystemExit, match="different test sets"):
        command.main(["words", str(out), str(softmax), str(other)])
    with_senses(softmax, [1, 1, 1, 1, 5])
    with pytest.raises(SystemExit, match=r"has 5 words, and the dictionary of .* another number"):
        command.main(["words", str(out), str(softmax)])
    with pytest.raises(SystemExit, match="cannot be read"):
        command.main(["words", str(out), str(out / "runs" / "gru-kerbs" / "seed_1")])
    (out / "binary" / "dict.txt").write_text("a\n")
    with pytest.raises(SystemExit, match="is not a dictionary"):
        command.main(["words", str(out), str(softmax)])
