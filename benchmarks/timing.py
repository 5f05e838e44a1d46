"""Time arms that take turns within one run, so that other load on the machine affects them all; medians and ratios."""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable

import torch

import kerbs_fairseq
from kerbs_fairseq import requirements
from kerbs_fairseq.functional.backends.build import native

RESULTS = Path(__file__).parent / "results.jsonl"
Times = dict[str, list[float]]


def parser(name: str, description: str, rounds: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    built = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    built.add_argument("--rounds", type=int, default=rounds, help=f"timed rounds, after one to warm up ({rounds})")
    built.add_argument("--results", type=Path, default=RESULTS, help="file to append a line of JSON to")
    return built


def machine() -> dict[str, Any]:
    """Return the hardware and the versions that the times depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf8").splitlines()
    except OSError:
        lines = []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cpu": model or platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "backend": "compiled" if native().library else f"plain: {native().reason}",
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "cuda": torch.version.cuda or torch.version.hip or "",
        "triton": requirements.version_of("triton") or "",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kerbs_fairseq": kerbs_fairseq.__version__,
    }


def finished() -> None:
    """Wait for a GPU, if one is in use."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def race(arms: Mapping[str, Callable[[], Any]], rounds: int) -> Times:
    """Return seconds of each arm in each round, after one to warm up; each round begins with another arm."""
    times: Times = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds + 1):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            finished()
            began = time.perf_counter()
            arms[name]()
            finished()
            if number:
                times[name].append(time.perf_counter() - began)
    return times


def ratios(times: Times, unit: str) -> dict[str, tuple[float, float, float]]:
    """Return the median, minimum and maximum time of each arm, divided by the median of ``unit``."""
    one = statistics.median(times[unit])
    return {name: (statistics.median(t) / one, min(t) / one, max(t) / one) for name, t in times.items()}


def show(title: str, times: Times, unit: str) -> None:
    """Print a table of ratios."""
    print(f"{title}; {unit} = 1, median of {len(times[unit])} (least to most)")
    for name, (middle, low, high) in ratios(times, unit).items():
        print(f"  {name:<34}{middle:7.2f}   ({low:.2f} to {high:.2f})", flush=True)


def keep(path: Path, benchmark: str, settings: dict[str, Any], results: dict[str, Any]) -> None:
    """Append a line to the results file."""
    line = {"benchmark": benchmark, "date": time.strftime("%Y-%m-%d"), **machine(), "settings": settings, **results}
    with open(path, "a", encoding="utf8") as out:
        out.write(json.dumps(line) + "\n")
