#include "kernels/cpu_ceiling.h"

#include <cpuid.h>
#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "common/base/process.h"

namespace thermocline {
namespace {

// So many sums that do not wait for one another hide the latency of an instruction: 2 a cycle, with
// 6 cycles each, need 12.
constexpr int kSums = 24;
constexpr int kSums256 = 12;  // There are 16 registers.
constexpr int64_t kRounds = 150'000;

// Each runs kRounds rounds of its sums, and returns a number so that none is left out.
using Loop = float (*)();

__attribute__((noinline)) float MultiplyAdd256() {
  const __m256 x = _mm256_set1_ps(1), y = _mm256_set1_ps(1e-9f);
  __m256 sums[kSums256];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (__m256& sum : sums) sum = _mm256_fmadd_ps(x, y, sum);
  }
  for (const __m256& sum : sums) sums[0] = _mm256_add_ps(sums[0], sum);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((noinline, target("avx512f"))) float MultiplyAdd512() {
  const __m512 x = _mm512_set1_ps(1), y = _mm512_set1_ps(1e-9f);
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_fmadd_ps(x, y, sum);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((noinline, target("avx512f,avx512bf16"))) float MultiplyAddPairs512() {
  const auto x = (__m512bh)_mm512_set1_epi16(0x3f80), y = (__m512bh)_mm512_set1_epi16(0x3089);
  __m512 sums[kSums];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (__m512& sum : sums) sum = _mm512_dpbf16_ps(sum, x, y);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

double ProcessorSecondsOfThread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// flops: multiplications and additions of a call. Returns those of a second, of all threads.
double Measure(Loop loop, double flops, int threads, int repeats) {
  std::vector<double> rates(threads);
  std::vector<std::thread> running;
  for (int thread = 0; thread < threads; ++thread) {
    running.emplace_back([=, &rates] {
      [[maybe_unused]] volatile float sink = 0;
      std::vector<double> seconds(repeats);
      for (double& of_repeat : seconds) {
        const double start = ProcessorSecondsOfThread();
        sink = loop();
        of_repeat = ProcessorSecondsOfThread() - start;
      }
      std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
      rates[thread] = flops / seconds[repeats / 2];
    });
  }
  double sum = 0;
  for (int thread = 0; thread < threads; ++thread) {
    running[thread].join();
    sum += rates[thread];
  }
  return sum;
}

std::string BrandOfCpu() {
  char brand[49] = {};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned words[4] = {};
    if (!__get_cpuid(0x80000002 + leaf, &words[0], &words[1], &words[2], &words[3])) return "a CPU";
    std::memcpy(brand + 16 * leaf, words, sizeof(words));
  }
  const std::string text = brand;
  const size_t begin = text.find_first_not_of(' ');
  return begin == std::string::npos ? "a CPU"
                                    : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

}  // namespace

std::string DescribeCpu() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  __get_cpuid(1, &a, &b, &c, &d);
  const unsigned base_family = a >> 8 & 15;
  const unsigned family = base_family + (base_family == 15 ? a >> 20 & 255 : 0);
  const unsigned model =
      (a >> 4 & 15) + (base_family == 6 || base_family == 15 ? a >> 12 & 240 : 0);
  return BrandOfCpu() + ", family " + std::to_string(family) + ", model " + std::to_string(model) +
         (CpuHasAvx512Bf16() ? ", AVX-512 with bf16"
          : CpuHasAvx512()   ? ", AVX-512"
                             : ", AVX2");
}

CpuCeiling MeasureCpuCeiling(int threads, int repeats) {
  CpuCeiling ceiling;
  ceiling.float32 = CpuHasAvx512()
                        ? Measure(MultiplyAdd512, 32.0 * kSums * kRounds, threads, repeats)
                        : Measure(MultiplyAdd256, 16.0 * kSums256 * kRounds, threads, repeats);
  if (CpuHasAvx512Bf16()) {
    ceiling.bfloat16 = Measure(MultiplyAddPairs512, 64.0 * kSums * kRounds, threads, repeats);
  }
  return ceiling;
}

}  // namespace thermocline
