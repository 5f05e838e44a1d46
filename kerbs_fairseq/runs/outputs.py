"""Read the output of fairseq-generate and fairseq-eval-lm."""

import re
from pathlib import Path

from kerbs_fairseq.runs.errors import UserError
from kerbs_fairseq.runs.files import read_text

SCORES = "scores.json"  # the file of scores that recipes and the demo write beside a checkpoint
HYPOTHESIS = re.compile(r"H-(\d{1,18})\t[^\t]*\t(.*)")
REFERENCE = re.compile(r"T-(\d{1,18})\t(.*)")
NUMBER = r"-?(?:\d+(?:\.\d*)?|inf|nan)"
SENTENCE = re.compile(rf"\| (\d{{1,18}}) (\S+ \[{NUMBER}\](?:\t.*)?)$")
LOG_PROB = re.compile(rf" \[({NUMBER})\](?=\t|$)")
PIECE = re.compile(rf"(?:^|\t)(\S+) \[({NUMBER})\](?=\t|$)")


def in_order(sentences: dict[int, object], path: Path) -> None:
    """Raise a UserError if sentences are missing: a search was stopped, or sentences were skipped."""
    missing = next((i for i in range(len(sentences)) if i not in sentences), None)
    if not sentences or missing is not None:
        what = "no sentence" if not sentences else f"no sentence {missing}, and later ones"
        raise UserError(f"{path} has {what}: run the search again")


def hypotheses(path: Path) -> list[str]:
    """Return the best hypotheses of fairseq-generate, in the order of the data."""
    return _sentences(path, HYPOTHESIS)


def references(path: Path) -> list[str]:
    """Return the references in the output of fairseq-generate, in the order of the data."""
    return _sentences(path, REFERENCE)


def _sentences(path: Path, kind: re.Pattern[str]) -> list[str]:
    texts: dict[int, str] = {}
    for line in read_text(path).split("\n"):
        match = kind.match(line)
        if match:
            texts.setdefault(int(match[1]), match[2].strip())  # with --nbest the best one comes first
    in_order(dict(texts), path)
    return [texts[i] for i in range(len(texts))]


def sentence_nll(path: Path) -> list[float]:
    """Return −log P of each sentence in nats, from fairseq-eval-lm --output-word-probs, in the order of the data."""
    return [-sum(float(value) for value in LOG_PROB.findall(text)) for text in _scored(path)]


def piece_log_probs(path: Path) -> list[tuple[str, float]]:
    """Return all pieces with their log P, from fairseq-eval-lm --output-word-probs, in the order of the data."""
    return [(piece, float(value)) for text in _scored(path) for piece, value in PIECE.findall(text)]


def _scored(path: Path) -> list[str]:
    sentences: dict[int, str] = {}
    for line in read_text(path).split("\n"):
        match = SENTENCE.search(line)
        if match:
            sentences[int(match[1])] = match[2]
    in_order(dict(sentences), path)
    return [sentences[i] for i in range(len(sentences))]
