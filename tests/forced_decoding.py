"""Beam search against forced decoding of what it found."""

import re
from pathlib import Path

import pytest
from commands import generate, run


def assert_beam_scores_are_those_of_forced_decoding(pairs: Path, corpus: Path, checkpoint: Path, scratch: Path) -> None:
    out = generate(pairs, checkpoint, "--beam 5 --max-len-b 12")
    best = {int(n): (float(score), text) for n, score, text in re.findall(r"^H-(\d+)\t(\S+)\t(.*)$", out, re.M)}
    (scratch / "test.tgt").write_text("".join(best[i][1] + "\n" for i in range(60)))
    (scratch / "test.src").write_text((corpus / "parallel" / "test.src").read_text())
    run(
        f"fairseq-preprocess -s src -t tgt --testpref {scratch}/test --destdir {scratch}/data "
        f"--srcdict {pairs}/dict.src.txt --tgtdict {pairs}/dict.tgt.txt"
    )
    forced = generate(scratch / "data", checkpoint, "--score-reference")
    scores = {int(n): float(score) for n, score in re.findall(r"^H-(\d+)\t(\S+)\t", forced, re.M)}
    ended = [n for n in best if len(best[n][1].split()) < 12]
    assert len(ended) > 8
    for number in ended:
        assert scores[number] == pytest.approx(best[number][0], abs=2e-4), best[number]
