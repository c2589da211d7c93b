// Measures the reading and parsing of Parquet columns, from files to batches, all on one thread,
// over columns like Criteo's that are made here, or over a job's own data:
//   parquet_benchmark --job=job.textproto --data=days/
// tests/benchmarks/compare_parquet.py sets it beside pyarrow's reader of the same columns.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmark/benchmark.h"
#include "common/arrow/parquet.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/job/job_data.h"
#include "worker/data/parquet/parquet_source.h"
#include "worker/data/reading_benchmark.h"

namespace thermocline {
namespace {

constexpr int64_t kBatch = 2048;
constexpr int64_t kRowGroupRows = 1 << 17;
constexpr char kMadeJob[] = R"(name: 'j'
data { train { path: 'x' parquet {} } label { column: 'label' } }
feature { column: 'I1..I13' numeric { missing: 0 transform { log1p {} } } }
feature { column: 'C1..C26' categorical { id: HEX } }
dlrm { bottom: 8 top: 8 } train { batch_size: 4 learning_rate { base: 0.1 } })";

struct Input {
  std::shared_ptr<const ParquetFiles> files;
  std::shared_ptr<const ParquetParser> parser;
};

Input* input = nullptr;

void WriteRows(const std::string& path, int64_t rows) {
  uint64_t state = 1;
  const auto random = [&state](uint64_t below) { return Mix64(state++) % below; };
  auto writer = ParquetWriter::Create(path);
  CHECK(writer.ok());
  for (int64_t begin = 0; begin < rows; begin += kRowGroupRows) {
    const int64_t count = std::min(kRowGroupRows, rows - begin);
    std::vector<ParquetOutput> columns;
    for (int i = 0; i < 14; ++i) {
      std::vector<int64_t> values(count);
      for (int64_t& value : values) {
        value = static_cast<int64_t>(i == 0 ? random(2) : random(uint64_t{1} << random(14)));
      }
      columns.push_back({i == 0 ? "label" : absl::StrCat("I", i), std::move(values)});
    }
    for (int i = 1; i <= 26; ++i) {
      std::vector<std::string> values(count);
      for (std::string& value : values) value = absl::StrFormat("%08x", random(1000 * i * i * i));
      columns.push_back({absl::StrCat("C", i), std::move(values)});
    }
    CHECK((*writer)->Append(columns).ok());
  }
  CHECK((*writer)->Close().ok());
}

void Open(const Job& job) {
  const Data data = DescribeData(job.data());
  CHECK(data.train().has_parquet());
  const auto found = FindFiles(job, data);
  CHECK(found.ok());
  const auto first = ParquetFile::Open(found->train[0]);
  CHECK(first.ok());
  auto parser = ParquetParser::Make(job, data, found->train[0], (*first)->columns());
  CHECK(parser.ok());
  input->parser = std::make_shared<ParquetParser>(*std::move(parser));
  auto files = OpenParquetFiles(*found, found->train, *input->parser);
  CHECK(files.ok());
  input->files = std::make_shared<ParquetFiles>(*std::move(files));
}

void Run(bool parses, benchmark::State* state) {
  Batch batch;
  std::vector<int64_t> bad;
  for (auto _ : *state) {
    ParquetSource source(input->files, input->parser, {0, input->files->all_rows()});
    CHECK(source.Rewind(0).ok());
    for (RawBatch raw; *source.Read(kBatch, &raw);) {
      raw.slice_end = raw.num_rows;
      if (parses) CHECK(source.Parse(raw, &batch, &bad).ok());
    }
  }
  CHECK(bad.empty());
  state->SetItemsProcessed(input->files->all_rows() * state->iterations());
}

void BM_Read(benchmark::State& state) { Run(/*parses=*/false, &state); }
void BM_ReadAndParse(benchmark::State& state) { Run(/*parses=*/true, &state); }

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  using namespace thermocline;
  if (const absl::Status arrow = RequireArrow("this benchmark"); !arrow.ok()) {
    std::fprintf(stderr, "%s\n", std::string(arrow.message()).c_str());
    return 0;
  }
  Input opened;
  input = &opened;
  benchmark::RegisterBenchmark("BM_Read", BM_Read)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("BM_ReadAndParse", BM_ReadAndParse)->Unit(benchmark::kMillisecond);
  ReadingBenchmark reading;
  reading.made_job = kMadeJob;
  reading.made_suffix = ".parquet";
  reading.made_rows = 500'000;
  reading.make = WriteRows;
  reading.open = Open;
  return RunReadingBenchmark(reading, argc, argv);
}
