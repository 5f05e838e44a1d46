"""Build models from checkpoints that have been read already, with the code that fairseq's own commands use.

fairseq unpickles whatever a file contains; here the settings come from a :class:`Checkpoint` that was read safely.
"""

import contextlib
import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from fairseq import checkpoint_utils, models, tasks, utils
from omegaconf import OmegaConf, open_dict

from kerbs_fairseq.plugin.options import settings_of_a_checkpoint
from kerbs_fairseq.plugin.starting import batches
from kerbs_fairseq.runs.checkpoint import ARGS, CFG, MODEL, OPTIMIZER, Checkpoint
from kerbs_fairseq.runs.errors import UserError, reason, told


class Built(NamedTuple):
    """A model with its task and settings."""

    cfg: Any
    task: Any
    model: Any

    @property
    def split(self) -> str:
        """The name of the first validation set."""
        return str(self.cfg.dataset.valid_subset).split(",")[0]


@contextlib.contextmanager
def damage_is_told(checkpoint: Checkpoint, data: Path) -> Iterator[None]:
    """Raise a UserError in place of errors of fairseq and torch: the model or the data are damaged or do not fit."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        raise UserError(
            f"{checkpoint.path} and --data {data} do not fit each other, or one of them is damaged "
            f"({type(error).__name__}: {reason(error)})"
        ) from None


def import_user_dir(folder: Optional[Path]) -> None:
    """Import ``folder`` as ``--user-dir`` does."""
    if folder is not None:
        with told(f"--user-dir {folder} cannot be imported"):
            utils.import_user_module(Namespace(user_dir=str(folder)))


def architecture(checkpoint: Checkpoint) -> str:
    """Return the name of the model's architecture; raise a UserError if fairseq does not know it."""
    name = checkpoint.code.architecture
    if not name:
        raise UserError(f"{checkpoint.path} does not say which architecture it is of: it has neither args nor cfg")
    if name not in {**models.ARCH_MODEL_REGISTRY, **models.MODEL_REGISTRY}:
        raise UserError(f"{checkpoint.path} is of the architecture {name}, which is not known here: name the code that "
                        "registers it by --user-dir")  # fmt: skip
    return name


def configured(checkpoint: Checkpoint, name: str, data: Path, changes: Mapping[str, Any]) -> Any:
    """Return the checkpoint's settings for the architecture ``name``, with ``changes`` of the model's options."""
    state = dict(checkpoint.state)
    with told(f"{checkpoint.path} has settings that cannot be read"):
        if state.get(ARGS) is not None:
            state[ARGS] = Namespace(**{**vars(state[ARGS]), **changes, "arch": name, "data": str(data)})
        else:
            state[CFG] = OmegaConf.create(state[CFG], flags={"allow_objects": True})
        cfg = checkpoint_utils._upgrade_state_dict(state)[CFG]
        with open_dict(cfg):
            for part, values in ((cfg.model, {**changes, "_name": name}), (cfg.task, {"data": str(data)})):
                for option, value in values.items():
                    setattr(part, option, value)
            if getattr(cfg.model, "arch", None) is not None:
                cfg.model.arch = name
            if not name.startswith("kerbs_"):
                for option in [option for option in names_in(cfg.model) if option.startswith("kerbs_")]:
                    delattr(cfg.model, option)
    return cfg


def names_in(part: Any) -> list[str]:
    """Return the names of the options in a part of the settings, a namespace or a configuration."""
    return list(vars(part) if isinstance(part, Namespace) else part)


def build(checkpoint: Checkpoint, name: str, data: Path, changes: Mapping[str, Any]) -> Built:
    """Build a new model of the architecture ``name``, and its task on the folder ``data``."""
    if not data.is_dir():
        raise UserError(f"--data {data} is not a directory")
    same = name == checkpoint.code.architecture  # else its settings are changed for another output layer
    cfg = configured(checkpoint, name, data, changes)
    with told(f"--data {data} does not fit the checkpoint"):
        task = tasks.setup_task(cfg.task)
    known = settings_of_a_checkpoint() if same else contextlib.nullcontext()
    with told(f"the model {name} cannot be built from {checkpoint.path}"), known:
        model = task.build_model(cfg.model)
    return Built(cfg, task, model)


def load_validation(built: Built) -> bool:
    """Load the validation set; return False if there is none."""
    try:
        built.task.load_dataset(built.split)
    except FileNotFoundError:
        return False
    return True


@torch.no_grad()
def perplexity(built: Built) -> float:
    """Return the perplexity on the whole validation set, which must be loaded."""
    total, tokens = 0.0, 0
    built.model.eval()
    for sample in batches(built.task, built.model, built.split, shuffle=False):
        output = built.model(**sample["net_input"])
        target = built.model.get_targets(sample, output)
        log_probs = built.model.get_normalized_probs(output, log_probs=True, sample=sample)
        of_targets = log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)[
            target.ne(built.task.target_dictionary.pad())
        ]
        total -= float(of_targets.double().sum())
        tokens += of_targets.numel()
    return math.exp(total / max(tokens, 1))


def saved_state(checkpoint: Checkpoint, built: Built) -> dict[str, Any]:
    """Return the checkpoint with the model and the settings of ``built``, and without the optimizer's state."""
    state = {**checkpoint.state, ARGS: None, MODEL: built.model.state_dict()}
    cfg = built.cfg
    state[CFG] = OmegaConf.to_container(cfg, resolve=False, enum_to_str=True) if OmegaConf.is_config(cfg) else cfg
    state.pop(OPTIMIZER, None)
    return state
