// Times every operation of a DLRM training step, in the shape of DLRM's Criteo Kaggle example, and
// the operations of other models' layers and of sequences, next to what the device can do.
//
//   kernels_benchmark [--device cpu|cuda] [--batch N] [--repeats N]
//                     [--precision float32|tf32|bfloat16]            tf32 with cuda alone
//                     [--threads N] [--isa auto|avx2|avx512]         with cpu
//
// Prints what the device was measured to do at most; then per operation the median and the least
// time over the repeats, in microseconds a sample of wall time, and GFLOP/s or GB/s at the least;
// bytes are those that must move at least once. The last column is the share of what the device can
// do: on a CPU of its multiply-adds; on a GPU, where a repeat runs an operation many times before
// it waits, of a copy in its memory, or of bare products of the same shapes.
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu_ceiling.h"
#include "kernels/cuda/cuda_ceiling.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/step_benchmark.h"

namespace thermocline {
namespace {

constexpr int kWarmUp = 2;
// So many runs hide the launches and the wait at the end on a GPU.
constexpr int kTimesPerRepeat = 20;

struct Options {
  std::string device = "cpu";
  int32_t batch = 2048;
  int threads = HardwareThreads();
  int repeats = 50;
  std::string isa = "auto";
  std::string precision = "float32";

  bool cuda() const { return device == "cuda"; }
};

MlpPrecision PrecisionOf(const std::string& name) {
  if (name == "tf32") return MlpPrecision::kTf32;
  return name == "bfloat16" ? MlpPrecision::kBfloat16 : MlpPrecision::kFloat32;
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

double Least(const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); }

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Row {
  std::string name;
  double median_s = 0, least_s = 0;  // of one batch
  double flops = 0, bytes = 0;       // of one batch; 0: not shown
  double ceiling_s = 0;              // what the device's best would take; 0: not known

  void Add(const Row& other) {
    median_s += other.median_s;
    least_s += other.least_s;
    flops += other.flops;
    ceiling_s += other.ceiling_s;
  }
};

void Print(const Row& row, int32_t batch) {
  std::printf("%-28s %8.4f %8.4f", row.name.c_str(), row.median_s / batch * 1e6,
              row.least_s / batch * 1e6);
  if (row.flops > 0) std::printf(" %9.1f GFLOP/s", row.flops / row.least_s * 1e-9);
  if (row.bytes > 0) std::printf(" %9.1f GB/s   ", row.bytes / row.least_s * 1e-9);
  if (row.ceiling_s > 0) std::printf(" %4.0f%%", 100 * row.ceiling_s / row.least_s);
  std::printf("\n");
}

// The measure of operations that move memory: a copy of arrays far larger than the caches.
void PrintCpuCopy(const Options& options) {
  constexpr int64_t kFloatsPerThread = 16 << 20;
  ThreadPool pool(options.threads);
  const int64_t floats = kFloatsPerThread * options.threads;
  std::vector<float> from(floats, 1), to(floats);
  std::vector<double> seconds;
  for (int i = 0; i < std::min(options.repeats, 10); ++i) {
    const double start = Seconds();
    pool.ParallelFor(options.threads, [&](int64_t cell, int) {
      std::copy_n(from.data() + cell * kFloatsPerThread, kFloatsPerThread,
                  to.data() + cell * kFloatsPerThread);
    });
    seconds.push_back(Seconds() - start);
  }
  std::printf("ceiling: a copy in memory moves %.1f GB/s, read and written\n",
              2e-9 * sizeof(float) * floats / Least(seconds));
}

// The least seconds that oneDNN's sgemm takes for each of the operations' products, added up; on
// OpenMP threads.
double DnnlSeconds(const Options& options, const std::vector<BenchmarkOperation>& operations) {
  omp_set_num_threads(options.threads);
  double sum = 0;
  for (const BenchmarkOperation& operation : operations) {
    for (const auto& [m, n, k] : operation.products) {
      std::vector<float> a(m * k, 1), b(k * n, 1), c(m * n);
      std::vector<double> seconds;
      for (int i = 0; i < options.repeats; ++i) {
        const double start = Seconds();
        dnnl_sgemm('N', 'N', m, n, k, 1, a.data(), k, b.data(), n, 0, c.data(), n);
        seconds.push_back(Seconds() - start);
      }
      sum += Least(seconds);
    }
  }
  return sum;
}

// The seconds that every operation's products would take if the CPU did nothing but multiply and
// add; 0 for other operations.
std::vector<double> CpuCeilings(const Options& options,
                                const std::vector<BenchmarkOperation>& operations,
                                size_t num_of_step) {
  const CpuCeiling one = MeasureCpuCeiling(1, options.repeats);
  const CpuCeiling all = MeasureCpuCeiling(options.threads, options.repeats);
  std::printf("%s\n", DescribeCpu().c_str());
  std::printf("ceiling: multiply-adds, float32: %.1f GFLOP/s of a thread, %.1f of %d\n",
              1e-9 * one.float32, 1e-9 * all.float32, options.threads);
  if (all.bfloat16 > 0) {
    std::printf("ceiling: multiply-adds, bfloat16: %.1f GFLOP/s of a thread, %.1f of %d\n",
                1e-9 * one.bfloat16, 1e-9 * all.bfloat16, options.threads);
  }
  PrintCpuCopy(options);
  const std::vector<BenchmarkOperation> step(operations.begin(), operations.begin() + num_of_step);
  double flops = 0;
  for (const BenchmarkOperation& operation : step) flops += operation.flops();
  const double dnnl = flops / DnnlSeconds(options, step);
  std::printf("oneDNN: sgemm of the step's products, float32: %.1f GFLOP/s, %.0f%%\n", 1e-9 * dnnl,
              100 * dnnl / all.float32);
  const bool bfloat16 = PrecisionOf(options.precision) == MlpPrecision::kBfloat16;
  const double best = bfloat16 && all.bfloat16 > 0 ? all.bfloat16 : all.float32;
  std::vector<double> seconds;
  for (const BenchmarkOperation& operation : operations) {
    seconds.push_back(operation.flops() / best);
  }
  return seconds;
}

absl::StatusOr<std::unique_ptr<Device>> MakeDevice(const Options& options) {
  if (options.cuda()) return MakeCudaDevice(CudaDeviceOptions());
  CpuDeviceOptions device_options;
  device_options.num_threads = options.threads;
  if (options.isa == "avx2") device_options.isa = CpuIsaLimit::kAvx2;
  if (options.isa == "avx512") device_options.isa = CpuIsaLimit::kAvx512;
  return MakeCpuDevice(device_options);
}

// The seconds that every operation would take at the device's best.
absl::StatusOr<std::vector<double>> CudaCeilings(const std::vector<BenchmarkOperation>& operations,
                                                 MlpPrecision precision) {
  ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo(CudaDeviceOptions()));
  ASSIGN_OR_RETURN(const double copy, MeasureCudaCopy(CudaDeviceOptions()));
  std::printf("%s: a copy in its memory moves %.1f GB/s, read and written\n", info.name.c_str(),
              copy * 1e-9);
  std::vector<double> seconds;
  for (const BenchmarkOperation& operation : operations) {
    double best = operation.bytes / copy;
    if (!operation.products.empty()) {
      ASSIGN_OR_RETURN(best,
                       MeasureCudaProducts(CudaDeviceOptions(), operation.products, precision));
    }
    seconds.push_back(best);
  }
  return seconds;
}

// The seconds of every repeat of every operation: [operations][repeats].
absl::StatusOr<std::vector<std::vector<double>>> Time(
    const Options& options, const std::vector<BenchmarkOperation>& operations, Device* device) {
  const int times = options.cuda() ? kTimesPerRepeat : 1;
  std::vector<std::vector<double>> seconds(operations.size());
  for (int repeat = -kWarmUp; repeat < options.repeats; ++repeat) {
    for (size_t i = 0; i < operations.size(); ++i) {
      const double start = Seconds();
      for (int t = 0; t < times; ++t) operations[i].run();
      RETURN_IF_ERROR(device->Synchronize());
      if (repeat >= 0) seconds[i].push_back((Seconds() - start) / times);
    }
  }
  return seconds;
}

absl::StatusOr<double> Run(const Options& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Device> device, MakeDevice(options));
  const MlpPrecision precision = PrecisionOf(options.precision);
  StepBenchmark step(device.get(), options.batch, precision);
  std::vector<BenchmarkOperation> operations = step.StepOperations();
  const size_t num_of_step = operations.size();
  for (BenchmarkOperation& operation : step.CacheOperations()) operations.push_back(operation);
  for (BenchmarkOperation& operation : step.OperationsOfLayers()) operations.push_back(operation);
  for (BenchmarkOperation& operation : step.OperationsOfSteps()) operations.push_back(operation);
  std::printf("DLRM Kaggle shape 13-512-256-64-16, 26 x dim 16, 367-512-256-1; batch %d, ",
              options.batch);
  if (options.cuda()) {
    std::printf("cuda, %s, ", options.precision.c_str());
  } else {
    std::printf("cpu, %d threads, isa %s, %s, ", options.threads, options.isa.c_str(),
                options.precision.c_str());
  }
  std::printf("%d repeats, %.1f lookups a unique key\n", options.repeats, step.lookups_per_key());
  std::vector<double> ceilings(operations.size(), 0);
  if (options.cuda()) {
    ASSIGN_OR_RETURN(ceilings, CudaCeilings(operations, precision));
  } else {
    ceilings = CpuCeilings(options, operations, num_of_step);
  }
  ASSIGN_OR_RETURN(const auto seconds, Time(options, operations, device.get()));
  std::printf("%-28s %8s %8s  (us a sample)\n", "operation", "median", "least");
  Row total, products;
  total.name = "step (sum of the above)";
  products.name = "its products";
  for (size_t i = 0; i < operations.size(); ++i) {
    const BenchmarkOperation& operation = operations[i];
    Row row{operation.name,    Median(seconds[i]), Least(seconds[i]),
            operation.flops(), operation.bytes,    ceilings[i]};
    Print(row, options.batch);
    if (i >= num_of_step) continue;
    total.Add(row);
    if (row.flops > 0) products.Add(row);
    if (i + 1 == num_of_step) {
      Print(total, options.batch);
      Print(products, options.batch);
    }
  }
  return step.Loss();
}

bool OneOf(const std::string& value, const std::vector<std::string>& values) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--device") {
      options->device = value;
    } else if (flag == "--batch") {
      options->batch = std::atoi(value.c_str());
    } else if (flag == "--threads") {
      options->threads = std::atoi(value.c_str());
    } else if (flag == "--repeats") {
      options->repeats = std::atoi(value.c_str());
    } else if (flag == "--isa") {
      options->isa = value;
    } else if (flag == "--precision") {
      options->precision = value;
    } else {
      return false;
    }
  }
  return argc % 2 == 1 && options->batch > 0 && options->threads > 0 && options->repeats > 0 &&
         OneOf(options->device, {"cpu", "cuda"}) &&
         OneOf(options->isa, {"auto", "avx2", "avx512"}) &&
         OneOf(options->precision, {"float32", "bfloat16", options->cuda() ? "tf32" : "float32"});
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  thermocline::Options options;
  if (!thermocline::Parse(argc, argv, &options)) {
    std::fprintf(stderr,
                 "usage: kernels_benchmark [--device cpu|cuda] [--batch N] [--repeats N] "
                 "[--threads N] [--isa auto|avx2|avx512] [--precision float32|tf32|bfloat16]\n");
    return 2;
  }
  if (options.isa == "avx512" && !thermocline::CpuSupports(thermocline::CpuIsaLimit::kAvx512)) {
    std::fprintf(stderr, "this machine has no AVX-512\n");
    return 2;
  }
  const absl::StatusOr<double> loss = thermocline::Run(options);
  if (!loss.ok()) {
    std::fprintf(stderr, "%s\n", loss.status().ToString().c_str());
    return 1;
  }
  return std::isfinite(*loss) ? 0 : 1;
}
