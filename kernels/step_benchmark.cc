#include "kernels/step_benchmark.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "common/base/check.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

constexpr int32_t kDim = 16;
constexpr int32_t kNumDense = 13;
constexpr int32_t kHiddenColumns = 400;
constexpr int32_t kStepColumns = 64;
constexpr int32_t kMaxSteps = 59;
constexpr int32_t kHeads = 4;
constexpr int64_t kCardinalities[] = {
    1460, 583,   10131227, 2202608, 305,  24,   12517, 633,     3,  93145, 5683,   8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,     7046547, 18, 15,    286181, 105,     142572};
constexpr int32_t kFeatures = 26;
constexpr int32_t kVectors = kFeatures + 1;
constexpr int32_t kPairs = kVectors * (kVectors - 1) / 2;
// Rows of the slab, all features together, are some times those of a batch: rows of a batch are
// scattered over more memory than caches hold.
constexpr int64_t kSlabRowsPerSample = 512;
constexpr int64_t kMaxSlabRows = 4 << 20;

std::vector<float> RandomFloats(std::mt19937_64* rng, int64_t n, float scale) {
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(*rng);
  return v;
}

Matrix FirstVector(Matrix z) { return FloatMatrix(z.floats(), z.rows, kDim, z.ld); }

}  // namespace

double BenchmarkOperation::flops() const {
  double sum = 0;
  for (const ProductShape& p : products) sum += 2.0 * p.m * p.n * p.k;
  return sum;
}

StepBenchmark::StepBenchmark(Device* device, int32_t batch, MlpPrecision precision)
    : device_(device), batch_(batch), scalars_(ScalarsForStep(optimizer_, 1e-4f, Step(0))) {
  bottom_layout_ = LayOut({kNumDense, 512, 256, 64, kDim}, false, precision);
  top_layout_ = LayOut({kDim + kPairs, 512, 256, 1}, true, precision);
  bottom_ = device_->CreateMlp(bottom_layout_.config);
  top_ = device_->CreateMlp(top_layout_.config);
  weights_ = {Random(arena_floats_, 0.05f), arena_floats_};
  gradients_ = {Random(arena_floats_, 0), arena_floats_};
  state_ = {Random(arena_floats_, 0), arena_floats_};
  for (Matrix* m : {&z_, &z_gradient_}) *m = RandomMatrix(kVectors * kDim);
  for (Matrix* m : {&top_input_, &top_input_gradient_}) *m = RandomMatrix(kDim + kPairs);
  for (Matrix* m : {&logits_, &logits_gradient_}) *m = RandomMatrix(1);
  dense_ = RandomMatrix(kNumDense);
  std::vector<float> labels(batch);
  for (float& label : labels) label = rng_() % 4 == 0 ? 1.0f : 0.0f;
  labels_ = {Put(labels), batch};
  loss_ = {Put(std::vector<double>{0}), 1};
  const int64_t slab_rows = std::min(kMaxSlabRows, kSlabRowsPerSample * batch);
  const int32_t row_floats = kDim + StateFloats(optimizer_, kDim);
  buffers_.push_back(device_->Allocate(sizeof(float) * slab_rows * row_floats));
  slab_ = FloatMatrix(buffers_.back()->floats(), static_cast<int32_t>(slab_rows), row_floats);
  for (int32_t f = 0; f < kFeatures; ++f) AddFeature(kCardinalities[f], f);
}

StepBenchmark::MlpLayout StepBenchmark::LayOut(std::vector<int32_t> widths, bool top,
                                               MlpPrecision precision) {
  MlpLayout layout;
  const auto blocks = [](int64_t n) {
    return (n + kDenseBlockFloats - 1) / kDenseBlockFloats * kDenseBlockFloats;
  };
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    const int64_t in = widths[i], out = widths[i + 1];
    layout.config.weight_offsets.push_back(arena_floats_);
    arena_floats_ += blocks(in * out);
    layout.config.bias_offsets.push_back(arena_floats_);
    arena_floats_ += blocks(out);
    layout.forward.push_back({batch_, out, in});
    if (top || i > 0) layout.backward_data.push_back({batch_, in, out});
    layout.backward_parameters.push_back({in, out, batch_});
  }
  layout.config.relu_after_last = !top;
  layout.config.input_gradient = top;
  layout.config.max_batch = layout.config.max_trained = batch_;
  layout.config.precision = precision;
  layout.config.widths = std::move(widths);
  return layout;
}

template <typename T>
T* StepBenchmark::Put(const std::vector<T>& values) {
  buffers_.push_back(device_->Allocate(sizeof(T) * values.size()));
  void* const data = buffers_.back()->data();
  CHECK(data != nullptr);  // No such benchmark on so small a device.
  device_->CopyToDevice(data, values.data(), sizeof(T) * values.size(), Stream::kCompute);
  return static_cast<T*>(data);
}

float* StepBenchmark::Random(int64_t floats, float scale) {
  return Put(RandomFloats(&rng_, floats, scale));
}

Matrix StepBenchmark::RandomMatrix(int32_t rows, int32_t columns) {
  const int64_t ld = columns == 1 ? 1 : PaddedColumns(columns);
  return FloatMatrix(Random(ld * rows, 1), rows, columns, ld);
}

// Lookups skewed as in click logs.
void StepBenchmark::AddFeature(int64_t cardinality, int32_t feature) {
  std::uniform_real_distribution<double> uniform(0, 1);
  std::unordered_map<int64_t, int32_t> partition_of;
  std::vector<int32_t> row_indices, offsets = {0}, lookups, targets;
  std::vector<std::vector<int32_t>> bags;
  for (int32_t b = 0; b < batch_; ++b) {
    const auto key =
        static_cast<int64_t>(std::pow(static_cast<double>(cardinality), uniform(rng_)));
    const auto [it, inserted] =
        partition_of.emplace(key, static_cast<int32_t>(partition_of.size()));
    if (inserted) bags.emplace_back();
    row_indices.push_back(it->second);
    bags[it->second].push_back(b * kVectors + 1 + feature);
  }
  // Distinct rows of this feature's part of the slab.
  const int32_t part = slab_.rows / kFeatures;
  const int32_t stride = part / static_cast<int32_t>(bags.size());
  for (const std::vector<int32_t>& of_key : bags) {
    targets.push_back(feature * part + static_cast<int32_t>(targets.size()) * stride);
    lookups.insert(lookups.end(), of_key.begin(), of_key.end());
    offsets.push_back(static_cast<int32_t>(lookups.size()));
  }
  std::shuffle(targets.begin(), targets.end(), rng_);
  const auto put = [this](const std::vector<int32_t>& v) {
    return DeviceSpan<const int32_t>{Put(v), static_cast<int64_t>(v.size())};
  };
  const auto unique = static_cast<int32_t>(bags.size());
  unique_ += unique;
  const Matrix rows = FloatMatrix(Random(int64_t{unique} * kDim, 0.01f), unique, kDim);
  const Matrix sums = FloatMatrix(Random(int64_t{unique} * kDim, 0), unique, kDim);
  const DeviceSpan<const int32_t> rows_of_slab = put(targets);
  pool_.push_back({PoolingMode::kSum, rows, put(row_indices), {}});
  segments_.push_back({put(lookups), put(offsets), sums});
  AppendUpdates(scalars_, sums, rows_of_slab, slab_, &updates_);
  copies_.push_back({slab_, rows_of_slab, rows});
}

double StepBenchmark::lookups_per_key() const {
  return static_cast<double>(batch_) * kFeatures / static_cast<double>(unique_);
}

double StepBenchmark::Loss() {
  double loss = 0;
  device_->CopyToHost(&loss, loss_.data, sizeof(loss), Stream::kCompute);
  CHECK(device_->Synchronize().ok());
  return loss / batch_;
}

std::vector<BenchmarkOperation> StepBenchmark::StepOperations() {
  std::vector<BenchmarkOperation> all = ForwardOperations();
  for (BenchmarkOperation& operation : BackwardOperations()) all.push_back(std::move(operation));
  return all;
}

std::vector<BenchmarkOperation> StepBenchmark::ForwardOperations() {
  const DeviceSpan<const float> parameters = weights_.AsConst();
  const double z_bytes = 4.0 * batch_ * kVectors * kDim;
  const double pair_bytes = 4.0 * batch_ * (kDim + kPairs);
  return {
      {"pool forward", 2 * z_bytes, {}, [=] { device_->PoolForward(pool_, kDim, 1, z_); }},
      {"bottom forward", 0, bottom_layout_.forward,
       [=] { bottom_->Forward(parameters, dense_, FirstVector(z_)); }},
      {"interaction forward",
       z_bytes + pair_bytes,
       {},
       [=] { device_->InteractionForward(z_, kVectors, top_input_); }},
      {"top forward", 0, top_layout_.forward,
       [=] { top_->Forward(parameters, top_input_, logits_); }},
      {"loss",
       0,
       {},
       [=] {
         device_->BceWithLogits(logits_, labels_, {}, 1.0f / static_cast<float>(batch_),
                                logits_gradient_, loss_);
       }},
  };
}

std::vector<BenchmarkOperation> StepBenchmark::BackwardOperations() {
  const DeviceSpan<const float> parameters = weights_.AsConst();
  const double z_bytes = 4.0 * batch_ * kVectors * kDim;
  const double pair_bytes = 4.0 * batch_ * (kDim + kPairs);
  return {
      {"top backward to data", 0, top_layout_.backward_data,
       [=] { top_->BackwardData(parameters, logits_, logits_gradient_, top_input_gradient_); }},
      {"interaction backward",
       2 * z_bytes + pair_bytes,
       {},
       [=] { device_->InteractionBackward(z_, kVectors, top_input_gradient_, z_gradient_); }},
      {"segment sum",
       z_bytes + 4.0 * unique_ * kDim,
       {},
       [=] {
         device_->SegmentSum(FloatMatrix(z_gradient_.floats(), batch_ * kVectors, kDim), segments_);
       }},
      {"bottom backward to data", 0, bottom_layout_.backward_data,
       [=] {
         bottom_->BackwardData(parameters, FirstVector(z_), FirstVector(z_gradient_), Matrix());
       }},
      {"top weight gradients", 0, top_layout_.backward_parameters,
       [=] { top_->BackwardParameters(top_input_, logits_gradient_, gradients_); }},
      {"bottom weight gradients", 0, bottom_layout_.backward_parameters,
       [=] { bottom_->BackwardParameters(dense_, FirstVector(z_gradient_), gradients_); }},
      {"dense update (Adagrad)",
       4.0 * arena_floats_ * 5,
       {},
       [=] { device_->DenseUpdate(optimizer_, scalars_, gradients_.AsConst(), weights_, state_); }},
  };
}

std::vector<BenchmarkOperation> StepBenchmark::CacheOperations() {
  const double row_bytes = 4.0 * unique_ * kDim;
  return {
      {"sparse update (Adagrad)", 5 * row_bytes, {}, [=] { device_->SparseUpdate(updates_); }},
      {"gather rows", 2 * row_bytes, {}, [=] { device_->GatherRows(copies_); }},
      {"scatter rows", 2 * row_bytes, {}, [=] { device_->ScatterRows(copies_); }},
  };
}

std::vector<BenchmarkOperation> StepBenchmark::OperationsOfLayers() {
  std::vector<BenchmarkOperation> all = OperationsOfMlpLayers();
  for (BenchmarkOperation& operation : OperationsOfVectors()) all.push_back(std::move(operation));
  return all;
}

std::vector<BenchmarkOperation> StepBenchmark::OperationsOfSteps() {
  auto* const operations = &device_->steps();
  std::vector<int32_t> offsets = {0}, samples;
  double squares = 0;
  for (int32_t b = 0; b < batch_; ++b) {
    const auto length = static_cast<int32_t>(1 + rng_() % kMaxSteps);
    squares += static_cast<double>(length) * length;
    samples.insert(samples.end(), length, b);
    offsets.push_back(static_cast<int32_t>(samples.size()));
  }
  const int32_t steps = offsets.back();
  const StepRanges ranges = {{Put(offsets), batch_ + int64_t{1}}, {Put(samples), steps}};
  const Matrix x = RandomMatrix(steps, kStepColumns), y = RandomMatrix(steps, kStepColumns);
  const Matrix scores = RandomMatrix(steps, 1), shares = RandomMatrix(steps, 1);
  const Matrix pooled = RandomMatrix(kStepColumns);
  const int64_t positions = int64_t{kMaxSteps} * kStepColumns;
  const DeviceSpan<float> vectors = {Random(positions, 1), positions};
  const double bytes = 4.0 * steps * kStepColumns, sample_bytes = 4.0 * batch_ * kStepColumns;
  std::vector<BenchmarkOperation> all = {
      {"repeat 64", bytes + sample_bytes, {}, [=] { operations->Repeat(ranges, pooled, y); }},
      {"pool sum 64",
       bytes + sample_bytes,
       {},
       [=] { operations->Pool(ranges, StepPooling::kSum, x, pooled); }},
      {"pool mean backward 64",
       bytes + sample_bytes,
       {},
       [=] { operations->PoolBackward(ranges, StepPooling::kMean, pooled, y); }},
      {"step softmax forward 1",
       8.0 * steps,
       {},
       [=] { operations->SoftmaxForward(ranges, true, scores, shares); }},
      {"step softmax backward 1",
       12.0 * steps,
       {},
       [=] { operations->SoftmaxBackward(ranges, shares, scores, scores); }},
      {"clear last 64", 2 * bytes, {}, [=] { operations->ClearLast(ranges, x, y); }},
      {"add positions 64",
       2 * bytes,
       {},
       [=] { operations->AddPositions(ranges, vectors.AsConst(), x, y); }},
      {"position gradients 64",
       bytes,
       {},
       [=] { operations->PositionGradients(ranges, x, vectors); }},
  };
  for (BenchmarkOperation& operation : OperationsOfAttention(ranges, steps, squares / steps)) {
    all.push_back(std::move(operation));
  }
  return all;
}

std::vector<BenchmarkOperation> StepBenchmark::OperationsOfAttention(const StepRanges& ranges,
                                                                     int32_t steps,
                                                                     double mean_length) {
  auto* const operations = &device_->steps();
  const auto matrix = [&] { return RandomMatrix(steps, kStepColumns); };
  const Matrix q = matrix(), k = matrix(), v = matrix(), y = matrix(), dy = matrix();
  const Matrix dq = matrix(), dk = matrix(), dv = matrix();
  const Matrix statistics = RandomMatrix(steps, 2 * kHeads);
  const auto keys = static_cast<int64_t>(mean_length);
  const ProductShape to_score = {steps, keys, kStepColumns}, to_sum = {steps, kStepColumns, keys};
  return {
      {"attention forward 4 x 16",
       0,
       {to_score, to_sum},
       [=] { operations->AttentionForward(ranges, kHeads, q, k, v, y, statistics); }},
      {"attention backward 4 x 16",
       0,
       {to_score, to_score, to_sum, to_sum, to_sum},
       [=] {
         operations->AttentionBackward(ranges, kHeads, q, k, v, y, statistics, dy, dq, dk, dv);
       }},
  };
}

std::vector<BenchmarkOperation> StepBenchmark::OperationsOfMlpLayers() {
  LayerOperations* const layers = &device_->layers();
  const int32_t columns = kHiddenColumns;
  const Matrix x = RandomMatrix(columns), y = RandomMatrix(columns), dy = RandomMatrix(columns);
  const Matrix dx = RandomMatrix(columns), moments = RandomMatrix(2);
  const DeviceSpan<const float> gain = {Random(columns, 1), columns};
  const DeviceSpan<const float> bias = {Random(columns, 1), columns};
  const DeviceSpan<float> gain_gradient = {Random(columns, 1), columns};
  const DeviceSpan<float> bias_gradient = {Random(columns, 1), columns};
  const DeviceSpan<const SamplePlace> place = {Put(std::vector<SamplePlace>{{5, 4096}}), 1};
  const double bytes = 4.0 * batch_ * columns;
  std::vector<BenchmarkOperation> all = {
      {"copy 400", 2 * bytes, {}, [=] { layers->Copy(x, y); }},
      {"layer norm forward 400",
       2 * bytes,
       {},
       [=] { layers->LayerNormForward(x, gain, bias, 1e-5f, y, moments); }},
      {"layer norm backward 400",
       3 * bytes,
       {},
       [=] { layers->LayerNormBackward(x, moments, gain, dy, dx, gain_gradient, bias_gradient); }},
      {"dropout 400",
       2 * bytes,
       {},
       [=] {
         layers->Dropout({7, 6554, 1.11f}, place, x, y);
       }},
  };
  const std::pair<std::string, ActivationKind> kinds[] = {{"sigmoid", ActivationKind::kSigmoid},
                                                          {"tanh", ActivationKind::kTanh},
                                                          {"relu", ActivationKind::kRelu},
                                                          {"prelu", ActivationKind::kPrelu}};
  for (const auto& [name, kind] : kinds) {
    const bool is_prelu = kind == ActivationKind::kPrelu;
    const DeviceSpan<const float> slopes = is_prelu ? gain : DeviceSpan<const float>();
    const DeviceSpan<float> slope_gradients = is_prelu ? gain_gradient : DeviceSpan<float>();
    all.push_back({name + " forward 400", 2 * bytes, {}, [=, kind = kind] {
                     layers->ActivationForward(kind, slopes, x, y);
                   }});
    all.push_back({name + " backward 400", 3 * bytes, {}, [=, kind = kind] {
                     layers->ActivationBackward(kind, slopes, x, y, dy, dx, slope_gradients);
                   }});
  }
  return all;
}

std::vector<BenchmarkOperation> StepBenchmark::OperationsOfVectors() {
  LayerOperations* const layers = &device_->layers();
  const int32_t columns = kNumDense + kFeatures * kDim, vector_columns = kFeatures * kDim;
  const Matrix a = RandomMatrix(columns), b = RandomMatrix(columns), c = RandomMatrix(columns);
  const Matrix d = RandomMatrix(columns), number = RandomMatrix(1);
  // The last columns of a wider matrix: no row is aligned.
  const auto vectors_of = [&](Matrix m) {
    return FloatMatrix(m.floats() + kNumDense, m.rows, vector_columns, m.ld);
  };
  const Matrix x = vectors_of(a), y = vectors_of(b), dy = vectors_of(c), dx = vectors_of(d);
  const Matrix sums = RandomMatrix(kDim), lengths = RandomMatrix(kFeatures);
  const Matrix numbers = FloatMatrix(dense_.floats(), batch_, kNumDense, dense_.ld);
  const int32_t embedded = kNumDense * kDim;
  const Matrix e = RandomMatrix(embedded);
  const DeviceSpan<const float> vectors = {Random(embedded, 1), embedded};
  const DeviceSpan<float> vector_gradients = {Random(embedded, 1), embedded};
  const double bytes = 4.0 * batch_ * columns, embed_bytes = 4.0 * batch_ * embedded;
  const double vector_bytes = 4.0 * batch_ * vector_columns;
  return {
      {"add 429", 3 * bytes, {}, [=] { layers->Add(a, b, c); }},
      {"multiply-add 429", 4 * bytes, {}, [=] { layers->MultiplyAdd(1, a, b, c, d); }},
      {"scale rows 429", 2 * bytes, {}, [=] { layers->ScaleRows(number, a, b); }},
      {"row dot 429", 2 * bytes, {}, [=] { layers->RowDot(a, b, number); }},
      {"normalize forward 26 x 16",
       2 * vector_bytes,
       {},
       [=] { layers->NormalizeForward(x, kDim, 1e-12f, y, lengths); }},
      {"normalize backward 26 x 16",
       3 * vector_bytes,
       {},
       [=] { layers->NormalizeBackward(y, kDim, 1e-12f, lengths, dy, dx); }},
      {"sum of vectors 26 x 16", vector_bytes, {}, [=] { layers->SumVectors(x, 1, sums); }},
      {"repeat vector 26 x 16", vector_bytes, {}, [=] { layers->RepeatVector(sums, 1, y); }},
      {"fm forward 26 x 16", vector_bytes, {}, [=] { layers->FmForward(x, kDim, sums, number); }},
      {"fm backward 26 x 16",
       2 * vector_bytes,
       {},
       [=] { layers->FmBackward(x, kDim, sums, number, dx); }},
      {"embed forward 13 x 16",
       embed_bytes,
       {},
       [=] { layers->EmbedForward(numbers, vectors, e); }},
      {"embed backward 13 x 16",
       embed_bytes,
       {},
       [=] { layers->EmbedBackward(numbers, vectors, e, Matrix(), vector_gradients); }},
  };
}

}  // namespace thermocline
