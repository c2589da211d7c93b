#include <algorithm>
#include <cmath>

#include "kernels/layer_arithmetic.h"
#include "kernels/testing/layer_cases.h"

namespace thermocline {
namespace {

using Rows = const std::vector<const double*>&;
using Results = const std::vector<double*>&;
using Place = DeviceSpan<const SamplePlace>;
using StepMatrices = const std::vector<Matrix>&;

constexpr LayerOperand BySample(int32_t cols) { return {cols}; }
constexpr LayerOperand ByStep(int32_t cols) { return {cols, false, true}; }

// function(steps of the sample, its inputs, its results)
template <typename Function>
LayerCase::Function OfSteps(const std::vector<int32_t>& offsets, Function function) {
  return [offsets, function](int64_t sample, Rows in, Results out) {
    function(offsets[sample + 1] - offsets[sample], in, out);
  };
}

// A case with one input x and one result y, and their gradients.
LayerCase UnaryCase(const LayerCase& base, const char* name, LayerOperand x, LayerOperand y) {
  LayerCase c = base;
  c.name = name;
  c.inputs = {x, y};   // x, gradient of y
  c.outputs = {y, x};  // y, gradient of x
  c.num_function_inputs = 1;
  c.num_results = 1;
  c.input_gradients = {1};
  c.result_gradients = {1};
  return c;
}

LayerCase RepeatCase(const LayerCase& base, int32_t width) {
  LayerCase c = UnaryCase(base, "Repeat", BySample(width), ByStep(width));
  c.call_steps = [](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                    StepMatrices out) {
    s.Repeat(ranges, in[0], out[0]);
    s.Pool(ranges, StepPooling::kSum, in[1], out[1]);
  };
  c.function = OfSteps(c.offsets, [width](int32_t steps, Rows in, Results out) {
    for (int32_t i = 0; i < steps * width; ++i) out[0][i] = in[0][i % width];
  });
  return c;
}

LayerCase PoolCase(const LayerCase& base, int32_t width, StepPooling pooling) {
  LayerCase c = UnaryCase(base, "Pool", ByStep(width), BySample(width));
  c.call_steps = [pooling](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                           StepMatrices out) {
    s.Pool(ranges, pooling, in[0], out[0]);
    s.PoolBackward(ranges, pooling, in[1], out[1]);
  };
  c.function = OfSteps(c.offsets, [=](int32_t steps, Rows in, Results out) {
    for (int32_t i = 0; i < width; ++i) {
      out[0][i] = 0;
      const int32_t first = pooling == StepPooling::kLast ? std::max(steps - 1, 0) : 0;
      for (int32_t t = first; t < steps; ++t) out[0][i] += in[0][t * width + i];
      if (pooling == StepPooling::kMean && steps > 0) out[0][i] /= steps;
    }
  });
  return c;
}

LayerCase PoolWeightedCase(LayerCase base, int32_t width, int which) {
  base.name = "PoolWeighted";
  LayerCase c = MixedCase(
      base, ByStep(1), ByStep(width), width, which,
      [offsets = base.offsets](int64_t sample) { return offsets[sample + 1] - offsets[sample]; });
  c.call_steps = [which](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                         StepMatrices out) {
    s.PoolWeighted(ranges, in[0], in[1], out[0]);
    s.PoolWeightedBackward(ranges, in[0], in[1], in[2], which == 2 ? Matrix() : out[1],
                           which == 1 ? Matrix() : out.back());
  };
  return c;
}

// times: how often the result is computed, and the gradient of the steps is added.
LayerCase CompareCase(const LayerCase& base, int32_t width, int times) {
  LayerCase c = base;
  c.name = "Compare, " + std::to_string(times) + " times";
  c.inputs = {BySample(width), ByStep(width), ByStep(4 * width)};  // queries, x, gradient of y
  c.outputs.assign(times, ByStep(4 * width));
  c.outputs.push_back(ByStep(width));                    // gradient of x
  if (times == 1) c.outputs.push_back(BySample(width));  // gradient of the queries
  c.call_steps = [times](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                         StepMatrices out) {
    for (int i = 0; i < times; ++i) {
      s.Compare(ranges, in[0], in[1], out[i]);
      s.CompareBackward(ranges, in[0], in[1], in[2], times == 1 ? out[2] : Matrix(), i > 0,
                        out[times]);
    }
    if (times == 1) s.CompareBackward(ranges, in[0], in[1], in[2], out[2], false, Matrix());
  };
  c.function = OfSteps(c.offsets, [=](int32_t steps, Rows in, Results out) {
    for (int32_t i = 0; i < steps * width; ++i) {
      const double q = in[0][i % width], x = in[1][i];
      const double parts[] = {q, x, q - x, q * x};
      for (int r = 0; r < times; ++r) {
        for (int p = 0; p < 4; ++p) out[r][(i / width * 4 + p) * width + i % width] = parts[p];
      }
    }
  });
  c.num_function_inputs = 2;
  c.num_results = times;
  c.input_gradients = {times == 1 ? 2 : -1, times};
  c.result_gradients.assign(times, 2);
  return c;
}

LayerCase StepSoftmaxCase(const LayerCase& base, int32_t width, bool without_last) {
  LayerCase c = UnaryCase(base, without_last ? "Softmax without the last step" : "Softmax",
                          ByStep(width), ByStep(width));
  c.call_steps = [without_last](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                                StepMatrices out) {
    s.SoftmaxForward(ranges, without_last, in[0], out[0]);
    s.SoftmaxBackward(ranges, out[0], in[1], out[1]);
  };
  c.function = OfSteps(c.offsets, [=](int32_t steps, Rows in, Results out) {
    for (int32_t i = 0; i < width; ++i) {
      double sum = 0;
      const int32_t counted = without_last ? steps - 1 : steps;
      for (int32_t t = 0; t < counted; ++t) sum += std::exp(in[0][t * width + i]);
      for (int32_t t = 0; t < steps; ++t) {
        out[0][t * width + i] = t < counted ? std::exp(in[0][t * width + i]) / sum : 0;
      }
    }
  });
  c.in_place = {{0, 0}, {1, 1}, {0, 1}};
  return c;
}

LayerCase ClearLastCase(const LayerCase& base, int32_t width) {
  LayerCase c = UnaryCase(base, "ClearLast", ByStep(width), ByStep(width));
  c.call_steps = [](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                    StepMatrices out) {
    s.ClearLast(ranges, in[0], out[0]);
    s.ClearLast(ranges, in[1], out[1]);
  };
  c.function = OfSteps(c.offsets, [width](int32_t steps, Rows in, Results out) {
    for (int32_t i = 0; i < steps * width; ++i) out[0][i] = i / width + 1 < steps ? in[0][i] : 0;
  });
  c.in_place = {{0, 0}, {1, 1}};
  return c;
}

LayerCase StepDropoutCase(const LayerCase& base, int32_t width) {
  LayerCase c = UnaryCase(base, "Dropout of steps", ByStep(width), ByStep(width));
  c.call_steps = [](StepOperations& s, Place place, const StepRanges& ranges, StepMatrices in,
                    StepMatrices out) {
    s.Dropout(ranges, kMaskForTest, place, in[0], out[0]);
    s.Dropout(ranges, kMaskForTest, place, in[1], out[1]);
  };
  c.function = [offsets = c.offsets, width](int64_t sample, Rows in, Results out) {
    const int32_t steps = offsets[sample + 1] - offsets[sample];
    for (int32_t t = 0; t < steps; ++t) {
      const int64_t row = DropoutRowOfStep(kPlaceForTest.first_sample + sample, steps - 1 - t);
      const uint64_t key = DropoutRowKey(kMaskForTest.key, kPlaceForTest.step, row);
      for (int32_t i = 0; i < width; ++i) {
        const bool is_kept = DropoutBitsOfColumn(key, i) >= kMaskForTest.threshold;
        out[0][t * width + i] = is_kept ? in[0][t * width + i] * kMaskForTest.scale : 0;
      }
    }
  };
  c.in_place = {{0, 0}, {1, 1}};
  return c;
}

// One query of one head.
void Attend(int32_t steps, int32_t width, int32_t first, int32_t columns, const double* query,
            const double* keys, const double* values, double* y, double* most, double* inverse) {
  std::vector<double> scores(steps);
  for (int32_t s = 0; s < steps; ++s) {
    for (int32_t i = first; i < first + columns; ++i) scores[s] += query[i] * keys[s * width + i];
    scores[s] /= std::sqrt(columns);
  }
  *most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double score : scores) sum += std::exp(score - *most);
  *inverse = 1 / sum;
  for (int32_t i = first; i < first + columns; ++i) {
    y[i] = 0;
    for (int32_t s = 0; s < steps; ++s) {
      y[i] += std::exp(scores[s] - *most) * *inverse * values[s * width + i];
    }
  }
}

LayerCase AttentionCase(const LayerCase& base, int32_t heads, int32_t head_width) {
  const int32_t width = heads * head_width;
  LayerCase c = base;
  c.name = "Attention";
  c.inputs.assign(4, ByStep(width));   // q, k, v, gradient of y
  c.outputs.assign(5, ByStep(width));  // y, statistics, gradients of q, k and v
  c.outputs[1] = ByStep(2 * heads);
  c.call_steps = [heads](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                         StepMatrices out) {
    s.AttentionForward(ranges, heads, in[0], in[1], in[2], out[0], out[1]);
    s.AttentionBackward(ranges, heads, in[0], in[1], in[2], out[0], out[1], in[3], out[2], out[3],
                        out[4]);
  };
  c.function = OfSteps(c.offsets, [=](int32_t steps, Rows in, Results out) {
    for (int32_t t = 0; t < steps; ++t) {
      for (int32_t h = 0; h < heads; ++h) {
        double* const statistics = out[1] + t * 2 * heads;
        Attend(steps, width, h * head_width, head_width, in[0] + t * width, in[1], in[2],
               out[0] + t * width, &statistics[h], &statistics[heads + h]);
      }
    }
  });
  c.num_function_inputs = 3;
  c.num_results = 2;
  c.input_gradients = {2, 3, 4};
  c.result_gradients = {3, -1};
  return c;
}

LayerCase PositionsCase(const LayerCase& base, int32_t width, int32_t count) {
  LayerCase c = base;
  c.name = "AddPositions, " + std::to_string(count) + " of them";
  const LayerOperand positions = {count * width, true};
  c.inputs = {ByStep(width), positions, ByStep(width)};  // x, positions, gradient of y
  c.outputs = {ByStep(width), positions};                // y, gradient of the positions
  c.call_steps = [](StepOperations& s, Place, const StepRanges& ranges, StepMatrices in,
                    StepMatrices out) {
    s.AddPositions(ranges, {in[1].floats(), in[1].cols}, in[0], out[0]);
    s.PositionGradients(ranges, in[2], {out[1].floats(), out[1].cols});
  };
  c.function = OfSteps(c.offsets, [=](int32_t steps, Rows in, Results out) {
    for (int32_t t = 0; t < steps; ++t) {
      const int32_t position = std::min(steps - 1 - t, count - 1);
      for (int32_t i = 0; i < width; ++i) {
        out[0][t * width + i] = in[0][t * width + i] + in[1][position * width + i];
      }
    }
  });
  c.num_function_inputs = 2;
  c.num_results = 1;
  c.input_gradients = {-1, 1};
  c.result_gradients = {2};
  c.in_place = {{0, 0}};
  return c;
}

}  // namespace

std::vector<LayerCase> StepCases(const std::vector<int32_t>& lengths, int64_t rows_beyond,
                                 int32_t heads, int32_t head_width) {
  LayerCase base;
  base.batch = static_cast<int32_t>(lengths.size());
  base.offsets = {0};
  for (int32_t length : lengths) base.offsets.push_back(base.offsets.back() + length);
  base.step_rows = base.offsets.back() + rows_beyond;
  const int32_t width = heads * head_width;
  std::vector<LayerCase> cases = {RepeatCase(base, width)};
  for (StepPooling pooling : {StepPooling::kSum, StepPooling::kMean, StepPooling::kLast}) {
    cases.push_back(PoolCase(base, width, pooling));
  }
  for (bool without_last : {false, true}) {
    cases.push_back(StepSoftmaxCase(base, width, without_last));
  }
  for (int which : {0, 1, 2}) cases.push_back(PoolWeightedCase(base, width, which));
  for (int times : {1, 2}) cases.push_back(CompareCase(base, width, times));
  cases.push_back(ClearLastCase(base, width));
  cases.push_back(StepDropoutCase(base, width));
  cases.push_back(AttentionCase(base, heads, head_width));
  for (int32_t count : {1, 3, 50}) cases.push_back(PositionsCase(base, width, count));
  return cases;
}

}  // namespace thermocline
