"""Which device the tests of test_on_device.py run on; as a program: one line if it is not there, before any test."""

import os
import sys

import torch

VARIABLE = "KERBS_TEST_DEVICE"


def missing() -> str:
    """Why the device that is asked for cannot be had, or nothing."""
    name = os.environ.get(VARIABLE, "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        return f"{VARIABLE}={name}: there are cpu, cuda and cuda:NUMBER"
    if device.type == "cpu":
        return ""
    if not torch.cuda.is_available():
        return (
            f"{VARIABLE}={name}: torch {torch.__version__} finds no GPU here; with {VARIABLE}=cpu the same tests run "
            "on a CPU, in small sizes"
        )
    last = torch.cuda.device_count() - 1
    return "" if (device.index or 0) <= last else f"{VARIABLE}={name}: torch numbers the GPUs here from 0 to {last}"


if __name__ == "__main__":
    sys.exit(missing() or None)
