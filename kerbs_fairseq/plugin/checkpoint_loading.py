"""Wrappers of fairseq's checkpoint loading: one-line errors, and training that starts from a softmax checkpoint."""

import contextlib
import functools
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict

from kerbs_fairseq.plugin import pretrained
from kerbs_fairseq.plugin.options import settings_of_a_checkpoint
from kerbs_fairseq.plugin.refusal import refuse
from kerbs_fairseq.runs.checkpoint import HEAD, MODEL, VECTORS
from kerbs_fairseq.runs.errors import UserError, reason

LAST = "checkpoint_last.pt"  # may be missing: scripts name it both to start and to resume a training


def install() -> None:
    """Wrap fairseq's loading functions.

    Without the wrappers a bad checkpoint ends in a traceback, or in fairseq's message about architectures, which hides
    the reason; and a model that starts from a softmax has no access to the data.
    """
    from fairseq import checkpoint_utils
    from fairseq.models import BaseFairseqModel
    from fairseq.trainer import Trainer

    checkpoint_utils.load_checkpoint_to_cpu = explained_load(checkpoint_utils.load_checkpoint_to_cpu)
    checkpoint_utils.load_model_ensemble_and_task = from_settings(checkpoint_utils.load_model_ensemble_and_task)
    Trainer.load_checkpoint = known_to_the_model(Trainer.load_checkpoint)
    Trainer.__init__ = with_resolved_settings(Trainer.__init__)
    BaseFairseqModel.load_state_dict = without_senses(BaseFairseqModel.load_state_dict)


def unreadable(path: str, error: BaseException) -> str:
    """Return the error message for a file that cannot be read as a checkpoint."""
    return (
        f"{path} cannot be read as a checkpoint ({type(error).__name__}: {reason(error)}): it is damaged or something "
        "else. Give another one with --restore-file (fairseq-train) or --path; there may be a checkpoint_best.pt, or "
        "one of an earlier epoch or update, beside it"
    )


def explained_load(load: Any) -> Any:
    """Wrap ``load_checkpoint_to_cpu`` so that it refuses a file that is not a checkpoint."""

    @functools.wraps(load)
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        try:
            state = load(path, *args, **kwargs)
        except (UserError, FileNotFoundError):
            raise
        except Exception as error:  # unpickling another kind of file may raise anything
            refuse(unreadable(path, error))
        if not isinstance(state, dict) or not isinstance(state.get(MODEL), dict):
            refuse(f"{path} is not a fairseq checkpoint: it has no model")
        return state

    return load_checkpoint_to_cpu


def from_settings(load: Any) -> Any:
    """Wrap ``load_model_ensemble_and_task`` so that models know that their settings come from a checkpoint."""

    @functools.wraps(load)
    def load_model_ensemble_and_task(*args: Any, **kwargs: Any) -> Any:
        with settings_of_a_checkpoint():
            return load(*args, **kwargs)

    return load_model_ensemble_and_task


def known_to_the_model(load: Any) -> Any:
    """Wrap ``Trainer.load_checkpoint``: the model can find the trainer, UserErrors are kept, missing files refused."""

    @functools.wraps(load)
    def load_checkpoint(self: Any, filename: str, reset_optimizer: bool = False, *args: Any, **kwargs: Any) -> Any:
        with pretrained.at_work(self, reset_optimizer):
            try:
                extra_state = load(self, filename, reset_optimizer, *args, **kwargs)
            except UserError:
                raise
            except Exception as error:
                if isinstance(error.__context__, UserError):  # fairseq replaces any error by one of its own
                    raise error.__context__ from None
                raise
        if extra_state is None and Path(restore_file_of(self.cfg)).name != LAST:
            refuse(
                f"--restore-file {filename} does not exist: give the file of a checkpoint, or leave the option out to "
                "start from nothing or from checkpoint_last.pt in --save-dir"
            )
        hook = getattr(getattr(self.model, "decoder", None), "update_hook", None)
        if extra_state is None and hook is not None:
            pretrained.check_used(hook.given)
        return extra_state

    return load_checkpoint


def with_resolved_settings(build: Any) -> Any:
    """Wrap ``Trainer.__init__`` so that checkpoints have the values of all options, whatever the defaults are later.

    Language models are built from a copy of the settings, so only the model knows the values that a preset stands for.
    """

    @functools.wraps(build)
    def trainer(self: Any, cfg: Any, task: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        build(self, cfg, task, model, *args, **kwargs)
        hook = getattr(getattr(model, "decoder", None), "update_hook", None)
        for name, value in ({} if hook is None else hook.resolved).items():
            if getattr(self.cfg.model, name, None) is None:
                with open_dict(self.cfg) if OmegaConf.is_config(self.cfg) else contextlib.nullcontext():
                    setattr(self.cfg.model, name, value)

    return trainer


def restore_file_of(cfg: Any) -> str:
    """Return the value of ``--restore-file``; :data:`LAST` if the settings have none."""
    return getattr(getattr(cfg, "checkpoint", None), "restore_file", LAST)


def without_senses(load: Any) -> Any:
    """Wrap ``load_state_dict`` so that a model without senses refuses a KerBS checkpoint."""

    @functools.wraps(load)
    def load_state_dict(self: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        senses = any(f".{name}".endswith(f".{HEAD}{VECTORS}") for name in state_dict)
        if senses and not hasattr(type(self), "twin_of") and not hasattr(getattr(self, "decoder", None), "head"):
            refuse(
                "the checkpoint is of a KerBS model, and the model here has a softmax: put kerbs_ before the name of "
                "the architecture, or turn the checkpoint into one of a softmax with kerbs-convert --to-softmax"
            )
        return load(self, state_dict, *args, **kwargs)

    return load_state_dict
