#include "kernels/testing/layer_cases.h"

#include <algorithm>
#include <cmath>

#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace {

DeviceSpan<float> SpanOf(const Matrix& m) { return {m.floats(), m.cols}; }
DeviceSpan<const float> ConstSpanOf(const Matrix& m) { return {m.floats(), m.cols}; }

std::vector<const double*> RowsAt(const LayerCase& c, const LayerValues& values, int count,
                                  int64_t sample) {
  std::vector<const double*> rows;
  for (int i = 0; i < count; ++i) {
    const LayerOperand& operand = c.inputs[i];
    rows.push_back(values[i].data() + c.FirstRowOf(operand, sample) * operand.cols);
  }
  return rows;
}

// sum of the results of a sample times their gradients
double Loss(const LayerCase& c, const LayerValues& inputs, int64_t sample) {
  LayerValues results(c.num_results);
  std::vector<double*> to;
  for (int r = 0; r < c.num_results; ++r) {
    results[r].resize(c.RowsOfSample(c.outputs[r], sample) * c.outputs[r].cols);
    to.push_back(results[r].data());
  }
  c.function(sample, RowsAt(c, inputs, c.num_function_inputs, sample), to);
  double loss = 0;
  for (int r = 0; r < c.num_results; ++r) {
    if (c.result_gradients[r] < 0) continue;
    const double* const gradient = inputs[c.result_gradients[r]].data() +
                                   c.FirstRowOf(c.outputs[r], sample) * c.outputs[r].cols;
    for (size_t i = 0; i < results[r].size(); ++i) loss += results[r][i] * gradient[i];
  }
  return loss;
}

// Element by element: result = function(inputs).
LayerCase::Function Elementwise(int32_t cols, int num_inputs,
                                std::function<double(const double*)> function) {
  return [=](int64_t, const std::vector<const double*>& in, const std::vector<double*>& out) {
    for (int32_t c = 0; c < cols; ++c) {
      double values[4] = {};
      for (int i = 0; i < num_inputs; ++i) values[i] = in[i][c];
      out[0][c] = function(values);
    }
  };
}

void AddElementwiseCases(int32_t batch, int32_t cols, std::vector<LayerCase>* cases) {
  using Matrices = const std::vector<Matrix>&;
  using Place = DeviceSpan<const SamplePlace>;
  const LayerOperand wide = {cols}, number = {1};
  const auto add = [&](const char* name, int num_inputs, auto call, auto function) {
    LayerCase c;
    c.name = name;
    c.batch = batch;
    c.inputs.assign(num_inputs, wide);
    c.outputs = {wide};
    c.call = call;
    c.function = Elementwise(cols, num_inputs, function);
    c.num_function_inputs = num_inputs;
    c.num_results = 1;
    c.result_gradients = {-1};
    for (int i = 0; i < num_inputs; ++i) c.in_place.emplace_back(i, 0);
    cases->push_back(c);
    return &cases->back();
  };
  add(
      "Copy", 1,
      [](LayerOperations& l, Place, Matrices in, Matrices out) { l.Copy(in[0], out[0]); },
      [](const double* x) { return x[0]; });
  add(
      "Add", 2,
      [](LayerOperations& l, Place, Matrices in, Matrices out) { l.Add(in[0], in[1], out[0]); },
      [](const double* x) { return x[0] + x[1]; });
  add(
      "MultiplyAdd", 3,
      [](LayerOperations& l, Place, Matrices in, Matrices out) {
        l.MultiplyAdd(2.5f, in[0], in[1], in[2], out[0]);
      },
      [](const double* x) { return 2.5 * x[0] * x[1] + x[2]; });
  add(
      "Multiply", 2,
      [](LayerOperations& l, Place, Matrices in, Matrices out) {
        l.MultiplyAdd(1, in[0], in[1], {}, out[0]);
      },
      [](const double* x) { return x[0] * x[1]; });
  const std::pair<ActivationKind, std::function<double(double)>> activations[] = {
      {ActivationKind::kRelu, [](double x) { return std::max(x, 0.0); }},
      {ActivationKind::kSigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }},
      {ActivationKind::kTanh, [](double x) { return std::tanh(x); }}};
  for (const auto& [kind, function] : activations) {
    add(
        "ActivationForward", 1,
        [kind = kind](LayerOperations& l, Place, Matrices in, Matrices out) {
          l.ActivationForward(kind, {}, in[0], out[0]);
        },
        [function = function](const double* x) { return function(x[0]); });
    LayerCase* const c = add(
        "Activation", 1,
        [kind = kind](LayerOperations& l, Place, Matrices in, Matrices out) {
          l.ActivationForward(kind, {}, in[0], out[0]);
          l.ActivationBackward(kind, {}, {}, out[0], in[1], out[1], {});
        },
        [function = function](const double* x) { return function(x[0]); });
    c->inputs = {wide, wide};
    c->outputs = {wide, wide};
    c->input_gradients = {1};
    c->result_gradients = {1};
    c->in_place = {{1, 1}};
  }
  LayerCase* const dropout = add(
      "Dropout", 1,
      [](LayerOperations& l, Place place, Matrices in, Matrices out) {
        l.Dropout(kMaskForTest, place, in[0], out[0]);
      },
      [](const double*) { return 0; });
  dropout->function = [cols](int64_t sample, const std::vector<const double*>& in,
                             const std::vector<double*>& out) {
    const uint64_t key =
        DropoutRowKey(kMaskForTest.key, kPlaceForTest.step, kPlaceForTest.first_sample + sample);
    for (int32_t i = 0; i < cols; ++i) {
      const bool is_kept = DropoutBitsOfColumn(key, i) >= kMaskForTest.threshold;
      out[0][i] = is_kept ? in[0][i] * kMaskForTest.scale : 0;
    }
  };
  LayerCase* const scale = add(
      "ScaleRows", 2,
      [](LayerOperations& l, Place, Matrices in, Matrices out) {
        l.ScaleRows(in[0], in[1], out[0]);
      },
      [](const double*) { return 0; });
  scale->inputs[0] = number;
  scale->in_place = {{1, 0}};
  scale->function = [cols](int64_t, const std::vector<const double*>& in,
                           const std::vector<double*>& out) {
    for (int32_t i = 0; i < cols; ++i) out[0][i] = in[0][0] * in[1][i];
  };
  LayerCase* const dot = add(
      "RowDot", 2,
      [](LayerOperations& l, Place, Matrices in, Matrices out) { l.RowDot(in[0], in[1], out[0]); },
      [](const double*) { return 0; });
  dot->outputs = {number};
  dot->in_place = {};
  dot->function = [cols](int64_t, const std::vector<const double*>& in,
                         const std::vector<double*>& out) {
    out[0][0] = 0;
    for (int32_t i = 0; i < cols; ++i) out[0][0] += in[0][i] * in[1][i];
  };
}

LayerCase ProductLogitCase(int32_t batch, int32_t cols) {
  LayerCase c;
  c.name = "ProductLogit";
  c.batch = batch;
  c.inputs = {{cols}, {cols}, {cols}};   // a, b, gradient of the output
  c.outputs = {{cols}, {cols}, {cols}};  // the output, gradients of a and of b
  c.call = [](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
              const std::vector<Matrix>& out) {
    l.ProductLogitForward(in[0], in[1], out[0]);
    l.ProductLogitBackward(in[0], in[1], in[2], out[1]);
    l.ProductLogitBackward(in[1], in[0], in[2], out[2]);
  };
  c.function = Elementwise(cols, 2, [](const double* x) {
    return -std::log(std::exp(-x[0]) + std::exp(-x[1]) + std::exp(-x[0] - x[1]));
  });
  c.num_function_inputs = 2;
  c.num_results = 1;
  c.input_gradients = {1, 2};
  c.result_gradients = {2};
  c.in_place = {{0, 2}, {1, 2}, {2, 2}};
  return c;
}

LayerCase PreluCase(int32_t batch, int32_t cols) {
  LayerCase c;
  c.name = "Prelu";
  c.batch = batch;
  c.inputs = {{cols}, {cols, true}, {cols}};   // x, slopes, gradient of y
  c.outputs = {{cols}, {cols}, {cols, true}};  // y, gradients of x and of slopes
  c.call = [](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
              const std::vector<Matrix>& out) {
    l.ActivationForward(ActivationKind::kPrelu, ConstSpanOf(in[1]), in[0], out[0]);
    l.ActivationBackward(ActivationKind::kPrelu, ConstSpanOf(in[1]), in[0], {}, in[2], out[1],
                         SpanOf(out[2]));
  };
  c.function = Elementwise(cols, 2, [](const double* x) { return x[0] > 0 ? x[0] : x[1] * x[0]; });
  c.num_function_inputs = 2;
  c.num_results = 1;
  c.input_gradients = {1, 2};
  c.result_gradients = {2};
  c.in_place = {{0, 1}, {2, 1}};
  return c;
}

LayerCase LayerNormCase(int32_t batch, int32_t cols) {
  constexpr float kEpsilon = 0.01f;
  LayerCase c;
  c.name = "LayerNorm";
  c.batch = batch;
  c.inputs = {{cols}, {cols, true}, {cols, true}, {cols}};        // x, gain, bias, gradient of y
  c.outputs = {{cols}, {2}, {cols}, {cols, true}, {cols, true}};  // y, moments, gradients
  c.call = [](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
              const std::vector<Matrix>& out) {
    l.LayerNormForward(in[0], ConstSpanOf(in[1]), ConstSpanOf(in[2]), kEpsilon, out[0], out[1]);
    l.LayerNormBackward(in[0], out[1], ConstSpanOf(in[1]), in[3], out[2], SpanOf(out[3]),
                        SpanOf(out[4]));
  };
  c.function = [cols](int64_t, const std::vector<const double*>& in,
                      const std::vector<double*>& out) {
    double mean = 0, variance = 0;
    for (int32_t i = 0; i < cols; ++i) mean += in[0][i] / cols;
    for (int32_t i = 0; i < cols; ++i) {
      variance += (in[0][i] - mean) * (in[0][i] - mean) / cols;
    }
    const double scale = 1 / std::sqrt(variance + kEpsilon);
    for (int32_t i = 0; i < cols; ++i) {
      out[0][i] = (in[0][i] - mean) * scale * in[1][i] + in[2][i];
    }
    out[1][0] = mean;
    out[1][1] = scale;
  };
  c.num_function_inputs = 3;
  c.num_results = 2;
  c.input_gradients = {2, 3, 4};
  c.result_gradients = {3, -1};
  c.in_place = {{0, 2}, {3, 2}};
  return c;
}

LayerCase NormalizeCase(int32_t batch, int32_t vectors, int32_t width, float epsilon) {
  const int32_t cols = vectors * width;
  LayerCase c;
  c.name = "Normalize";
  c.batch = batch;
  c.inputs = {{cols}, {cols}};              // x, gradient of y
  c.outputs = {{cols}, {vectors}, {cols}};  // y, lengths, gradient of x
  c.call = [=](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
               const std::vector<Matrix>& out) {
    l.NormalizeForward(in[0], width, epsilon, out[0], out[1]);
    l.NormalizeBackward(out[0], width, epsilon, out[1], in[1], out[2]);
  };
  c.function = [=](int64_t, const std::vector<const double*>& in, const std::vector<double*>& out) {
    for (int32_t v = 0; v < vectors; ++v) {
      double squares = 0;
      for (int32_t i = 0; i < width; ++i) squares += std::pow(in[0][v * width + i], 2);
      const double divisor = std::max(std::sqrt(squares), static_cast<double>(epsilon));
      for (int32_t i = 0; i < width; ++i) out[0][v * width + i] = in[0][v * width + i] / divisor;
      out[1][v] = divisor;
    }
  };
  c.num_function_inputs = 1;
  c.num_results = 2;
  c.input_gradients = {2};
  c.result_gradients = {1, -1};
  c.in_place = {{1, 2}};
  return c;
}

LayerCase FmCase(int32_t batch, int32_t vectors, int32_t width) {
  const int32_t cols = vectors * width;
  LayerCase c;
  c.name = "Fm";
  c.batch = batch;
  c.inputs = {{cols}, {1}};            // x, gradient of the output
  c.outputs = {{1}, {width}, {cols}};  // output, sums, gradient of x
  c.call = [=](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
               const std::vector<Matrix>& out) {
    l.FmForward(in[0], width, out[1], out[0]);
    l.FmBackward(in[0], width, out[1], in[1], out[2]);
  };
  c.function = [=](int64_t, const std::vector<const double*>& in, const std::vector<double*>& out) {
    out[0][0] = 0;
    for (int32_t i = 0; i < width; ++i) {
      // The sum of the products of pairs, which the formula of squares is equal to.
      out[1][i] = 0;
      for (int32_t v = 0; v < vectors; ++v) {
        out[0][0] += out[1][i] * in[0][v * width + i];
        out[1][i] += in[0][v * width + i];
      }
    }
  };
  c.num_function_inputs = 1;
  c.num_results = 2;
  c.input_gradients = {2};
  c.result_gradients = {1, -1};
  c.in_place = {{0, 2}};
  return c;
}

LayerCase EmbedCase(int32_t batch, int32_t numbers, int32_t dim, bool x_gradient) {
  const int32_t cols = numbers * dim;
  LayerCase c;
  c.name = x_gradient ? "Embed" : "Embed without the numbers' gradient";
  c.batch = batch;
  c.inputs = {{numbers}, {cols, true}, {cols}};   // x, vectors, gradient of y
  c.outputs = {{cols}, {cols, true}, {numbers}};  // y, gradients of vectors and of x
  if (!x_gradient) c.outputs.pop_back();
  c.call = [=](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
               const std::vector<Matrix>& out) {
    l.EmbedForward(in[0], ConstSpanOf(in[1]), out[0]);
    l.EmbedBackward(in[0], ConstSpanOf(in[1]), in[2], x_gradient ? out[2] : Matrix(),
                    SpanOf(out[1]));
  };
  c.function = [=](int64_t, const std::vector<const double*>& in, const std::vector<double*>& out) {
    for (int32_t i = 0; i < cols; ++i) out[0][i] = in[0][i / dim] * in[1][i];
  };
  c.num_function_inputs = 2;
  c.num_results = 1;
  c.input_gradients = {x_gradient ? 2 : -1, 1};
  c.result_gradients = {2};
  if (x_gradient) c.in_place = {{0, 2}};
  return c;
}

// The sum of vectors, and its gradient, which is the repeated gradient of the sum.
LayerCase SumVectorsCase(int32_t batch, int32_t vectors, int32_t width) {
  const int32_t cols = vectors * width;
  const float scale = 1.0f / static_cast<float>(vectors);
  LayerCase c;
  c.name = "SumVectors";
  c.batch = batch;
  c.inputs = {{cols}, {width}};   // x, gradient of the sum
  c.outputs = {{width}, {cols}};  // sum, gradient of x
  c.call = [=](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
               const std::vector<Matrix>& out) {
    l.SumVectors(in[0], scale, out[0]);
    l.RepeatVector(in[1], scale, out[1]);
  };
  c.function = [=](int64_t, const std::vector<const double*>& in, const std::vector<double*>& out) {
    for (int32_t i = 0; i < width; ++i) {
      out[0][i] = 0;
      for (int32_t v = 0; v < vectors; ++v) out[0][i] += scale * in[0][v * width + i];
    }
  };
  c.num_function_inputs = 1;
  c.num_results = 1;
  c.input_gradients = {1};
  c.result_gradients = {1};
  return c;
}

LayerCase SoftmaxCase(int32_t batch, int32_t cols) {
  LayerCase c;
  c.name = "Softmax";
  c.batch = batch;
  c.inputs = {{cols}, {cols}};   // x, gradient of y
  c.outputs = {{cols}, {cols}};  // y, gradient of x
  c.call = [](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
              const std::vector<Matrix>& out) {
    l.SoftmaxForward(in[0], out[0]);
    l.SoftmaxBackward(out[0], in[1], out[1]);
  };
  c.function = [cols](int64_t, const std::vector<const double*>& in,
                      const std::vector<double*>& out) {
    double sum = 0;
    for (int32_t i = 0; i < cols; ++i) sum += std::exp(in[0][i]);
    for (int32_t i = 0; i < cols; ++i) out[0][i] = std::exp(in[0][i]) / sum;
  };
  c.num_function_inputs = 1;
  c.num_results = 1;
  c.input_gradients = {1};
  c.result_gradients = {1};
  c.in_place = {{0, 0}, {1, 1}, {0, 1}};
  return c;
}

LayerCase MixCase(int32_t batch, int32_t vectors, int32_t width, int which) {
  LayerCase base;
  base.name = "Mix";
  base.batch = batch;
  LayerCase c = MixedCase(base, {vectors}, {vectors * width}, width, which,
                          [vectors](int64_t) { return vectors; });
  c.call = [which](LayerOperations& l, DeviceSpan<const SamplePlace>, const std::vector<Matrix>& in,
                   const std::vector<Matrix>& out) {
    l.MixForward(in[0], in[1], out[0]);
    l.MixBackward(in[0], in[1], in[2], which == 2 ? Matrix() : out[1],
                  which == 1 ? Matrix() : out.back());
  };
  return c;
}

}  // namespace

int64_t LayerCase::FirstRowOf(const LayerOperand& operand, int64_t sample) const {
  if (operand.is_by_step) return offsets[sample];
  return operand.is_parameter ? 0 : sample;
}

int64_t LayerCase::RowsOfSample(const LayerOperand& operand, int64_t sample) const {
  return operand.is_by_step ? offsets[sample + 1] - offsets[sample] : 1;
}

std::vector<int32_t> LayerCase::SamplesOfSteps() const {
  std::vector<int32_t> samples(step_rows, 1 << 30);
  for (int32_t b = 0; b < batch; ++b) {
    std::fill(samples.begin() + offsets[b], samples.begin() + offsets[b + 1], b);
  }
  return samples;
}

LayerCase MixedCase(const LayerCase& base, LayerOperand weights, LayerOperand vectors,
                    int32_t width, int which, std::function<int32_t(int64_t)> count) {
  LayerCase c = base;
  c.name += ", gradients " + std::to_string(which);
  c.inputs = {weights, vectors, {width}};   // and the gradient of the sum
  c.outputs = {{width}, weights, vectors};  // The sum, and gradients.
  if (which == 1) c.outputs.pop_back();
  if (which == 2) c.outputs.erase(c.outputs.begin() + 1);
  c.function = [width, count](int64_t sample, const std::vector<const double*>& in,
                              const std::vector<double*>& out) {
    for (int32_t i = 0; i < width; ++i) {
      out[0][i] = 0;
      for (int32_t v = 0; v < count(sample); ++v) out[0][i] += in[0][v] * in[1][v * width + i];
    }
  };
  c.num_function_inputs = 2;
  c.num_results = 1;
  c.input_gradients = {which == 2 ? -1 : 1, which == 0 ? 2 : which == 1 ? -1 : 1};
  c.result_gradients = {2};
  for (int i = 0; i < 2; ++i) {
    if (c.input_gradients[i] >= 0) c.in_place.emplace_back(i, c.input_gradients[i]);
  }
  return c;
}

LayerValues ExpectedOutputs(const LayerCase& c, LayerValues inputs) {
  LayerValues outputs;
  for (const LayerOperand& output : c.outputs) outputs.emplace_back(c.RowsOf(output) * output.cols);
  for (int64_t b = 0; b < c.batch; ++b) {
    std::vector<double*> results;
    for (int r = 0; r < c.num_results; ++r) {
      results.push_back(outputs[r].data() + c.FirstRowOf(c.outputs[r], b) * c.outputs[r].cols);
    }
    c.function(b, RowsAt(c, inputs, c.num_function_inputs, b), results);
    for (int i = 0; i < c.num_function_inputs; ++i) {
      if (c.input_gradients.empty() || c.input_gradients[i] < 0) continue;
      const int32_t cols = c.inputs[i].cols;
      const int64_t first = c.FirstRowOf(c.inputs[i], b) * cols;
      const int64_t floats = c.RowsOfSample(c.inputs[i], b) * cols;
      for (int64_t k = 0; k < floats; ++k) {
        double& value = inputs[i][first + k];
        const double kept = value, step = 1e-6;
        value = kept + step;
        const double up = Loss(c, inputs, b);
        value = kept - step;
        const double down = Loss(c, inputs, b);
        value = kept;
        outputs[c.input_gradients[i]][first + k] += (up - down) / (2 * step);
      }
    }
  }
  return outputs;
}

std::vector<LayerCase> LayerCases(int32_t batch, int32_t vectors, int32_t width) {
  std::vector<LayerCase> cases;
  AddElementwiseCases(batch, vectors * width, &cases);
  cases.push_back(ProductLogitCase(batch, vectors * width));
  cases.push_back(PreluCase(batch, vectors * width));
  cases.push_back(LayerNormCase(batch, vectors * width));
  cases.push_back(NormalizeCase(batch, vectors, width, 1e-12f));
  // So large an epsilon is the divisor of some vectors and not of others.
  cases.push_back(
      NormalizeCase(batch, vectors, width, 0.6f * std::sqrt(static_cast<float>(width))));
  cases.push_back(FmCase(batch, vectors, width));
  cases.push_back(EmbedCase(batch, vectors, width, true));
  cases.push_back(EmbedCase(batch, vectors, width, false));
  cases.push_back(SumVectorsCase(batch, vectors, width));
  cases.push_back(SoftmaxCase(batch, vectors * width));
  for (int which : {0, 1, 2}) cases.push_back(MixCase(batch, vectors, width, which));
  return cases;
}

}  // namespace thermocline
