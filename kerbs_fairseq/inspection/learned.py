"""What a KerBS checkpoint has learned, read without building the model: senses, θ, usage, and the words' names."""

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.initialization import initial_senses
from kerbs_fairseq.functional.kernel import KERNELS, released_theta

HEAD = "head.senses.vectors"
SPECIAL = 4  # symbols at the start of every dictionary of fairseq's


class Unreadable(Exception):
    """A file that is not what it should be; the text says what to do."""


@dataclass
class Learned:
    """S senses of V words with d features."""

    vectors: Tensor  # (S, d)
    theta: Tensor  # (S,); 0 for the kernel ``dot``
    sense_to_word: Tensor  # (S,)
    usage: Tensor  # (S,)
    kernel: str
    words: list[str]
    counts: Optional[Tensor]  # (V,): of the dictionary; None if there is none
    options: dict[str, Any]  # of the model
    updates: int
    moves: int

    @property
    def n_words(self) -> int:
        """V."""
        return len(self.words)

    @property
    def numbers(self) -> Tensor:
        """How many senses each word has (V,)."""
        return torch.bincount(self.sense_to_word, minlength=self.n_words)

    @property
    def share(self) -> Tensor:
        """The share of each sense in the usage of its word (S,); equal shares in a word that was never seen."""
        usage = self.usage.double()  # that of a word that has not been seen for long is too small for float32
        total = torch.zeros(self.n_words, dtype=usage.dtype).index_add(0, self.sense_to_word, usage)[self.sense_to_word]
        return torch.where(total > 0, usage / total, 1 / self.numbers[self.sense_to_word]).float()

    @property
    def seen(self) -> Tensor:
        """How much each word is used (V,); 0 if it was never a target."""
        return torch.zeros(self.n_words).index_add(0, self.sense_to_word, self.usage)

    def senses_of(self, word: int) -> list[int]:
        """Its senses, most used first."""
        own = (self.sense_to_word == word).nonzero().flatten()
        return own[torch.argsort(self.usage[own], descending=True, stable=True)].tolist()

    def word_theta(self) -> Tensor:
        """θ of each word (V,): of its senses, weighted by usage."""
        return torch.zeros(self.n_words).index_add(0, self.sense_to_word, self.theta * self.share)

    def first_numbers(self) -> Optional[Tensor]:
        """How many senses each word had before training (V,); None if that cannot be known."""
        o = self.options
        try:
            return initial_senses(
                self.n_words, o["kerbs_senses"], o["kerbs_min_senses"], o["kerbs_max_senses"], str(o["kerbs_init"]),
                self.counts, range(SPECIAL), o["kerbs_seed"],
            )  # fmt: skip
        except (KeyError, ValueError):
            return None

    def find(self, word: str) -> int:
        """Its number, or :class:`Unreadable` with the words nearest to it."""
        for spelled in (word, f"▁{word}"):  # as sentencepiece writes the start of a word
            if spelled in self.words:
                return self.words.index(spelled)
        near = difflib.get_close_matches(word, self.words, 5, 0.5) or difflib.get_close_matches(
            word.lower(), self.words, 5, 0.5
        )
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise Unreadable(f"there is no word {word!r} among the {self.n_words} of the model{hint}")


def load(path: Path, data: Optional[Path] = None) -> Learned:
    """Read a checkpoint; the dictionary comes from ``data``, or else from where the model was trained."""
    return learned_of(read(path), path, data)


def learned_of(state: dict[str, Any], path: Path, data: Optional[Path] = None) -> Learned:
    """The same from a checkpoint that was read from ``path``."""
    model = state["model"]
    name = next((name for name in model if name.endswith(HEAD)), None)
    if name is None:
        why = "a mixture of softmaxes" if any(".head.prior" in key for key in model) else "no senses in it"
        raise Unreadable(f"{path} is no KerBS model: {why}; train with --arch kerbs_…")
    prefix = name[: -len(HEAD)] + "head."
    get = {key[len(prefix) :]: value for key, value in model.items() if key.startswith(prefix)}
    missing = {"senses.kernel_id", "senses.sense_to_word"} - get.keys()
    if missing:
        raise Unreadable(f"{path} was written by another version: it has no {', '.join(sorted(missing))}")
    kernel = KERNELS[int(get["senses.kernel_id"])]
    options, task = settings(state)
    raw = get.get("senses.theta_raw")
    sense_to_word = get["senses.sense_to_word"]
    n_words = int(sense_to_word.max()) + 1
    words, counts = names(n_words, {**options, **task}, data)
    return Learned(
        vectors=get["senses.vectors"].float(),
        theta=torch.zeros(len(sense_to_word)) if raw is None else theta_of(raw.float(), kernel, options),
        sense_to_word=sense_to_word,
        usage=get.get("statistics.usage", torch.zeros(len(sense_to_word))).float(),  # none in old checkpoints
        kernel=kernel,
        words=words,
        counts=counts,
        options=options,
        updates=int(get.get("statistics.updates", 0)),
        moves=int(get.get("statistics.moves", 0)),
    )


def read(path: Path) -> dict[str, Any]:
    """A checkpoint on the CPU."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=False)
    except FileNotFoundError:
        raise Unreadable(f"{path} is not there") from None
    except Exception as error:  # whatever unpickling a file that is none may raise
        raise Unreadable(f"{path} cannot be read as a checkpoint ({type(error).__name__})") from None
    if not isinstance(state, dict) or not isinstance(state.get("model"), dict):
        raise Unreadable(f"{path} is no fairseq checkpoint: it has no model")
    return state


def theta_of(raw: Tensor, kernel: str, options: dict[str, Any]) -> Tensor:
    """θ (S,) as the kernel uses it."""
    if kernel == "released":
        return released_theta(raw)
    bound = float(options.get("kerbs_theta_bound", 8.0))
    return raw.clamp(-bound, bound)


def settings(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of model and task, in whichever of fairseq's two forms."""
    cfg = state.get("cfg")
    if cfg:
        parts = [cfg.get("model"), cfg.get("task")]
        return tuple(
            dict(vars(p)) if hasattr(p, "__dict__") and not hasattr(p, "items") else dict(p or {}) for p in parts
        )  # type: ignore[return-value]
    args = vars(state["args"]) if state.get("args") is not None else {}
    return args, args


def names(n_words: int, task: dict[str, Any], data: Optional[Path]) -> tuple[list[str], Optional[Tensor]]:
    """The words and their counts; numbers in the place of words if there is no dictionary."""
    from fairseq.data import Dictionary

    folder = data or Path(str(task.get("data", "")).split(":")[0])
    path = dictionary_of(folder, task)
    if path is not None:
        try:
            dictionary = Dictionary.load(str(path))
        except Exception as error:  # whatever a broken file makes it raise
            raise Unreadable(f"{path} cannot be read as a dictionary: {error}") from None
        cut = int(task.get("output_dictionary_size") or -1) == n_words  # a language model with fewer words
        if len(dictionary) == n_words or (cut and len(dictionary) > n_words):
            return list(dictionary.symbols[:n_words]), torch.tensor(dictionary.count[:n_words])
    if data:
        refuse_data(data, path, n_words)
    return [f"#{i}" for i in range(n_words)], None


def dictionary_of(folder: Path, task: dict[str, Any]) -> Optional[Path]:
    """The file of the target's dictionary, found as fairseq's tasks find it."""
    from fairseq.data.data_utils import infer_language_pair

    if (folder / "dict.txt").is_file():
        return folder / "dict.txt"
    target = task.get("target_lang")
    if not target and folder.is_dir():
        target = infer_language_pair(str(folder))[1]
    path = folder / f"dict.{target}.txt"
    return path if path.is_file() else None


def refuse_data(data: Path, path: Optional[Path], n_words: int) -> NoReturn:
    """Say why no word can be named by it."""
    if not data.is_dir():
        raise Unreadable(f"--data {data} is no folder")
    if path is None:
        raise Unreadable(
            f"--data {data} has no dictionary of the target: give the folder that fairseq-preprocess wrote"
        )
    raise Unreadable(f"{path} is another dictionary than the model's, which has {n_words} words")
