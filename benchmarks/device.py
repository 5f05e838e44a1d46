"""python -m benchmarks.device --device cuda: the output layer on one device in each precision.

Time of loss and gradients, and of a decoding step, as ratios to a softmax over the words in the same precision; peak
memory of the loss. The title shows what docs/performance.md predicts, from the bytes and operations that :func:`costs`
counts. make test-gpu prints the errors.
"""

import functools
from typing import Any, Callable, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks import timing
from benchmarks.layer import SOFTMAX, Case, senses_of, zipf
from kerbs_fairseq.functional.backends import dispatch
from kerbs_fairseq.functional.backends.half_products import product
from kerbs_fairseq.functional.chunked_loss import chunked_loss
from kerbs_fairseq.functional.decoding import WordScorer
from kerbs_fairseq.functional.types import Senses
from kerbs_fairseq.functional.words import SenseIndex

SIZES = ((8192, 512, 32000), (8192, 1024, 32000), (4096, 512, 10000))
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
RATIOS = (1.0, 1.125, 1.5, 3.0)


class Card(NamedTuple):
    """Peak rates of a GPU: operations per second in half precision (tensor cores) and in float32, bytes per second."""

    half: float
    float32: float
    bytes: float


CARDS = {
    "A100": Card(312e12, 19.5e12, 1.94e12),
    "H100": Card(990e12, 67e12, 3.35e12),
    "RTX 4090": Card(165e12, 82e12, 1.01e12),
}
ACHIEVED_OPERATIONS, ACHIEVED_BYTES = 0.7, 0.85  # share of the peaks that large products and memory-bound kernels reach
STEP = 160  # rows of a decoding step: 32 sentences, beam 5


class Cost(NamedTuple):
    """The cost of one token: operations in matrix products, and bytes to and from memory."""

    operations: float
    bytes: float

    def seconds(self, card: Card, half: bool = True) -> float:
        """Return the time of products and element-wise kernels, one after the other."""
        peak = card.half if half else card.float32
        return self.operations / (peak * ACHIEVED_OPERATIONS) + self.bytes / (card.bytes * ACHIEVED_BYTES)


def costs(case: Case) -> dict[str, Cost]:
    """Return costs per token, in half precision, without label smoothing; the tokens of a chunk share those of vectors.

    A softmax as fairseq's criterion computes it: logits in half (2 bytes written), log_softmax in float32 (2 read, 4
    written), the gradient of nll_loss (4 written), that of log_softmax (8 read, 2 written), which two products read
    (4); vectors and features are read twice (4) and their gradients written (2). KerBS: D in float32 (4 written), read
    by both kernels (8), dD in half (2 written), which two products read (4). In every chunk the vectors are read twice
    (4), their gradient is read and written in float32 (8), but not read in the first (-4). Once in a batch, for
    vectors and features: norms (vectors 4, features 2), the part of the gradient along the vector (34), the result in
    half (6); of the features the products too (8).
    """
    N, d, V = case.tokens, case.features, case.words
    S = round(case.ratio * V)
    n = min(N, max(16, dispatch.CHUNK_ELEMENTS_ON_GPU // S))
    return {
        "softmax": Cost(6.0 * d * V, (26 + 6 * d / N) * V + 6.0 * d),
        "KerBS": Cost(6.0 * d * S, (18 + 12 * d / n + 40 * d / N) * S + 50.0 * d),
        "softmax, decoding": Cost(2.0 * d * V, (8 + 2 * d / STEP) * V),
        "KerBS, decoding": Cost(2.0 * d * S, (12 + 2 * d / STEP) * S + 4.0 * V),
    }


def predictions(case: Case) -> dict[str, dict[str, float]]:
    """Return for each card the ratios of KerBS to a softmax: in training, in decoding, and with float32 products."""
    cost, result = costs(case), {}
    for name, card in CARDS.items():
        one, step = cost["softmax"].seconds(card), cost["softmax, decoding"].seconds(card)
        result[name] = {
            "training": cost["KerBS"].seconds(card) / one,
            "decoding": cost["KerBS, decoding"].seconds(card) / step,
            "training, float32 products": cost["KerBS"].seconds(card, half=False) / one,
        }
    return result


def moved(senses: Senses, device: str, dtype: torch.dtype) -> Senses:
    """Return ``senses`` on ``device``, vectors in ``dtype``, θ and bias in float32."""
    theta, bias = (None if x is None else x.detach().to(device).requires_grad_() for x in (senses.theta, senses.bias))
    vectors = senses.vectors.detach().to(device, dtype).requires_grad_()
    return Senses(vectors, theta, bias, SenseIndex(senses.index.sense_to_word.to(device), senses.index.n_words))


def log_softmax(features: Tensor, vectors: Tensor) -> Tensor:
    """Return log-probabilities as in fairseq: logits in the features' precision, log-softmax in float32, no copy."""
    return functional.log_softmax(features @ vectors.t(), 1, dtype=torch.float32)


def arms(case: Case, device: str, dtype: torch.dtype, smoothing: float) -> dict[str, dict[str, Callable[[], Any]]]:
    """Return the arms of training and of decoding."""
    torch.manual_seed(0)
    h = functional.normalize(torch.randn(case.tokens, case.features)) * case.features**0.5
    h = h.to(device, dtype).requires_grad_()
    w = (torch.randn(case.words, case.features) * case.features**-0.5).to(device, dtype).requires_grad_()
    target = torch.multinomial(zipf(case.words), case.tokens, replacement=True).to(device)
    tables = {ratio: moved(senses_of(case._replace(ratio=ratio))[0], device, dtype) for ratio in RATIOS}
    training: dict[str, Callable[[], Any]] = {SOFTMAX: lambda: learn(cross_entropy(w))}
    decoding: dict[str, Callable[[], Any]] = {SOFTMAX: lambda: log_softmax(rows, w.detach())}
    rows = h.detach()[:STEP]

    def cross_entropy(x: Tensor) -> Tensor:
        log_probs = log_softmax(h, x)
        nll = functional.nll_loss(log_probs, target, reduction="sum")
        return (1 - smoothing) * nll - smoothing / len(x) * log_probs.sum() if smoothing else nll

    def learn(loss: Tensor) -> None:
        for x in (h, w, *(y for table in tables.values() for y in (table.vectors, table.theta, table.bias))):
            if x is not None:
                x.grad = None
        loss.backward()

    def layer(table: Senses) -> None:
        learn(chunked_loss(h, table, target, None, smoothing).loss)

    def products(table: Senses) -> None:
        with torch.no_grad():
            for part in h.split(dispatch.chunk_size(table.vectors, dispatch.backend_of(table.vectors))):
                D = product(part, table.vectors.t()).to(dtype)
                product(D, table.vectors)
                product(D.t(), part)

    training["softmax over senses, 1.5"] = lambda: learn(cross_entropy(tables[1.5].vectors))
    training["three products, 1.5"] = lambda: products(tables[1.5])
    for ratio, table in tables.items():
        training[f"KerBS, {ratio:g}"] = functools.partial(layer, table)
        decoding[f"KerBS, {ratio:g}"] = functools.partial(WordScorer(table), rows)
    return {"training": training, "decoding": decoding}


def peak_memory(device: str, arm: Callable[[], Any]) -> float:
    """Return the peak memory of an arm on a GPU, in MiB."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    arm()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def main() -> None:
    """Print the tables."""
    parser = timing.parser("device", __doc__ or "", rounds=10)
    parser.add_argument("--device", default="cuda", help="torch's name of the device (cuda)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--sizes", type=int, nargs=3, action="append", metavar=("TOKENS", "FEATURES", "WORDS"))
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(f"--device {args.device}: torch {torch.__version__} finds no GPU here")
    for N, d, V in args.sizes or SIZES:
        case = Case(N, d, V)
        print(f"== {N} tokens, d {d}, {V} words; predicted in half precision, 1.5 senses per word:")
        for card, ratios in predictions(case).items():
            print(f"  {card:<10}" + ", ".join(f"{kind} {ratio:.2f}" for kind, ratio in ratios.items()), flush=True)
        for name in args.dtypes:
            running = arms(case, args.device, DTYPES[name], args.label_smoothing)
            backend = dispatch.backend_of(torch.zeros(1, 1, device=args.device, dtype=DTYPES[name]))
            for kind, own in running.items():
                times = timing.race(own, args.rounds)
                timing.show(f"{kind}, {name}, backend {backend}", times, SOFTMAX)
                settings = {**case._asdict(), "dtype": name, "device": args.device, "backend": backend, "kind": kind}
                timing.keep(args.results, "device", settings, {"seconds": times})
            if args.device.startswith("cuda"):
                peaks = {arm: peak_memory(args.device, own) for arm, own in running["training"].items()}
                print("  MiB at the peak: " + ", ".join(f"{arm} {mib:.0f}" for arm, mib in peaks.items()), flush=True)


if __name__ == "__main__":
    main()
