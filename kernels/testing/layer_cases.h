// Calls of LayerOperations and StepOperations with what they should compute in double, for the
// tests of the CPU and of the CUDA device. Gradients are central differences of the forward
// function.
#ifndef THERMOCLINE_KERNELS_TESTING_LAYER_CASES_H_
#define THERMOCLINE_KERNELS_TESTING_LAYER_CASES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/layer_operations.h"
#include "kernels/step_operations.h"

namespace thermocline {

// A parameter is a vector of the layer, [1, cols] without gaps; others have a row for each sample
// or for each step.
struct LayerOperand {
  int32_t cols = 0;
  bool is_parameter = false;
  bool is_by_step = false;
};

struct LayerCase {
  // Computes the outputs of one sample, all its steps; parameters are the same for all samples.
  using Function = std::function<void(int64_t sample, const std::vector<const double*>& inputs,
                                      const std::vector<double*>& outputs)>;

  std::string name;
  int32_t batch = 0;
  std::vector<LayerOperand> inputs;   // `input_gradients.size()` of the function, then the rest
  std::vector<LayerOperand> outputs;  // `num_results` of the function, then gradients
  std::function<void(LayerOperations& layers, DeviceSpan<const SamplePlace> place,
                     const std::vector<Matrix>& inputs, const std::vector<Matrix>& outputs)>
      call;
  // It is called in place of `call` where `offsets` are not empty.
  std::function<void(StepOperations& steps, DeviceSpan<const SamplePlace> place,
                     const StepRanges& ranges, const std::vector<Matrix>& inputs,
                     const std::vector<Matrix>& outputs)>
      call_steps;
  std::vector<int32_t> offsets;  // [batch + 1] of the samples' steps
  int64_t step_rows = 0;         // Rows of matrices of steps: so many or more.
  Function function;
  int num_function_inputs = 0, num_results = 0;
  // The output that is the gradient of each of the function's inputs, -1: none; the input that is
  // the gradient of each of its results, -1: it has none.
  std::vector<int> input_gradients, result_gradients;
  // An input and an output that may be the same memory.
  std::vector<std::pair<int, int>> in_place;

  int64_t RowsOf(const LayerOperand& operand) const {
    if (operand.is_by_step) return step_rows;
    return operand.is_parameter ? 1 : batch;
  }
  // The row of an operand where those of a sample begin, and how many they are.
  int64_t FirstRowOf(const LayerOperand& operand, int64_t sample) const;
  int64_t RowsOfSample(const LayerOperand& operand, int64_t sample) const;
  // StepRanges::samples, [step_rows]: beyond the last step they are no samples.
  std::vector<int32_t> SamplesOfSteps() const;
};

// The place of the batch in tests of dropout.
inline constexpr SamplePlace kPlaceForTest = {12345678901, 77};
inline constexpr DropoutMask kMaskForTest = {0x123456789abcdef0, 19661, 1.42857146f};

using LayerValues = std::vector<std::vector<double>>;  // operands, row-major without gaps

// What the outputs of a case should be.
LayerValues ExpectedOutputs(const LayerCase& c, LayerValues inputs);

// The sum of a sample's vectors of `width` numbers, count(sample) of them, times their weights.
// which: the gradients that are computed: 0: both, 1: of the weights alone, 2: of the vectors alone
LayerCase MixedCase(const LayerCase& base, LayerOperand weights, LayerOperand vectors,
                    int32_t width, int which, std::function<int32_t(int64_t)> count);

// Every operation of layers, on samples of so many vectors.
std::vector<LayerCase> LayerCases(int32_t batch, int32_t vectors, int32_t width);

// Every operation of steps, for samples of so many steps and so many rows beyond the last. The
// width is heads * head_width.
std::vector<LayerCase> StepCases(const std::vector<int32_t>& lengths, int64_t rows_beyond,
                                 int32_t heads, int32_t head_width);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_TESTING_LAYER_CASES_H_
