"""Counts of each word as a target in the training data, for the initial allocation by frequency."""

import itertools
import os
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
    known = len(getattr(dictionary, "wrapped_dict", dictionary))  # fairseq truncates by --output-dictionary-size
    for prefixes in training_data(task):
        parts = [counts_of(prefix, known) for prefix in prefixes]
        counts = [part for part in parts if part is not None]
        if counts and len(counts) == len(parts):
            return Counts(torch.stack(counts).sum(0)[: len(dictionary)], False)
    return dictionary_counts(dictionary)


def dictionary_counts(dictionary: Any) -> Counts:
    """Return the counts in the dictionary."""
    return Counts(torch.tensor(dictionary.count[: len(dictionary)]), True)


def settings_of(task: Any) -> Any:
    """Return the settings of a task, which fairseq calls cfg or args."""
    return getattr(task, "cfg", None) or getattr(task, "args", None)


def split_of(task: Any) -> str:
    """Return the split whose targets are counted; the settings of a language model do not name it."""
    return getattr(settings_of(task), "train_subset", None) or "train"


def training_data(task: Any) -> Iterator[list[Path]]:
    """Yield the paths, without suffix, where the targets of the training data may be: one per shard and part."""
    settings = settings_of(task)
    folders = getattr(settings, "data", None)
    if not isinstance(folders, str) or not folders:
        return
    source, target = (getattr(settings, name, None) for name in ("source_lang", "target_lang"))
    ends = [f".{source}-{target}.{target}", f".{target}-{source}.{target}"] if source and target else [""]
    for end in ends:
        prefixes = [
            part for folder in folders.split(os.pathsep) for part in parts_of(Path(folder) / split_of(task), end)
        ]
        if prefixes:
            yield prefixes


def parts_of(path: Path, end: str) -> Iterator[Path]:
    """Yield train, train1, train2, … as far as they exist: fairseq reads them as one."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    for k in itertools.count():
        part = path.with_name(f"{path.name}{k or ''}{end}")
        if not MMapIndexedDataset.exists(str(part)):
            return
        yield part


def counts_of(prefix: Path, n_words: int) -> Optional[Tensor]:
    """Return the counts (words,) in a file of fairseq's binary format; None if it does not fit."""
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    try:
        data = MMapIndexedDataset(str(prefix))
        tokens = data._bin_buffer_mmap.view(data._index.dtype)
        counts = np.zeros(n_words, dtype=np.int64)
        for start in range(0, len(tokens), PART):
            counts += np.bincount(tokens[start : start + PART], minlength=n_words)
    except (AssertionError, OSError, ValueError):  # another format, a damaged file, words of another dictionary
        return None
    return torch.from_numpy(counts)
