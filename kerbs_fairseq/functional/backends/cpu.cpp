// The two element-wise passes of the loss over a chunk of tokens, each fused into one sweep. See passes.py, which says
// the same in torch; this is for float32 on a CPU, compiled on the machine it runs on.
//
// D (n, S) are the inner products of n features with S vectors. Per sense: half_theta = −θ / (2|w|), minus_inverse =
// −1/θ, scale = |w| / (2ψ), slope = 1 / (2ψ), theta, w_inverse = 1 / |w|. Per token: h_length = |h|, h_inverse = 1 / |h|.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

enum Kernel { PAPER = 0, DOT = 1, RELEASED = 2 };  // the order of KERNELS in kernel.py
constexpr int64_t BLOCK = 512;                     // columns that are worked on while they stay in the first cache
constexpr float SMALL_THETA = 0.2f;                // as in passes.py

// e^x = two · (1 + part) with part = e^r − 1, |r| ≤ ln(2)/2, and two a power of 2. Right to the last digit or two.
inline void exponential(float x, float& two, float& part) {
  const float magic = 12582912.0f;  // 1.5 · 2^23: adding it rounds to an integer, found in the lowest bits
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
  return x < -60.0f ? 0.0f : two + two * part;  // below 1e-26 nothing counts, but denormal numbers take ten times as long
}

inline float expm1_of(float x) {
  float two, part;
  exponential(x, two, part);
  return (two - 1.0f) + two * part;
}

inline float log_of(float x) {  // for normal x > 0
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const int32_t exponent = (bits - 0x3f3504f3) >> 23;  // so that what is left lies in [√½, √2)
  bits -= exponent << 23;
  float left;
  std::memcpy(&left, &bits, sizeof left);
  const float z = (left - 1.0f) / (left + 1.0f), zz = z * z;
  const float tail = 0.66666667f + zz * (0.4f + zz * (0.28571429f + zz * 0.22222222f));
  return (float)exponent * 0.69314718f + z * (2.0f + zz * tail);
}

struct Senses {
  const float *half_theta, *minus_inverse, *scale, *slope, *theta, *w_inverse;
};

// K / |h| of one pair
template <int KERNEL>
inline float score(float d, float h_inverse, const Senses& s, int64_t j) {
  if (KERNEL == DOT) return d;
  const float half = expm1_of(d * h_inverse * s.half_theta[j]);
  const float curved = (half + 2.0f) * half * s.minus_inverse[j] * s.scale[j];
  return KERNEL == RELEASED ? (d > 0.0f ? curved : d * h_inverse) : curved;
}

// One token: the largest score, Σ e^(K − top), Σ e^(K − top) K/|h|.
template <int KERNEL>
void row_totals(const float* D, int64_t S, const Senses& s, float h_length, float h_inverse, float* found) {
  float top = -INFINITY, total = 0.0f, mean = 0.0f;
  float k[BLOCK];
  for (int64_t from = 0; from < S; from += BLOCK) {
    const int64_t size = std::min(S - from, BLOCK);
#pragma omp simd
    for (int64_t j = 0; j < size; ++j) k[j] = score<KERNEL>(D[from + j], h_inverse, s, from + j);
    float highest = -INFINITY;
#pragma omp simd reduction(max : highest)
    for (int64_t j = 0; j < size; ++j) highest = std::max(highest, k[j] * h_length);
    if (highest > top) {
      const float shrink = from ? exp_of(top - highest) : 0.0f;
      total *= shrink, mean *= shrink, top = highest;
    }
    float sum = 0.0f, weighted = 0.0f;
#pragma omp simd reduction(+ : sum, weighted)
    for (int64_t j = 0; j < size; ++j) {
      const float x = exp_of(k[j] * h_length - top);
      sum += x;
      weighted += x * k[j];
    }
    total += sum, mean += weighted;
  }
  found[0] = top, found[1] = total, found[2] = mean;
}

// The same, and K/|h| goes to k (S,), e^(K − top) to x (S,).
template <int KERNEL>
void row_kept(const float* D, int64_t S, const Senses& s, float h_length, float h_inverse, float* k, float* x,
              float* found) {
  float top = -INFINITY;
  double total = 0.0, mean = 0.0;
#pragma omp simd
  for (int64_t j = 0; j < S; ++j) k[j] = score<KERNEL>(D[j], h_inverse, s, j);
#pragma omp simd reduction(max : top)
  for (int64_t j = 0; j < S; ++j) top = std::max(top, k[j] * h_length);
  for (int64_t from = 0; from < S; from += BLOCK) {
    const int64_t to = std::min(S, from + BLOCK);
    float sum = 0.0f, weighted = 0.0f;
#pragma omp simd reduction(+ : sum, weighted)
    for (int64_t j = from; j < to; ++j) {
      x[j] = exp_of(k[j] * h_length - top);
      sum += x[j];
      weighted += x[j] * k[j];
    }
    total += sum, mean += weighted;
  }
  found[0] = top, found[1] = (float)total, found[2] = (float)mean;
}

// log Σ e^(K − top) over the senses of one word, however small; also Σ e^(K − top) K/|h| over Σ e^(K − top).
float careful(const float* k, float h_length, float top, const int32_t* own, int64_t V, int64_t most, int64_t S,
              float& mean) {
  float highest = -INFINITY, total = 0.0f, weighted = 0.0f;
  for (int64_t m = 0; m < most; ++m)
    if (own[m * V] < S) highest = std::max(highest, k[own[m * V]] * h_length - top);
  mean = 0.0f;
  if (highest == -INFINITY) return highest;
  for (int64_t m = 0; m < most; ++m)
    if (own[m * V] < S) {
      const float kk = k[own[m * V]], e = exp_of(kk * h_length - top - highest);
      total += e, weighted += e * kk;
    }
  mean = weighted / total;
  return highest + log_of(total);
}

// One token: for each word log Σ e^(K − top) over its senses; their sum, and Σ_words Σ P(sense | word) K/|h|. Slots
// without a sense hold S, and x[S] = k[S] = 0.
void row_words(const float* k, const float* x, float h_length, float top, const int32_t* slots, int64_t V, int64_t most,
               int64_t S, float* word, float* found) {
  double sum = 0.0, mean = 0.0;
  for (int64_t from = 0; from < V; from += BLOCK) {
    const int64_t size = std::min(V - from, BLOCK);
    float total[BLOCK] = {}, weighted[BLOCK] = {}, block_sum = 0.0f, block_mean = 0.0f, least = INFINITY;
    for (int64_t m = 0; m < most; ++m) {
      const int32_t* own = slots + m * V + from;
#pragma omp simd
      for (int64_t i = 0; i < size; ++i) {
        total[i] += x[own[i]];
        weighted[i] += x[own[i]] * k[own[i]];
      }
    }
#pragma omp simd reduction(min : least)
    for (int64_t i = 0; i < size; ++i) least = std::min(least, total[i]);
    if (least > 1e-20f) {
#pragma omp simd reduction(+ : block_sum, block_mean)
      for (int64_t i = 0; i < size; ++i) {
        const float value = log_of(total[i]) + 0.0f * total[i];  // NaN stays NaN
        word[from + i] = value;
        block_sum += value;
        block_mean += weighted[i] / total[i];
      }
    } else {
      for (int64_t i = 0; i < size; ++i) {
        float of_word = weighted[i] / total[i], value = log_of(total[i]) + 0.0f * total[i];
        if (total[i] <= 1e-20f) value = careful(k, h_length, top, slots + from + i, V, most, S, of_word);
        word[from + i] = value;
        block_sum += value, block_mean += of_word;
      }
    }
    sum += block_sum, mean += block_mean;
  }
  found[0] = (float)sum, found[1] = (float)mean;
}

template <int KERNEL>
void totals(const float* D, int64_t n, int64_t S, const Senses& s, const float* h_length, const float* h_inverse,
            float* found, const int32_t* slots, int64_t V, int64_t most, float* word) {
#pragma omp parallel
  {
    std::vector<float> k(slots ? S + 1 : 0), x(k.size());  // the last of each stays 0
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; ++i) {
      const float* row = D + i * S;
      const float length = h_length[i], inverse = h_inverse[i];
      float* of_row = found + i * 5;
      if (slots) {
        row_kept<KERNEL>(row, S, s, length, inverse, k.data(), x.data(), of_row);
        row_words(k.data(), x.data(), length, of_row[0], slots, V, most, S, word + i * V, of_row + 3);
      } else {
        row_totals<KERNEL>(row, S, s, length, inverse, of_row);
      }
    }
  }
}

template <int KERNEL, bool SMOOTH>
void gradient(float* D, int64_t n, int64_t S, const Senses& s, const float* h_length, const float* h_inverse,
              const float* top, const float* factor, const float* word, int64_t V, const int32_t* word_of,
              const float* less, float* sums) {
  const int64_t blocks = (S + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(static)
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t from = b * BLOCK, size = std::min(S - from, BLOCK);
    float by_F[BLOCK] = {}, by_T[BLOCK] = {}, by_plain[BLOCK] = {};
    for (int64_t i = 0; i < n; ++i) {
      float* row = D + i * S + from;
      const float length = h_length[i], inverse = h_inverse[i], highest = top[i], share = factor[i];
      const float minus = SMOOTH ? less[i] : 0.0f;
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
        const float K = k * length - highest;
        float G = exp_of(K) * share;
        if (SMOOTH) G -= exp_of(K - of_word[word_of[at]]) * minus;
        if (KERNEL == DOT) {
          row[j] = G;
        } else {
          const float c = d * inverse * s.w_inverse[at], theta = s.theta[at], along = G * length;
          const float E = (half + 1.0f) * (half + 1.0f);
          const float series = (c * (2.0f * c + 14.0f * F - 4.0f * theta * c * F) - F * F) * (1.0f / 30.0f);
          const float direct = (c * E - F) * s.minus_inverse[at];
          const float T = std::fabs(theta) < SMALL_THETA ? series : direct;
          const float slope = E * s.slope[at];
          if (KERNEL == RELEASED) {
            by_F[j] += curved ? along * F : 0.0f;
            by_T[j] += curved ? along * T : 0.0f;
            by_plain[j] += curved ? 0.0f : along * c;
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
      sums[2 * S + from + j] += by_plain[j];
    }
  }
}

}  // namespace

// found (n, 5): top, Σ e^(K − top), Σ e^(K − top) K/|h|, and with slots (most, V), S for none, also Σ_words log Σ e^(K − top) and
// Σ_words Σ P(sense | word) K/|h|; word (n, V): log Σ e^(K − top) over the senses of each word.
extern "C" void kerbs_totals(int kernel, const float* D, int64_t n, int64_t S, const float* const* columns,
                             const float* h_length, const float* h_inverse, float* found, const int32_t* slots,
                             int64_t V, int64_t most, float* word) {
  const Senses s = {columns[0], columns[1], columns[2], columns[3], columns[4], columns[5]};
  const auto run = kernel == DOT ? totals<DOT> : kernel == PAPER ? totals<PAPER> : totals<RELEASED>;
  run(D, n, S, s, h_length, h_inverse, found, slots, V, most, word);
}

// D becomes the gradient by D; sums (3, S) grow by Σ G|h|F, Σ G|h|T and Σ G|h|c where the kernel is the inner product.
// G = factor e^(K − top) − less P(sense | word), the latter only if word is given.
extern "C" void kerbs_gradient(int kernel, float* D, int64_t n, int64_t S, const float* const* columns,
                               const float* h_length, const float* h_inverse, const float* top, const float* factor,
                               const float* word, int64_t V, const int32_t* word_of, const float* less, float* sums) {
  const Senses s = {columns[0], columns[1], columns[2], columns[3], columns[4], columns[5]};
  auto run = kernel == DOT     ? (word ? gradient<DOT, true> : gradient<DOT, false>)
             : kernel == PAPER ? (word ? gradient<PAPER, true> : gradient<PAPER, false>)
                               : (word ? gradient<RELEASED, true> : gradient<RELEASED, false>);
  run(D, n, S, s, h_length, h_inverse, top, factor, word, V, word_of, less, sums);
}
