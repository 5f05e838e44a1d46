"""Triton kernels over a chunk of inner products D (n, S); triton.py launches them and documents their results.

For a token h and a sense w let z = D / |h|, c = z / |w| and y = −θ c log2(e), so that e^(−θc) = E = 2^y. Then

    F = |h| |w| c φ(−θc)      =  D P(y)     or  (E − 1) b |h|,      b = −|w| / θ,
    T = |h| |w|² c² φ'(−θc)   =  D z Q(y)   or  (D E − F) b,

the former for |y| < 0.75, where the latter lose digits; P(y) = φ(y ln 2) and Q(y) = φ'(y ln 2) are polynomials. So
θ = 0 is not a special case, and expm1 is not needed, which Triton has only in vendor libraries. In the kernels, scores
are in units of log 2: K0 = F slope and K = K0 + bias, with the factor log2(e) included in ``slope`` and ``bias``.

``top`` is the largest score of a token, rounded up to an integer, so that multiplying by 2^(top − higher) is exact.
K − top is the same expression in every kernel (:func:`below`): otherwise the rounding of a large K would be visible.

Senses beyond the last one have the bias NEVER, so that sums need no mask; values of D in their place have no effect.
Rows of D are read up to ``width``, a multiple of 16 if they are padded: a mask at S would prevent vector loads.
"""

import triton
import triton.language as tl

PAPER, DOT, RELEASED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)  # the order of KERNELS in kernel.py
LOG2E, LN2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)
NEVER = tl.constexpr(-1e30)  # finite: the difference of two infinite scores is not a number
LOWEST = tl.constexpr(-1e38)
POLYNOMIAL_BELOW = tl.constexpr(0.75)
# differ between batches: Triton would compile separate kernels for 1, for multiples of 16 and for other values
CHANGING = ("n", "n_parts", "n_pairs", "rows_per_part")


@triton.jit
def phi_polynomial(y):
    """Compute P(y) = φ(y ln 2) for |y| < 0.75, P(0) = 1; a minimax fit, relative error 1.5e-7."""
    p = tl.fma(y, 2.2199903e-04, 1.9408587e-03)
    p = tl.fma(p, y, 1.3876924e-02)
    p = tl.fma(p, y, 8.0072520e-02)
    p = tl.fma(p, y, 3.4657345e-01)
    return tl.fma(p, y, 1.0)


@triton.jit
def phi_prime_polynomial(y):
    """Compute Q(y) = φ'(y ln 2) for |y| < 0.75, Q(0) = 1/2; a minimax fit, relative error 2.6e-7."""
    q = tl.fma(y, 1.8964756e-04, 1.6180608e-03)
    q = tl.fma(q, y, 1.1102041e-02)
    q = tl.fma(q, y, 6.0054036e-02)
    q = tl.fma(q, y, 2.3104888e-01)
    return tl.fma(q, y, 0.5)


@triton.jit
def load_senses(constants, width, at, mask, KERNEL: tl.constexpr):
    """Load a = −θ log2(e) / |w|, b, slope and bias of the senses ``at``; the first three only if the kernel has θ."""
    bias = tl.load(constants + at, mask=mask, other=NEVER)
    a, b, slope = bias, bias, bias
    if KERNEL != DOT:
        a = tl.load(constants + width + at, mask=mask, other=0.0)
        b = tl.load(constants + 2 * width + at, mask=mask, other=0.0)
        slope = tl.load(constants + 3 * width + at, mask=mask, other=0.0)
    return a, b, slope, bias


@triton.jit
def kernel_values(d, h_norm, h_inverse, a, b, slope, KERNEL: tl.constexpr):
    """Compute F and slope, so that K0 = F slope, and y and E; F is D where the kernel is the inner product."""
    y = d * h_inverse
    E, F = y, d
    if KERNEL == DOT:
        slope = tl.full(d.shape, LOG2E, tl.float32)
    else:
        y *= a
        E = tl.exp2(y)
        bh = b * h_norm
        F = tl.where(tl.abs(y) < POLYNOMIAL_BELOW, d * phi_polynomial(y), tl.fma(E, bh, -bh))
        if KERNEL == RELEASED:
            F = tl.where(d > 0, F, d)
            slope = tl.where(d > 0, slope, LOG2E)
    return F, slope, y, E


@triton.jit
def below(F, slope, bias, top):
    """Compute K − top."""
    return tl.fma(F, slope, -top) + bias


# fmt: off
@triton.jit(do_not_specialize=CHANGING)
def forward_kernel(
    D, D_stride, h_norm, h_inverse, constants, constants_width, n, S, width, parts, columns_per_part,
    KERNEL: tl.constexpr, MEAN: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):
# fmt: on
    """Compute top, Σ 2^(K − top) and Σ 2^(K − top) K0 of each token over one part of the senses; parts (parts, 3, n).

    A single pass over D. The sums are kept per lane until the end; only the maximum is reduced in every step.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = rows < n
    norm = tl.load(h_norm + rows, mask=in_rows, other=0.0)[:, None]
    inverse = tl.load(h_inverse + rows, mask=in_rows, other=0.0)[:, None]
    D_rows = D + rows.to(tl.int64)[:, None] * D_stride
    first = tl.program_id(1) * columns_per_part
    top = tl.full((ROWS, 1), LOWEST, tl.float32)
    total = tl.full((ROWS, COLS), 0.0, tl.float32)
    mean = tl.full((ROWS, COLS), 0.0, tl.float32)
    for start in range(first, tl.minimum(first + columns_per_part, S), COLS):
        cols = start + tl.arange(0, COLS)
        a, b, slope, bias = load_senses(constants, constants_width, cols, cols < constants_width, KERNEL)
        d = tl.load(D_rows + cols[None, :], mask=in_rows[:, None] & (cols < width)[None, :], other=0.0).to(tl.float32)
        d = tl.where((cols < S)[None, :], d, 0.0)
        F, slopes, _, _ = kernel_values(d, norm, inverse, a[None, :], b[None, :], slope[None, :], KERNEL)
        K = tl.fma(F, slopes, bias[None, :])
        higher = tl.maximum(top, tl.ceil(tl.max(K, 1, keep_dims=True)))
        shrink = tl.exp2(top - higher)
        e = tl.exp2(below(F, slopes, bias[None, :], higher))
        e = tl.fma(d, 0.0, e)  # NaN if D is infinite: with θ > 0 the score would be finite
        total = tl.fma(total, shrink, e)
        if MEAN:
            mean = tl.fma(mean, shrink, e * (F * slopes))
        top = higher
    to = parts + tl.program_id(1) * 3 * n + rows
    tl.store(to, tl.max(top, 1), mask=in_rows)
    tl.store(to + n, tl.sum(total, 1), mask=in_rows)
    if MEAN:
        tl.store(to + 2 * n, tl.sum(mean, 1), mask=in_rows)


# fmt: off
@triton.jit(do_not_specialize=CHANGING)
def combine_parts_kernel(
    parts, n_parts, n, h_inverse, top_out, total_out, mean_out, MEAN: tl.constexpr, ROWS: tl.constexpr,
):
# fmt: on
    """Combine the parts of :func:`forward_kernel` (parts, 3, n) in a fixed order; the mean becomes that of K0 / |h|."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    in_rows = rows < n
    top = tl.full((ROWS,), LOWEST, tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    mean = tl.full((ROWS,), 0.0, tl.float32)
    for part in range(0, n_parts):
        at = parts + part * 3 * n + rows
        part_top = tl.load(at, mask=in_rows, other=0.0)
        higher = tl.maximum(top, part_top)
        shrink, part_shrink = tl.exp2(top - higher), tl.exp2(part_top - higher)
        total = total * shrink + tl.load(at + n, mask=in_rows, other=0.0) * part_shrink
        if MEAN:
            mean = mean * shrink + tl.load(at + 2 * n, mask=in_rows, other=0.0) * part_shrink
        top = higher
    inverse = tl.load(h_inverse + rows, mask=in_rows, other=1.0)
    total = tl.where(inverse == 0.0, float("nan"), total)  # |h| is infinite: cosines of 0 would hide it
    tl.store(top_out + rows, top, mask=in_rows)
    tl.store(total_out + rows, total, mask=in_rows)
    if MEAN:
        tl.store(mean_out + rows, mean * inverse * LN2, mask=in_rows)


# fmt: off
@triton.jit(do_not_specialize=CHANGING)
def backward_kernel(
    D, D_stride, h_norm, h_inverse, constants, constants_width, dD, dD_stride, n, S, width, top, scale, target,
    target_top, target_total, target_weight, sense_to_word, smooth, word_log2, word_stride, parts, rows_per_part,
    KERNEL: tl.constexpr, SMOOTH: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):
# fmt: on
    """Compute dD = G ∂K/∂D, which may be D itself, and sums over one part of the tokens, (parts, 4, constants_width).

    The sums are Σ G F, Σ G T, Σ G D where the kernel is linear, Σ G. For a sense of the target, G is P(sense | word)
    times scale Σ 2^(K − top) − smooth − target_weight, with the sum over the senses of the word: this needs no scatter,
    and no difference of two rounded products. P(sense | word) is computed relative to the top of the word, as the
    log-sum-exp of a word far below the top of the token would be rounded.
    """
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    in_cols = (cols < width)[None, :]
    a, b, slope, bias = load_senses(constants, constants_width, cols, cols < constants_width, KERNEL)
    a, b, slope, bias = a[None, :], b[None, :], slope[None, :], bias[None, :]
    words = tl.load(sense_to_word + cols, mask=cols < S, other=0)[None, :]
    sum_F = tl.full((ROWS, COLS), 0.0, tl.float32)
    sum_T = tl.full((ROWS, COLS), 0.0, tl.float32)
    sum_D = tl.full((ROWS, COLS), 0.0, tl.float32)
    sum_G = tl.full((ROWS, COLS), 0.0, tl.float32)
    first = tl.program_id(1) * rows_per_part
    last = tl.minimum(first + rows_per_part, n)
    for start in range(first, last, ROWS):
        rows = start + tl.arange(0, ROWS)
        in_rows = rows < last
        norm = tl.load(h_norm + rows, mask=in_rows, other=0.0)[:, None]
        inverse = tl.load(h_inverse + rows, mask=in_rows, other=0.0)[:, None]
        tops = tl.load(top + rows, mask=in_rows, other=-LOWEST)
        share = tl.load(scale + rows, mask=in_rows, other=0.0)
        own_top = tl.load(target_top + rows, mask=in_rows, other=-LOWEST)
        own_total = tl.load(target_total + rows, mask=in_rows, other=1.0)
        own_share = share * (own_total * tl.exp2(own_top - tops))
        own_share -= tl.load(target_weight + rows, mask=in_rows, other=0.0)
        if SMOOTH:
            smooth_share = tl.load(smooth + rows, mask=in_rows, other=0.0)
            own_share -= smooth_share
        own_share /= own_total
        of_target = words == tl.load(target + rows, mask=in_rows, other=-1)[:, None]
        mask = in_rows[:, None] & in_cols
        offsets = rows.to(tl.int64)[:, None]
        d = tl.load(D + offsets * D_stride + cols[None, :], mask=mask, other=0.0).to(tl.float32)
        F, slopes, y, E = kernel_values(d, norm, inverse, a, b, slope, KERNEL)
        K = below(F, slopes, bias, tl.where(of_target, own_top[:, None], tops[:, None]))
        G = tl.exp2(K) * tl.where(of_target, own_share[:, None], share[:, None])
        if SMOOTH:
            at = word_log2 + offsets * word_stride + words
            log2_of_word = tl.load(at, mask=in_rows[:, None] & (cols < S)[None, :], other=0.0)
            G -= tl.where(of_target, 0.0, smooth_share[:, None] * tl.exp2(K - log2_of_word))
        gradient = G
        if KERNEL == PAPER:
            gradient = G * (E * (slope * LN2))
        elif KERNEL == RELEASED:
            gradient = G * tl.where(d > 0, E * (slope * LN2), 1.0)
        tl.store(dD + offsets * dD_stride + cols[None, :], gradient.to(dD.dtype.element_ty), mask=mask)
        if BIAS:
            sum_G += G
        if KERNEL == RELEASED:
            sum_D = tl.fma(tl.where(d > 0, 0.0, G), d, sum_D)
            G = tl.where(d > 0, G, 0.0)
        if KERNEL != DOT:
            near = tl.abs(y) < POLYNOMIAL_BELOW
            sum_F = tl.fma(G, F, sum_F)
            sum_T = tl.fma(G, tl.where(near, d * (d * inverse) * phi_prime_polynomial(y), tl.fma(d, E, -F) * b), sum_T)
    to = parts + tl.program_id(1) * 4 * constants_width + cols
    in_senses = cols < S
    if KERNEL != DOT:
        tl.store(to, tl.sum(sum_F, 0), mask=in_senses)
        tl.store(to + constants_width, tl.sum(sum_T, 0), mask=in_senses)
    if KERNEL == RELEASED:
        tl.store(to + 2 * constants_width, tl.sum(sum_D, 0), mask=in_senses)
    if BIAS:
        tl.store(to + 3 * constants_width, tl.sum(sum_G, 0), mask=in_senses)


# fmt: off
@triton.jit(do_not_specialize=CHANGING)
def add_sums_kernel(
    parts, n_parts, S, constants_width, w_inverse, sums, WANTED: tl.constexpr, COLS: tl.constexpr,
):
# fmt: on
    """Add the parts of :func:`backward_kernel` to sums (4, S) in a fixed order, without the factors |w| of F, T and D.

    Bit i of WANTED selects row i.
    """
    row = tl.program_id(1)
    if (WANTED >> row) & 1:
        cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
        mask = cols < S
        inverse = tl.load(w_inverse + cols, mask=mask, other=0.0)
        factor = tl.where(row == 3, 1.0, tl.where(row == 1, inverse * inverse, inverse))
        value = tl.full((COLS,), 0.0, tl.float32)
        for part in range(0, n_parts):
            value += tl.load(parts + (part * 4 + row) * constants_width + cols, mask=mask, other=0.0)
        to = sums + row * S + cols
        tl.store(to, tl.load(to, mask=mask, other=0.0) + value * factor, mask=mask)


# fmt: off
@triton.jit(do_not_specialize=CHANGING)
def words_kernel(
    D, D_stride, h_norm, h_inverse, constants, constants_width, n, V, top, total, order, offsets, most, out,
    out_stride, parts, KERNEL: tl.constexpr, LOG_PROBS: tl.constexpr, SUMS: tl.constexpr, ROWS: tl.constexpr,
    WORDS: tl.constexpr,
):
# fmt: on
    """Compute log2 Σ 2^(K − top) over the senses of each word with at most ``most`` senses; one lane per word.

    With LOG_PROBS, log2 total is subtracted and the result is in nats. With SUMS, parts (…, 2, n) gets the sums of
    log Σ 2^(K − top) and of Σ P(sense | word) K0 / |h| over the words of the block. Neighbouring programs have the same
    tokens, so that their rows of D are in the cache: the senses of a word may be anywhere in a row.
    """
    blocks = (V + WORDS - 1) // WORDS
    block = tl.program_id(0) % blocks
    rows = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)
    in_rows = rows < n
    norm = tl.load(h_norm + rows, mask=in_rows, other=0.0)[:, None]
    inverse = tl.load(h_inverse + rows, mask=in_rows, other=0.0)[:, None]
    tops = tl.load(top + rows, mask=in_rows, other=0.0)[:, None]
    words = block * WORDS + tl.arange(0, WORDS)
    first = tl.load(offsets + words, mask=words < V, other=0)
    size = tl.load(offsets + words + 1, mask=words < V, other=0) - first
    in_words = (words < V) & (size <= most)
    size = tl.where(in_words, size, 0)
    highest = tl.full((ROWS, WORDS), LOWEST, tl.float32)
    weight = tl.full((ROWS, WORDS), 0.0, tl.float32)
    mean = tl.full((ROWS, WORDS), 0.0, tl.float32)
    D_rows = D + rows.to(tl.int64)[:, None] * D_stride
    for i in range(0, tl.max(size, 0)):
        some = i < size
        sense = tl.load(order + first + i, mask=some, other=0)
        a, b, slope, bias = load_senses(constants, constants_width, sense, some, KERNEL)
        d = tl.load(D_rows + sense[None, :], mask=in_rows[:, None] & some[None, :], other=0.0).to(tl.float32)
        F, slopes, _, _ = kernel_values(d, norm, inverse, a[None, :], b[None, :], slope[None, :], KERNEL)
        K = below(F, slopes, bias[None, :], tops)
        e = tl.exp2(-tl.abs(K - highest))  # one exponential, whichever of the two is larger
        e = tl.where(some[None, :], e, 0.0)
        rises = some[None, :] & (highest < K)
        weight = tl.where(rises, tl.fma(weight, e, 1.0), weight + e)
        if SUMS:
            mean = tl.where(rises, tl.fma(mean, e, F * slopes), tl.fma(e, F * slopes, mean))
        highest = tl.where(rises, K, highest)
    empty = weight == 0.0  # false for NaN
    lse = tl.where(empty, float("-inf"), highest + tl.log2(tl.where(empty, 1.0, weight)))
    if LOG_PROBS:
        lse = (lse - tl.log2(tl.load(total + rows, mask=in_rows, other=1.0))[:, None]) * LN2
    mask = in_rows[:, None] & in_words[None, :]
    to = out + rows.to(tl.int64)[:, None] * out_stride + words[None, :]
    tl.store(to, lse.to(out.dtype.element_ty), mask=mask)
    if SUMS:
        at = parts + block.to(tl.int64) * 2 * n + rows
        tl.store(at, tl.sum(tl.where(in_words[None, :], lse, 0.0), 1) * LN2, mask=in_rows)
        mean = tl.sum(mean / tl.where(empty, 1.0, weight), 1)
        tl.store(at + n, mean * tl.sum(inverse, 1) * LN2, mask=in_rows)


# fmt: off
@triton.jit(do_not_specialize=CHANGING)
def pairs_kernel(
    D, D_stride, h_norm, h_inverse, constants, constants_width, n, n_pairs, top, total, order, offsets, words, out,
    out_stride, mean_out, top_out, total_out, scores, scores_stride, KERNEL: tl.constexpr, LISTED: tl.constexpr,
    LOG_PROBS: tl.constexpr, MEAN: tl.constexpr, SCORES: tl.constexpr, PAIRS: tl.constexpr, SENSES: tl.constexpr,
):
# fmt: on
    """Compute the values of :func:`words_kernel` for pairs of a token and a word, with several lanes per word.

    LISTED: each of the ``words`` with each token, to out[token, word]; mean_out (words, 2, n) gets log Σ 2^(K − top)
    and Σ P(sense | word) K0 / |h|. Else token i with words[i]: out[i] gets log Σ 2^(K − top), mean_out[i] the mean,
    top_out[i] the integer top over the senses of the word, total_out[i] Σ 2^(K − that top); with SCORES, scores (n, …)
    gets (K − top) log 2 of each sense of the word.
    """
    pairs = tl.program_id(0).to(tl.int64) * PAIRS + tl.arange(0, PAIRS)
    in_pairs = pairs < n_pairs
    index, rows = pairs, pairs
    if LISTED:
        index, rows = pairs // n, pairs % n
    word = tl.load(words + index, mask=in_pairs, other=0)
    norm = tl.load(h_norm + rows, mask=in_pairs, other=0.0)
    inverse = tl.load(h_inverse + rows, mask=in_pairs, other=0.0)
    tops = tl.load(top + rows, mask=in_pairs, other=0.0)[:, None]
    first = tl.load(offsets + word, mask=in_pairs, other=0)
    size = tl.load(offsets + word + 1, mask=in_pairs, other=0) - first
    highest = tl.full((PAIRS, 1), LOWEST, tl.float32)
    weight = tl.full((PAIRS, SENSES), 0.0, tl.float32)
    mean = tl.full((PAIRS, SENSES), 0.0, tl.float32)
    for start in range(0, tl.max(size, 0), SENSES):
        i = start + tl.arange(0, SENSES)[None, :]
        some = i < size[:, None]
        sense = tl.load(order + first[:, None] + i, mask=some, other=0)
        a, b, slope, bias = load_senses(constants, constants_width, sense, some, KERNEL)
        d = tl.load(D + rows[:, None] * D_stride + sense, mask=some, other=0.0).to(tl.float32)
        F, slopes, _, _ = kernel_values(d, norm[:, None], inverse[:, None], a, b, slope, KERNEL)
        K = below(F, slopes, bias, tops)
        if SCORES:
            tl.store(scores + rows[:, None] * scores_stride + i, K * LN2, mask=some)
        higher = tl.maximum(highest, tops + tl.ceil(tl.max(K, 1, keep_dims=True)))
        e = tl.where(some, tl.exp2(below(F, slopes, bias, higher)), 0.0)
        shrink = tl.exp2(highest - higher)
        weight = tl.fma(weight, shrink, e)
        if MEAN:
            mean = tl.fma(mean, shrink, e * (F * slopes))
        highest = higher
    weight = tl.sum(weight, 1)
    empty = weight == 0.0
    lse = tl.max(highest - tops, 1) + tl.log2(tl.where(empty, 1.0, weight))
    lse = tl.where(empty, float("-inf"), lse)
    if LOG_PROBS:
        lse = (lse - tl.log2(tl.load(total + rows, mask=in_pairs, other=1.0))) * LN2
    mean = tl.sum(mean, 1) / tl.where(empty, 1.0, weight) * inverse * LN2
    if LISTED:
        tl.store(out + rows * out_stride + word, lse.to(out.dtype.element_ty), mask=in_pairs)
        if MEAN:
            tl.store(mean_out + index * 2 * n + rows, lse * LN2, mask=in_pairs)
            tl.store(mean_out + (index * 2 + 1) * n + rows, mean, mask=in_pairs)
    else:
        tl.store(out + rows, lse * LN2, mask=in_pairs)
        tl.store(mean_out + rows, mean, mask=in_pairs)
        tl.store(top_out + rows, tl.max(highest, 1), mask=in_pairs)
        tl.store(total_out + rows, weight, mask=in_pairs)
