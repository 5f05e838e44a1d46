"""The chunk kernels for a GPU, in Triton: the loss over a chunk of tokens, its gradient, and the words' probabilities.

D (n, S) are the inner products of n features with the vectors of S senses, in float32, float16 or bfloat16, rows of
stride 1, better padded (:func:`chunk_of_products`); everything else is float32 or int32, contiguous, on one device.
K0 = |h| |w| k(c; θ) is the kernel's part of a score, K = K0 + bias the score, P(j | word) = e^K_j / Σ e^K over the senses
of its word. The order of a step:

    constants = sense_constants(vectors, theta, bias, kernel)      once for all chunks
    totals = forward(D, h_norm, h_inverse, constants)
    target = target_logsumexp(D, …, totals.top, words, targets)
    word = word_logsumexp(D, …, totals.top, words)                 for label smoothing
    dD = backward(D, …)                                            in the place of D, or in another precision
    log_probs = word_log_probs(D, …, words)                        decoding, in place of all the above

No kernel uses atomics, all sums are taken in an order that the shapes decide: repeats are equal to the last bit. Nothing
waits for the device. Sums per sense and norms are as in backends/torch.py.
"""

import contextlib
import math
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from kerbs_fairseq.functional.kernel import KERNELS, TINY, check_kernel, psi

try:
    import triton

    from kerbs_fairseq.functional.backends import triton_kernels as kernels

    MISSING = ""
except Exception as error:  # of whatever kind: an installation for other hardware fails in its own ways
    MISSING = f"triton cannot be imported ({type(error).__name__}: {error})"

OLDEST = (3, 0)  # of Triton
DTYPES = (torch.float32, torch.float16, torch.bfloat16)  # of D and its gradient
MANY_SENSES = 16  # words with more are summed by several lanes each
ALIGNMENT = 16  # elements
WARPS = 4096  # that a launch has at least, if there is work for them: some 30 per multiprocessor; the same on every device
NO_ZERO = 1e-12  # in the place of θ = 0 where it is divided by


class Block(NamedTuple):
    """Rows and columns of the tile of a program, and its warps."""

    rows: int
    cols: int
    warps: int

    @property
    def launch(self) -> dict[str, Any]:
        """Options of a launch; fused multiply-adds, whatever the version's default."""
        return {"num_warps": self.warps, "enable_fp_fusion": True}


# By counts of registers and instructions in machine code for sm_80; not by measurements.
BLOCKS = {
    "forward": Block(2, 256, 1),  # a row in a single warp: its maximum needs no barrier
    "forward, half": Block(4, 256, 2),
    "backward": Block(4, 256, 4),
    "words": Block(4, 128, 4),
    "targets": Block(32, 8, 4),
    "many": Block(8, 32, 4),
    "vector": Block(1, 256, 4),  # the small kernels that combine parts
}


class SenseConstants(NamedTuple):
    """What the kernels need to know of each sense."""

    table: Tensor  # (5, width) float32: bias log2(e), −θ log2(e) / |w|, −|w| / θ, log2(e) / (2ψ), 1 / |w|
    S: int
    kernel: str
    has_bias: bool

    @property
    def width(self) -> int:
        """S, padded."""
        return self.table.size(1)


class Totals(NamedTuple):
    """Of each token, (n,): a whole number ``top`` ≥ max K / log 2; Σ e^(K − top log 2); Σ e^(K − top log 2) K0 / |h|."""

    top: Tensor
    total: Tensor
    mean: Tensor

    @property
    def logsumexp(self) -> Tensor:
        """log Σ e^K (n,)."""
        return self.top * math.log(2) + self.total.log()


class Words(NamedTuple):
    """The senses of word i are order[offsets[i] : offsets[i + 1]]; ``many``: words with more than MANY_SENSES; int32."""

    order: Tensor  # (S,)
    offsets: Tensor  # (V + 1,)
    many: Tensor

    @classmethod
    def of(cls, sense_to_word: Tensor, n_words: int) -> "Words":
        """From the word of each sense (S,). Waits for the device: once per change of the allocation."""
        sizes = torch.bincount(sense_to_word, minlength=n_words)
        offsets = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        order = torch.argsort(sense_to_word, stable=True)
        return cls(order.int(), offsets.int(), (sizes > MANY_SENSES).nonzero().flatten().int())


class TargetTotals(NamedTuple):
    """Of the target of each token, (n,).

    ``lse``: log Σ e^(K − top) over its senses. ``mean``: Σ P(j | target) K0_j / |h|. ``top`` and ``total``: a whole number
    near its own largest K / log 2, and its Σ 2^(K / log 2 − top), for :func:`backward`. ``scores`` (n, most), if asked for: K − top log 2
    of each of its senses with the token's top, in the order of ``Words``, then −∞.
    """

    lse: Tensor
    mean: Tensor
    top: Tensor
    total: Tensor
    scores: Optional[Tensor]


class WordTotals(NamedTuple):
    """Of all words: ``log2`` (n, V) is log2 Σ e^(K − top) over the senses of each, for :func:`backward`.

    ``lse_sum`` (n,): Σ_words log Σ e^(K − top). ``mean`` (n,): Σ_words Σ_j P(j | word) K0_j / |h|.
    """

    log2: Tensor
    lse_sum: Tensor
    mean: Tensor


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter (TRITON_INTERPRET=1 when Triton was imported)."""
    return not MISSING and type(kernels.forward_kernel).__name__ == "InterpretedFunction"


def available(device: Optional[torch.device] = None, dtype: torch.dtype = torch.float32) -> tuple[bool, str]:
    """Whether these kernels can run on ``device`` (the current GPU if None) with D in ``dtype``, and why not."""
    if MISSING:
        return False, MISSING
    if tuple(int(x) for x in triton.__version__.split(".")[:2]) < OLDEST:
        return False, f"triton {triton.__version__} is too old: needs {OLDEST[0]}.{OLDEST[1]}"
    if dtype not in DTYPES:
        return False, f"{dtype} has no Triton kernels: float32, float16 and bfloat16 have"
    if interpreted():
        return True, f"triton {triton.__version__}, interpreted"
    if device is not None and device.type != "cuda":
        return False, f"triton kernels run on a GPU, not on {device.type}"
    if not torch.cuda.is_available():
        return False, "no GPU that torch can use"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < (7, 0):
        return False, "the GPU is older than compute capability 7.0"
    return True, f"triton {triton.__version__}"


def padded(size: int) -> int:
    """``size``, or the next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def chunk_of_products(n: int, S: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Room for D or its gradient (n, S), rows padded; ``torch.mm(..., out=...)`` writes into it as it is."""
    return torch.empty(n, padded(S), dtype=dtype, device=device)[:, :S]


def sense_constants(
    vectors: Tensor, theta: Optional[Tensor], bias: Optional[Tensor] = None, kernel: str = "paper"
) -> SenseConstants:
    """From vectors (S, d) in any precision, θ (S,) or None for ``dot``, as the kernel has it, bias (S,) or None."""
    check_kernel(kernel)
    S = len(vectors)
    log2e = 1 / math.log(2)
    table = torch.zeros(5, padded(S), device=vectors.device)
    table[0, S:] = -1e30
    if bias is not None:
        table[0, :S] = bias.double() * log2e
    if kernel != "dot":
        assert theta is not None
        norm = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
        t, inverse = theta.double(), norm.clamp_min(TINY).reciprocal()
        table[1, :S] = -t * log2e * inverse
        table[2, :S] = -norm / torch.where(t.abs() < NO_ZERO, NO_ZERO, t)
        table[3, :S] = 0.5 * log2e / psi(t)
        table[4, :S] = inverse
    return SenseConstants(table, S, kernel, bias is not None)


def forward(D: Tensor, h_norm: Tensor, h_inverse: Tensor, constants: SenseConstants, mean: bool = True) -> Totals:
    """The totals of each token, in one sweep; D stays as it is. Without ``mean`` that field is not filled.

    ``h_norm`` and ``h_inverse`` (n,) are |h| and 1 / |h|. A NaN or an infinite number in D makes the total NaN.
    """
    n, S = _checked(D, constants)
    block = BLOCKS["forward" if D.dtype == torch.float32 else "forward, half"]
    found = Totals(*(h_norm.new_empty(n) for _ in range(3)))
    if n == 0:
        return found
    row_blocks = triton.cdiv(n, block.rows)
    per_part, n_parts = _split(S, block.cols, row_blocks * block.warps)
    parts = h_norm.new_empty(n_parts, 3, n)
    settings = {"KERNEL": KERNELS.index(constants.kernel), "MEAN": mean}
    with _on(D):
        kernels.forward_kernel[(row_blocks, n_parts)](
            *_rows(D), n, S, _width(D), h_norm, h_inverse, constants.table, constants.width, parts, per_part,
            **settings, ROWS=block.rows, COLS=block.cols, **block.launch,
        )  # fmt: skip
        block = BLOCKS["vector"]
        kernels.combine_parts_kernel[(triton.cdiv(n, block.cols),)](
            parts, n_parts, n, h_inverse, *found, MEAN=mean, ROWS=block.cols, **block.launch
        )
    return found


def target_logsumexp(
    D: Tensor,
    h_norm: Tensor,
    h_inverse: Tensor,
    constants: SenseConstants,
    top: Tensor,
    words: Words,
    target: Tensor,
    most: int = 0,
) -> TargetTotals:
    """Of the word ``target`` (n,) int32 of each token. ``most``: columns of the scores, no fewer than its senses."""
    n, _ = _checked(D, constants)
    lse, mean, own_top, own_total = (h_norm.new_empty(n) for _ in range(4))
    scores = h_norm.new_full((n, most), -math.inf) if most else None
    found = TargetTotals(lse, mean, own_top, own_total, scores)
    _pairs(D, h_norm, h_inverse, constants, top, words, target, lse, mean=mean, targets=found)
    return found


def word_logsumexp(
    D: Tensor, h_norm: Tensor, h_inverse: Tensor, constants: SenseConstants, top: Tensor, words: Words
) -> WordTotals:
    """Of every word, and the sums that label smoothing needs."""
    n, _ = _checked(D, constants)
    V = len(words.offsets) - 1
    log2 = h_norm.new_empty(n, V)
    parts = h_norm.new_empty(triton.cdiv(V, BLOCKS["words"].cols) + len(words.many), 2, n)
    _words(D, h_norm, h_inverse, constants, top, words, log2, parts=parts)
    return WordTotals(log2, *parts.sum(0))


def word_log_probs(
    D: Tensor,
    h_norm: Tensor,
    h_inverse: Tensor,
    constants: SenseConstants,
    words: Words,
    out: Optional[Tensor] = None,
) -> Tensor:
    """log P of every word (n, V), float32 or as ``out`` is."""
    totals = forward(D, h_norm, h_inverse, constants, mean=False)
    if out is None:
        out = h_norm.new_empty(len(D), len(words.offsets) - 1)
    _words(D, h_norm, h_inverse, constants, totals.top, words, out, total=totals.total)
    return out


def backward(
    D: Tensor,
    h_norm: Tensor,
    h_inverse: Tensor,
    constants: SenseConstants,
    top: Tensor,
    scale: Tensor,
    target: Tensor,
    targets: TargetTotals,
    target_weight: Tensor,
    sense_to_word: Tensor,
    sums: Tensor,
    smooth: Optional[Tensor] = None,
    word: Optional[WordTotals] = None,
    out: Optional[Tensor] = None,
) -> Tensor:
    """The gradient by D, G ∂K/∂D, in ``out`` (n, S) or else in the place of D; adds to ``sums`` (4, S).

    G_j = scale e^(K_j − top) − smooth P(j | its word) − target_weight P(j | target) [j is a sense of the target], with
    ``scale``, ``target_weight``, ``smooth`` (n,), the latter with ``word`` or neither; ``target`` (n,) and
    ``sense_to_word`` (S,) int32. The sums over tokens are Σ G|h|F, Σ G|h|T, Σ G|h|c where the kernel ``released`` is
    straight, Σ G if there is a bias; rows that the kernel does not have stay as they are. In float16 it takes weights near 1
    to keep G from underflow: scale them up before and everything down afterwards.
    """
    n, S = _checked(D, constants)
    out = D if out is None else out
    if out.shape != D.shape or out.stride(1) != 1 or out.dtype not in DTYPES:
        raise ValueError(f"a gradient {tuple(out.shape)} {out.dtype} for products {tuple(D.shape)}")
    if n == 0:
        return out
    kernel = constants.kernel
    wanted = {"paper": 0b0011, "dot": 0, "released": 0b0111}[kernel] | (0b1000 if constants.has_bias else 0)
    block = BLOCKS["backward"]
    col_blocks = triton.cdiv(S, block.cols)
    per_part, n_parts = _split(n, block.rows, col_blocks * block.warps)
    parts = h_norm.new_empty(n_parts, 4, constants.width)
    smoothing = (top, top, 0) if smooth is None or word is None else (smooth, *_rows(word.log2))
    with _on(D):
        kernels.backward_kernel[(col_blocks, n_parts)](
            *_rows(D), *_rows(out), n, S, min(_width(D), _width(out)), h_norm, h_inverse,
            constants.table, constants.width, top, scale, target, targets.top, targets.total, target_weight,
            sense_to_word, *smoothing, parts, per_part, KERNEL=KERNELS.index(kernel), SMOOTH=smooth is not None,
            BIAS=constants.has_bias, ROWS=block.rows, COLS=block.cols, **block.launch,
        )  # fmt: skip
        if wanted:
            block = BLOCKS["vector"]
            kernels.add_sums_kernel[(triton.cdiv(S, block.cols), 4)](
                parts, n_parts, S, constants.width, constants.table[4], sums,
                WANTED=wanted, COLS=block.cols, **block.launch,
            )  # fmt: skip
    return out


def norm_gradient(
    totals: Totals,
    scale: Tensor,
    target: TargetTotals,
    target_weight: Tensor,
    smooth: Optional[Tensor] = None,
    word: Optional[WordTotals] = None,
) -> Tensor:
    """Σ_j G_j K0_j / |h| (n,), the gradient by |h|, from what the other kernels found."""
    found = scale * totals.mean - target_weight * target.mean
    return found if smooth is None or word is None else found - smooth * word.mean


def _words(
    D: Tensor,
    h_norm: Tensor,
    h_inverse: Tensor,
    constants: SenseConstants,
    top: Tensor,
    words: Words,
    lse: Tensor,
    total: Optional[Tensor] = None,
    parts: Optional[Tensor] = None,
) -> None:
    """Fill lse (n, V), first of the words with few senses, then of the others; ``parts`` (…, 2, n) with sums."""
    n, V, block = len(D), len(words.offsets) - 1, BLOCKS["words"]
    if n == 0 or V == 0:
        return
    blocks = triton.cdiv(V, block.cols)
    with _on(D):
        kernels.words_kernel[(blocks * triton.cdiv(n, block.rows),)](
            *_rows(D), n, V, h_norm, h_inverse, constants.table, constants.width, top, top if total is None else total,
            words.order, words.offsets, MANY_SENSES, *_rows(lse), top if parts is None else parts,
            KERNEL=KERNELS.index(constants.kernel), LOG_PROBS=total is not None, SUMS=parts is not None,
            ROWS=block.rows, WORDS=block.cols, **block.launch,
        )  # fmt: skip
    rest = None if parts is None else parts[blocks:]
    _pairs(D, h_norm, h_inverse, constants, top, words, words.many, lse, total=total, mean=rest)


def _pairs(
    D: Tensor,
    h_norm: Tensor,
    h_inverse: Tensor,
    constants: SenseConstants,
    top: Tensor,
    words: Words,
    which: Tensor,
    lse: Tensor,
    total: Optional[Tensor] = None,
    mean: Optional[Tensor] = None,
    targets: Optional[TargetTotals] = None,
) -> None:
    """Of each token with its own word, if there is something to be filled for ``targets``, or else with each word of ``which``."""
    listed = targets is None
    n, block = len(D), BLOCKS["many" if listed else "targets"]
    n_pairs = n * len(which) if listed else n
    own, scores = ((top, top), None) if targets is None else ((targets.top, targets.total), targets.scores)
    if n_pairs == 0:
        return
    with _on(D):
        kernels.pairs_kernel[(triton.cdiv(n_pairs, block.rows),)](
            *_rows(D), n, n_pairs, h_norm, h_inverse, constants.table, constants.width, top,
            top if total is None else total, words.order, words.offsets, which, lse, lse.stride(0),
            top if mean is None else mean, *own, *((top, 0) if scores is None else _rows(scores)),
            KERNEL=KERNELS.index(constants.kernel), LISTED=listed, LOG_PROBS=total is not None, MEAN=mean is not None,
            SCORES=scores is not None, PAIRS=block.rows, SENSES=block.cols, **block.launch,
        )  # fmt: skip


def _checked(D: Tensor, constants: SenseConstants) -> tuple[int, int]:
    """n and S; an error says what of D does not fit."""
    able, reason = available(D.device, D.dtype)
    if not able:
        raise RuntimeError(f"the Triton kernels cannot run: {reason}")
    if D.dim() != 2 or D.size(1) != constants.S or D.stride(1) != 1:
        raise ValueError(f"products {tuple(D.shape)} with strides {D.stride()} for {constants.S} senses")
    return D.size(0), D.size(1)


def _rows(table: Tensor) -> tuple[Tensor, int]:
    """A table and the distance of its rows."""
    return table, table.stride(0)


def _width(D: Tensor) -> int:
    """Up to where the kernels go along a row: to the end of the padding, if there is padding and nothing else."""
    (n, S), stride = D.shape, D.stride(0)
    end = (D.storage_offset() + (n - 1) * stride + padded(S)) * D.element_size()
    return padded(S) if stride == padded(S) and end <= D.untyped_storage().nbytes() else S


def _split(size: int, block: int, warps: int) -> tuple[int, int]:
    """The size of a part, in whole blocks, and how many there are, if ``size`` in one part is work for ``warps``."""
    blocks = triton.cdiv(size, block)
    per_part = triton.cdiv(blocks, min(blocks, triton.cdiv(WARPS, warps)))
    return per_part * block, triton.cdiv(blocks, per_part)


def _on(D: Tensor) -> contextlib.AbstractContextManager[Any]:
    """Launches go to the device of D."""
    return torch.cuda.device(D.device) if D.is_cuda else contextlib.nullcontext()
