"""Output layers for fairseq decoders: each is built from the options and replaces the softmax."""

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Optional

import torch
from torch import Tensor, nn

from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.backends.dispatch import describe
from kerbs_fairseq.modules.input_embedding import INPUTS
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.modules.mixture_of_softmaxes import MixtureOfSoftmaxes
from kerbs_fairseq.modules.sense_table import map_damage
from kerbs_fairseq.plugin import pretrained, scripting
from kerbs_fairseq.plugin.counts import dictionary_counts, split_of, target_counts
from kerbs_fairseq.plugin.log_probs import LogProbs, normalized
from kerbs_fairseq.plugin.options import StartOptions, resolve
from kerbs_fairseq.plugin.pretrained import PROJECTIONS
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.plugin.tied_input import TiedInput
from kerbs_fairseq.plugin.update_hook import UpdateHook, without_effect
from kerbs_fairseq.runs.checkpoint import CHOICE, HEAD, RATIO, SENSES, STATISTICS, VECTORS, fingerprint, integer

logger = logging.getLogger(__name__)

SCORER = "kerbs_scorer"

# The decoder that returns features; the decoder and the incremental state of the current search. Context variables
# instead of attributes, because threads may share the modules.
_FEATURES_OF: ContextVar[Any] = ContextVar("features_of", default=None)
_SEARCH: ContextVar[tuple[Any, Any]] = ContextVar("search", default=(None, None))


class HeadDecoder:
    """Mixin for a decoder class: the output layer is ``self.head``, which returns log-probabilities.

    fairseq applies a softmax to what a decoder returns. It leaves log-probabilities unchanged, so scoring, beam search,
    sampling with a temperature and ensembles need nothing else.
    """

    head: nn.Module
    mark: str  # a name that only the state dict of this head has

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by the two base classes, because this class is created at run time, when a model is built."""
        head, base = type(self).__bases__
        return new_decoder, (base, head), dict(self.__dict__)

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Return log P (..., words) of features (..., d), or the features themselves inside :func:`features_of`."""
        return features if _FEATURES_OF.get() is self else self.head_log_prob(features)

    def head_log_prob(self, features: Tensor) -> Tensor:
        """Return log P of every word: (..., d) → (..., words)."""
        raise NotImplementedError  # defined by each head

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """Prepare a state dict for loading; convert or refuse one with another output layer."""
        before = set(state_dict)
        state_dict = super().upgrade_state_dict_named(state_dict, name)  # type: ignore[misc]
        if f"{name}.{HEAD}{self.mark}" not in state_dict:
            self.start_from(state_dict, name)
        for projection in PROJECTIONS:  # fairseq adds a shared projection, which this decoder may not have
            key = f"{name}.{projection}.weight"
            if key not in before and getattr(self, projection, None) is None:
                state_dict.pop(key, None)
        return state_dict

    def start_from(self, state_dict: dict[str, Any], name: str) -> None:
        """Convert the state dict of another output layer to one of this head, in place, or refuse it."""
        refuse("the checkpoint is of a model with another output layer: load it with the architecture it came from")


def decoder_class(base: type, head: type) -> type:
    """Return the class of a decoder with another output layer; there is one class for each pair."""
    if (base, head) not in _classes:
        name = f"{head.__name__.removesuffix('Decoder')}{base.__name__}"
        _classes[base, head] = type(name, (head, base), {"__module__": __name__})
    return _classes[base, head]


_classes: dict[tuple[type, type], type] = {}


def new_decoder(base: type, head: type) -> Any:
    """Return an empty decoder, for pickle to fill."""
    return object.__new__(decoder_class(base, head))


def check_shapes(model: nn.Module, state_dict: dict[str, Any]) -> None:
    """Refuse a checkpoint that has a parameter of another shape, usually because of other dictionaries."""
    for name, here in model.state_dict().items():
        saved = state_dict.get(name)
        if isinstance(saved, Tensor) and saved.shape != here.shape:
            refuse(
                f"the checkpoint does not fit: {name} is {tuple(saved.shape)} in it and {tuple(here.shape)} in the "
                "model: use the dictionaries (the data folder) and the options of the model that it was trained with"
            )


@contextlib.contextmanager
def features_of(decoder: HeadDecoder) -> Iterator[None]:
    """Within this context the decoder returns features (..., d) in place of log-probabilities."""
    before = _FEATURES_OF.set(decoder)
    try:
        yield
    finally:
        _FEATURES_OF.reset(before)


def projection_of(decoder: nn.Module) -> tuple[Optional[str], Tensor, Optional[Tensor]]:
    """Return (name, weight (words, d), bias (words,) or None) of the output projection; no name: input embedding."""
    for name in PROJECTIONS:
        layer = getattr(decoder, name, None)
        if layer is not None:
            if not isinstance(layer, nn.Linear):
                refuse(f"the decoder's {name} is a {type(layer).__name__}, not a plain matrix: it cannot be replaced")
            return name, layer.weight, layer.bias
    if getattr(decoder, "share_input_output_embed", False):
        embedding: Any = decoder.embed_tokens
        return None, embedding.weight, None
    refuse(f"{type(decoder).__name__} has no output projection that could be replaced")


# options that have no effect, and are refused, unless one of the other options has one of the values
NEEDS: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {
    ("kerbs_theta_init", "kerbs_theta_rate"): {"kerbs_kernel": ("paper", "released")},
    ("kerbs_theta_bound",): {"kerbs_kernel": ("paper",)},
    ("kerbs_bias_rate",): {"kerbs_bias": ("zero", "log")},
    ("kerbs_chunk",): {"kerbs_reference": ("False",)},
    ("kerbs_power",): {"kerbs_init": ("frequency",), "kerbs_strategy": ("loss",)},
    ("kerbs_min_count",): {"kerbs_init": ("frequency",)},
    ("kerbs_split_noise",): {"kerbs_moved_vector": ("split",)},
}
OF_MOVES = (
    "kerbs_reallocate_after",
    "kerbs_reallocate_until",
    "kerbs_threshold",
    "kerbs_strategy",
    "kerbs_moved_vector",
    "kerbs_split_noise",
    "kerbs_move_log",
)


def check_options(args: Any, given: list[str]) -> None:
    """Refuse options that are ``given`` and would be ignored."""

    def flag(name: str) -> str:
        return f"--{name.replace('_', '-')}"

    of_moves = OF_MOVES if args.kerbs_reallocate_every == 0 else ()
    for option, useless in (
        ("kerbs_strategy", without_effect(args.kerbs_strategy)),
        ("kerbs_reallocate_every", of_moves),
    ):
        for name in useless:
            if name in given:
                remedy = ": leave it out"
                if option == "kerbs_reallocate_every" and option not in given:
                    remedy = ", the default: set that to a number of updates, such as 100"
                refuse(f"{flag(name)} has no effect with {flag(option)} {getattr(args, option)}{remedy}")
    at_the_minimum = ("kerbs_max_senses",) if args.kerbs_senses == args.kerbs_min_senses else ()
    for name in ("kerbs_power", "kerbs_min_count", "kerbs_init", *at_the_minimum):
        if name in given and args.kerbs_senses in (args.kerbs_min_senses, args.kerbs_max_senses):
            refuse(
                f"{flag(name)} has no effect with --kerbs-senses {args.kerbs_senses:g}: within the bounds every word "
                f"has exactly {args.kerbs_senses:g}; leave it out"
            )
    for names, needs in NEEDS.items():
        for name in names:
            if name in given and not any(str(getattr(args, other)) in values for other, values in needs.items()):
                now = " and ".join(
                    flag(other) + ("" if str(getattr(args, other)) == "True" else f" {getattr(args, other)}")
                    for other in needs
                )
                refuse(f"{flag(name)} has no effect with {now}: leave it out")


class KerbsDecoder(TiedInput, HeadDecoder):
    """A decoder whose output layer is KerBS."""

    head: KernelizedBayesianSoftmax
    mark = VECTORS
    replaced: str  # the name of the output projection that the head replaces
    update_hook: UpdateHook
    start_options: StartOptions
    counted_split: Optional[str]  # the split whose words were counted

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stock decoder; the steps of a search, which share an incremental state, share a word scorer."""
        before = _SEARCH.set((self, kwargs.get("incremental_state")))
        try:
            return super().forward(*args, **kwargs)  # type: ignore[misc]
        finally:
            _SEARCH.reset(before)

    backend_is_known = False

    def output_layer(self, features: Tensor, **kwargs: Any) -> Tensor:
        """Log the backend at the first call, when the device is known; refuse one that cannot be used there."""
        if not self.backend_is_known and not self.head.reference:
            try:
                logger.info("backend of the loss: %s", describe(self.head.senses.vectors))
            except ValueError as error:
                refuse(str(error))
            self.backend_is_known = True
        return super().output_layer(features, **kwargs)

    def head_log_prob(self, features: Tensor) -> Tensor:
        """Return log P of every word: (..., d) → (..., words)."""
        decoder, state = _SEARCH.get()
        plain = torch.is_grad_enabled() or (self.head.reference and not self.head.prune)
        if decoder is not self or state is None or plain:
            return LogProbs.of(self.head.log_prob(features))
        name = self._get_full_incremental_state_key(SCORER)
        if name not in state:
            state[name] = self.head.word_scorer()
        return LogProbs.of(self.head.log_prob(features, state[name]))

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        """Return normalized probabilities; those that are normalized already are returned as they are."""
        done = normalized(net_output[0]) if log_probs else None
        if done is not None:
            return done
        return super().get_normalized_probs(net_output, log_probs, sample)  # type: ignore[misc]

    def build_head(self, args: Any, task: Any, dictionary: Any) -> None:
        """Replace the softmax by KerBS, whose vectors are initialized from the softmax as the options say."""
        name, weight, bias = projection_of(self)  # type: ignore[arg-type]
        given, loaded = resolve(args)
        if getattr(self, "share_input_output_embed", False):
            self.explain_sharing(args)
        check_options(args, given)
        self.update_hook = UpdateHook.from_options(args, given)
        self.start_options = StartOptions.of(args, given)
        by_frequency = str(args.kerbs_init) == "frequency"
        # a checkpoint has the number of senses that a minimum count led to, and the counts may not be available
        min_count = args.kerbs_min_count if by_frequency and not loaded else 0.0
        # and its map replaces the one made here, so that the training data need not be read
        counts = None
        if by_frequency:
            counts = dictionary_counts(dictionary) if loaded else target_counts(task, dictionary)
        self.counted_split = None if counts is None or counts.from_dictionary else split_of(task)
        if counts is not None and counts.from_dictionary and not loaded:
            logger.warning(
                "senses are allocated by the counts of the dictionary, as there are no binary training data to count: "
                "%s is not counted there and gets no further sense, and a joined dictionary counts both languages",
                dictionary[dictionary.eos()],
            )
        try:
            self.head = KernelizedBayesianSoftmax(
                weight.size(1),
                len(dictionary),
                senses=args.kerbs_senses,
                min_senses=args.kerbs_min_senses,
                max_senses=args.kerbs_max_senses,
                init=str(args.kerbs_init),
                init_vectors=str(args.kerbs_init_vectors),
                kernel=str(args.kerbs_kernel),
                bias=str(args.kerbs_bias),
                theta_init=args.kerbs_theta_init,
                theta_bound=args.kerbs_theta_bound,
                theta_rate=args.kerbs_theta_rate,
                bias_rate=args.kerbs_bias_rate,
                counts=None if counts is None else counts.counts,
                power=args.kerbs_power if by_frequency else 1.0,  # otherwise it applies to moves only
                min_count=min_count,
                single=[dictionary.bos(), dictionary.pad(), dictionary.unk()],
                word_vectors=weight.detach(),
                word_bias=bias,
                chunk=args.kerbs_chunk,
                reference=args.kerbs_reference,
                seed=args.kerbs_seed,
                decay=args.kerbs_decay,
                vocabulary=fingerprint(dictionary.symbols),
            )
        except ValueError as error:
            refuse(f"{error}. See the --kerbs-… options in --help")
        if not loaded:
            self.say_if_fewer(args.kerbs_senses)
        if name is not None:
            delattr(self, name)
        self.replaced = name or "fc_out"  # an LSTM with shared embeddings has no projection
        self.tie_input(args)

    def say_if_fewer(self, ratio: float) -> None:
        """Log if a minimum count leaves fewer senses than ``ratio`` per word."""
        table = self.head.senses
        single = len(table.single)
        wanted, allocated = single + round(ratio * (table.n_words - single)), len(table.vectors)
        if allocated < wanted:
            logger.info("%d senses asked for, %d allocated: no other word has --kerbs-min-count", wanted, allocated)

    def start_from(self, state_dict: dict[str, Any], name: str) -> None:
        """Convert the softmax in the state dict of a stock model to senses, in place."""
        pretrained.convert(self, state_dict, name)

    def __prepare_scriptable__(self) -> Any:
        """Return the stock decoder with prepared tables as its output projection, for ``torch.jit.script``."""
        return scripting.prepared_decoder(self)

    def explain_sharing(self, args: Any) -> None:
        """Log how shared embeddings are handled."""
        cloned = str(args.kerbs_init_vectors) != "random"
        start = "start from the shared table" if cloned else "start on their own, with --kerbs-init-vectors random"
        if str(args.kerbs_input) == "untied":
            rest = "and then learn on their own; input embeddings shared with the encoder stay shared"
        else:
            rest = "and are the decoder's input too (--kerbs-input)"
            if getattr(args, "share_all_embeddings", False):
                rest += "; the encoder keeps a table of its own"
        logger.info("shared embeddings: the sense vectors %s %s", start, rest)

    def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> dict[str, Any]:
        """Refuse a state dict that is damaged or does not fit, and adapt the head to it."""
        state_dict = super().upgrade_state_dict_named(state_dict, name)
        head = f"{name}.{HEAD}"
        damaged = map_damage(state_dict, head + SENSES)
        if damaged:
            refuse(f"the checkpoint cannot be used: {damaged}")
        pretrained.drop_mask_senses(self, state_dict, head)
        problem = self.head.senses.misfit(state_dict, head + SENSES)
        problem = problem or self.head.statistics.misfit(state_dict, head + STATISTICS)
        choice = state_dict.get(f"{name}.{CHOICE}", torch.tensor(0))
        number = integer(choice) if torch.is_tensor(choice) else None
        saved = dict(enumerate(INPUTS)).get(-1 if number is None else number, "unknown")
        if saved != self.input_choice:
            problem = problem or f"the checkpoint has the input {saved}, the model has {self.input_choice}"
        if problem:
            refuse(f"{problem}: use the dictionary and the --kerbs-… options that it was trained with")
        if not state_dict.get(head + RATIO):  # in version 0.1 the end of a sentence kept one sense
            self.head.senses.single = (*self.head.senses.single, self.dictionary.eos())  # type: ignore[attr-defined]
        self.head.adapt_to(state_dict, head)
        return state_dict


class MosDecoder(HeadDecoder):
    """A decoder whose output layer is a mixture of softmaxes, which share the decoder's output projection."""

    head: MixtureOfSoftmaxes
    mark = state_names.LATENT

    def head_log_prob(self, features: Tensor) -> Tensor:
        """Return log P of every word: (..., d) → (..., words)."""
        return self.head.log_prob(features, super(HeadDecoder, self).output_layer)  # type: ignore[misc]

    def build_head(self, args: Any, task: Any, dictionary: Any) -> None:
        """Insert the mixture between the features and the output projection."""
        _, weight, _ = projection_of(self)  # type: ignore[arg-type]
        init = str(getattr(args, "mos_init", "published"))  # neither this nor the next is in checkpoints of 0.1
        dropout = getattr(args, "mos_dropout", 0.0)
        if dropout is None:
            dropout = getattr(args, "dropout", 0.0) if init == "published" else 0.0
        try:
            self.head = MixtureOfSoftmaxes(weight.size(1), args.mos_components, dropout, init)
        except ValueError as error:
            refuse(f"{error}. See the --mos-… options in --help")
