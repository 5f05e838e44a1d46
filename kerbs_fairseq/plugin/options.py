"""The options that twins add to the architectures they are twins of, for argparse and for hydra alike."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from kerbs_fairseq.functional.initialization import INITIAL_MAPS, INITIAL_VECTORS
from kerbs_fairseq.functional.kernel import KERNELS
from kerbs_fairseq.modules.input_embedding import INPUTS
from kerbs_fairseq.modules.mixture_of_softmaxes import MOS_INITS

MOVED_VECTORS = ("keep", "split")


@dataclass
class KerbsOptions(FairseqDataclass):
    """Options of ``kerbs_X``."""

    kerbs_senses: float = field(default=3.0, metadata={"help": "senses a word on average (special symbols have one)"})
    kerbs_min_senses: int = field(default=1, metadata={"help": "every word has at least this many senses"})
    kerbs_max_senses: int = field(default=4, metadata={"help": "every word has at most this many senses"})
    kerbs_init: ChoiceEnum(INITIAL_MAPS) = field(  # type: ignore[valid-type]
        default="random",
        metadata={"help": "first allocation: random (the paper), uniform (the released code), by word frequency"},
    )
    kerbs_init_vectors: ChoiceEnum(INITIAL_VECTORS) = field(  # type: ignore[valid-type]
        default="near",
        metadata={
            "help": "senses of a word start as one vector plus a little noise (clone), plus much noise (near), or each "
            "on its own (random)"
        },
    )
    kerbs_kernel: ChoiceEnum(KERNELS) = field(  # type: ignore[valid-type]
        default="paper",
        metadata={"help": "kernel: of the paper; inner product (dot, no theta); of the authors' released code"},
    )
    kerbs_theta_init: float = field(default=1e-8, metadata={"help": "where every theta starts (0: inner product)"})
    kerbs_theta_bound: float = field(default=8.0, metadata={"help": "theta stays within plus and minus this"})
    kerbs_chunk: int = field(
        default=0, metadata={"help": "tokens whose scores are in memory at a time in the loss; 0 chooses"}
    )
    kerbs_reference: bool = field(
        default=False, metadata={"help": "use the plain reference implementation of the loss (slow, much memory)"}
    )
    kerbs_seed: int = field(default=1, metadata={"help": "for the first allocation and vectors; equal on all workers"})
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
    kerbs_reallocate_every: int = field(
        default=100, metadata={"help": "move senses between words every this many updates; 0: never"}
    )
    kerbs_reallocate_after: int = field(
        default=1000, metadata={"help": "no sense moves before this many updates have been made"}
    )
    kerbs_reallocate_until: int = field(
        default=0, metadata={"help": "no sense moves after this many updates, so that all can settle; 0: no end"}
    )
    kerbs_decay: float = field(
        default=0.01, metadata={"help": "beta, how fast the statistics of words and senses forget, between 0 and 1"}
    )
    kerbs_threshold: Optional[float] = field(
        default=None,
        metadata={
            "help": "epsilon: words whose log P (a discounted sum) is below it get a sense; "
            "default: the worst 0.5%% of the vocabulary at each event"
        },
    )
    kerbs_strategy: str = field(
        default="paper",
        metadata={
            "help": "which senses move: paper (Algorithm 1), idle (only unused senses, to words that use all theirs), "
            "released (as in the authors' code), or your own"
        },
    )
    kerbs_moved_vector: ChoiceEnum(MOVED_VECTORS) = field(  # type: ignore[valid-type]
        default="keep",
        metadata={
            "help": "the vector of a moved sense stays as it is (keep, the paper), or becomes a copy of its new "
            "word's most used sense plus noise (split)"
        },
    )
    kerbs_move_log: Optional[str] = field(
        default=None, metadata={"help": "file for a table of all moves: update, sense, from, to, usage, log P"}
    )


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
