"""Runs that somebody has evaluated, for tests of tables."""

import json
from pathlib import Path

from kerbs_fairseq.evaluation.diversity import diversity
from kerbs_fairseq.evaluation.scores import Bleu


def evaluated_run(out: Path, cell: str, seed: int, output: list[str]) -> Path:
    """A run with these outputs."""
    folder = out / "runs" / cell / f"seed_{seed}"
    folder.mkdir(parents=True)
    wanted = (out / "text" / "test.tgt").read_text().splitlines()
    score = Bleu(1).score(Bleu(1).statistics(output, wanted).sum(0))
    (folder / "test.hyp").write_text("".join(f"{line}\n" for line in output))
    scores = {
        "bleu": score, "bleu_of_moses_tokens": 1.5, "signature": "sig", "valid_ppl": 7.0, "parameters": 2_370_000,
        "seconds_per_update": 0.5, "tokens_per_second": 100.0, **diversity(output, wanted),
    }  # fmt: skip
    (folder / "scores.json").write_text(json.dumps(scores))
    return folder
