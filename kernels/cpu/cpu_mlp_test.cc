#include "kernels/cpu/cpu_mlp.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
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
    config.max_batch = c.batch + 2;
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

  Results Execute(int32_t batch, int threads, GemmFunction gemm) const {
    ThreadPool pool(threads);
    CpuMlp mlp(config, gemm, &pool);
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
    mlp.Forward(p, in, out);
    mlp.BackwardData(p, out, d_out, d_in);
    mlp.BackwardParameters(in, d_out, {run.gradients.data(), arena});
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
    const Results run = problem.Execute(c.batch, 2, GemmAvx2);
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
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(CpuMlpTest, SameBitsForAnyThreadsAndInstructions) {
  std::mt19937_64 rng(TestSeed());
  for (const Case& c :
       {Case{{13, 140, 70, 16}, 257, true, true}, Case{{140, 66, 1}, 300, false, true},
        Case{{3, 5}, 1, true, true}, Case{{70, 3, 2}, 3, false, true},
        Case{{70, 70, 61}, 300, true, true, false}}) {
    const Problem problem(c, &rng);
    const Results expected = problem.Execute(c.batch, 1, GemmAvx2);
    for (int threads : {1, 2, 4}) {
      for (GemmFunction gemm : {GemmAvx2, HasAvx512() ? GemmAvx512 : GemmAvx2}) {
        const Results run = problem.Execute(c.batch, threads, gemm);
        EXPECT_TRUE(SameBits(run.output, expected.output)) << Name(c);
        EXPECT_TRUE(SameBits(run.input_gradient, expected.input_gradient)) << Name(c);
        EXPECT_TRUE(SameBits(run.gradients, expected.gradients)) << Name(c);
      }
    }
  }
}

// A worker may have no samples in the last global batch: its gradients are zero, not stale.
TEST(CpuMlpTest, AnEmptyBatchHasZeroGradients) {
  std::mt19937_64 rng(TestSeed());
  const Problem problem({{13, 70, 1}, 4, false, true}, &rng);
  const Results run = problem.Execute(0, 2, GemmAvx2);
  for (int64_t i = 0; i < 13 * 70; ++i) {
    ASSERT_EQ(run.gradients[problem.config.weight_offsets[0] + i], 0);
  }
  for (int64_t i = 0; i < 70; ++i) {
    ASSERT_EQ(run.gradients[problem.config.weight_offsets[1] + i], 0);
    ASSERT_EQ(run.gradients[problem.config.bias_offsets[0] + i], 0);
  }
  EXPECT_EQ(run.gradients[problem.config.bias_offsets[1]], 0);
}

}  // namespace
}  // namespace thermocline
