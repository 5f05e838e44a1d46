"""The folders of trained models: what evaluation writes there, and reads again for comparisons."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from kerbs_fairseq.corpora.pieces import language_of, settings_of, to_text, tokenise
from kerbs_fairseq.evaluation.scores import Array, Bleu, Perplexity
from kerbs_fairseq.runs import logs
from kerbs_fairseq.runs.errors import UserError as BadOutput
from kerbs_fairseq.runs.files import read_text, write
from kerbs_fairseq.runs.outputs import hypotheses, sentence_nll

SCORES, TEXT, NLL = "scores.json", "test.hyp", "test.nll"


@dataclass(frozen=True)
class Run:
    """One trained model: OUT/runs/CELL/seed_N."""

    folder: Path

    @property
    def cell(self) -> str:
        """Such as seq2seq-kerbs."""
        return self.folder.parent.name

    @property
    def seed(self) -> int:
        """Of the training."""
        return int(self.folder.name.removeprefix("seed_"))

    @property
    def scores(self) -> Optional[dict[str, Any]]:
        """What evaluation has found; None if it has not been done."""
        path = self.folder / SCORES
        if not path.is_file():
            return None
        try:
            return dict(json.loads(read_text(path)))
        except ValueError:
            raise BadOutput(f"{path} is broken: remove it, and evaluate again") from None

    def output(self) -> list[str]:
        """Its translations of the test set, as text."""
        return read_text(self.folder / TEXT).splitlines()

    def write(self, scores: dict[str, Any], name: str, lines: Sequence[str]) -> None:
        """The outputs, then the scores: a folder with scores has everything."""
        for path, content in ((self.folder / name, lines), (self.folder / SCORES, [json.dumps(scores, indent=1)])):
            write(path, "".join(f"{line}\n" for line in content))


def is_run(folder: Path) -> bool:
    """Whether a folder is called seed_N: others may have been put aside."""
    return folder.name.removeprefix("seed_").isdecimal()


def all_runs(out: Path) -> list[Run]:
    """Those that have been evaluated, by cell and seed."""
    found = [Run(path.parent) for path in out.glob(f"runs/*/seed_*/{SCORES}") if is_run(path.parent)]
    return sorted(found, key=lambda run: (run.cell, run.seed))


def target_side(out: Path) -> str:
    """The name of the side that models predict: en, tgt or txt."""
    return json.loads(read_text(out / "text" / "corpus.json"))["sides"][-1]


def references(out: Path) -> list[str]:
    """The target side of the test set, as text."""
    return read_text(out / "text" / f"test.{target_side(out)}").splitlines()


def of_training(run: Run) -> dict[str, Any]:
    """What the log of its training says of a model, to stand beside its scores."""
    log = run.folder / "train.log"
    return {"valid_ppl": logs.best(log), "parameters": logs.parameters(log)}


def evaluate_bleu(run: Run, out: Path, order: int) -> dict[str, Any]:
    """BLEU of what fairseq-generate wrote into the run's folder, against text and against Moses tokens."""
    settings, wanted, target = settings_of(out / "pieces"), references(out), target_side(out)
    found = to_text(hypotheses(run.folder / "generate-test.txt"), settings, target)
    if len(found) != len(wanted):
        raise BadOutput(f"{run.folder} has {len(found)} translations, and the test set {len(wanted)} sentences")
    language = language_of(target, settings["languages"])
    moses = [tokenise(lines, "moses", language) for lines in (found, wanted)]
    plain, tokens = Bleu(order), Bleu(order, "none")
    scores = {
        "bleu": plain.score(plain.statistics(found, wanted).sum(0)),
        "signature": plain.signature(found, wanted),
        "bleu_of_moses_tokens": tokens.score(tokens.statistics(*moses).sum(0)),
        "signature_of_moses_tokens": tokens.signature(*moses),
        "order": order,
        **of_training(run),
    }
    run.write(scores, TEXT, found)
    return scores


def unknown(out: Path) -> int:
    """How many pieces of the test set are not in the dictionary: their perplexity is that of <unk>, too low."""
    side = target_side(out)
    names = [out / "binary" / f"dict.{side}.txt", out / "binary" / "dict.txt"]
    dictionary = next((path for path in names if path.is_file()), names[-1])
    known = {line.rsplit(" ", 1)[0] for line in read_text(dictionary).split("\n")}
    return sum(piece not in known for piece in read_text(out / "pieces" / f"test.{side}").split())


def evaluate_ppl(run: Run, out: Path) -> dict[str, Any]:
    """Perplexity per word of what fairseq-eval-lm --output-word-probs wrote into the run's folder."""
    nll, wanted = sentence_nll(run.folder / "eval-lm.log"), references(out)
    if len(nll) != len(wanted):
        raise BadOutput(
            f"{run.folder} has {len(nll)} sentences scored, and the test set has {len(wanted)}: a longer "
            "--tokens-per-sample may be needed"
        )
    scorer = Perplexity()
    scores = {
        "ppl": scorer.score(scorer.statistics(nll, wanted).sum(0)),
        "words": int(scorer.statistics(nll, wanted)[:, 1].sum()),
        "unknown_pieces": unknown(out),
        **of_training(run),
    }
    run.write(scores, NLL, [repr(loss) for loss in nll])
    return scores


def statistics(runs: Sequence[Run], scorer: Any, wanted: Sequence[str]) -> Array:
    """(seeds, sentences, k) of runs of one cell."""
    found = []
    for run in runs:
        if isinstance(scorer, Perplexity):
            found.append(scorer.statistics([float(x) for x in read_text(run.folder / NLL).split()], wanted))
        else:
            found.append(scorer.statistics(run.output(), wanted))
    if len({len(one) for one in found}) != 1:
        raise BadOutput(f"{runs[0].folder.parent}: its runs were evaluated on different test sets")
    return np.stack(found)
