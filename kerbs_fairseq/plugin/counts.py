"""Counts of each word as a target in the training data, for the initial allocation by frequency."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
from torch import Tensor

PART = 2**22  # tokens that are counted at a time


class Counts(NamedTuple):
    """``counts`` (words,), and whether they come from the dictionary."""

    counts: Tensor
    from_dictionary: bool


def target_counts(task: Any, dictionary: Any) -> Counts:
    """Return the counts in the training data if they can be read, else those in the dictionary.

    A joined dictionary counts the words of both languages, and no dictionary counts ends of sentences.
    """
    for prefix in training_data(task):
        counts = counts_of(prefix, len(dictionary))
        if counts is not None:
            return Counts(counts, False)
    return Counts(torch.tensor(dictionary.count[: len(dictionary)]), True)


def training_data(task: Any) -> Iterator[Path]:
    """Yield the paths, without suffix, where the targets of the training data may be."""
    settings = getattr(task, "cfg", None) or getattr(task, "args", None)
    folder = getattr(settings, "data", None)
    if not isinstance(folder, str) or not folder:
        return
    base = Path(folder.split(":")[0])  # the first of several shards
    split = getattr(settings, "train_subset", None) or "train"
    source, target = (getattr(settings, name, None) for name in ("source_lang", "target_lang"))
    if source and target:
        yield base / f"{split}.{source}-{target}.{target}"
        yield base / f"{split}.{target}-{source}.{target}"
    else:
        yield base / split


def counts_of(prefix: Path, n_words: int) -> Optional[Tensor]:
    """Return the counts (words,) in a file of fairseq's binary format; None if it is missing or does not fit."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    if not MMapIndexedDataset.exists(str(prefix)):
        return None
    try:
        data = MMapIndexedDataset(str(prefix))
        tokens = data._bin_buffer_mmap.view(data._index.dtype)
        counts = np.zeros(n_words, dtype=np.int64)
        for start in range(0, len(tokens), PART):
            counts += np.bincount(tokens[start : start + PART], minlength=n_words)
    except (AssertionError, OSError, ValueError):  # another format, a damaged file, words of another dictionary
        return None
    return torch.from_numpy(counts)
