"""``make chaos``: trainings that are killed, and a disk that fills up, against one that nobody disturbs.

Each ends with the same weights, the same optimizer's state and the same table of moves, bit for bit; after every
disturbance all checkpoints are read. It ends with an error at the first that is damaged or
differs. Prints the table of docs/reliability.md. Takes some minutes.
"""

import argparse
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import disk
import kills
import training


def main() -> None:
    """Make the trainings, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--full", type=int, default=5, help="times that the disk fills up")
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else int(time.time())
    chance = random.Random(seed)
    print(f"seed {seed}", flush=True)
    rows = [
        "| disturbance | times | half-done things left | damaged checkpoints | different weights or moves |",
        "|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        data = training.prepare(folder)
        training.finish(data, folder / "undisturbed")
        moves = len((folder / "undisturbed" / "moves.tsv").read_text().splitlines()) - 1
        print(f"undisturbed: {training.UPDATES} updates, {moves} moves", flush=True)
        done: list[kills.Kill] = []
        trainings = 0
        while len(done) < args.kills:
            trainings += 1
            run = folder / f"killed_{trainings}"
            done += kills.until_the_end(data, run, args.kills - len(done), chance)
            check(run, folder / "undisturbed")
        halves = Counter(kill.kind for kill in done if kill.half_written)
        for kind, times in Counter(kill.kind for kill in done).items():
            rows.append(f"| kill -9 at {kind} | {times} | {halves[kind]} | 0 | 0 |")
        small = folder / "small"
        if not disk.mount(small):
            rows.append("| a full disk | not tried: mounting a tmpfs is not allowed here | | | |")
        else:
            try:
                rows.append(filled(data, small, args.full, chance, folder / "undisturbed"))
            finally:
                disk.unmount(small)
    print("\n" + "\n".join(rows))


def filled(data: Path, small: Path, wanted: int, chance: random.Random, undisturbed: Path) -> str:
    """The row of full disks."""
    times = 0
    while times < wanted:
        training.clear(small)
        times += len(disk.until_the_end(data, small, wanted - times, chance))
        check(small, undisturbed)
    return f"| a full disk (tmpfs of {disk.SIZE // 1_000_000} MB) | {times} | – | 0 | 0 |"


def check(folder: Path, wanted: Path) -> None:
    """End with a list if a training is not the one that nobody disturbed."""
    different = training.differences(folder, wanted)
    if different:
        raise SystemExit(f"{folder.name} differs in {', '.join(different[:10])}")


if __name__ == "__main__":
    main()
