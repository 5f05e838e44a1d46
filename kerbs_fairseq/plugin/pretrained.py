"""Training that starts from a checkpoint of the stock model: its softmax becomes the senses of the KerBS layer.

Used by ``--finetune-from-model``, by ``--restore-file`` with ``--reset-optimizer``, and by ``kerbs-convert``. A word's
row becomes its senses, with biases that keep its probability (functional/from_softmax.py). plugin/starting.py has the
steps that follow when the model has been loaded.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional import from_softmax, state_names
from kerbs_fairseq.functional.from_softmax import SAME
from kerbs_fairseq.modules import statistics
from kerbs_fairseq.modules.layer import KernelizedBayesianSoftmax
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.runs.checkpoint import BIAS, CHOICE, EMBEDDING, HEAD, MAP, VECTORS, VOCABULARY, fingerprint

logger = logging.getLogger(__name__)

PROJECTIONS = ("output_projection", "fc_out")  # names of the output projection of Transformers and LSTMs


class Softmax(NamedTuple):
    """The output layer of a stock checkpoint: ``weight`` (V, d), ``bias`` (V,) or None, and the keys to remove."""

    weight: Tensor
    bias: Optional[Tensor]
    names: tuple[str, ...]


class Loading(NamedTuple):
    """The trainer whose model is loading a checkpoint, and whether it resets the optimizer."""

    trainer: Any
    reset_optimizer: bool


loading: list[Loading] = []  # the last one is the current one


def softmax_in(state: dict[str, Any], name: str) -> Softmax:
    """Return the output layer of the decoder called ``name`` in the state dict of a stock model, or refuse it."""
    if any(key.startswith(f"{name}.adaptive_softmax.") for key in state):
        refuse(
            "the checkpoint has an adaptive softmax, whose words have vectors of different sizes: KerBS cannot start "
            "from it. Train a model with a plain softmax first, or start KerBS from scratch"
        )
    if any(key.startswith(f"{name}.{HEAD}") for key in state):
        refuse("the checkpoint is of a model with another output layer: load it with the architecture it came from")
    for projection in PROJECTIONS:
        weight, bias = (f"{name}.{projection}.{part}" for part in ("weight", "bias"))
        if weight in state:
            return Softmax(state[weight], state.get(bias), (weight, bias))
    shared = f"{name}.{EMBEDDING}"
    if shared not in state:
        refuse(
            f"the checkpoint does not fit: it has no output layer called {name}.{PROJECTIONS[0]} or {PROJECTIONS[1]}"
        )
    return Softmax(state[shared], None, ())


def check(decoder: Any, softmax: Softmax) -> None:
    """Refuse a softmax that this decoder's senses cannot represent, and options that do not fit such a start."""
    head = decoder.head
    words, d = softmax.weight.shape
    if words != head.n_words:
        refuse(
            f"the checkpoint's softmax has {words} words and the dictionary here has {head.n_words}: use the "
            "dictionaries (the data folder) that the checkpoint was trained with"
        )
    if d != head.in_features:
        refuse(
            f"the checkpoint's softmax has {d} features and the model here has {head.in_features}: use the "
            "architecture and the sizes that the checkpoint was trained with"
        )
    table = head.senses
    if table.kernel == "released":
        refuse("--kerbs-kernel released has no θ at which it is the inner product, so a softmax cannot start it: "
               "paper or dot")  # fmt: skip
    if table.theta is not None and float(table.theta.detach().abs().max()) > SAME:
        refuse("--kerbs-theta-init: a model that starts from a softmax starts with θ = 0; leave it out")
    single = bool((table.senses_per_word() == 1).all())
    if table.bias_raw is None and not (single and softmax.bias is None):
        refuse(
            "--kerbs-bias none cannot keep what a softmax has learned, as a word with n senses needs the bias − log n: "
            "leave it out, or use --kerbs-bias log with --kerbs-preset paper"
        )
    for name in decoder.start_options.useless:
        refuse(
            f"--{name.replace('_', '-')} has no effect where training starts from a softmax: leave it out. Senses "
            "start at the vectors and biases of the softmax, moved apart by --kerbs-start-noise"
        )
    current = loading[-1] if loading else None
    if current is not None and not current.reset_optimizer:
        refuse(
            "the checkpoint is of a model with a softmax, and its optimizer's state has no place for senses: give it "
            "as --finetune-from-model, or use --reset-optimizer --reset-lr-scheduler --reset-dataloader --reset-meters"
        )


def convert(decoder: Any, state: dict[str, Any], name: str) -> None:
    """Replace the softmax in the state dict ``state`` by senses, in place, for the decoder called ``name``."""
    softmax = drop_mask(decoder, softmax_in(state, name))
    check(decoder, softmax)
    head: KernelizedBayesianSoftmax = decoder.head
    table = head.senses
    if decoder.input_choice != "untied":
        inputs = state.pop(f"{name}.{EMBEDDING}", None)
        if inputs is None or not torch.equal(inputs[: len(softmax.weight)], softmax.weight):
            refuse(
                f"--kerbs-input {decoder.input_choice} makes the decoder's input of its senses, and the checkpoint has "
                "a table of its own for the input: use --kerbs-input untied"
            )
        state[f"{name}.{CHOICE}"] = decoder.embed_tokens.choice_id.clone()
    rows = from_softmax.senses_of(softmax.weight, softmax.bias, table.sense_to_word.cpu())
    for key in softmax.names:
        state.pop(key, None)
    for key, value in head.state_dict().items():
        state[f"{name}.{HEAD}{key}"] = value.clone()
    state[f"{name}.{HEAD}{VECTORS}"] = rows.vectors
    if table.bias_raw is not None:
        state[f"{name}.{HEAD}{BIAS}"] = rows.bias / table.bias_rate
    decoder.started_from_softmax = True


def drop_mask(decoder: Any, softmax: Softmax) -> Softmax:
    """Drop the row of ``<mask>``, which BART's pretraining adds to the dictionary and translation does not have."""
    if len(softmax.weight) == decoder.head.n_words + 1 and "<mask>" not in decoder.dictionary and is_bart(decoder):
        return softmax._replace(weight=softmax.weight[:-1], bias=None if softmax.bias is None else softmax.bias[:-1])
    return softmax


def drop_mask_senses(decoder: Any, state: dict[str, Any], prefix: str) -> None:
    """Drop the senses and the statistics of ``<mask>`` from a KerBS state dict of BART, in place."""
    words, n = state.get(prefix + MAP), decoder.head.n_words
    if not is_bart(decoder) or words is None or "<mask>" in decoder.dictionary or int(words.max()) != n:
        return
    keep = words != n
    of_words = {state_names.INITIAL, *statistics.OF_WORDS}
    of_senses = {*state_names.PARAMETERS, state_names.MAP, *statistics.OF_SENSES}
    for key in [key for key in state if key.startswith(prefix)]:
        last = key.rpartition(".")[2]
        if last == state_names.CHECKSUM:
            state[key] = state[key] * 0
        elif last in of_senses:
            state[key] = state[key][keep]
        elif last in of_words:
            state[key] = state[key][:n]
    saved = state.get(prefix + VOCABULARY)
    if saved is not None and int(saved) == fingerprint([*decoder.dictionary.symbols, "<mask>"]):
        state[prefix + VOCABULARY] = decoder.head.senses.vocabulary.clone()
    logger.info("the dictionary has no <mask>: its %d senses are dropped", int((~keep).sum()))


def is_bart(decoder: Any) -> bool:
    """Return whether this is BART, whose last embedding fairseq drops if a dictionary has no ``<mask>``."""
    return bool(getattr(decoder, "of_bart", False))


def misfit(error: Exception) -> str:
    """Return torch's error about a state dict that does not fit, in one line."""
    if isinstance(error, KeyError):
        return f"it lacks {error.args[0]}"
    parts = []
    for kind, verb in (("Missing", "lacks"), ("Unexpected", "has in addition")):
        match = re.search(rf"{kind} key\(s\)[^:]*: ([^\n]*)", str(error))
        names = re.findall(r'"([^"]+)"', match[1]) if match else []
        if names:
            parts.append(f"it {verb} {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""))
    return " and ".join(parts) or " ".join(str(error).split())[:300]


@contextmanager
def at_work(trainer: Any, reset_optimizer: bool) -> Iterator[None]:
    """Within this context ``trainer`` loads a checkpoint into its model, which finds it in :data:`loading`."""
    loading.append(Loading(trainer, reset_optimizer))
    try:
        yield
    finally:
        loading.pop()


def check_used(given: list[str]) -> None:
    """Refuse options of a start from a softmax that are ``given`` to a training that starts from scratch."""
    for name in ("kerbs_start_noise", "kerbs_start_split"):
        if name in given:
            refuse(
                f"--{name.replace('_', '-')} has no effect without a checkpoint to start from: give one with "
                "--finetune-from-model, or leave it out"
            )
