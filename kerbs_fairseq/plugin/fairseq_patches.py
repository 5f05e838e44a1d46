"""Run-time patches that let fairseq 0.12.2 work with current torch and numpy, and fix some of its own bugs.

A patch is applied only where the installed versions need it, and only once. It changes fairseq's modules only, with two
exceptions: ``messages`` sets sys.excepthook, and ``hydra-warnings`` adds to warnings.filters. torch and numpy are never
changed. ``kerbs-doctor`` lists the patches and why each one is active.
``KERBS_FAIRSEQ_SKIP_FIXES=name,name`` leaves some out, to test what a patch does or whether it causes a problem.

``messages``, ``early-checks`` and ``adaptive-loss`` repair nothing: they report a mistake of the user in one line. They
are patches like the others, because they replace functions of fairseq; without them the traceback is shown.
"""

import importlib
import os
import types
import warnings
from importlib import metadata
from typing import Any, Callable, NamedTuple, Optional

from kerbs_fairseq.plugin import ended_trainings, fairseq_messages, whole_checkpoints
from kerbs_fairseq.plugin.refusal import refuse

SKIP_VARIABLE = "KERBS_FAIRSEQ_SKIP_FIXES"
MARK = "_kerbs_fairseq_fixes"  # set of applied patches on the fairseq package: a second copy of ours sees it too


class Patch(NamedTuple):
    """A patch: what breaks without it (shown to users), whether it is needed here, and the function that applies it."""

    name: str
    reason: str
    needed: Callable[[], bool]
    make: Callable[[], None]


def view_of(module: types.ModuleType, **changed: Any) -> types.ModuleType:
    """Return a proxy of ``module`` with some attributes changed, to be assigned in selected importing modules only."""
    view = types.ModuleType(module.__name__, f"{module.__name__}, as kerbs_fairseq shows it to fairseq")
    view.__dict__.update(changed)
    view.__dict__["__getattr__"] = lambda name: getattr(module, name)
    return view


# --- torch.load -------------------------------------------------------------------------------------------------------


def _load_refuses_objects() -> bool:
    import torch

    return tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 6)


def _load_whole_checkpoints() -> None:
    import torch

    def load(*args: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("weights_only", False)
        return torch.load(*args, **kwargs)

    for name in ("fairseq.checkpoint_utils", "fairseq.distributed.utils"):
        module: Any = importlib.import_module(name)
        module.torch = view_of(module.torch, load=load)


# --- the encoder's fast path ------------------------------------------------------------------------------------------


def _fast_path_wants_mask_type() -> bool:
    import torch

    if not hasattr(torch, "_transformer_encoder_layer_fwd"):
        return False
    schema = torch.ops.aten._transformer_encoder_layer_fwd.default._schema
    return any(argument.name == "mask_type" for argument in schema.arguments)


def _no_encoder_fast_path() -> None:
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    init = TransformerEncoderLayerBase.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        init(self, *args, **kwargs)
        self.can_use_fastpath = False

    TransformerEncoderLayerBase.__init__ = __init__


# --- numpy ------------------------------------------------------------------------------------------------------------


def _numpy_lost_old_names() -> bool:
    import numpy as np

    return tuple(int(n) for n in np.__version__.split(".")[:2]) >= (1, 24)


def _old_numpy_names() -> None:
    import numpy as np

    def percentile(*args: Any, interpolation: str = "linear", **kwargs: Any) -> Any:
        kwargs.setdefault("method", interpolation)
        return np.percentile(*args, **kwargs)

    old = view_of(np, int=int, compat=types.SimpleNamespace(long=int), percentile=percentile)
    for name in ("data_utils", "language_pair_dataset", "token_block_dataset"):
        module: Any = importlib.import_module(f"fairseq.data.{name}")
        module.np = old


# --- hydra ------------------------------------------------------------------------------------------------------------


def _hydra_complains() -> bool:
    return tuple(int(n) for n in metadata.version("hydra-core").split(".")[:2]) >= (1, 1)


def _quiet_hydra() -> None:
    warnings.filterwarnings("ignore", module=r"hydra\.")
    # attributed to the caller of fairseq, so it can be recognized only by its text
    warnings.filterwarnings("ignore", message=r"\s*'config' is validated against ConfigStore schema")


# --- training ---------------------------------------------------------------------------------------------------------


def _always() -> bool:
    return True  # the bug is fairseq's own, whatever else is installed


def _ddp_on_cpu() -> None:
    from fairseq.models import distributed_fairseq_model

    wrap = distributed_fairseq_model.DistributedDataParallel

    def DistributedDataParallel(module: Any, **kwargs: Any) -> Any:  # noqa: N802  (the name that fairseq looks up)
        if all(parameter.device.type == "cpu" for parameter in module.parameters()):
            kwargs.update(device_ids=None, output_device=None)
        return wrap(module, **kwargs)

    distributed_fairseq_model.DistributedDataParallel = DistributedDataParallel


def _ddp_ignores_copies() -> None:
    from fairseq.models import distributed_fairseq_model
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
    from torch.nn.parallel import DistributedDataParallel as Wrapper

    wrap = distributed_fairseq_model.DistributedDataParallel

    def DistributedDataParallel(module: Any, **kwargs: Any) -> Any:  # noqa: N802
        # a layer's direct parameters are exactly those copies; optimizers keep them, because checkpoints have them
        layers = [(name, x) for name, x in module.named_modules() if isinstance(x, TransformerEncoderLayerBase)]
        copies = [f"{name}.{copy}" for name, layer in layers for copy in layer._parameters]
        ignored = [*getattr(module, "_ddp_params_and_buffers_to_ignore", ()), *copies]
        Wrapper._set_params_and_buffers_to_ignore_for_model(module, ignored)
        return wrap(module, **kwargs)

    distributed_fairseq_model.DistributedDataParallel = DistributedDataParallel


def _ema_copies_integers() -> None:
    from fairseq.models.ema.ema import EMA

    init = EMA.__init__

    def __init__(  # noqa: N807
        self: Any, model: Any, config: Any, device: Any = None, skip_keys: Any = None
    ) -> None:
        integers = {key for key, value in model.state_dict().items() if not value.is_floating_point()}
        init(self, model, config, device, set(skip_keys or ()) | integers)

    EMA.__init__ = __init__


def _explain_adaptive_loss() -> None:
    from fairseq.criterions.adaptive_loss import AdaptiveLoss

    forward = AdaptiveLoss.forward

    def explained(self: Any, model: Any, sample: Any, reduce: bool = True) -> Any:
        if getattr(model.decoder, "adaptive_softmax", None) is None:
            refuse(
                "--criterion adaptive_loss trains models with an adaptive softmax, and this one has another output "
                "layer: choose another criterion, kerbs_cross_entropy for a kerbs_ architecture"
            )
        return forward(self, model, sample, reduce)

    AdaptiveLoss.forward = explained


PATCHES = (
    Patch(
        "checkpoint-load",
        "torch >= 2.6 loads only tensors unless told otherwise, and a fairseq checkpoint holds its settings as well: "
        "resume, generate, validate, eval-lm and from_pretrained stop with 'Weights only load failed'",
        _load_refuses_objects,
        _load_whole_checkpoints,
    ),
    Patch(
        "encoder-fast-path",
        "torch >= 1.13 wants an argument that fairseq's Transformer encoder does not give to its inference kernel: "
        "generate stops with 'Mask Type should be defined'. The plain path computes the same",
        _fast_path_wants_mask_type,
        _no_encoder_fast_path,
    ),
    Patch(
        "numpy-names",
        "numpy >= 1.24 has no np.int, >= 2.0 no np.compat, >= 2.4 no percentile(interpolation=): language-model data "
        "with --sample-break-mode eos, --num-batch-buckets and span masks stop with an AttributeError or TypeError",
        _numpy_lost_old_names,
        _old_numpy_names,
    ),
    Patch(
        "hydra-warnings",
        "hydra-core >= 1.1 prints five warnings at every command about the way in which fairseq calls it, and hides "
        "what matters behind them; they are left out",
        _hydra_complains,
        _quiet_hydra,
    ),
    Patch(
        "ddp-on-cpu",
        "fairseq gives torch's DistributedDataParallel a device id even for a model on the CPU, which it refuses: "
        "--ddp-backend c10d works on GPUs only",
        _always,
        _ddp_on_cpu,
    ),
    Patch(
        "ddp-copies",
        "fairseq's Transformer encoder has copies of its weights for its inference kernel as parameters that never get "
        "a gradient: two processes under --ddp-backend c10d (pytorch_ddp), the default, stop with 'Expected to have "
        "finished reduction'. DistributedDataParallel leaves them out",
        _always,
        _ddp_ignores_copies,
    ),
    Patch(
        "ema-integers",
        "--store-ema multiplies every buffer by the decay, also integers such as a map from senses to words: it stops "
        'with "result type Float can\'t be cast to Long". Integers are copied, not averaged',
        _always,
        _ema_copies_integers,
    ),
    Patch(
        "adaptive-loss",
        "--criterion adaptive_loss with a model that has no adaptive softmax stops with an empty AssertionError and a "
        "crash checkpoint; it is refused with a line that says what to change",
        _always,
        _explain_adaptive_loss,
    ),
    *(Patch(*one) for one in (*fairseq_messages.PATCHES, *whole_checkpoints.PATCHES, *ended_trainings.PATCHES)),
)


def skipped() -> set[str]:
    """Return the names of the patches that the environment variable leaves out."""
    return {name.strip() for name in os.environ.get(SKIP_VARIABLE, "").split(",") if name.strip()}


def skip_fault() -> Optional[str]:
    """Return the error message if that variable has an unknown name, else None."""
    unknown = skipped() - {patch.name for patch in PATCHES}
    if not unknown:
        return None
    known = ", ".join(patch.name for patch in PATCHES)
    return f"{SKIP_VARIABLE} names no such fix: {', '.join(sorted(unknown))} (there are {known})"


def apply() -> list[str]:
    """Apply every patch that is needed and not applied yet; return the names of all that are active, in order."""
    import fairseq

    made: set[str] = fairseq.__dict__.setdefault(MARK, set())
    left_out = skipped()
    for patch in PATCHES:
        if patch.name not in made and patch.name not in left_out and patch.needed():
            patch.make()
            made.add(patch.name)
    return [patch.name for patch in PATCHES if patch.name in made]
