#include "kernels/cpu/cpu_mlp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/bf16_mlp.h"
#include "kernels/testing/bf16_arithmetic.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

constexpr float kUntouched = 12345;

struct Case {
  std::vector<int32_t> widths;
  int32_t batch;
  bool relu_after_last;
  bool input_gradient;
  bool bias = true;
};

std::vector<Case> Cases() {
  return {{{1, 1}, 1, false, true},        {{5, 3}, 3, true, true},
          {{13, 20, 7}, 9, true, false},   {{9, 70, 33, 1}, 4, false, true},
          {{65, 12, 1, 6}, 5, true, true}, {{130, 12, 1}, 3, false, true},
          {{4, 300, 2}, 2, true, true},    {{7, 5, 1}, 4, true, true, false},
          {{5, 61}, 3, true, true, false}};
}

using MlpMaker = std::function<std::unique_ptr<Mlp>(const MlpConfig&, ThreadPool*)>;

MlpMaker With(GemmFunction gemm) {
  return [gemm](const MlpConfig& config, ThreadPool* pool) {
    return std::make_unique<CpuMlp>(config, gemm, pool);
  };
}

MlpMaker With(Bf16GemmFunction gemm) {
  // The Mlps of a device share it: what another has left there does not matter.
  const auto scratch = std::make_shared<Bf16Scratch>(/*num_threads=*/4);
  return [gemm, scratch](const MlpConfig& config, ThreadPool* pool) {
    return std::make_unique<Bf16Mlp>(config, gemm, pool, scratch);
  };
}

// With all instructions that this machine has.
std::vector<MlpMaker> Float32Mlps() {
  return {With(GemmAvx2), With(HasAvx512() ? GemmAvx512 : GemmAvx2)};
}
std::vector<MlpMaker> Bf16Mlps() {
  return {With(Bf16GemmAvx2), With(HasAvx512Bf16() ? Bf16GemmAvx512 : Bf16GemmAvx2)};
}

struct Results {
  std::vector<float> output, input_gradient, gradients;
};

// An MLP's parameters, input and output gradient. Matrices are the last columns of wider ones, with
// NaNs before each row; arenas have gaps.
struct Problem {
  static constexpr int64_t kInputOffset = 3, kOutputOffset = 3;
  MlpConfig config;
  int64_t arena = 3;
  std::vector<float> parameters, input, output_gradient;
  int64_t input_ld, output_ld;

  Problem(const Case& c, std::mt19937_64* rng) {
    config.widths = c.widths;
    config.relu_after_last = c.relu_after_last;
    config.input_gradient = c.input_gradient;
    config.max_batch = config.max_trained = c.batch + 2;
    for (size_t i = 0; i + 1 < c.widths.size(); ++i) {
      config.weight_offsets.push_back(arena);
      arena += int64_t{c.widths[i]} * c.widths[i + 1] + 2;
      config.bias_offsets.push_back(c.bias ? arena : kNoBias);
      arena += c.widths[i + 1] + 1;
    }
    input_ld = c.widths.front() + kInputOffset;
    output_ld = c.widths.back() + kOutputOffset;  // A panel's width for 61 columns.
    parameters = RandomFloats(rng, arena, 0.5f);
    input = RandomFloats(rng, c.batch * input_ld);
    output_gradient = RandomFloats(rng, c.batch * output_ld);
    for (int32_t b = 0; b < c.batch; ++b) {
      std::fill_n(input.begin() + b * input_ld, kInputOffset, std::nanf(""));
      std::fill_n(output_gradient.begin() + b * output_ld, kOutputOffset, std::nanf(""));
    }
  }

  Results Execute(int32_t batch, int threads, const MlpMaker& make) const {
    ThreadPool pool(threads);
    return Execute(batch, make(config, &pool).get());
  }

  Results Execute(int32_t batch, Mlp* mlp) const {
    Results run;
    run.output.assign(batch * output_ld, kUntouched);
    run.input_gradient.assign(batch * input_ld, kUntouched);
    run.gradients.assign(arena, kUntouched);
    std::vector<float> x = input, dy = output_gradient;
    const auto last_columns = [batch](std::vector<float>* wide, int32_t columns, int64_t ld) {
      float* const first = wide->empty() ? nullptr : wide->data() + (ld - columns);
      return FloatMatrix(first, batch, columns, ld);
    };
    const Matrix in = last_columns(&x, config.widths.front(), input_ld);
    const Matrix out = last_columns(&run.output, config.widths.back(), output_ld);
    const Matrix d_out = last_columns(&dy, config.widths.back(), output_ld);
    const Matrix d_in = last_columns(&run.input_gradient, config.widths.front(), input_ld);
    const DeviceSpan<const float> p = {parameters.data(), arena};
    mlp->Forward(p, in, out);
    mlp->BackwardData(p, out, d_out, d_in);
    mlp->BackwardParameters(in, d_out, {run.gradients.data(), arena});
    return run;
  }

  // sum(output_gradient * output) in double; fills `output` [batch * width].
  double Loss(const std::vector<double>& arena_values, const std::vector<double>& inputs,
              int32_t batch, std::vector<double>* output) const {
    double loss = 0;
    output->clear();
    for (int32_t b = 0; b < batch; ++b) {
      std::vector<double> x(inputs.begin() + b * input_ld + kInputOffset,
                            inputs.begin() + (b + 1) * input_ld);
      for (size_t i = 0; i + 1 < config.widths.size(); ++i) {
        const int32_t out = config.widths[i + 1];
        std::vector<double> y(out);
        for (int32_t o = 0; o < out; ++o) {
          const int64_t bias = config.bias_offsets[i];
          y[o] = bias == kNoBias ? 0 : arena_values[bias + o];
          for (size_t k = 0; k < x.size(); ++k) {
            y[o] += x[k] * arena_values[config.weight_offsets[i] + k * out + o];
          }
          const bool relu = i + 2 < config.widths.size() || config.relu_after_last;
          if (relu) y[o] = std::max(y[o], 0.0);
        }
        x = y;
      }
      for (size_t o = 0; o < x.size(); ++o) {
        loss += x[o] * output_gradient[b * output_ld + kOutputOffset + o];
        output->push_back(x[o]);
      }
    }
    return loss;
  }
};

std::string Name(const Case& c) {
  std::string name;
  for (int32_t width : c.widths) name += std::to_string(width) + " ";
  return name + "batch " + std::to_string(c.batch);
}

TEST(CpuMlpTest, AgreesWithPlainLoopsAndFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  for (const Case& c : Cases()) {
    const Problem problem(c, &rng);
    const Results run = problem.Execute(c.batch, 2, With(GemmAvx2));
    std::vector<double> arena(problem.parameters.begin(), problem.parameters.end());
    std::vector<double> inputs(problem.input.begin(), problem.input.end());
    std::vector<double> output, ignored;
    problem.Loss(arena, inputs, c.batch, &output);
    const int32_t width = c.widths.back();
    for (int32_t b = 0; b < c.batch; ++b) {
      for (int32_t j = 0; j < problem.output_ld; ++j) {
        const float got = run.output[b * problem.output_ld + j];
        if (j >= Problem::kOutputOffset) {
          const double expected = output[b * width + j - Problem::kOutputOffset];
          ASSERT_NEAR(got, expected, 1e-4) << Name(c);
        } else {
          ASSERT_EQ(got, kUntouched) << Name(c);
        }
      }
    }
    const auto difference = [&](double* value) {
      const double kept = *value, eps = 1e-6;
      *value = kept + eps;
      const double up = problem.Loss(arena, inputs, c.batch, &ignored);
      *value = kept - eps;
      const double down = problem.Loss(arena, inputs, c.batch, &ignored);
      *value = kept;
      return (up - down) / (2 * eps);
    };
    std::vector<bool> is_parameter(problem.arena, false);
    for (size_t i = 0; i + 1 < c.widths.size(); ++i) {
      for (int64_t k = 0; k < int64_t{c.widths[i]} * c.widths[i + 1]; ++k) {
        is_parameter[problem.config.weight_offsets[i] + k] = true;
      }
      for (int32_t k = 0; c.bias && k < c.widths[i + 1]; ++k) {
        is_parameter[problem.config.bias_offsets[i] + k] = true;
      }
    }
    for (int64_t i = 0; i < problem.arena; ++i) {
      if (is_parameter[i]) {
        const double expected = difference(&arena[i]);
        ASSERT_NEAR(run.gradients[i], expected, 1e-4 + 1e-4 * std::fabs(expected))
            << Name(c) << " parameter " << i;
      } else {
        ASSERT_EQ(run.gradients[i], kUntouched) << Name(c);
      }
    }
    for (int32_t b = 0; c.input_gradient && b < c.batch; ++b) {
      for (int32_t j = 0; j < c.widths[0]; ++j) {
        const int64_t at = b * problem.input_ld + Problem::kInputOffset + j;
        ASSERT_NEAR(run.input_gradient[at], difference(&inputs[at]), 1e-4) << Name(c);
      }
    }
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// As bf16_mlp.h has it, one number at a time.
Results Bf16Reference(const Problem& p, int32_t batch) {
  const int num_layers = static_cast<int>(p.config.widths.size()) - 1;
  const auto width = [&p](int i) { return p.config.widths[i]; };
  const auto weight = [&](int i, int32_t k, int32_t o) {
    const int64_t at = p.config.weight_offsets[i] + int64_t{k} * width(i + 1) + o;
    return RoundedToBf16(p.parameters[at]);
  };
  // A chain of n steps, of which factors(l) are rounded.
  const auto chain = [](float sum, int32_t n, const auto& factors) {
    for (int32_t l = 0; l < n; ++l) {
      const auto [a, b] = factors(l);
      sum = Bf16Step(a, b, sum);
    }
    return n % 2 == 1 ? Bf16Step(0, 0, sum) : sum;
  };
  Results run;
  run.output.assign(batch * p.output_ld, kUntouched);
  run.input_gradient.assign(batch * p.input_ld, kUntouched);
  run.gradients.assign(p.arena, kUntouched);
  // [layers][batch, width] The input and the output gradient of every layer, rounded.
  std::vector<std::vector<float>> x(num_layers), dy(num_layers);
  for (int i = 0; i < num_layers; ++i) {
    x[i].resize(int64_t{batch} * width(i));
    dy[i].resize(int64_t{batch} * width(i + 1));
  }
  for (int32_t b = 0; b < batch; ++b) {
    for (int32_t k = 0; k < width(0); ++k) {
      x[0][b * width(0) + k] = RoundedToBf16(p.input[b * p.input_ld + Problem::kInputOffset + k]);
    }
    for (int i = 0; i < num_layers; ++i) {
      const bool is_last = i + 1 == num_layers;
      for (int32_t o = 0; o < width(i + 1); ++o) {
        const int64_t bias = p.config.bias_offsets[i];
        float sum = chain(bias == kNoBias ? 0 : p.parameters[bias + o], width(i), [&](int32_t k) {
          return std::pair(x[i][b * width(i) + k], weight(i, k, o));
        });
        if (!is_last || p.config.relu_after_last) sum = sum > 0 ? sum : 0;
        if (!is_last) {
          x[i + 1][b * width(i + 1) + o] = RoundedToBf16(sum);
          continue;
        }
        const int64_t at = b * p.output_ld + Problem::kOutputOffset + o;
        run.output[at] = sum;
        const bool is_kept = !p.config.relu_after_last || sum > 0;
        dy[i][b * width(i + 1) + o] = is_kept ? RoundedToBf16(p.output_gradient[at]) : 0;
      }
    }
    for (int i = num_layers - 1; i > 0 || (i == 0 && p.config.input_gradient); --i) {
      for (int32_t k = 0; k < width(i); ++k) {
        const float sum = chain(0, width(i + 1), [&](int32_t o) {
          return std::pair(dy[i][b * width(i + 1) + o], weight(i, k, o));
        });
        if (i > 0) {
          dy[i - 1][b * width(i) + k] = x[i][b * width(i) + k] > 0 ? RoundedToBf16(sum) : 0;
        } else {
          run.input_gradient[b * p.input_ld + Problem::kInputOffset + k] = sum;
        }
      }
    }
  }
  for (int i = 0; i < num_layers; ++i) {
    for (int32_t o = 0; o < width(i + 1); ++o) {
      const auto gradient = [&](int32_t b) { return dy[i][b * width(i + 1) + o]; };
      for (int32_t k = 0; k < width(i); ++k) {
        run.gradients[p.config.weight_offsets[i] + int64_t{k} * width(i + 1) + o] = chain(
            0, batch, [&](int32_t b) { return std::pair(x[i][b * width(i) + k], gradient(b)); });
      }
      if (p.config.bias_offsets[i] == kNoBias) continue;
      run.gradients[p.config.bias_offsets[i] + o] =
          chain(0, batch, [&](int32_t b) { return std::pair(1.0f, gradient(b)); });
    }
  }
  return run;
}

TEST(Bf16MlpTest, IsTheReferenceBitByBit) {
  std::mt19937_64 rng(TestSeed());
  std::vector<Case> cases = Cases();
  cases.push_back({{13, 140, 70, 16}, 257, true, true});
  cases.push_back({{140, 66, 1}, 301, false, true});
  for (const Case& c : cases) {
    const Problem problem(c, &rng);
    const Results expected = Bf16Reference(problem, c.batch);
    for (const MlpMaker& make : Bf16Mlps()) {
      const Results run = problem.Execute(c.batch, 2, make);
      EXPECT_TRUE(SameBits(run.output, expected.output)) << Name(c);
      EXPECT_TRUE(SameBits(run.gradients, expected.gradients)) << Name(c);
      if (!c.input_gradient) continue;
      EXPECT_TRUE(SameBits(run.input_gradient, expected.input_gradient)) << Name(c);
    }
  }
}

// The length of a - b, as a share of the length of b, both of what an MLP has written.
double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == kUntouched) continue;
    difference += std::pow(double{a[i]} - b[i], 2);
    length += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / length);
}

TEST(Bf16MlpTest, IsCloseToFloat32) {
  std::mt19937_64 rng(TestSeed());
  const Case c = {{40, 120, 60, 1}, 200, false, true};
  Problem problem(c, &rng);
  for (float& x : problem.parameters) x *= 0.2f;  // as wide layers begin
  const Results exact = problem.Execute(c.batch, 1, With(GemmAvx2));
  const Results run = problem.Execute(c.batch, 1, With(Bf16GemmAvx2));
  EXPECT_LT(Distance(run.output, exact.output), 0.02);
  EXPECT_LT(Distance(run.input_gradient, exact.input_gradient), 0.05);
  EXPECT_LT(Distance(run.gradients, exact.gradients), 0.05);
  EXPECT_GT(Distance(run.gradients, exact.gradients), 1e-4);
}

TEST(CpuMlpTest, SameBitsForAnyThreadsAndInstructions) {
  std::mt19937_64 rng(TestSeed());
  for (const Case& c :
       {Case{{13, 140, 70, 16}, 257, true, true}, Case{{140, 66, 1}, 300, false, true},
        Case{{3, 5}, 1, true, true}, Case{{70, 3, 2}, 3, false, true},
        Case{{70, 70, 61}, 300, true, true, false}}) {
    const Problem problem(c, &rng);
    for (const std::vector<MlpMaker>& makers : {Float32Mlps(), Bf16Mlps()}) {
      const Results expected = problem.Execute(c.batch, 1, makers[0]);
      for (int threads : {1, 2, 4}) {
        for (const MlpMaker& make : makers) {
          const Results run = problem.Execute(c.batch, threads, make);
          EXPECT_TRUE(SameBits(run.output, expected.output)) << Name(c);
          EXPECT_TRUE(SameBits(run.input_gradient, expected.input_gradient)) << Name(c);
          EXPECT_TRUE(SameBits(run.gradients, expected.gradients)) << Name(c);
        }
      }
    }
  }
}

// The steps of sequences are so many in one batch and so many in the next.
TEST(CpuMlpTest, NothingOfALargerBatchIsLeft) {
  std::mt19937_64 rng(TestSeed());
  const int32_t most = 300;
  const Problem problem({{70, 40, 7}, most, true, true}, &rng);
  for (const MlpMaker& make : {With(GemmAvx2), With(Bf16GemmAvx2)}) {
    ThreadPool pool(2);
    const std::unique_ptr<Mlp> mlp = make(problem.config, &pool);
    for (int32_t batch : {most, 0, 1, 257, 2, 17, most}) {
      const Results expected = problem.Execute(batch, 1, make);
      const Results run = problem.Execute(batch, mlp.get());
      EXPECT_TRUE(SameBits(run.output, expected.output)) << batch;
      EXPECT_TRUE(SameBits(run.input_gradient, expected.input_gradient)) << batch;
      EXPECT_TRUE(SameBits(run.gradients, expected.gradients)) << batch;
    }
  }
}

// A worker may have no samples in the last global batch: its gradients are zero, not stale.
TEST(CpuMlpTest, AnEmptyBatchHasZeroGradients) {
  std::mt19937_64 rng(TestSeed());
  const Problem problem({{13, 70, 1}, 4, false, true}, &rng);
  for (const MlpMaker& make : {With(GemmAvx2), With(Bf16GemmAvx2)}) {
    const Results run = problem.Execute(0, 2, make);
    for (int64_t i = 0; i < 13 * 70; ++i) {
      ASSERT_EQ(run.gradients[problem.config.weight_offsets[0] + i], 0);
    }
    for (int64_t i = 0; i < 70; ++i) {
      ASSERT_EQ(run.gradients[problem.config.weight_offsets[1] + i], 0);
      ASSERT_EQ(run.gradients[problem.config.bias_offsets[0] + i], 0);
    }
    EXPECT_EQ(run.gradients[problem.config.bias_offsets[1]], 0);
  }
}

}  // namespace
}  // namespace thermocline
