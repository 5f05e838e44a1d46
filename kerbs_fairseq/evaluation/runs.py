"""The folders of trained models: scores and outputs that evaluation writes, and reads for comparisons."""

import contextlib
import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Optional, Union

from kerbs_fairseq.corpora.pieces import language_of, settings_of, to_text, tokenise
from kerbs_fairseq.evaluation.diversity import diversity
from kerbs_fairseq.evaluation.scores import Array, Bleu, Perplexity
from kerbs_fairseq.runs import checkpoint, logs
from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_json, read_text, write
from kerbs_fairseq.runs.outputs import SCORES, hypotheses, sentence_nll

TEXT, NLL = "test.hyp", "test.nll"
SUBSETS = ("test", "valid")
TEXTS = ("signature", "signature_of_moses_tokens")  # texts in scores.json, beside the versions


@dataclass(frozen=True)
class Run:
    """One trained model: OUT/runs/CELL/seed_N."""

    folder: Path

    @property
    def cell(self) -> str:
        """The name of the cell, such as seq2seq-kerbs."""
        return self.folder.parent.name

    @property
    def seed(self) -> int:
        """The seed of the training."""
        if not is_run(self.folder):
            raise UserError(f"{self.folder} is not the folder of a recipe's run, OUT/runs/CELL/seed_N")
        return int(self.folder.name.removeprefix("seed_"))

    @property
    def scores(self) -> Optional[dict[str, Any]]:
        """The scores of the evaluation; None if the run has not been evaluated."""
        path = self.folder / SCORES
        if not path.is_file():
            return None
        try:
            scores = read_json(path)
        except UserError as problem:
            raise UserError(f"{problem}. {SCORES} is broken: remove it, and evaluate again") from None
        if not are_scores(scores):
            raise UserError(f"{path}: {SCORES} is broken: remove it, and evaluate again")
        return dict(scores)

    def score(self, name: str) -> float:
        """Return one of the scores; a :class:`UserError` if it is missing or not finite."""
        value = (self.scores or {}).get(name)
        if value is None or not math.isfinite(value):
            raise UserError(f"{self.folder / SCORES} has no finite {name}: evaluate again, or put the run aside")
        return float(value)

    def output(self) -> list[str]:
        """Return the outputs for the test set, as text."""
        return read_text(self.folder / TEXT).splitlines()

    def write(self, scores: dict[str, Any], name: str, lines: Sequence[str]) -> None:
        """Write the outputs, then the scores, so that a folder with scores is complete."""
        for path, content in ((self.folder / name, lines), (self.folder / SCORES, [json.dumps(scores, indent=1)])):
            write(path, "".join(f"{line}\n" for line in content))


def are_scores(content: object) -> bool:
    """Return whether the content of a JSON file is what evaluation writes: named numbers or null, and a few texts."""
    if not isinstance(content, dict):
        return False
    versions = content.get("versions", {})
    fine = isinstance(versions, dict) and all(isinstance(text, str) for text in versions.values())
    for name, value in content.items():
        if name in TEXTS:
            fine = fine and isinstance(value, str)
        elif name != "versions":
            fine = fine and (value is None or isinstance(value, (int, float)))
    return fine


def is_run(folder: Path) -> bool:
    """Return whether a folder is named seed_N; others are ignored, so that a run can be put aside."""
    return folder.name.startswith("seed_") and folder.name.removeprefix("seed_").isdecimal()


def all_runs(out: Path) -> list[Run]:
    """Return the evaluated runs below ``out``, sorted by cell and seed."""
    runs = [Run(path.parent) for path in out.glob(f"runs/*/seed_*/{SCORES}") if is_run(path.parent)]
    return sorted(runs, key=lambda run: (run.cell, run.seed))


def target_side(out: Path) -> str:
    """Return the name of the side that models predict: en, tgt or txt."""
    return sides(out)[-1]


def sides(out: Path) -> list[str]:
    """Return the names of all sides of a corpus, the target last."""
    path = out / "text" / "corpus.json"
    corpus = read_json(path)
    names = corpus.get("sides") if isinstance(corpus, dict) else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} is not what kerbs-corpus writes: prepare the data again")
    return names


def references(out: Path, subset: str = "test") -> list[str]:
    """Return the target side of the test set, or of another one, as text."""
    return read_text(out / "text" / f"{subset}.{target_side(out)}").splitlines()


def of_training(run: Run) -> dict[str, Any]:
    """Return validation perplexity, learned parameters and time per update of a run, to report with its scores."""
    log, model = run.folder / logs.LOG, run.folder / "checkpoint_best.pt"
    return {
        "valid_ppl": logs.best(log),
        "parameters": checkpoint.parameters(checkpoint.load(model).model) if model.is_file() else None,
        "seconds_per_update": logs.seconds_per_update(log),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect the scores."""
    names = ("kerbs-fairseq", "fairseq", "torch", "numpy", "scipy", "sacrebleu", "sentencepiece")
    installed = {"python": platform.python_version()}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def evaluate_bleu(run: Run, out: Path, order: int, subset: str = "test") -> dict[str, Any]:
    """Compute and write BLEU of the output of fairseq-generate in the run's folder, on text and on Moses tokens."""
    settings, wanted, target = settings_of(out / "pieces"), references(out, subset), target_side(out)
    output = to_text(hypotheses(run.folder / f"generate-{subset}.txt"), settings, target)
    if len(output) != len(wanted):
        raise UserError(f"{run.folder} has {len(output)} outputs, and the {subset} set {len(wanted)} sentences")
    language = language_of(target, settings["languages"])
    moses = [tokenise(lines, "moses", language) for lines in (output, wanted)]
    plain, tokens = Bleu(order), Bleu(order, "none")
    scores = {
        "bleu": plain.score(plain.statistics(output, wanted).sum(0)),
        "signature": plain.signature(output, wanted),
        "bleu_of_moses_tokens": tokens.score(tokens.statistics(*moses).sum(0)),
        "signature_of_moses_tokens": tokens.signature(*moses),
        "order": order,
        **diversity(output, wanted),
        "tokens_per_second": logs.tokens_per_second(run.folder / "generate.log", run.folder / f"generate-{subset}.txt"),
        **of_training(run),
        "versions": versions(),
    }
    run.write(scores, f"{subset}.hyp", output)
    return scores


def unknown(out: Path) -> int:
    """Return how many pieces of the test set are not in the dictionary: they are scored as <unk>, which is too easy."""
    side = target_side(out)
    names = [out / "binary" / f"dict.{side}.txt", out / "binary" / "dict.txt"]
    dictionary = next((path for path in names if path.is_file()), names[-1])
    known = {line.rsplit(" ", 1)[0] for line in read_text(dictionary).split("\n")}
    return sum(piece not in known for piece in read_text(out / "pieces" / f"test.{side}").split())


def evaluate_ppl(run: Run, out: Path) -> dict[str, Any]:
    """Compute and write perplexity per word from fairseq-eval-lm --output-word-probs in the run's folder."""
    nll, wanted = sentence_nll(run.folder / "eval-lm.log"), references(out)
    if len(nll) != len(wanted):
        raise UserError(
            f"{run.folder} has {len(nll)} sentences scored, and the test set has {len(wanted)}: a longer "
            "--tokens-per-sample may be needed"
        )
    scorer = Perplexity()
    scores = {
        "ppl": scorer.score(scorer.statistics(nll, wanted).sum(0)),
        "words": int(scorer.statistics(nll, wanted)[:, 1].sum()),
        "unknown_pieces": unknown(out),
        "tokens_per_second": logs.tokens_per_second(run.folder / "eval-lm.log"),
        **of_training(run),
        "versions": versions(),
    }
    run.write(scores, NLL, [f"{loss:.4f}" for loss in nll])  # four digits: a hundred runs are kept in an archive
    return scores


def statistics(run: Run, scorer: Union[Bleu, Perplexity], wanted: Sequence[str]) -> Array:
    """Return the statistics (sentences, k) of a run that was evaluated on the test set."""
    try:
        if isinstance(scorer, Perplexity):
            return scorer.statistics(numbers_of(run.folder / NLL), wanted)
        return scorer.statistics(run.output(), wanted)
    except UserError as problem:
        raise UserError(f"{run.folder}: {problem}") from None


def numbers_of(path: Path) -> list[float]:
    """Read the losses of the sentences that evaluation wrote."""
    try:
        losses = [float(x) for x in read_text(path).split()]
    except ValueError as error:
        raise error if isinstance(error, UserError) else UserError(f"{path} is broken: evaluate again") from None
    if not all(map(math.isfinite, losses)):
        raise UserError(f"{path} has losses that are not finite: evaluate again, or put the run aside")
    return losses
