"""Real contexts of words: every time a word is the target, which of its senses is the likely one, and the sentence."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils
from torch import Tensor

import kerbs_fairseq  # noqa: F401  (mends fairseq and registers the twins)
from kerbs_fairseq.functional.inputs import own_vectors, posterior_weights
from kerbs_fairseq.glue.heads import features_of
from kerbs_fairseq.tools.learned import Unreadable

TOKENS = 4000  # of a batch
AROUND = 15  # words before and after that make a context: language models read in blocks


class Occurrence(NamedTuple):
    """One time that a word was to be predicted."""

    word: int
    sense: int  # the likely one
    probability: float  # of it among the senses of the word
    feature: Tensor  # (d,)
    sentence: tuple[str, ...]  # or the part of it around the word
    position: int


def occurrences(checkpoint: Path, data: Path, split: str, words: Sequence[int]) -> Iterator[Occurrence]:
    """Go through a split of a preprocessed corpus with the model."""
    try:
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], arg_overrides={"data": str(data)}
        )
    except Exception as error:  # fairseq raises whatever comes: other dictionaries, missing files
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Unreadable(f"the model cannot be loaded together with --data {data}: {reason}") from None
    try:
        task.load_dataset(split)
    except Exception as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" ({error})"
        raise Unreadable(f"--data {data} has no {split} that can be read{reason}: choose another --split") from None
    model.eval()
    wanted = torch.zeros(len(task.target_dictionary), dtype=torch.bool)
    wanted[list(words)] = True
    batches = task.get_batch_iterator(task.dataset(split), max_tokens=TOKENS, ignore_invalid_inputs=True)
    with torch.no_grad():
        for batch in batches.next_epoch_itr(shuffle=False):
            if batch and bool(wanted[batch["target"]].any()):
                yield from in_batch(model, batch, wanted, task.target_dictionary)


def in_batch(model: Any, batch: dict[str, Any], wanted: Tensor, dictionary: Any) -> Iterator[Occurrence]:
    """The occurrences of wanted words in one batch."""
    with features_of(model.decoder):
        features = model(**batch["net_input"])[0]  # (sentences, length, d)
    table = model.decoder.head.senses
    rows, columns = wanted[batch["target"]].nonzero(as_tuple=True)
    targets = batch["target"][rows, columns]
    own, chosen = table.slots[targets], features[rows, columns]
    theta = None if table.theta is None else table.theta[own.clamp_min(0)]
    weights = posterior_weights(chosen, own_vectors(table.vectors, own), theta, own, table.kernel)
    best = weights.argmax(1, keepdim=True)
    likely, probability = own.gather(1, best).squeeze(1).tolist(), weights.gather(1, best).squeeze(1).tolist()
    sentences: dict[int, tuple[str, ...]] = {}
    for i, (row, column) in enumerate(zip(rows.tolist(), columns.tolist())):
        if row not in sentences:
            tokens = batch["target"][row]
            sentences[row] = tuple(dictionary[t] for t in tokens[tokens != dictionary.pad()].tolist())
        position = int((batch["target"][row, :column] != dictionary.pad()).sum())  # padding may be on the left
        first, last = max(0, position - AROUND), position + AROUND + 1
        words = sentences[row][first:last]
        yield Occurrence(int(targets[i]), likely[i], probability[i], chosen[i], words, position - first)
