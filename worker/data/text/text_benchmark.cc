// Measures the reading and the parsing of text, each alone on one thread, over lines like Criteo's
// that are made here, or over a job's own data:
//   text_benchmark --job=deploy/jobs/avazu.textproto --data=avazu.csv
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmark/benchmark.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/disk/file_list.h"
#include "common/job/job_data.h"
#include "worker/data/reading_benchmark.h"
#include "worker/data/text/text_source.h"

namespace thermocline {
namespace {

constexpr int64_t kBatch = 2048;

// The data that are read, and their parser.
struct Input {
  std::shared_ptr<TextFiles> files = std::make_shared<TextFiles>();
  std::shared_ptr<const TextParser> parser;
  int64_t max_rows = 0;  // How many rows are parsed.
};

Input* input = nullptr;

// Makes integers, one in five of which is missing, and categories of eight digits.
std::string CriteoLines(int64_t rows) {
  std::string text;
  uint64_t state = 1;
  const auto random = [&state](uint64_t below) { return Mix64(state++) % below; };
  for (int64_t i = 0; i < rows; ++i) {
    absl::StrAppend(&text, random(4) == 0 ? 1 : 0);
    for (int column = 0; column < 13; ++column) {
      text.push_back('\t');
      if (random(5) > 0) absl::StrAppend(&text, random(uint64_t{1} << random(14)));
    }
    for (int column = 0; column < 26; ++column) {
      text.push_back('\t');
      if (random(10) > 0) absl::StrAppendFormat(&text, "%08x", random(uint64_t{1} << 32));
    }
    text.push_back('\n');
  }
  return text;
}

void Open(const Job& job) {
  const Data data = DescribeData(job.data());
  CHECK(!IsNpy(data));
  for (const std::string& path : data.train().path()) {
    const auto paths = ListFiles(path);
    CHECK(paths.ok());
    input->files->paths.insert(input->files->paths.end(), paths->begin(), paths->end());
  }
  ColumnNames columns{TextColumns(data.train()), "the job"};
  if (data.train().has_csv()) {
    input->files->format = {data.train().csv().separator()[0], data.train().csv().quotes()};
    if (data.train().csv().header()) {
      const auto header = ReadHeader(input->files->paths[0], input->files->format);
      CHECK(header.ok());
      input->files->header = columns.names = *header;
    }
  }
  auto parser = TextParser::Make(job, data, std::move(columns));
  CHECK(parser.ok());
  input->parser = std::make_shared<TextParser>(*std::move(parser));
}

std::unique_ptr<TextSource> MakeSource() {
  auto source = std::make_unique<TextSource>(input->files, input->parser, TextRange{}, OnScan{});
  CHECK(source->Rewind(0).ok());
  return source;
}

void Report(int64_t rows, int64_t bytes, benchmark::State* state) {
  state->SetItemsProcessed(rows * state->iterations());
  state->SetBytesProcessed(bytes * state->iterations());
}

// Reads the whole text, as the reading thread does.
void BM_Read(benchmark::State& state) {
  int64_t rows = 0, bytes = 0;
  for (auto _ : state) {
    const auto source = MakeSource();
    RawBatch raw;
    rows = bytes = 0;
    while (*source->Read(kBatch, &raw)) {
      rows += raw.num_rows;
      bytes += static_cast<int64_t>(raw.line_begin.back());
    }
  }
  Report(rows, bytes, &state);
}

// Parses rows that are in memory.
void BM_Parse(benchmark::State& state) {
  const auto source = MakeSource();
  std::vector<RawBatch> batches;
  int64_t rows = 0, bytes = 0;
  for (RawBatch raw; rows < input->max_rows && *source->Read(kBatch, &raw);) {
    rows += raw.num_rows;
    bytes += static_cast<int64_t>(raw.line_begin.back());
    batches.push_back(raw);
  }
  Batch batch;
  std::vector<int64_t> bad;
  for (auto _ : state) {
    for (const RawBatch& raw : batches) {
      input->parser->ParseRows(raw, 0, raw.num_rows, &batch, &bad);
    }
  }
  CHECK(bad.empty());
  Report(rows, bytes, &state);
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) {
  using namespace thermocline;
  Input opened;
  input = &opened;
  input->max_rows = 200'000;
  benchmark::RegisterBenchmark("BM_Read", BM_Read)->Unit(benchmark::kMillisecond);
  benchmark::RegisterBenchmark("BM_Parse", BM_Parse)->Unit(benchmark::kMillisecond);
  ReadingBenchmark reading;
  reading.made_job =
      "name: 'j' data { format: CRITEO_TSV path: 'x' } dlrm { bottom: 8 top: 8 } "
      "train { batch_size: 4 learning_rate { base: 0.1 } }";
  reading.made_suffix = ".tsv";
  reading.made_rows = 200'000;
  reading.make = [](const std::string& path, int64_t rows) {
    std::ofstream(path) << CriteoLines(rows);
  };
  reading.open = Open;
  return RunReadingBenchmark(reading, argc, argv);
}
