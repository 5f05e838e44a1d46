"""python -m benchmarks: run all benchmarks one after the other; about twenty minutes on two cores."""

import argparse
import subprocess
import sys

import torch

from benchmarks import timing

ALL = (
    ["layer"],
    ["layer", "--label-smoothing", "0.1", "--arms", "KerBS", "KerBS in plain torch"],
    ["layer", "--grow", "--rounds", "3"],
    ["updates"],
    ["memory"],
    ["decoding"],
    ["inputs"],
    ["hook"],
)


def on_gpu(device: str) -> tuple[list[str], ...]:
    """Return runs for a GPU: the layer in each precision, with and without label smoothing; updates; beam search."""
    return (
        ["device", "--device", device],
        ["device", "--device", device, "--label-smoothing", "0.1"],
        ["updates", "--options=--fp16"],
        ["decoding", "--device", device, "--half"],
    )


def main() -> None:
    """Run the benchmarks, and report at the end which failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "only", nargs="*", help=f"of {', '.join(dict.fromkeys(name for name, *_ in (*ALL, *on_gpu(''))))}"
    )
    parser.add_argument("--device", default="cpu", help="cuda: what there is to measure on a GPU (cpu)")
    args = parser.parse_args()
    wanted, listed = args.only, ALL if args.device == "cpu" else on_gpu(args.device)
    unknown = set(wanted) - {name for name, *_ in listed}
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        parser.exit(1, f"--device {args.device}: torch {torch.__version__} finds no GPU here\n")
    print(", ".join(f"{name} {value}" for name, value in timing.machine().items()), flush=True)
    failed = []
    for name, *arguments in listed:
        if not wanted or name in wanted:
            print(f"\n== {' '.join([name, *arguments])}", flush=True)
            if subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False).returncode:
                failed.append(name)
    print(f"\nresults: {timing.RESULTS.name}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
