"""Twins: for every fairseq architecture X of the supported models, ``kerbs_X`` and ``mos_X`` with X's own defaults."""

import functools
from dataclasses import dataclass, fields
from typing import Any, Callable, Optional

from fairseq import models
from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.bart import BARTModel
from fairseq.models.lstm import LSTMModel
from fairseq.models.lstm_lm import LSTMLanguageModel
from fairseq.tasks.online_backtranslation import OnlineBackTranslationTask

from kerbs_fairseq.plugin import checkpoint_loading, generation, pretrained, scripting, starting, update_hook
from kerbs_fairseq.plugin.decoders import (
    HeadDecoder,
    KerbsDecoder,
    MosDecoder,
    check_shapes,
    decoder_class,
)
from kerbs_fairseq.plugin.options import KerbsOptions, MosOptions, fill
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.plugin.unsupported import REASONS, check_output_layer, check_quantization

SUPPORTED = ("transformer", "transformer_align", "bart", "lstm", "transformer_lm", "lstm_lm", "gru_lm")
LSTM_CUTOFF = "10000,50000,200000"
HEADS: dict[str, tuple[type[HeadDecoder], type[FairseqDataclass]]] = {
    "kerbs": (KerbsDecoder, KerbsOptions),
    "mos": (MosDecoder, MosOptions),
}


def check_no_adaptive_softmax(args: Any, model: type) -> None:
    """Refuse an adaptive softmax, by an option or the architecture's default, before fairseq tries to build one."""
    cutoff = getattr(args, "adaptive_softmax_cutoff", None)
    asked = cutoff is not None
    if issubclass(model, (LSTMModel, LSTMLanguageModel)):  # their default, used with adaptive_loss only
        asked = cutoff not in (None, LSTM_CUTOFF)
    if asked or getattr(args, "criterion", None) == "adaptive_loss":
        refuse(
            "an adaptive softmax (--adaptive-softmax-cutoff, --criterion adaptive_loss, or the default of this "
            "architecture) is an output layer of its own, and cannot be combined with KerBS or MoS: "
            "choose an architecture without it, such as kerbs_transformer_lm"
        )


def check_task(task: Any) -> None:
    """Refuse tasks that change a model's output layer after it is built."""
    if isinstance(task, OnlineBackTranslationTask):
        refuse(
            "--task online_backtranslation adds words to the model's last matrix after it is built, and KerBS has "
            "none: train with the task first, and start a KerBS model for translation from its checkpoint"
        )


def twin_of(base: str, prefix: str) -> type:
    """Return the model class ``prefix``_``base``."""
    Base = models.MODEL_REGISTRY[base]
    head, options = HEADS[prefix]

    class Twin(Base):  # type: ignore[valid-type, misc]
        @classmethod
        def build_model(cls, args: Any, task: Any) -> Any:
            check_no_adaptive_softmax(args, Base)
            check_task(task)
            check_quantization(args)
            fill(args, options)
            model = super().build_model(args, task)
            check_output_layer(model)
            decoder = model.decoder
            decoder.__class__ = decoder_class(type(decoder), head)
            decoder.of_bart = isinstance(model, BARTModel)
            decoder.build_head(args, task, decoder.dictionary)
            return model

        def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = super().load_state_dict(state_dict, *args, **kwargs)
            except (RuntimeError, KeyError) as error:  # fairseq reads keys that may be missing
                refuse(f"the checkpoint does not fit the architecture: {pretrained.misfit(error)}")
            if isinstance(self.decoder, KerbsDecoder):
                starting.finish(self)
            return result

        def upgrade_state_dict_named(self, state_dict: dict[str, Any], name: str) -> None:
            super().upgrade_state_dict_named(state_dict, name)  # fairseq adapts what it can, such as BART's embeddings
            check_shapes(self, state_dict)

        def __prepare_scriptable__(self) -> Any:
            return scripting.copied(self, Base) if isinstance(self.decoder, KerbsDecoder) else self

        @classmethod
        def add_args(cls, parser: Any) -> None:
            super().add_args(parser)
            if getattr(cls, "__dataclass", None) is None:  # fairseq reads the dataclass itself if there is one
                gen_parser_from_dataclass(parser, options(), delete_default=True)

    Twin.__name__ = Twin.__qualname__ = f"{prefix.capitalize()}{Base.__name__}"
    Twin.__doc__ = f"{Base.__name__} with another output layer: {head.__doc__}"
    Twin.twin_of, Twin.head_name = base, prefix
    Twin.__module__ = __name__
    globals()[Twin.__name__] = Twin  # where pickle looks for it
    return Twin


def with_options(base: Optional[type], options: type[FairseqDataclass]) -> Optional[type]:
    """Return a model's configuration dataclass with the options of a head added; None if the model has none."""
    if base is None:
        return None
    name = f"{options.__name__}{base.__name__}"
    made: type = dataclass(type(name, (options, base), {"__module__": __name__, "__annotations__": {}}))
    globals()[name] = made  # where pickle looks for it
    return made


def with_defaults(architecture: Callable[[Any], None], options: type[FairseqDataclass]) -> Callable[[Any], None]:
    """Wrap the function that sets an architecture's defaults so that it also sets those of a head's options."""

    @functools.wraps(architecture)
    def set_defaults(args: Any) -> None:
        for option in fields(options):
            if option.name != "_name" and getattr(args, option.name, None) is None:
                setattr(args, option.name, option.default)
        architecture(args)

    return set_defaults


def add_twins(base: str) -> None:
    """Register ``kerbs_X`` and ``mos_X`` for every architecture X of the registered model ``base``.

    For a model of your own: ``kerbs_fairseq.plugin.models.add_twins("my_model")``, after it has been registered. Its
    decoder must have ``output_layer(features)`` and end in a matrix called ``output_projection`` or ``fc_out``.
    """
    if base not in models.MODEL_REGISTRY:
        raise ValueError(f"no model is registered as {base!r}: register it before its twins")
    for prefix, (_, options) in HEADS.items():
        config = with_options(models.MODEL_DATACLASS_REGISTRY.get(base), options)
        name = f"{prefix}_{base}"
        models.register_model(name, dataclass=config)(twin_of(base, prefix))
        for architecture in models.ARCH_MODEL_INV_REGISTRY.get(base, []):
            twin = f"{prefix}_{architecture}"
            if twin not in models.ARCH_MODEL_REGISTRY:
                defaults = with_defaults(models.ARCH_CONFIG_REGISTRY[architecture], options)
                models.register_model_architecture(name, twin)(defaults)


def add_refusal(base: str, reason: str) -> None:
    """Register twins of ``base`` that only report ``reason``, instead of leaving the names unknown."""
    Base: Any = models.MODEL_REGISTRY[base]
    for prefix in HEADS:
        name = f"{prefix}_{base}"

        class Unsupported(Base):  # with the options of its base: the reason comes before errors about options
            @classmethod
            def build_model(cls, args: Any, task: Any, name: str = name) -> Any:
                refuse(f"{name}: {reason}")

        models.register_model(name, dataclass=models.MODEL_DATACLASS_REGISTRY.get(base))(Unsupported)
        for architecture in dict.fromkeys([base, *models.ARCH_MODEL_INV_REGISTRY.get(base, [])]):
            if f"{prefix}_{architecture}" not in models.ARCH_MODEL_REGISTRY:
                models.register_model_architecture(name, f"{prefix}_{architecture}")(lambda args: None)


def register() -> None:
    """Install the hooks in fairseq, and register twins or refusals for the models that it has registered by now."""
    if "kerbs_transformer" in models.MODEL_REGISTRY:
        return
    generation.register()
    update_hook.install()
    checkpoint_loading.install()
    for base in SUPPORTED:
        add_twins(base)
    for base in sorted(models.MODEL_REGISTRY):
        if base in REASONS:
            add_refusal(base, REASONS[base])
