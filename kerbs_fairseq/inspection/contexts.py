"""Contexts of words in data: for each occurrence of a word as a target, its most likely sense, and the sentence."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from fairseq import checkpoint_utils, models, tasks, utils
from torch import Tensor

import kerbs_fairseq  # noqa: F401  (patches fairseq and registers the twins)
from kerbs_fairseq.functional.input_embedding import posterior_weights, sense_vectors
from kerbs_fairseq.plugin.decoders import features_of
from kerbs_fairseq.runs.checkpoint import Code
from kerbs_fairseq.runs.errors import UserError, told

TOKENS = 4000  # per batch
AROUND = 15  # words of context before and after: language models read in blocks


class Occurrence(NamedTuple):
    """One occurrence of a word as a target."""

    word: int
    sense: int  # the most likely one
    probability: float  # of this sense among the senses of the word
    feature: Tensor  # (d,)
    sentence: tuple[str, ...]  # or its part around the word
    position: int  # of the word in ``sentence``
    line: int  # of the split; the block, if a language model reads in blocks
    column: int  # position of the word in the line


class Matches(NamedTuple):
    """The n occurrences of wanted words as targets in a batch."""

    rows: Tensor  # (n,)
    columns: Tensor  # (n,)
    words: Tensor  # (n,)
    features: Tensor  # (n, d)
    senses: Tensor  # (n,): the most likely ones
    probabilities: Tensor  # (n,): of these senses among those of their words


def import_code(code: Optional[Code], user_dir: Optional[Path], trust: bool = False) -> None:
    """Import the ``user_dir`` that a model needs; the one named in its checkpoint only with ``trust``."""
    folder = str(user_dir or "")
    known = code is not None and code.architecture in {**models.ARCH_MODEL_REGISTRY, **models.MODEL_REGISTRY}
    if not folder and code is not None and code.user_dir and not (known and code.task in tasks.TASK_REGISTRY):
        if not trust:
            what = f"task {code.task}" if known else f"architecture {code.architecture}"
            raise UserError(
                f"the {what} comes from the --user-dir {code.user_dir} of the training, which is code to be run: "
                "name it again by --user-dir, or give --trust"
            )
        folder = code.user_dir
    if folder:
        with told(f"--user-dir {folder} cannot be imported"):
            utils.import_user_module(Namespace(user_dir=folder))


class Reader:
    """A model together with a split of a preprocessed corpus."""

    def __init__(self, checkpoint: Path, data: Path, split: str) -> None:
        with told(f"the model cannot be loaded together with --data {data}"):  # other dictionaries, missing files
            (self.model,), _, self.task = checkpoint_utils.load_model_ensemble_and_task(
                [str(checkpoint)], arg_overrides={"data": str(data)}
            )
        with told(f"--data {data} has no {split} that can be read; choose another --split"):
            self.task.load_dataset(split)
        self.split = split
        self.model.eval()

    @property
    def dictionary(self) -> Any:
        """The dictionary of the target."""
        return self.task.target_dictionary

    def batches(self, tokens: int = TOKENS, shuffle: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the split in batches of at most ``tokens``; shuffling is deterministic."""
        with told(f"{self.split} cannot be read, its files may be damaged"):
            dataset = self.task.dataset(self.split)
            longest = max((int(dataset.num_tokens(i)) for i in range(len(dataset))), default=0)
            iterator = self.task.get_batch_iterator(
                dataset,
                max_tokens=max(tokens, longest),  # the blocks of a language model may be longer than a batch
                max_positions=utils.resolve_max_positions(self.task.max_positions(), self.model.max_positions()),
                ignore_invalid_inputs=True,
                seed=1,
            )
            for batch in iterator.next_epoch_itr(shuffle=shuffle):
                if batch:
                    yield self.checked(batch)

    def checked(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch; a :class:`UserError` if a target word is not in the dictionary."""
        if int(batch["target"].min()) < 0 or int(batch["target"].max()) >= len(self.dictionary):
            raise UserError(f"{self.split} has words that are not in the dictionary: it is damaged, or of other data")
        return batch

    @torch.no_grad()
    def find(self, batch: dict[str, Any], wanted: Tensor) -> Matches:
        """Find the targets of a batch that are ``wanted`` (words,), and their most likely senses."""
        with told(f"the model cannot be run on {self.split}"), features_of(self.model.decoder):
            features = self.model(**batch["net_input"])[0]  # (sentences, length, d)
        if not bool(torch.isfinite(features).all()):
            raise UserError("the model computes NaN or infinities: its training went wrong; take an earlier checkpoint")
        table = self.model.decoder.head.senses
        rows, columns = wanted[batch["target"]].nonzero(as_tuple=True)
        words = batch["target"][rows, columns]
        senses, chosen = table.index.rows(words), features[rows, columns]
        theta, bias = (None if x is None else x[senses.clamp_min(0)] for x in (table.theta, table.bias))
        weights = posterior_weights(chosen, sense_vectors(table.vectors, senses), theta, bias, senses, table.kernel)
        best = weights.argmax(1, keepdim=True)
        sense, probability = (x.gather(1, best).squeeze(1) for x in (senses, weights))
        return Matches(rows, columns, words, chosen, sense, probability)

    def sentence(self, batch: dict[str, Any], row: int) -> tuple[str, ...]:
        """Return the words of one target sentence."""
        tokens = batch["target"][row]
        return tuple(self.dictionary[t] for t in tokens[tokens != self.dictionary.pad()].tolist())

    def position(self, batch: dict[str, Any], row: int, column: int) -> int:
        """Return the position of a column in :meth:`sentence`; padding may be on the left."""
        return int((batch["target"][row, :column] != self.dictionary.pad()).sum())


def around(sentence: tuple[str, ...], position: int) -> tuple[tuple[str, ...], int]:
    """Return the part of a sentence around a word, and the position of the word in it."""
    first, last = max(0, position - AROUND), position + AROUND + 1
    return sentence[first:last], position - first


def occurrences(checkpoint: Path, data: Path, split: str, words: Sequence[int]) -> Iterator[Occurrence]:
    """Yield every occurrence of ``words`` as a target in a split of a preprocessed corpus."""
    reader = Reader(checkpoint, data, split)
    wanted = torch.zeros(len(reader.dictionary), dtype=torch.bool)
    wanted[list(words)] = True
    for batch in reader.batches():
        if bool(wanted[batch["target"]].any()):
            yield from in_batch(reader, batch, reader.find(batch, wanted))


def in_batch(reader: Reader, batch: dict[str, Any], matches: Matches) -> Iterator[Occurrence]:
    """Yield the matches of one batch."""
    sentences: dict[int, tuple[str, ...]] = {}
    rows, columns, words, senses, probabilities = (
        part.tolist() for part in (matches.rows, matches.columns, matches.words, matches.senses, matches.probabilities)
    )
    for i, (row, column) in enumerate(zip(rows, columns)):
        if row not in sentences:
            sentences[row] = reader.sentence(batch, row)
        word = reader.position(batch, row, column)
        part, position = around(sentences[row], word)
        line = int(batch["id"][row])
        yield Occurrence(words[i], senses[i], probabilities[i], matches.features[i], part, position, line, word)
