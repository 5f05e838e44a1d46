"""The options that ``kerbs_X`` and ``mos_X`` add to those of X, for argparse and for hydra alike."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import OmegaConf, open_dict

from kerbs_fairseq.allocation.reallocator import MOVED_VECTORS, SPLIT_NOISE
from kerbs_fairseq.functional.initialization import BIASES, INITIAL_MAPS, INITIAL_VECTORS
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.modules.input_embedding import INPUTS
from kerbs_fairseq.modules.mixture_of_softmaxes import MOS_INITS
from kerbs_fairseq.plugin.refusal import refuse

START_SPLITS = ("auto", "noise", "contexts")

# The values of options that are not given, by --kerbs-preset.
PRESETS: dict[str, dict[str, Any]] = {
    "default": {
        "kerbs_senses": 1.5,
        "kerbs_max_senses": 16,
        "kerbs_init": "frequency",
        "kerbs_init_vectors": "near",
        "kerbs_bias": "zero",
        "kerbs_reallocate_every": 0,
        "kerbs_strategy": "paper",
        "kerbs_moved_vector": "split",
    },
    "paper": {
        "kerbs_senses": 3.0,
        "kerbs_max_senses": 4,
        "kerbs_init": "random",
        "kerbs_init_vectors": "random",
        "kerbs_bias": "none",
        "kerbs_reallocate_every": 100,
        "kerbs_strategy": "paper",
        "kerbs_moved_vector": "keep",
    },
}


def by_preset(name: str, text: str) -> dict[str, str]:
    """Return the help of an option whose default depends on the preset."""
    default, paper = (PRESETS[preset][name] for preset in ("default", "paper"))
    return {"help": f"{text} (default: {default}; with --kerbs-preset paper: {paper})"}


@dataclass
class KerbsOptions(FairseqDataclass):
    """Options of ``kerbs_X``."""

    kerbs_preset: Optional[ChoiceEnum(tuple(PRESETS))] = field(  # type: ignore[valid-type]
        default=None,
        metadata={"help": "choices for all options that are not given: default, or paper for those of the paper"},
    )
    kerbs_senses: Optional[float] = field(
        default=None, metadata=by_preset("kerbs_senses", "senses per word on average; special symbols have one")
    )
    kerbs_min_senses: int = field(default=1, metadata={"help": "every word has at least this many senses"})
    kerbs_max_senses: Optional[int] = field(
        default=None, metadata=by_preset("kerbs_max_senses", "every word has at most this many senses")
    )
    kerbs_init: Optional[ChoiceEnum(INITIAL_MAPS)] = field(  # type: ignore[valid-type]
        default=None,
        metadata=by_preset(
            "kerbs_init", "first allocation: by frequency in the training data, random, or uniform (the released code)"
        ),
    )
    kerbs_power: float = field(
        default=1.0,
        metadata={
            "help": "of --kerbs-init frequency and --kerbs-strategy loss: the next sense goes to the word with the "
            "largest count^power / senses (in place of the count: its summed -log P)"
        },
    )
    kerbs_min_count: float = field(
        default=0.0,
        metadata={
            "help": "of --kerbs-init frequency: occurrences in the training data per sense that a word must have; "
            "fewer senses are allocated if too few words have them"
        },
    )
    kerbs_init_vectors: Optional[ChoiceEnum(INITIAL_VECTORS)] = field(  # type: ignore[valid-type]
        default=None,
        metadata=by_preset(
            "kerbs_init_vectors",
            "senses of a word start as one vector plus a little noise (clone), plus much noise (near), or each on its "
            "own (random)",
        ),
    )
    kerbs_bias: Optional[ChoiceEnum(BIASES)] = field(  # type: ignore[valid-type]
        default=None,
        metadata=by_preset(
            "kerbs_bias",
            "a bias per sense that starts at the softmax's bias or 0 (zero), at that less the log of the number of its "
            "word's senses (log), or no bias (none)",
        ),
    )
    kerbs_bias_rate: float = field(
        default=1.0, metadata={"help": "factor of the learning rate of the bias, under Adam and the like"}
    )
    kerbs_kernel: ChoiceEnum(KERNELS) = field(  # type: ignore[valid-type]
        default="paper",
        metadata={"help": "kernel: of the paper; inner product (dot, no theta); of the authors' released code"},
    )
    kerbs_theta_init: float = field(default=1e-8, metadata={"help": "where every theta starts (0: inner product)"})
    kerbs_theta_bound: float = field(default=8.0, metadata={"help": "theta stays within plus and minus this"})
    kerbs_theta_rate: float = field(
        default=1.0, metadata={"help": "factor of the learning rate of theta, under Adam and the like"}
    )
    kerbs_head_rate: float = field(
        default=1.0, metadata={"help": "factor of the learning rate of the sense vectors, under any optimizer"}
    )
    kerbs_start_noise: Optional[float] = field(
        default=None,
        metadata={
            "help": "where training starts from a softmax (--finetune-from-model, --restore-file): how far the senses "
            "of a word start apart, in standard deviations of its weights; 0 predicts exactly what the softmax did "
            "(default: the largest value up to 0.5 that raises the validation loss by no more than 0.5%%)"
        },
    )
    kerbs_start_split: ChoiceEnum(START_SPLITS) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "where training starts from a softmax: the senses of a word start apart at random (noise), or "
            "towards clusters of its contexts in the training data (contexts); auto: contexts where there are "
            "training data"
        },
    )
    kerbs_chunk: int = field(
        default=0, metadata={"help": "tokens per chunk of the loss, whose scores are in memory at a time; 0: automatic"}
    )
    kerbs_reference: bool = field(
        default=False, metadata={"help": "use the plain reference implementation of the loss (slow, much memory)"}
    )
    kerbs_seed: Optional[int] = field(
        default=None,
        metadata={"help": "for the first allocation, vectors and splits; equal on all workers (default: --seed)"},
    )
    kerbs_input: ChoiceEnum(INPUTS) = field(  # type: ignore[valid-type]
        default="untied",
        metadata={
            "help": "the decoder's input: a table of its own (untied), or the word's senses weighted by how much each "
            "is used (usage) or how likely each was meant (posterior, the paper)"
        },
    )
    kerbs_input_passes: int = field(
        default=1, metadata={"help": "Transformers with --kerbs-input posterior: repetitions under teacher forcing"}
    )
    kerbs_reallocate_every: Optional[int] = field(
        default=None,
        metadata=by_preset(
            "kerbs_reallocate_every", "move senses between words every this many updates, such as 100; 0: never"
        ),
    )
    kerbs_reallocate_after: int = field(
        default=1000, metadata={"help": "no sense moves before this many updates have been made"}
    )
    kerbs_reallocate_until: int = field(
        default=0, metadata={"help": "no sense moves after this many updates; 0: no end"}
    )
    kerbs_decay: float = field(
        default=0.01, metadata={"help": "beta, the decay of the statistics of words and senses, between 0 and 1"}
    )
    kerbs_threshold: Optional[float] = field(
        default=None,
        metadata={
            "help": "epsilon: words whose log P (a discounted sum) is below it get a sense; "
            "default: the worst 0.5%% of the vocabulary at each event"
        },
    )
    kerbs_strategy: Optional[str] = field(
        default=None,
        metadata=by_preset(
            "kerbs_strategy",
            "which senses move: paper (Algorithm 1), loss (to the words that cost most, by the rule of the first "
            "allocation), idle (only unused senses, to words that use all theirs), released (as in the authors' code), "
            "or your own",
        ),
    )
    kerbs_moved_vector: Optional[ChoiceEnum(MOVED_VECTORS)] = field(  # type: ignore[valid-type]
        default=None,
        metadata=by_preset(
            "kerbs_moved_vector",
            "the vector of a moved sense stays as it is (keep), or it and its new word's most used sense become the "
            "halves of that sense (split)",
        ),
    )
    kerbs_split_noise: float = field(
        default=SPLIT_NOISE,
        metadata={"help": "how far the halves of a split start apart, in standard deviations of all vectors"},
    )
    kerbs_move_log: Optional[str] = field(
        default=None, metadata={"help": "file for a table of all moves: update, sense, from, to, usage, log P"}
    )


class StartOptions(NamedTuple):
    """Options of a model that starts from a softmax."""

    noise: Optional[float]
    split: str
    seed: int
    useless: tuple[str, ...] = ()  # given options that have no effect in that case

    @classmethod
    def of(cls, args: Any, given: Sequence[str] = ()) -> "StartOptions":
        """Read ``--kerbs-start-…``, or refuse the values; ``given`` are the names of the options that were given."""
        noise, split = args.kerbs_start_noise, str(args.kerbs_start_split)
        if noise is not None and not 0 <= noise < float("inf"):
            refuse(f"--kerbs-start-noise {noise:g}: it must be 0 or more")
        if noise == 0 and split == "contexts":
            refuse(f"--kerbs-start-split {split} has no effect with --kerbs-start-noise 0: leave it out")
        # with a preset without biases, --kerbs-bias has to be given
        needed = PRESETS[str(args.kerbs_preset)]["kerbs_bias"] == "none"
        useless = ("kerbs_init_vectors",) if needed else ("kerbs_init_vectors", "kerbs_bias")
        return cls(noise, split, args.kerbs_seed + 1, tuple(name for name in useless if name in given))


RESOLVED = "kerbs_resolved"  # marks settings in which every option has its value
_LOADING: ContextVar[bool] = ContextVar("loading", default=False)


@contextlib.contextmanager
def settings_of_a_checkpoint() -> Iterator[None]:
    """Within this context models are built from the settings of a checkpoint, to be loaded from it."""
    before = _LOADING.set(True)
    try:
        yield
    finally:
        _LOADING.reset(before)


class Resolved(NamedTuple):
    """Which options were ``given``, by name, and whether the settings are those of a checkpoint."""

    given: list[str]
    loaded: bool


def resolve(args: Any) -> Resolved:
    """Set every option in ``args`` that depends on a preset, in place.

    A checkpoint has the values that it was trained with, whatever the defaults are now: none of them counts as given.
    """
    fill(args, KerbsOptions)
    missing = [name for name in PRESETS["default"] if getattr(args, name, None) is None]
    old = missing == ["kerbs_bias"] and getattr(args, "kerbs_preset", None) is None  # a checkpoint of version 0.1
    loaded = old or _LOADING.get() or bool(getattr(args, RESOLVED, False))
    defaults = {option.name: option.default for option in fields(KerbsOptions)}
    preset = str(getattr(args, "kerbs_preset", None) or "default")
    given = [] if loaded else [name for name, default in defaults.items() if is_given(getattr(args, name), default)]
    for name in missing:
        setattr(args, name, PRESETS[preset][name])
    args.kerbs_preset = preset
    if args.kerbs_seed is None:
        args.kerbs_seed = torch.initial_seed() % 2**31  # set by --seed, on every worker
    if not OmegaConf.is_config(args):  # fairseq makes a new config for every model, and does not save it
        setattr(args, RESOLVED, True)
    return Resolved(given, loaded)


def fill(args: Any, options: type[FairseqDataclass]) -> None:
    """Set every option that is missing in ``args`` to its default: a program may pass a bare namespace."""
    for option in fields(options):
        if option.name != "_name" and not hasattr(args, option.name):
            with open_dict(args) if OmegaConf.is_config(args) else contextlib.nullcontext():
                setattr(args, option.name, option.default)


def is_given(value: Any, default: Any) -> bool:
    """Return whether an option has another value than its default; a choice may be an enum or its text."""
    return value is not None and value != default and str(value) != str(default)


@dataclass
class MosOptions(FairseqDataclass):
    """Options of ``mos_X``."""

    mos_components: int = field(default=3, metadata={"help": "softmaxes in the mixture"})
    mos_init: ChoiceEnum(MOS_INITS) = field(  # type: ignore[valid-type]
        default="published",
        metadata={
            "help": "latents of the mixture: tanh(A h + b) (published), or A h + b, where A starts as the identity and "
            "b as 0, so that the model starts as the softmax (identity)"
        },
    )
    mos_dropout: Optional[float] = field(
        default=None,
        metadata={
            "help": "dropout of the latents; default: as --dropout with --mos-init published, 0 with identity, whose "
            "latents are the features, which have their own"
        },
    )
