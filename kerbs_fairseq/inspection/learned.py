"""The senses, θ, usage and words of a KerBS checkpoint, read without building the model."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import KERNELS, released_theta
from kerbs_fairseq.modules.sense_table import map_damage
from kerbs_fairseq.runs import checkpoint as schema
from kerbs_fairseq.runs.checkpoint import Checkpoint, Code, fingerprint, integer, whole
from kerbs_fairseq.runs.errors import UserError, told

SPECIAL = 4  # special symbols at the start of every fairseq dictionary


@dataclass
class Learned:
    """The output layer of a checkpoint: S senses of V words with d features."""

    vectors: Tensor  # (S, d)
    theta: Tensor  # (S,); 0 for the kernel ``dot``
    bias: Optional[Tensor]  # (S,); None for a model without bias
    sense_to_word: Tensor  # (S,)
    usage: Tensor  # (S,)
    kernel: str
    words: list[str]
    counts: Optional[Tensor]  # (V,): of the dictionary; None if no dictionary was found
    options: dict[str, Any]  # of the model
    updates: int
    moves: int
    initial: Optional[Tensor] = None  # (V,): senses per word at the start; None in old checkpoints
    same_dictionary: Optional[bool] = None  # whether ``words`` are those of the training; None: not known
    code: Optional[Code] = None  # names needed to build the model

    @property
    def n_words(self) -> int:
        """V, the number of words."""
        return len(self.words)

    @property
    def numbers(self) -> Tensor:
        """Number of senses of each word (V,)."""
        return torch.bincount(self.sense_to_word, minlength=self.n_words)

    @property
    def share(self) -> Tensor:
        """Share of each sense in the usage of its word (S,); equal shares for a word that never occurred."""
        usage = self.usage.double()  # the usage of a word that has not occurred for long underflows in float32
        total = torch.zeros(self.n_words, dtype=usage.dtype).index_add(0, self.sense_to_word, usage)[self.sense_to_word]
        return torch.where(total > 0, usage / total, 1 / self.numbers[self.sense_to_word]).float()

    @property
    def seen(self) -> Tensor:
        """Usage of each word (V,); 0 if it was never a target."""
        return torch.zeros(self.n_words).index_add(0, self.sense_to_word, self.usage)

    def senses_of(self, word: int) -> list[int]:
        """Return the senses of a word, most used first."""
        own = (self.sense_to_word == word).nonzero().flatten()
        return own[torch.argsort(self.usage[own], descending=True, stable=True)].tolist()

    def word_theta(self) -> Tensor:
        """Return θ of each word (V,): the mean of its senses, weighted by usage."""
        return torch.zeros(self.n_words).index_add(0, self.sense_to_word, self.theta * self.share)

    def find(self, word: str) -> int:
        """Return the number of a word; a :class:`UserError` with similar words if it is unknown."""
        for spelled in (f"▁{word}", word):  # sentencepiece marks the start of a word by ▁
            if spelled in self.words:
                return self.words.index(spelled)
        near = difflib.get_close_matches(word, self.words, 5, 0.5) or difflib.get_close_matches(
            word.lower(), self.words, 5, 0.5
        )
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise UserError(f"there is no word {word!r} among the {self.n_words} of the model{hint}")


def load(path: Path, data: Optional[Path] = None, trust: bool = False) -> Learned:
    """Read a checkpoint; ``data`` is an output folder of fairseq-preprocess, for the names of the words."""
    return learned_of(schema.load(path, trust), data)


def learned_of(checkpoint: Checkpoint, data: Optional[Path] = None) -> Learned:
    """Return what a checkpoint has learned; ``data`` as in :func:`load`."""
    head = sound(checkpoint)
    kernel = KERNELS[int(head[schema.KERNEL])]
    sense_to_word = head[schema.MAP].long()
    S, V = len(sense_to_word), int(sense_to_word.max()) + 1
    options = checkpoint.options("model")
    theta, bias = schema.theta_and_bias(head)
    initial = head.get(schema.INITIAL)
    vocabulary = integer(head.get(schema.VOCABULARY)) or None  # 0: unknown
    words, counts, same = names(V, {**options, **checkpoint.options("task")}, data, vocabulary)
    return Learned(
        vectors=head[schema.VECTORS].float(),
        theta=torch.zeros(S) if theta is None else theta_of(theta, kernel, options),
        bias=bias,
        sense_to_word=sense_to_word,
        usage=head.get(schema.USAGE, torch.zeros(S)).float(),  # missing in old checkpoints
        kernel=kernel,
        words=words,
        counts=counts,
        options=options,
        updates=whole(head.get(schema.UPDATES, 0)),
        moves=whole(head.get(schema.MOVES, 0)),
        initial=None if initial is None or not bool((initial > 0).all()) else initial.long(),
        same_dictionary=same,
        code=checkpoint.code,
    )


def sound(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the tensors of the KerBS layer; a :class:`UserError` if they are invalid, as a file may be edited."""
    head, path = checkpoint.head, checkpoint.path
    if not head:
        why = {"MoS": "it is a mixture of softmaxes", "softmax": "it has no senses"}[checkpoint.layer]
        raise UserError(f"{path} is not a KerBS model: {why}; train with --arch kerbs_…")
    damaged = map_damage(head, schema.SENSES)
    if damaged:
        raise UserError(f"{path} cannot be used: {damaged}")
    missing = {schema.KERNEL, schema.MAP} - head.keys()
    if missing:
        raise UserError(f"{path} was written by another version: it has no {', '.join(sorted(missing))}")
    problem = next(faults(head), None)
    if problem:
        raise UserError(f"{path} is damaged: {problem}")
    return head


def faults(head: dict[str, Tensor]) -> Iterator[str]:
    """Yield what is wrong with the tensors of a KerBS layer."""
    vectors, words, kernel = head[schema.VECTORS], head[schema.MAP], integer(head[schema.KERNEL])
    if vectors.dim() != 2 or not vectors.numel() or not vectors.is_floating_point():
        yield f"{schema.VECTORS} is not a matrix of numbers"
        return
    if kernel is None or not 0 <= kernel < len(KERNELS):
        yield f"{schema.KERNEL} is {kernel}, not one of 0 to {len(KERNELS) - 1} ({', '.join(KERNELS)})"
        return
    if words.shape != vectors.shape[:1] or words.is_floating_point() or words.dtype == torch.bool:
        yield f"{schema.MAP} is not a whole number for each of {len(vectors)} senses"
    elif int(words.min()) < 0 or int(words.max()) >= len(words):
        yield f"{schema.MAP} has numbers from {int(words.min())} to {int(words.max())}, for {len(words)} senses"
    elif int(torch.bincount(words).min()) == 0:
        yield f"{schema.MAP} has no sense for word {int(torch.bincount(words).argmin())}"
    elif schema.INITIAL in head and head[schema.INITIAL].shape != (int(words.max()) + 1,):
        yield f"{schema.INITIAL} is not a number for each of {int(words.max()) + 1} words"
    for name in (schema.THETA, schema.USAGE):
        value = head.get(name)
        if value is not None and (value.shape != vectors.shape[:1] or not value.is_floating_point()):
            yield f"{name} is not a number for each of {len(vectors)} senses"
    if schema.THETA not in head and KERNELS[kernel] != "dot":
        yield f"it has no {schema.THETA}"


def theta_of(raw: Tensor, kernel: str, options: dict[str, Any]) -> Tensor:
    """Return θ (S,) as the kernel uses it."""
    if kernel == "released":
        return released_theta(raw)
    try:
        bound = float(options.get("kerbs_theta_bound", 8.0))
    except (TypeError, ValueError):
        bound = 8.0
    return raw.clamp(-bound, bound)


def names(
    n_words: int, task: dict[str, Any], data: Optional[Path], vocabulary: Optional[int] = None
) -> tuple[list[str], Optional[Tensor], Optional[bool]]:
    """Return the words, their counts, and whether they are those of the training (None if that is not known).

    ``vocabulary`` is the fingerprint of the dictionary of the training. Without a dictionary that fits, the words are
    numbers.
    """
    folder = data or Path(str(task.get("data") or "nowhere").split(":")[0])
    problem = None
    for path in dictionaries(folder, task):
        symbols, counts = read_dictionary(path)
        cut = whole(task.get("output_dictionary_size") or 0) == n_words  # a language model with a smaller output
        if len(symbols) != n_words and not (cut and len(symbols) > n_words):
            problem = problem or f"{path} has {len(symbols)} words, the model has {n_words}"
            continue
        same = None if vocabulary is None else vocabulary in (fingerprint(symbols[:n_words]), fingerprint(symbols))
        if same is False:
            problem = problem or f"{path} is not the dictionary that the model was trained with"
            continue
        return symbols[:n_words], torch.tensor(counts[:n_words]), same
    if data:
        refuse_data(data, problem)
    return [f"#{i}" for i in range(n_words)], None, None


def read_dictionary(path: Path) -> tuple[list[str], list[int]]:
    """Return symbols and counts, read by fairseq."""
    from fairseq.data import Dictionary

    with told(f"{path} cannot be read as a dictionary"):
        dictionary = Dictionary.load(str(path))
        return list(dictionary.symbols), [min(int(count), 2**53) for count in dictionary.count]


def dictionaries(folder: Path, task: dict[str, Any]) -> list[Path]:
    """Return files that may be the target's dictionary, the most likely first, as fairseq's tasks look for it."""
    from fairseq.data.data_utils import infer_language_pair

    target = task.get("target_lang")
    names = [f"dict.{target}.txt", "dict.txt"]
    with told(f"{folder} cannot be read"):
        if not target and folder.is_dir():
            names[0] = f"dict.{infer_language_pair(str(folder))[1]}.txt"
        if "target_lang" not in task:  # a language model
            names.reverse()
        return [folder / name for name in names if (folder / name).is_file()]


def refuse_data(data: Path, problem: Optional[str]) -> NoReturn:
    """Raise the error that explains why ``data`` has no suitable dictionary."""
    if not data.is_dir():
        raise UserError(f"--data {data} is not a directory")
    raise UserError(
        problem or f"--data {data} has no dictionary of the target: give the folder that fairseq-preprocess wrote"
    )
