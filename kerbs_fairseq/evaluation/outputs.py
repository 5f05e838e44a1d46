"""Reading what fairseq-generate and fairseq-eval-lm have written."""

import re
from pathlib import Path
from typing import Optional

HYPOTHESIS = re.compile(r"H-(\d+)\t[^\t]*\t(.*)")
SENTENCE = re.compile(r"\| (\d+) (\S+ \[-?(?:[\d.]+|inf|nan)\](?:\t.*)?)$")
LOG_PROB = re.compile(r" \[(-?(?:[\d.]+|inf|nan))\](?=\t|$)")


# copies of an encoder layer's weights that fairseq keeps for a fast path at inference: no gradient ever reaches them
DEAD = re.compile(r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)")


def is_dead(parameter: str) -> bool:
    """Whether a parameter of that name is a copy that is never trained."""
    return DEAD.fullmatch(parameter) is not None


class BadOutput(Exception):
    """An output that is not what it should be; the text says what to do."""


def read_text(path: Path) -> str:
    """The file, or one line that says why not."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadOutput(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadOutput(f"{path} is not UTF-8") from None


def in_order(found: dict[int, object], path: Path) -> None:
    """Refuse a file with gaps: a search that was stopped, or sentences that were skipped."""
    missing = next((i for i in range(len(found)) if i not in found), None)
    if not found or missing is not None:
        what = "no sentence" if not found else f"no sentence {missing}, and later ones"
        raise BadOutput(f"{path} has {what}: run the search again")


def hypotheses(path: Path) -> list[str]:
    """The best hypotheses of fairseq-generate, in the order of the data."""
    found: dict[int, str] = {}
    for line in read_text(path).split("\n"):
        match = HYPOTHESIS.match(line)
        if match and int(match[1]) not in found:  # with --nbest the best one comes first
            found[int(match[1])] = match[2].strip()
    in_order(dict(found), path)
    return [found[i] for i in range(len(found))]


def sentence_nll(path: Path) -> list[float]:
    """−log P in nats of each sentence, from fairseq-eval-lm --output-word-probs, in the order of the data."""
    found: dict[int, float] = {}
    for line in read_text(path).split("\n"):
        match = SENTENCE.search(line)
        if match:
            found[int(match[1])] = -sum(float(value) for value in LOG_PROB.findall(match[2]))
    in_order(dict(found), path)
    return [found[i] for i in range(len(found))]


def best_valid_ppl(log: Path) -> float:
    """The best validation perplexity (per token) in a log of fairseq-train --log-format json; inf if there is none."""
    found = re.findall(r'"valid_ppl": "([\d.]+)"', read_text(log)) if log.is_file() else []
    return min((float(ppl) for ppl in found), default=float("inf"))


def best_valid_loss(log: Path) -> float:
    """The best validation loss, by which fairseq chooses checkpoint_best.pt, in such a log; inf if there is none."""
    found = re.findall(r'"valid_loss": "([\d.]+)"', read_text(log)) if log.is_file() else []
    return min((float(loss) for loss in found), default=float("inf"))


def parameters_of(log: Path) -> Optional[int]:
    """How many parameters a model has, from the log of its training, dead ones too; None if it does not say."""
    found = re.search(r"num\. shared model params: ([\d,]+)", read_text(log)) if log.is_file() else None
    return int(found[1].replace(",", "")) if found else None


def seconds_per_update(log: Path) -> Optional[float]:
    """Time of training without validation, from a log in JSON, over all epochs that ended; None if it does not say."""
    seconds, updates, before = 0.0, 0, 0
    for line in read_text(log).split("\n") if log.is_file() else []:
        if " | train | " not in line:
            continue
        wall = re.search(r'"train_train_wall": "([\d.]+)"', line)
        number = re.search(r'"train_num_updates": "(\d+)"', line)
        if wall and number and int(number[1]) > before:
            seconds, updates, before = seconds + float(wall[1]), int(number[1]), int(number[1])
    return seconds / updates if updates and seconds else None


def tokens_per_second(*logs: Path) -> Optional[float]:
    """How fast fairseq-generate or fairseq-eval-lm was, from the first of its logs that says it."""
    for log in logs:
        found = re.search(r"(?:Translated|Evaluated) .*?([\d.]+) tokens/s\)", read_text(log)) if log.is_file() else None
        if found:
            return float(found[1])
    return None
