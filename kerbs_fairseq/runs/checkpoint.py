"""fairseq's checkpoints: the names in them, and reading them without running code that they contain."""

import hashlib
import pickle
import re
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional import state_names
from kerbs_fairseq.functional.state_names import HEAD, SENSES, STATISTICS, UNIT
from kerbs_fairseq.runs.errors import UserError, reason
from kerbs_fairseq.runs.files import kind_of

# --- names in a checkpoint of fairseq; its settings are in CFG, in the older format in ARGS
MODEL, EXTRA, HISTORY, OPTIMIZER = "model", "extra_state", "optimizer_history", "last_optimizer_state"
ARGS, CFG = "args", "cfg"
# names in the state dict of a model, after "decoder." or another name of the decoder: its input,
EMBEDDING = f"{state_names.EMBEDDING}weight"
CHOICE = f"{state_names.EMBEDDING}{state_names.CHOICE}"
# and, after HEAD, its output layer
VECTORS, THETA, BIAS = (f"{SENSES}{name}" for name in state_names.PARAMETERS)
MAP, KERNEL, RATIO = (f"{SENSES}{name}" for name in (state_names.MAP, state_names.KERNEL, state_names.RATIO))
INITIAL, VOCABULARY = (f"{SENSES}{name}" for name in (state_names.INITIAL, state_names.VOCABULARY))
RATES = f"{SENSES}{state_names.RATES}"
USAGE, UPDATES = (f"{STATISTICS}{name}" for name in (state_names.USAGE, state_names.UPDATES))
MOVES = f"{STATISTICS}{state_names.MOVES}"
# floats in the state dict of a model that are not learned: buffers, and the second copies of weights, all zero, that
# fairseq's encoder layers have for a fast path of inference
NOT_LEARNED = re.compile(
    r"\.statistics\.|_float_tensor|\.version|\blayers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)$"
)

# --- what a file may unpickle: tensors, and the classes in fairseq's settings
PLAIN = ("set", "frozenset", "dict", "list", "tuple", "str", "int", "float", "bool", "bytes", "bytearray", "complex")
ALLOWED = {
    "argparse": {"Namespace"},
    "builtins": {*PLAIN},
    "collections": {"OrderedDict", "defaultdict"},
    "_codecs": {"encode"},
    "pathlib": {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"},
    "typing": {"Any"},
    "torch": {"Size", "device", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "torch._utils": {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_parameter"},
    "numpy": {"dtype"},
    "numpy.core.multiarray": {"scalar"},
    "numpy._core.multiarray": {"scalar"},
    "omegaconf.dictconfig": {"DictConfig"},
    "omegaconf.listconfig": {"ListConfig"},
    "omegaconf.base": {"ContainerMetadata", "Metadata"},
    "omegaconf.nodes": {f"{kind}Node" for kind in ("Any", "Boolean", "Bytes", "Float", "Integer", "Path", "String")},
    "fairseq.meters": {"AverageMeter", "StopwatchMeter", "TimeMeter"},
    "fairseq.logging.meters": {"AverageMeter", "StopwatchMeter", "TimeMeter"},
}


class Refused(UserError):
    """A file asks for a class or function that no checkpoint needs: loading it could run code."""


class Unpickler(pickle.Unpickler):
    """An unpickler that loads the names in ``ALLOWED``; any other name raises :class:`Refused`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function that the file asks for."""
        if module == "__builtin__":  # its name in Python 2, and in old pickle protocols
            module, name = "builtins", {"long": "int", "unicode": "str"}.get(name, name)
        if module == "pathlib._local":  # its name in Python 3.13, and in no other version
            module = "pathlib"
        if name not in ALLOWED.get(module, ()):
            raise Refused(f"{module}.{name}")
        return super().find_class(module, name)


def _restricted_load(file: Any, **options: Any) -> Any:
    return Unpickler(file, **options).load()


RESTRICTED = SimpleNamespace(__name__="pickle", Unpickler=Unpickler, load=_restricted_load)


class Code(NamedTuple):
    """The names of an architecture and a task, and the --user-dir that the training imported."""

    architecture: str
    task: str
    user_dir: str


@dataclass
class Checkpoint:
    """A checkpoint of fairseq, on the CPU."""

    path: Path
    state: dict[str, Any]

    @property
    def model(self) -> dict[str, Tensor]:
        """The tensors of the model by name."""
        return {name: value for name, value in self.state[MODEL].items() if torch.is_tensor(value)}

    @property
    def head(self) -> dict[str, Tensor]:
        """The tensors of a KerBS layer by name; empty if the model has none."""
        model = self.model
        prefix = next((n[: -len(VECTORS)] for n in model if f".{n}".endswith(f".{HEAD}{VECTORS}")), "no layer")
        return {name[len(prefix) :]: value for name, value in model.items() if name.startswith(prefix)}

    @property
    def layer(self) -> str:
        """The kind of output layer: KerBS, MoS or softmax."""
        mixed = any(f".{HEAD}{state_names.PRIOR}" in f".{name}" for name in self.state[MODEL])
        return "KerBS" if self.head else "MoS" if mixed else "softmax"

    @property
    def updates(self) -> int:
        """The number of updates of the training; 0 if the checkpoint does not say."""
        history = self.state.get(HISTORY)
        last = history[-1] if isinstance(history, (list, tuple)) and history else {}
        return whole(options_of(last).get("num_updates"))

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The settings by part (model, task, …); in fairseq's older format all are in one part, called args."""
        if self.state.get(ARGS) is not None:
            return {ARGS: options_of(self.state[ARGS])}
        cfg = options_of(self.state.get(CFG))
        return {name: options_of(part) for name, part in cfg.items() if is_part(part)}

    def options(self, part: str) -> dict[str, Any]:
        """Return the settings of one part."""
        parts = self.parts
        return parts.get(ARGS, parts.get(part, {}))

    @property
    def valid_subset(self) -> str:
        """The first of the validation sets, by which the best checkpoint is chosen."""
        return str(self.options("dataset").get("valid_subset") or "valid").split(",")[0]

    @property
    def code(self) -> "Code":
        """The names that have to be registered with fairseq before the model can be built."""
        model, task, common = (self.options(part) for part in ("model", "task", "common"))
        names = (model.get("_name") or model.get("arch"), task.get("_name") or task.get("task"))
        return Code(*(str(name or "") for name in (*names, common.get("user_dir"))))

    @property
    def best_metric(self) -> str:
        """--best-checkpoint-metric, which fairseq saves as val_loss even if it is a BLEU."""
        return str(self.options("checkpoint").get("best_checkpoint_metric") or "loss")

    def last_losses(self) -> Iterator[tuple[str, float]]:
        """Yield the last losses that are saved in the checkpoint: (valid or train, bits per token)."""
        extra = options_of(self.state.get(EXTRA))
        last = extra.get("val_loss")
        if isinstance(last, (int, float)) and self.best_metric == "loss":
            yield "valid", float(last)
        meters = options_of(extra.get("metrics")).get("train")
        for entry in meters if isinstance(meters, (list, tuple)) else ():
            _, name, _, meter = entry if isinstance(entry, (list, tuple)) and len(entry) == 4 else (0, "", 0, 0)
            if name == "loss" and isinstance(meter, dict) and meter.get("count"):
                yield "train", float(meter["sum"]) / float(meter["count"])


def is_part(value: object) -> bool:
    """Return whether a value of the configuration is a group of settings, in one of fairseq's formats."""
    return hasattr(value, "items") or hasattr(value, "__dict__")


def options_of(part: Any) -> dict[str, Any]:
    """Return a group of settings, a mapping or a namespace, as a dictionary; empty if it is neither."""
    try:
        values = (part if hasattr(part, "items") else vars(part)).items()
        return {str(name): " ".join(str(value).split()) if torch.is_tensor(value) else value for name, value in values}
    except Exception:  # no settings, or those of omegaconf with references that cannot be resolved
        return {}


def whole(value: Any) -> int:
    """Return ``value`` as a count, an integer of at least 0; 0 if it is not a number."""
    try:
        return max(0, int(value))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return 0


def load(path: Path, trust: bool = False) -> Checkpoint:
    """Read a checkpoint. Unless you ``trust`` it, only tensors and fairseq's settings are unpickled."""
    try:
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if not path.is_file():
            raise UserError(f"{path} is {kind_of(path)}")
        state = _read(path, trust)
    except Refused as error:
        raise UserError(
            f"{path} asks for {error}, which no checkpoint needs: loading it could run code. Nothing was loaded; "
            "--trust loads it all the same"
        ) from None
    except UserError:
        raise
    except Exception as error:  # unpickling another kind of file may raise anything
        raise UserError(f"{path} cannot be read as a checkpoint ({type(error).__name__}: {reason(error)})") from None
    if not isinstance(state, dict) or not isinstance(state.get(MODEL), dict):
        raise UserError(f"{path} is not a fairseq checkpoint: it has no model")
    if not all(isinstance(name, str) for name in state[MODEL]):
        raise UserError(f"{path} is not a fairseq checkpoint: the names in its model are not text")
    return Checkpoint(path, state)


def _read(path: Path, trust: bool) -> Any:
    if trust:
        return torch.load(path, map_location="cpu", weights_only=False)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(name.endswith("constants.pkl") for name in archive.namelist()):
                _other_format(path, "a TorchScript archive")  # which torch.load would hand to another reader
    elif tarfile.is_tarfile(path):
        _other_format(path, "a tar archive")  # which torch.load would unpack
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=RESTRICTED)


def _other_format(path: Path, what: str) -> NoReturn:
    raise UserError(f"{path} is {what}, not a checkpoint")


def parameters(model: dict[str, Any]) -> int:
    """Return the number of learned parameters of a state dict; a shared table counts once, also if saved twice."""
    distinct: dict[int, Tensor] = {}
    for name, value in model.items():
        if not torch.is_tensor(value) or not value.is_floating_point() or NOT_LEARNED.search(name):
            continue
        # in half precision and on GPUs a shared table is saved as two; two large matrices are not equal by chance
        same = (other for other in distinct.values() if value.dim() == 2 and other.shape == value.shape)
        if value.data_ptr() not in distinct and not any(
            torch.equal(value, other) and value.std() > 0 for other in same
        ):
            distinct[value.data_ptr()] = value
    return sum(value.numel() for value in distinct.values())


def fingerprint(symbols: Iterable[str]) -> int:
    """Return a hash of a dictionary: the same for the same symbols in the same order; never 0."""
    digest = hashlib.sha256("\n".join(symbols).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True) or 1


def theta_and_bias(head: dict[str, Tensor]) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """Return θ before its bound, and bias (S,), or None; both are saved divided by their learning rate factors."""
    rates = head.get(RATES)
    factors = [1.0, 1.0] if rates is None or rates.numel() != 2 else [float(x) / UNIT for x in rates.flatten()]
    raw = (head.get(name) for name in (THETA, BIAS))
    theta, bias = (None if x is None else x.float() * (f if f > 0 else 1.0) for x, f in zip(raw, factors))
    return theta, bias


def integer(value: Optional[Tensor]) -> Optional[int]:
    """Return a saved integer; None if it is missing, or not one integer."""
    if value is None or value.numel() != 1 or value.is_floating_point() or value.is_complex():
        return None
    return int(value)
