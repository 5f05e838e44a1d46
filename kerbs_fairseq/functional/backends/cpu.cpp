// The chunk kernels of the loss for float32 on a CPU, compiled on the machine that they run on. The formulas are in
// base.py; torch.py computes the same in torch.
//
// D (n, S) are the inner products of n features with S vectors, with the row stride `stride`. Per sense: bias = b,
// half_theta = −θ / (2|w|), minus_inverse = −1/θ, scale = |w| / (2ψ), slope = 1 / (2ψ), theta, w_inverse = 1 / |w|.
// Per token: h_norm = |h|, h_inverse = 1 / |h|. k is (K − b) / |h|.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

enum Kernel { PAPER = 0, DOT = 1, RELEASED = 2 };  // the order of KERNELS in kernel.py
constexpr int64_t BLOCK = 512;                     // columns per block, which stay in the L1 cache
constexpr float SMALL_THETA = 0.2f;                // as in base.py

// e^x = two · (1 + part) with part = e^r − 1, |r| ≤ ln(2)/2, and two a power of 2. Accurate to the last digit or two.
inline void exponential(float x, float& two, float& part) {
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, which is in the lowest bits
  const float shifted = x * 1.44269504f + magic;
  const float whole = shifted - magic;
  const float r = (x - whole * 0.693145752f) - whole * 1.42860677e-6f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000;
  std::memcpy(&two, &bits, sizeof two);
  const float q =
      0.5f + r * (1.6666667e-1f + r * (4.1666667e-2f + r * (8.3333333e-3f + r * (1.3888889e-3f + r * 1.9841270e-4f))));
  part = r + r * r * q;
}

inline float exp_of(float x) {
  float two, part;
  exponential(x, two, part);
  return x < -60.0f ? 0.0f : two + two * part;  // below 1e-26: negligible, and denormal numbers are ten times slower
}

inline float expm1_of(float x) {
  float two, part;
  exponential(x, two, part);
  return (two - 1.0f) + two * part;
}

inline float log_of(float x) {  // for normal x > 0
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // so that the rest is in [√½, √2)
  bits -= exponent << 23;
  float left;
  std::memcpy(&left, &bits, sizeof left);
  const float z = (left - 1.0f) / (left + 1.0f), zz = z * z;
  const float tail = 0.66666667f + zz * (0.4f + zz * (0.28571429f + zz * 0.22222222f));
  return (float)exponent * 0.69314718f + z * (2.0f + zz * tail);
}

// The maximum of x (n,). It is kept per lane: with one running maximum each comparison would wait for the one before.
inline float highest_of(const float* x, int64_t n) {
  constexpr int64_t LANES = 64;
  float top = -INFINITY, lane[LANES];
  std::fill(lane, lane + LANES, -INFINITY);
  const int64_t whole = n - n % LANES;
  for (int64_t from = 0; from < whole; from += LANES)
#pragma omp simd
    for (int64_t i = 0; i < LANES; ++i) lane[i] = x[from + i] > lane[i] ? x[from + i] : lane[i];
  for (int64_t j = whole; j < n; ++j) top = std::max(top, x[j]);
  for (int64_t i = 0; i < LANES; ++i) top = std::max(top, lane[i]);
  return top;
}

struct Senses {
  const float *bias, *half_theta, *minus_inverse, *scale, *slope, *theta, *w_inverse;
};

// The index from words to senses, by rounds: the first sense of every word; then round r holds one more sense of each
// of the first starts[r + 1] − starts[r] words of `several`, the words with more than one sense. senses is the
// concatenation of all rounds, or null if the senses themselves are stored in that order.
struct Index {
  const int32_t *several, *senses;
  const int64_t* starts;
  const int32_t* empty;  // words without senses
  int64_t n_several, rounds, n_empty, n_words;

  int64_t first(int64_t word) const { return senses ? senses[word] : word; }
  int64_t other(int64_t at) const { return senses ? senses[n_words + at] : n_words + at; }
  int64_t size(int64_t round) const { return starts[round + 1] - starts[round]; }
};

// (K − b) / |h| of a token and a sense
template <int KERNEL>
inline float kernel_value(float d, float h_inverse, const Senses& s, int64_t j) {
  if (KERNEL == DOT) return d;
  const float half = expm1_of(d * h_inverse * s.half_theta[j]);
  const float curved = (half + 2.0f) * half * s.minus_inverse[j] * s.scale[j];
  return KERNEL == RELEASED ? (d > 0.0f ? curved : d * h_inverse) : curved;
}

// The totals of one token: the largest score, Σ e^(K − top), Σ e^(K − top) k.
template <int KERNEL>
void row_totals(const float* D, int64_t S, const Senses& s, float h_norm, float h_inverse, float* totals) {
  float top = -INFINITY, total = 0.0f, mean = 0.0f;
  float k[BLOCK], score[BLOCK];
  for (int64_t from = 0; from < S; from += BLOCK) {
    const int64_t size = std::min(S - from, BLOCK);
    const float* bias = s.bias + from;
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) {
      k[j] = kernel_value<KERNEL>(D[from + j], h_inverse, s, from + j);
      score[j] = k[j] * h_norm + bias[j];
    }
    const float highest = highest_of(score, size);
    if (highest > top) {
      const float shrink = from ? exp_of(top - highest) : 0.0f;
      total *= shrink, mean *= shrink, top = highest;
    }
    float sum = 0.0f, weighted = 0.0f;
#pragma omp simd reduction(+ : sum, weighted)
    for (int64_t j = 0; j < size; ++j) {
      const float x = exp_of(score[j] - top);
      sum += x;
      weighted += x * k[j];
    }
    total += sum, mean += weighted;
  }
  totals[0] = top, totals[1] = total, totals[2] = mean;
}

// The totals of one token, the third with MEAN only; also writes K − top to score (S,), e^(K − top) to x (S,), and with
// MEAN k to k (S,).
template <int KERNEL, bool MEAN>
void row_kept(const float* D, int64_t S, const Senses& s, float h_norm, float h_inverse, float* k, float* score,
              float* x, float* totals) {
  double total = 0.0, mean = 0.0;
#pragma omp simd
  for (int64_t j = 0; j < S; ++j) {  // separate from the maximum: one loop for both takes twice as long
    const float value = kernel_value<KERNEL>(D[j], h_inverse, s, j);
    if (MEAN) k[j] = value;
    score[j] = value * h_norm + s.bias[j];
  }
  const float top = highest_of(score, S);
  for (int64_t from = 0; from < S; from += BLOCK) {
    const int64_t to = std::min(S, from + BLOCK);
    float sum = 0.0f, weighted = 0.0f;
#pragma omp simd reduction(+ : sum, weighted)
    for (int64_t j = from; j < to; ++j) {
      score[j] -= top;
      x[j] = exp_of(score[j]);
      sum += x[j];
      if (MEAN) weighted += x[j] * k[j];
    }
    total += sum, mean += weighted;
  }
  totals[0] = top, totals[1] = (float)total, totals[2] = (float)mean;
}

// log Σ e^score over the senses of the word several[rank], accurate however small it is; with MEAN, mean is set to
// Σ e^score k / Σ e^score.
template <bool MEAN>
float small_word(const float* k, const float* score, const Index& index, int64_t rank, float& mean) {
  const int64_t first = index.first(index.several[rank]);
  float highest = score[first], total = 0.0f, weighted = 0.0f;
  mean = 0.0f;
  for (int64_t r = 0; r < index.rounds && rank < index.size(r); ++r)
    highest = std::max(highest, score[index.other(index.starts[r] + rank)]);
  if (highest == -INFINITY) return highest;
  for (int64_t r = -1; r < index.rounds && (r < 0 || rank < index.size(r)); ++r) {
    const int64_t j = r < 0 ? first : index.other(index.starts[r] + rank);
    const float e = exp_of(score[j] - highest);
    total += e;
    if (MEAN) weighted += e * k[j];
  }
  mean = weighted / total;
  return highest + log_of(total);
}

// Σ x over the senses of each word of `several`; with MEAN also Σ x k.
template <bool MEAN>
void word_totals(const float* k, const float* x, const Index& index, float* total, float* weighted) {
  for (int64_t i = 0; i < index.n_several; ++i) {
    const int64_t j = index.first(index.several[i]);
    total[i] = x[j];
    if (MEAN) weighted[i] = x[j] * k[j];
  }
  for (int64_t r = 0; r < index.rounds; ++r) {
    const int64_t size = index.size(r), from = index.n_words + index.starts[r];
    if (!index.senses) {
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) {
        total[i] += x[from + i];
        if (MEAN) weighted[i] += x[from + i] * k[from + i];
      }
    } else {
      for (int64_t i = 0; i < size; ++i) {
        const int64_t j = index.senses[from + i];
        total[i] += x[j];
        if (MEAN) weighted[i] += x[j] * k[j];
      }
    }
  }
}

constexpr float SMALL_TOTAL = 1e-20f;  // a smaller sum of a word has lost digits, or is 0

// For one token: log Σ e^(K − top) − shift over the senses of each word, −∞ if it has none; with MEAN also the sum over
// the words, and Σ_words Σ P(sense | word) k. It starts with the first sense of each word: most words have no other.
template <bool MEAN>
void row_words(const float* k, const float* score, const float* x, const Index& index, float shift, float* total,
               float* weighted, float* word, float* of_words, float* sums) {
  if (!index.senses) {
#pragma omp simd
    for (int64_t v = 0; v < index.n_words; ++v) word[v] = score[v] - shift;
    if (MEAN) std::memcpy(of_words, k, index.n_words * sizeof(float));
  } else {
    for (int64_t v = 0; v < index.n_words; ++v) {
      word[v] = score[index.senses[v]] - shift;
      if (MEAN) of_words[v] = k[index.senses[v]];
    }
  }
  word_totals<MEAN>(k, x, index, total, weighted);
  for (int64_t from = 0; from < index.n_several; from += BLOCK) {
    const int64_t size = std::min(index.n_several - from, BLOCK);
    float value[BLOCK], least = INFINITY;
#pragma omp simd reduction(min : least)
    for (int64_t i = 0; i < size; ++i) least = std::min(least, total[from + i]);
#pragma omp simd
    for (int64_t i = 0; i < size; ++i)
      value[i] = log_of(total[from + i]) + 0.0f * total[from + i];  // NaN stays NaN
    if (MEAN)
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) weighted[from + i] /= total[from + i];
    if (!(least > SMALL_TOTAL))
      for (int64_t i = 0; i < size; ++i)
        if (total[from + i] <= SMALL_TOTAL) {
          float of_word = 0.0f;
          value[i] = small_word<MEAN>(k, score, index, from + i, of_word);
          if (MEAN) weighted[from + i] = of_word;
        }
    for (int64_t i = 0; i < size; ++i) {
      word[index.several[from + i]] = value[i] - shift;
      if (MEAN) of_words[index.several[from + i]] = weighted[from + i];
    }
  }
  for (int64_t i = 0; i < index.n_empty; ++i) {
    word[index.empty[i]] = -INFINITY;
    if (MEAN) of_words[index.empty[i]] = 0.0f;
  }
  if (!MEAN) return;
  double sum = 0.0, mean = 0.0;
  for (int64_t from = 0; from < index.n_words; from += BLOCK) {
    const int64_t to = std::min(index.n_words, from + BLOCK);
    float block_sum = 0.0f, block_mean = 0.0f;
#pragma omp simd reduction(+ : block_sum, block_mean)
    for (int64_t v = from; v < to; ++v) {
      block_sum += word[v];
      block_mean += of_words[v];
    }
    sum += block_sum, mean += block_mean;
  }
  sums[0] = (float)sum, sums[1] = (float)mean;
}

template <int KERNEL>
void forward(const float* D, int64_t n, int64_t S, int64_t stride,
             const Senses& s, const float* h_norm, const float* h_inverse,
             float* totals) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < n; ++i) row_totals<KERNEL>(D + i * stride, S, s, h_norm[i], h_inverse[i], totals + i * 5);
}

// With MEAN: totals (n, 5) and the log-sum-exps of words; else log P of words.
template <int KERNEL, bool MEAN>
void forward_words(const float* D, int64_t n, int64_t S, int64_t stride,
                   const Senses& s, const float* h_norm, const float* h_inverse,
                   float* totals, const Index& index, float* word) {
#pragma omp parallel
  {
    std::vector<float> k(MEAN ? S : 0), score(S), x(S), total(index.n_several), weighted(MEAN ? index.n_several : 0),
        of_words(MEAN ? index.n_words : 0);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; ++i) {
      float own[5];
      float* of_row = MEAN ? totals + i * 5 : own;
      row_kept<KERNEL, MEAN>(D + i * stride, S, s, h_norm[i], h_inverse[i], k.data(), score.data(), x.data(), of_row);
      row_words<MEAN>(k.data(), score.data(), x.data(), index, MEAN ? 0.0f : std::log(of_row[1]), total.data(),
                      weighted.data(), word + i * index.n_words, of_words.data(), of_row + 3);
    }
  }
}

template <int KERNEL, bool SMOOTH>
void backward(float* D, int64_t n, int64_t S, int64_t stride,
              const Senses& s, const float* h_norm, const float* h_inverse,
              const float* top, const float* scale, const float* smooth, const float* word, int64_t V,
              const int32_t* sense_to_word, float* sums) {
  const int64_t blocks = (S + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t from = b * BLOCK, size = std::min(S - from, BLOCK);
    float by_F[BLOCK] = {}, by_T[BLOCK] = {}, by_linear[BLOCK] = {}, by_bias[BLOCK] = {};
    for (int64_t i = 0; i < n; ++i) {
      float* row = D + i * stride + from;
      const float norm = h_norm[i], inverse = h_inverse[i], highest = top[i], share = scale[i];
      const float minus = SMOOTH ? smooth[i] : 0.0f;
      const float* of_word = SMOOTH ? word + i * V : nullptr;
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) {
        const int64_t at = from + j;
        const float d = row[j];
        float half = 0.0f, F = 0.0f, k = d;
        bool curved = KERNEL != DOT;
        if (KERNEL != DOT) {
          half = expm1_of(d * inverse * s.half_theta[at]);
          F = (half + 2.0f) * half * s.minus_inverse[at];
          k = F * s.scale[at];
          if (KERNEL == RELEASED) {
            curved = d > 0.0f;
            k = curved ? k : d * inverse;
          }
        }
        const float K = k * norm + s.bias[at] - highest;
        float G = exp_of(K) * share;
        if (SMOOTH) G -= exp_of(K - of_word[sense_to_word[at]]) * minus;
        by_bias[j] += G;
        if (KERNEL == DOT) {
          row[j] = G;
        } else {
          const float c = d * inverse * s.w_inverse[at], theta = s.theta[at], along = G * norm;
          const float E = (half + 1.0f) * (half + 1.0f);
          const float series = (c * (2.0f * c + 14.0f * F - 4.0f * theta * c * F) - F * F) * (1.0f / 30.0f);
          const float direct = (c * E - F) * s.minus_inverse[at];
          const float T = std::fabs(theta) < SMALL_THETA ? series : direct;
          const float slope = E * s.slope[at];
          if (KERNEL == RELEASED) {
            by_F[j] += curved ? along * F : 0.0f;
            by_T[j] += curved ? along * T : 0.0f;
            by_linear[j] += curved ? 0.0f : along * c;
            row[j] = curved ? G * slope : G;
          } else {
            by_F[j] += along * F;
            by_T[j] += along * T;
            row[j] = G * slope;
          }
        }
      }
    }
    for (int64_t j = 0; j < size; ++j) {
      sums[from + j] += by_F[j];
      sums[S + from + j] += by_T[j];
      sums[2 * S + from + j] += by_linear[j];
      sums[3 * S + from + j] += by_bias[j];
    }
  }
}

Senses senses_of(const float* const* c) { return {c[0], c[1], c[2], c[3], c[4], c[5], c[6]}; }

}  // namespace

// Writes the first three of totals (n, 5): top, Σ e^(K − top), Σ e^(K − top) k.
extern "C" void kerbs_forward(int kernel, const float* D, int64_t n, int64_t S, int64_t stride,
                              const float* const* constants,
                              const float* h_norm, const float* h_inverse, float* totals) {
  const auto run = kernel == DOT ? forward<DOT> : kernel == PAPER ? forward<PAPER> : forward<RELEASED>;
  run(D, n, S, stride, senses_of(constants), h_norm, h_inverse, totals);
}

// Writes all of totals (n, 5), the last two being Σ_words log Σ e^(K − top) and Σ_words Σ P(sense | word) k, and
// word (n, V): log Σ e^(K − top) of each word.
extern "C" void kerbs_forward_words(int kernel, const float* D, int64_t n, int64_t S, int64_t stride,
                                    const float* const* constants,
                                    const float* h_norm, const float* h_inverse, float* totals,
                                    const int32_t* several, const int32_t* senses, const int64_t* starts,
                                    const int32_t* empty, int64_t n_several, int64_t rounds, int64_t n_empty, int64_t V,
                                    float* word) {
  const auto run = kernel == DOT     ? forward_words<DOT, true>
                   : kernel == PAPER ? forward_words<PAPER, true>
                                     : forward_words<RELEASED, true>;
  const Index index{several, senses, starts, empty, n_several, rounds, n_empty, V};
  run(D, n, S, stride, senses_of(constants), h_norm, h_inverse, totals, index, word);
}

// Writes log_probs (n, V): log P of each word.
extern "C" void kerbs_word_log_probs(int kernel, const float* D, int64_t n, int64_t S, int64_t stride,
                                     const float* const* constants,
                                     const float* h_norm, const float* h_inverse, const int32_t* several,
                                     const int32_t* senses, const int64_t* starts, const int32_t* empty,
                                     int64_t n_several, int64_t rounds, int64_t n_empty, int64_t V, float* log_probs) {
  const auto run = kernel == DOT     ? forward_words<DOT, false>
                   : kernel == PAPER ? forward_words<PAPER, false>
                                     : forward_words<RELEASED, false>;
  const Index index{several, senses, starts, empty, n_several, rounds, n_empty, V};
  run(D, n, S, stride, senses_of(constants), h_norm, h_inverse, nullptr, index, log_probs);
}

// Overwrites D by its gradient and adds Σ G|h|F, Σ G|h|T, Σ G|h|c where the kernel is linear, and Σ G to sums (4, S).
// G = scale e^(K − top) − smooth P(sense | word), the latter only if word (n, V) is given.
extern "C" void kerbs_backward(int kernel, float* D, int64_t n, int64_t S, int64_t stride,
                               const float* const* constants,
                               const float* h_norm, const float* h_inverse, const float* top, const float* scale,
                               const float* smooth, const float* word, int64_t V, const int32_t* sense_to_word,
                               float* sums) {
  auto run = kernel == DOT     ? (word ? backward<DOT, true> : backward<DOT, false>)
             : kernel == PAPER ? (word ? backward<PAPER, true> : backward<PAPER, false>)
                               : (word ? backward<RELEASED, true> : backward<RELEASED, false>);
  run(D, n, S, stride, senses_of(constants), h_norm, h_inverse, top, scale, smooth, word, V, sense_to_word, sums);
}
