"""Read text for language models: shards to draw the parts from, or a corpus that comes with its own parts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from kerbs_fairseq.corpora.lines import read_lines
from kerbs_fairseq.corpora.split import cut_sentences
from kerbs_fairseq.runs.errors import UserError

PARTS = ("train", "valid", "test")


def own_parts(folder: Path) -> Optional[list[Path]]:
    """Return files such as ptb.train.txt, ptb.valid.txt and ptb.test.txt; None if there are no such three."""
    matching = [sorted(path for path in folder.glob(f"*{name}.txt") if path.is_file()) for name in PARTS]
    return [files[0] for files in matching] if all(len(files) == 1 for files in matching) else None


def shards(folder: Path) -> list[Path]:
    """Return the files of the One-Billion-Word corpus, or any other text files in the folder.

    Of that corpus only the training shards, if there are any: the held-out ones are for models trained on all of them.
    """
    training = sorted(path for path in folder.rglob("news.en-*-of-*") if path.is_file())
    if training:
        return training
    others = sorted(p for p in folder.glob("*") if p.suffix in (".txt", ".tokens", ".gz") or "heldout" in p.name)
    if not others:
        raise UserError(f"{folder} has neither shards (news.en-00001-of-00100) nor *.txt or *.tokens")
    return others


def read_sentences(folder: Path, sizes: Optional[Sequence[int]], seed: int, max_words: int) -> dict[str, list[str]]:
    """Return sentences by part: the corpus's own parts unless ``sizes`` are given, else parts of these sizes."""
    own = own_parts(folder)
    if own is not None and sizes is None:
        parts = {name: [line for line in read_lines(path) if line] for name, path in zip(PARTS, own)}
        parts["train"] = [line for line in parts["train"] if len(line.split()) <= max_words]
    elif sizes is None:
        raise UserError(f"{folder} has no parts of its own: how many sentences go to each? --cut 300000,10000,30000")
    else:
        parts = dict(zip(PARTS, cut_sentences(shards(folder), sizes, seed, max_words)))
    return parts
