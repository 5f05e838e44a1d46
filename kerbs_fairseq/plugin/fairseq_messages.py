"""Patches that replace fairseq's tracebacks for common mistakes by one line, and remove the causes of warnings.

A traceback is recognized by the functions of fairseq in it. It is replaced in fairseq's own console commands only:
other programs get the exceptions unchanged. ``PATCHES`` are further entries of ``fairseq_patches.PATCHES``.
"""

import importlib
import importlib.util
import inspect
import sys
from types import TracebackType
from typing import Any, Callable, NamedTuple, Optional

from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.runs.errors import UserError, command_name, reason, visible

PREPROCESS = (
    "a folder that fairseq-preprocess has written is needed, with the languages and the task it was written for"
)
EXPECTED = (OSError, ValueError, RuntimeError)  # raised for files that are missing or damaged


class Call(NamedTuple):
    """A function in a traceback, and its local variables."""

    module: str
    function: str
    variables: dict[str, Any]


def calls(traceback: Optional[TracebackType]) -> list[Call]:
    """Return the calls in a traceback, the outermost first."""
    frames = []
    while traceback is not None:
        frame = traceback.tb_frame
        frames.append(Call(frame.f_globals.get("__name__", ""), frame.f_code.co_name, frame.f_locals))
        traceback = traceback.tb_next
    return frames


def through(path: list[Call], module: str, function: str) -> Optional[dict[str, Any]]:
    """Return the variables of the innermost call of a function in a module or its submodules; None if there is none."""
    same = (c for c in reversed(path) if c.function == function and f"{c.module}.".startswith(f"{module}."))
    call = next(same, None)
    return None if call is None else call.variables


# --- one message for each kind of mistake


def about_checkpoints(error: BaseException, path: list[Call]) -> Optional[str]:
    """Return the message about a file that is not a checkpoint, or is one of another model."""
    reading = through(path, "fairseq.checkpoint_utils", "load_checkpoint_to_cpu")
    if reading is not None:
        from kerbs_fairseq.plugin.checkpoint_loading import unreadable  # imports torch, which may be too old

        return unreadable(reading["path"], error)
    restoring = through(path, "fairseq.trainer", "load_checkpoint")
    if restoring is not None:
        first: BaseException = error.__context__ or error
        return (
            f"{restoring['filename']} does not fit ({reason(first)}): use the options and the data that it was trained "
            "with, another --save-dir for a new training, or --reset-optimizer if only the optimizer is another one"
        )
    if through(path, "fairseq.checkpoint_utils", "load_model_ensemble_and_task") is None:
        return None
    if isinstance(error, OSError):
        return f"{reason(error)}: --path needs the file of a trained model"
    return f"the model of --path does not fit ({reason(error)}): use the data folder that it was trained with"


def about_data(error: BaseException, path: list[Call]) -> Optional[str]:
    """Return the message about a folder without data, or with files that are damaged or empty."""
    loading = through(path, "fairseq", "load_dataset")
    if loading is not None:
        task, split = loading.get("self"), loading.get("split", "")
        folder = getattr(getattr(task, "cfg", None), "data", None) or getattr(getattr(task, "args", None), "data", "")
        if isinstance(error, FileNotFoundError):
            return f"there is no data set {split!r} in {folder} ({reason(error)}): {PREPROCESS}"
        if "empty file" in str(error):
            return f"the data set {split!r} in {folder} is empty: give it some sentences, or leave it out"
        return f"the data set {split!r} in {folder} cannot be read ({reason(error)}): {PREPROCESS}"
    setting_up = through(path, "fairseq.tasks", "setup_task")
    if setting_up is not None and (isinstance(error, EXPECTED) or type(error) is Exception):
        folder = getattr(setting_up.get("cfg"), "data", None) or ""
        return f"{folder}: {error if isinstance(error, OSError) else reason(error)}: {PREPROCESS}"
    text = str(error)
    if through(path, "fairseq.data.indexed_dataset", "__getitem__") is not None or "indexed_dataset.py" in text:
        last = text.strip().splitlines()[-1:] or [type(error).__name__]  # it may be a traceback of another process
        return f"the data are damaged ({last[0]}): write them again with fairseq-preprocess"
    return None


def about_training(error: BaseException, path: list[Call]) -> Optional[str]:
    """Return the message about a training that has diverged."""
    if not isinstance(error, FloatingPointError) or through(path, "fairseq.trainer", "train_step") is None:
        return None
    return (
        f"training has diverged ({reason(error)}): use a lower --lr, more --warmup-updates or --clip-norm 1, or go on "
        "from an earlier checkpoint (--restore-file)"
    )


def about_saving(error: BaseException, path: list[Call]) -> Optional[str]:
    """Return the message about a full disk, or a folder that cannot be written to."""
    if through(path, "fairseq.checkpoint_utils", "save_checkpoint") is None or not isinstance(
        error, (OSError, UserError)
    ):
        return None
    what = reason(error) if isinstance(error, UserError) else str(error)
    return (
        f"{what}. Checkpoints that were there are whole: make room (--keep-interval-updates and --no-epoch-checkpoints "
        "leave fewer), and start the same command again to go on from the last one"
    )


def about_options(error: BaseException, path: list[Call]) -> Optional[str]:
    """Return the text of an error that is clear as it is: from checks in fairseq's commands."""
    inner = path[-1] if path else Call("", "", {})
    known = isinstance(error, (AssertionError, ValueError)) or type(error) is Exception
    if isinstance(error, ValueError) and (inner.module, inner.function) == ("fairseq.registry", "build_x"):
        return f"{reason(error)} Give --{str(error).split()[0].replace('_', '-')}"
    of_fairseq = inner.module.startswith("fairseq_cli.") or inner.function == "filter_indices_by_size"
    return reason(error) if known and of_fairseq and str(error) else None


RULES = (about_checkpoints, about_data, about_training, about_saving, about_options)


def explained(error: BaseException, traceback: Optional[TracebackType]) -> Optional[str]:
    """Return what a user can do about an exception of fairseq, in one line; None if no rule applies."""
    if not isinstance(error, Exception) or isinstance(error, MemoryError):
        return None
    path = calls(traceback)
    return next((sentence for rule in RULES if (sentence := rule(error, path))), None)


def _explain_tracebacks() -> None:
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: Optional[TracebackType]) -> None:
        sentence = explained(error, traceback) if command_name().startswith("fairseq-") else None
        if sentence is None:
            before(kind, error, traceback)
        else:
            print(f"kerbs_fairseq: {visible(' '.join(sentence.split()))}", file=sys.stderr)

    sys.excepthook = hook


# --- checks before training and generation


def _check_before_training() -> None:
    import torch
    from fairseq.optim.fp16_optimizer import FP16Optimizer
    from fairseq.sequence_generator import SequenceGenerator
    from fairseq.trainer import Trainer

    build, search = Trainer.__init__, SequenceGenerator.__init__

    def trainer(self: Any, cfg: Any, *args: Any, **kwargs: Any) -> None:
        common = getattr(cfg, "common", cfg)
        if getattr(common, "tpu", False) and importlib.util.find_spec("torch_xla") is None:
            refuse(
                "fairseq takes --bf16 and --tpu for the use of a TPU, and torch_xla is not installed: on other devices "
                "leave them out, or use fairseq-hydra-train with common.bf16=true"
            )
        build(self, cfg, *args, **kwargs)

    def generator(self: Any, models: Any, tgt_dict: Any, beam_size: int = 1, *args: Any, **kwargs: Any) -> None:
        if beam_size < 1:
            refuse(f"--beam {beam_size}: at least 1")
        search(self, models, tgt_dict, beam_size, *args, **kwargs)

    flat = FP16Optimizer.build_fp32_params.__func__

    def build_fp32_params(cls: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return flat(cls, *args, **kwargs)
        except (AssertionError, RuntimeError):
            if torch.cuda.is_available():
                raise
        return refuse("--fp16 needs a GPU, and none is used here: leave it out, or use --memory-efficient-fp16")

    Trainer.__init__, SequenceGenerator.__init__ = trainer, generator
    FP16Optimizer.build_fp32_params = classmethod(build_fp32_params)


# --- bugs of fairseq itself


def _close_what_was_opened() -> None:
    from fairseq.data.indexed_dataset import MMapIndexedDataset

    def closing(end: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda self: end(self) if hasattr(self, "_bin_buffer_mmap") else None

    for kind in (MMapIndexedDataset, MMapIndexedDataset.Index):
        kind.__del__ = closing(kind.__del__)


def _watch_gradients_of_tensors() -> None:
    from fairseq.nan_detector import NanDetector

    def add_hooks(self: Any, module: Any) -> None:
        if self.forward:
            self.fhooks.append(module.register_forward_hook(self.fhook_fn))
        if self.backward and not any(True for _ in module.children()):
            self.bhooks.append(module.register_backward_hook(self.bhook_fn))

    NanDetector.add_hooks = add_hooks


def _todays_torch_calls() -> None:
    import torch

    from kerbs_fairseq.plugin.fairseq_patches import view_of

    functional = torch.nn.functional

    def autocast(*args: Any, **kwargs: Any) -> Any:
        return torch.amp.autocast("cuda", *args, **kwargs)

    def grad_scaler(*args: Any, **kwargs: Any) -> Any:
        return torch.amp.GradScaler("cuda", *args, **kwargs)

    def loader(*args: Any, **kwargs: Any) -> Any:
        if not torch.accelerator.is_available():
            kwargs["pin_memory"] = False
        return torch.utils.data.DataLoader(*args, **kwargs)

    names = list(inspect.signature(functional.multi_head_attention_forward).parameters)

    def attention(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args)), **kwargs}
        padding, other = given.get("key_padding_mask"), given.get("attn_mask")
        if padding is not None and padding.dtype == torch.bool and other is not None and other.is_floating_point():
            # the conversion that torch makes after its warning
            empty = torch.zeros_like(padding, dtype=other.dtype)
            given["key_padding_mask"] = empty.masked_fill_(padding, -torch.inf)
        return functional.multi_head_attention_forward(**given)

    cuda = view_of(torch.cuda, amp=view_of(torch.cuda.amp, autocast=autocast, GradScaler=grad_scaler))
    data = view_of(torch.utils, data=view_of(torch.utils.data, DataLoader=loader))
    changes: dict[str, dict[str, Any]] = {
        "fairseq.tasks.fairseq_task": {"torch": view_of(torch, cuda=cuda)},
        "fairseq.optim.amp_optimizer": {"torch": view_of(torch, cuda=cuda)},
        "fairseq.data.iterators": {"torch": view_of(torch, utils=data)},
        "fairseq.modules.multihead_attention": {"F": view_of(functional, multi_head_attention_forward=attention)},
    }
    for name, changed in changes.items():
        vars(importlib.import_module(name)).update(changed)


def _always() -> bool:
    return True


PATCHES: tuple[tuple[str, str, Callable[[], bool], Callable[[], None]], ...] = (
    (
        "messages",
        "a damaged checkpoint, a folder without data, an empty data set or a training that diverges end fairseq's "
        "commands with a traceback; they end with one line that says what to do",
        _always,
        _explain_tracebacks,
    ),
    (
        "early-checks",
        "--fp16 on a CPU, --bf16 without torch_xla and --beam 0 fail inside torch; they are refused",
        _always,
        _check_before_training,
    ),
    (
        "damaged-data",
        "fairseq's data sets close files that could not be opened, with a second traceback; they close what is open",
        _always,
        _close_what_was_opened,
    ),
    (
        "nan-detector",
        "when gradients are not finite, fairseq looks for the place with hooks that torch cannot put on encoders: "
        "it ends with StopIteration, whatever the reason was. The hooks are on modules without children",
        _always,
        _watch_gradients_of_tensors,
    ),
    (
        "torch-warnings",
        "torch warns at every training about the way in which fairseq calls it (torch.cuda.amp, masks of two types, "
        "pinned memory without a GPU); fairseq gets functions that make these calls in torch's current form",
        _always,
        _todays_torch_calls,
    ),
)
