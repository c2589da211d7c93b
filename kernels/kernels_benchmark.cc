// Times every operation of a DLRM training step on the CPU device, in the shape of DLRM's Criteo
// Kaggle example, next to what the machine can do.
//
//   kernels_benchmark [--batch N] [--threads N] [--repeats N] [--isa auto|avx2|avx512]
//
// Prints per operation the median and the least time over the repeats, in microseconds a sample of
// wall time, and GFLOP/s or GB/s at the least; bytes are those that must move at least once.
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "common/table_spec.h"
#include "kernels/cpu/cpu_device.h"

namespace thermocline {
namespace {

constexpr int32_t kDim = 16;
constexpr int32_t kNumDense = 13;
constexpr int64_t kCardinalities[] = {
    1460, 583,   10131227, 2202608, 305,  24,   12517, 633,     3,  93145, 5683,   8351593, 3194,
    27,   14992, 5461306,  10,      5652, 2173, 4,     7046547, 18, 15,    286181, 105,     142572};
constexpr int32_t kFeatures = 26;
constexpr int32_t kVectors = kFeatures + 1;
constexpr int32_t kPairs = kVectors * (kVectors - 1) / 2;

struct Options {
  int32_t batch = 2048;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  int repeats = 50;
  std::string isa = "auto";
};

struct MlpLayout {
  MlpConfig config;
  double forward_flops = 0;  // of one sample
};

MlpLayout LayOut(std::vector<int32_t> widths, bool top, int32_t batch, int64_t* arena_floats) {
  MlpLayout layout;
  const auto blocks = [](int64_t n) {
    return (n + kDenseBlockFloats - 1) / kDenseBlockFloats * kDenseBlockFloats;
  };
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    layout.config.weight_offsets.push_back(*arena_floats);
    *arena_floats += blocks(int64_t{widths[i]} * widths[i + 1]);
    layout.config.bias_offsets.push_back(*arena_floats);
    *arena_floats += blocks(widths[i + 1]);
    layout.forward_flops += 2.0 * widths[i] * widths[i + 1];
  }
  layout.config.relu_after_last = !top;
  layout.config.input_gradient = top;
  layout.config.max_batch = batch;
  layout.config.widths = std::move(widths);
  return layout;
}

// A batch of lookups, skewed as in click logs.
struct Lookups {
  std::vector<std::vector<int32_t>> slots, segment_offsets, segment_bags;  // [feature]
  std::vector<std::vector<float>> rows, sums;                              // [feature]
  std::vector<PoolInput> pool;
  std::vector<SegmentGroup> segments;
  int64_t unique = 0;
};

void AddFeature(int64_t cardinality, int32_t feature, int32_t batch, std::mt19937_64* rng,
                Lookups* out) {
  std::uniform_real_distribution<double> uniform(0, 1);
  std::unordered_map<int64_t, int32_t> slot_of;
  std::vector<int32_t> slots;
  std::vector<std::vector<int32_t>> bags;
  for (int32_t b = 0; b < batch; ++b) {
    const auto key =
        static_cast<int64_t>(std::pow(static_cast<double>(cardinality), uniform(*rng)));
    const auto [it, inserted] = slot_of.emplace(key, static_cast<int32_t>(slot_of.size()));
    if (inserted) bags.emplace_back();
    slots.push_back(it->second);
    bags[it->second].push_back(b * kVectors + 1 + feature);
  }
  std::vector<int32_t> offsets = {0}, flat;
  for (const auto& of_key : bags) {
    flat.insert(flat.end(), of_key.begin(), of_key.end());
    offsets.push_back(static_cast<int32_t>(flat.size()));
  }
  out->unique += static_cast<int64_t>(bags.size());
  out->rows.emplace_back(bags.size() * kDim, 0.01f);
  out->sums.emplace_back(bags.size() * kDim);
  out->slots.push_back(std::move(slots));
  out->segment_offsets.push_back(std::move(offsets));
  out->segment_bags.push_back(std::move(flat));
}

Lookups MakeLookups(int32_t batch) {
  Lookups out;
  std::mt19937_64 rng(1);
  for (int32_t f = 0; f < kFeatures; ++f) AddFeature(kCardinalities[f], f, batch, &rng, &out);
  for (int32_t f = 0; f < kFeatures; ++f) {
    const auto unique = static_cast<int32_t>(out.rows[f].size() / kDim);
    const auto span = [](const std::vector<int32_t>& v) {
      return DeviceSpan<const int32_t>{v.data(), static_cast<int64_t>(v.size())};
    };
    out.pool.push_back(
        {PoolingMode::kSum, FloatMatrix(out.rows[f].data(), unique, kDim), span(out.slots[f]), {}});
    out.segments.push_back({span(out.segment_bags[f]), span(out.segment_offsets[f]),
                            FloatMatrix(out.sums[f].data(), unique, kDim)});
  }
  return out;
}

struct Operation {
  std::string name;
  double flops = 0, bytes = 0;  // of one batch
  std::function<void()> run;
  std::vector<double> seconds;
};

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void PrintRow(const std::string& name, int32_t batch, double median_s, double least_s, double flops,
              double bytes) {
  std::printf("%-28s %8.3f %8.3f", name.c_str(), median_s / batch * 1e6, least_s / batch * 1e6);
  if (flops > 0) std::printf(" %8.1f GFLOP/s", flops / least_s * 1e-9);
  if (bytes > 0) std::printf(" %8.1f GB/s", bytes / least_s * 1e-9);
  std::printf("\n");
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The measure of the matrix operations: oneDNN's sgemm on OpenMP threads, at a large shape.
void PrintCeiling(const Options& options) {
  omp_set_num_threads(options.threads);
  const int64_t m = options.batch, n = 512, k = 384;
  std::vector<float> a(m * k, 1), b(k * n, 1), c(m * n);
  std::vector<double> seconds;
  for (int i = 0; i < options.repeats; ++i) {
    const double start = Seconds();
    dnnl_sgemm('N', 'N', m, n, k, 1, a.data(), k, b.data(), n, 0, c.data(), n);
    seconds.push_back(Seconds() - start);
  }
  std::printf("ceiling: dnnl_sgemm M%d N512 K384 on %d threads: %.1f GFLOP/s\n", options.batch,
              options.threads,
              2e-9 * m * n * k / *std::min_element(seconds.begin(), seconds.end()));
}

std::unique_ptr<Device> MakeDevice(const Options& options) {
  CpuDeviceOptions device_options;
  device_options.num_threads = options.threads;
  if (options.isa == "avx2") device_options.isa = CpuIsaLimit::kAvx2;
  if (options.isa == "avx512") device_options.isa = CpuIsaLimit::kAvx512;
  return MakeCpuDevice(device_options);
}

// The buffers of one step, and its operations in their order.
class BenchmarkStep {
 public:
  explicit BenchmarkStep(const Options& options)
      : batch_(options.batch),
        device_(MakeDevice(options)),
        bottom_layout_(LayOut({kNumDense, 512, 256, 64, kDim}, false, batch_, &arena_)),
        top_layout_(LayOut({kDim + kPairs, 512, 256, 1}, true, batch_, &arena_)),
        bottom_(device_->CreateMlp(bottom_layout_.config)),
        top_(device_->CreateMlp(top_layout_.config)),
        lookups_(MakeLookups(batch_)),
        weights_{Make(arena_, 0.05f), arena_},
        gradients_{Make(arena_, 0), arena_},
        slots_{Make(arena_, 0), arena_},
        labels_(batch_) {
    for (float& label : labels_) label = rng_() % 4 == 0 ? 1.0f : 0.0f;
  }

  double lookups_per_key() const {
    return static_cast<double>(batch_) * kFeatures / static_cast<double>(lookups_.unique);
  }
  double loss() const { return loss_; }

  std::vector<Operation> Operations() {
    std::vector<Operation> operations = ForwardOperations();
    for (Operation& operation : BackwardOperations()) operations.push_back(std::move(operation));
    return operations;
  }

 private:
  float* Make(int64_t floats, float scale) {
    buffers_.push_back(device_->Allocate(sizeof(float) * floats));
    std::uniform_real_distribution<float> uniform(-scale, scale);
    for (int64_t i = 0; i < floats; ++i) buffers_.back()->floats()[i] = uniform(rng_);
    return buffers_.back()->floats();
  }
  Matrix MakeMatrix(int32_t columns) {
    const int64_t ld = columns == 1 ? 1 : PaddedColumns(columns);
    return FloatMatrix(Make(ld * batch_, 1), batch_, columns, ld);
  }
  static Matrix First(Matrix z) { return FloatMatrix(z.floats(), z.rows, kDim, z.ld); }

  std::vector<Operation> ForwardOperations() {
    const auto parameters = weights_.AsConst();
    return {
        {"pool forward",
         0,
         2 * z_bytes_,
         [=] { device_->PoolForward(lookups_.pool, kDim, 1, z_); },
         {}},
        {"bottom forward",
         bottom_layout_.forward_flops * batch_,
         0,
         [=] { bottom_->Forward(parameters, dense_, First(z_)); },
         {}},
        {"interaction forward",
         0,
         z_bytes_ + pair_bytes_,
         [=] { device_->InteractionForward(z_, kVectors, top_input_); },
         {}},
        {"top forward",
         top_layout_.forward_flops * batch_,
         0,
         [=] { top_->Forward(parameters, top_input_, logits_); },
         {}},
        {"loss",
         0,
         0,
         [=] {
           device_->BceWithLogits(logits_, {labels_.data(), batch_}, 1.0f / batch_,
                                  logits_gradient_, {&loss_, 1});
         },
         {}},
    };
  }

  std::vector<Operation> BackwardOperations() {
    const auto parameters = weights_.AsConst();
    const double first_layer_flops = 2.0 * kNumDense * 512 * batch_;
    const double bottom_flops = bottom_layout_.forward_flops * batch_;
    return {
        {"top backward to data",
         top_layout_.forward_flops * batch_,
         0,
         [=] { top_->BackwardData(parameters, logits_, logits_gradient_, top_input_gradient_); },
         {}},
        {"interaction backward",
         0,
         2 * z_bytes_ + pair_bytes_,
         [=] { device_->InteractionBackward(z_, kVectors, top_input_gradient_, z_gradient_); },
         {}},
        {"segment sum",
         0,
         z_bytes_ + 4.0 * lookups_.unique * kDim,
         [=] {
           device_->SegmentSum(FloatMatrix(z_gradient_.floats(), batch_ * kVectors, kDim),
                               lookups_.segments);
         },
         {}},
        {"bottom backward to data",
         bottom_flops - first_layer_flops,
         0,
         [=] { bottom_->BackwardData(parameters, First(z_), First(z_gradient_), Matrix()); },
         {}},
        {"top weight gradients",
         top_layout_.forward_flops * batch_,
         0,
         [=] { top_->BackwardParameters(top_input_, logits_gradient_, gradients_); },
         {}},
        {"bottom weight gradients",
         bottom_flops,
         0,
         [=] { bottom_->BackwardParameters(dense_, First(z_gradient_), gradients_); },
         {}},
        {"dense update (Adagrad)",
         0,
         4.0 * arena_ * 5,
         [=] {
           device_->DenseUpdate(optimizer_, ScalarsForStep(optimizer_, 1e-4f, Step(0)),
                                gradients_.AsConst(), weights_, slots_);
         },
         {}},
    };
  }

  const int32_t batch_;
  const OptimizerConfig optimizer_;
  const double z_bytes_ = 4.0 * batch_ * kVectors * kDim;
  const double pair_bytes_ = 4.0 * batch_ * (kDim + kPairs);
  int64_t arena_ = 0;
  std::unique_ptr<Device> device_;
  const MlpLayout bottom_layout_, top_layout_;
  std::unique_ptr<Mlp> bottom_, top_;
  const Lookups lookups_;
  std::mt19937_64 rng_{2};
  std::vector<std::unique_ptr<DeviceBuffer>> buffers_;
  const DeviceSpan<float> weights_, gradients_, slots_;
  const Matrix dense_ = MakeMatrix(kNumDense);
  const Matrix z_ = MakeMatrix(kVectors * kDim), z_gradient_ = MakeMatrix(kVectors * kDim);
  const Matrix top_input_ = MakeMatrix(kDim + kPairs);
  const Matrix top_input_gradient_ = MakeMatrix(kDim + kPairs);
  const Matrix logits_ = MakeMatrix(1), logits_gradient_ = MakeMatrix(1);
  std::vector<float> labels_;
  double loss_ = 0;
};

// The seconds of every repeat of the whole step; each operation keeps its own.
std::vector<double> TimeSteps(int repeats, std::vector<Operation>* operations) {
  constexpr int kWarmUp = 2;
  std::vector<double> totals;
  for (int repeat = -kWarmUp; repeat < repeats; ++repeat) {
    double total = 0;
    for (Operation& operation : *operations) {
      const double start = Seconds();
      operation.run();
      const double seconds = Seconds() - start;
      total += seconds;
      if (repeat >= 0) operation.seconds.push_back(seconds);
    }
    if (repeat >= 0) totals.push_back(total);
  }
  return totals;
}

int Run(const Options& options) {
  BenchmarkStep step(options);
  std::vector<Operation> operations = step.Operations();
  std::printf(
      "DLRM Kaggle shape 13-512-256-64-16, 26 x dim 16, 367-512-256-1; batch %d, %d threads, "
      "isa %s, %d repeats, %.1f lookups a unique key\n",
      options.batch, options.threads, options.isa.c_str(), options.repeats, step.lookups_per_key());
  PrintCeiling(options);
  std::printf("%-28s %8s %8s  (us a sample)\n", "operation", "median", "least");
  const std::vector<double> totals = TimeSteps(options.repeats, &operations);
  double least = 0, flops = 0;
  for (const Operation& operation : operations) {
    const double seconds = *std::min_element(operation.seconds.begin(), operation.seconds.end());
    PrintRow(operation.name, options.batch, Median(operation.seconds), seconds, operation.flops,
             operation.bytes);
    least += seconds;
    flops += operation.flops;
  }
  PrintRow("step (sum of the least)", options.batch, Median(totals), least, flops, 0);
  return std::isfinite(step.loss()) ? 0 : 1;
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--batch")
      options->batch = std::atoi(value.c_str());
    else if (flag == "--threads")
      options->threads = std::atoi(value.c_str());
    else if (flag == "--repeats")
      options->repeats = std::atoi(value.c_str());
    else if (flag == "--isa")
      options->isa = value;
    else
      return false;
  }
  return argc % 2 == 1 && options->batch > 0 && options->threads > 0 && options->repeats > 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  thermocline::Options options;
  if (!thermocline::Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: kernels_benchmark [--batch N] [--threads N] [--repeats N] "
                 "[--isa auto|avx2|avx512]\n");
    return 2;
  }
  if (options.isa == "avx512" && !thermocline::CpuSupports(thermocline::CpuIsaLimit::kAvx512)) {
    std::fprintf(stderr, "this machine has no AVX-512\n");
    return 2;
  }
  return thermocline::Run(options);
}
