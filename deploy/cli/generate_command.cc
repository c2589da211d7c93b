// thermocline generate: a synthetic click log.
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "absl/strings/str_join.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/clicklog/click_log.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

void PrintSplit(const char* name, const ClickLogSplit& split) {
  if (split.rows == 0) return;
  std::printf("%s: %s rows, %.1f%% clicks, %s distinct ids, best possible AUC %.4f\n  %s\n", name,
              FormatCount(static_cast<uint64_t>(split.rows)).c_str(), 100 * split.click_rate,
              FormatCount(static_cast<uint64_t>(split.distinct_ids)).c_str(), split.best_auc,
              absl::StrJoin(split.files, "\n  ").c_str());
}

int RunGenerate(const ClickLogOptions& options) {
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const auto summary = GenerateClickLog(options, [&](int64_t done, int64_t total) {
    if (!is_terminal) return;
    std::fprintf(stderr, "\r%s of %s rows", FormatCount(static_cast<uint64_t>(done)).c_str(),
                 FormatCount(static_cast<uint64_t>(total)).c_str());
  });
  if (is_terminal) std::fputs("\r\x1b[K", stderr);
  if (!summary.ok()) {
    const bool is_usage = absl::IsInvalidArgument(summary.status());
    return Complain(summary.status().message(), is_usage ? kExitUsage : kExitFailed);
  }
  PrintSplit("train", summary->train);
  PrintSplit("test", summary->test);
  return kExitDone;
}

}  // namespace

void AddGenerate(CLI::App* app, Action* action) {
  constexpr int64_t kMaxRows = int64_t{1} << 40;
  const auto flags = std::make_shared<ClickLogOptions>();
  const auto test_rows = std::make_shared<std::optional<int64_t>>();
  CLI::App* command = AddCommand(
      app, "generate", "writes a synthetic click log with a planted model",
      R"(Writes a click log in the shape of Criteo's Kaggle log: 13 dense and 26 categorical columns,
skewed ids, labels from a planted model. The same flags give the same bytes. Existing files of the
same names are overwritten. With --test-rows 0 the folder must not have held-out rows of another log.

--correlation makes the ids of a row popular together, and leaves how often each id comes as it is:
more rows have popular ids alone, which is what `fae` feeds on. tests/benchmarks/fit_correlation.py
finds the value at which as large a share of the rows is hot as in a real log.

examples:
  thermocline generate clicklog --rows 1000000
  thermocline generate clicklog --format tsv.gz --rows 50000 --seed 3)");
  AddValue(command, "FOLDER", &flags->folder, "DIR", "where to write")->required();
  command
      ->add_option_function<std::string>(
          "--format",
          [flags](const std::string& name) {
            flags->format = name == "npy"   ? ClickLogFormat::kNpy
                            : name == "tsv" ? ClickLogFormat::kTsv
                                            : ClickLogFormat::kTsvGzip;
          },
          "npy (default), tsv or tsv.gz")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"npy", "tsv", "tsv.gz"}));
  AddValue(command, "--rows", &flags->rows, "N", "rows to train on; default 1000000")
      ->transform(WholeNumber(1, kMaxRows));
  AddValue(command, "--test-rows", test_rows.get(), "N", "held-out rows; default a tenth of --rows")
      ->transform(WholeNumber(0, kMaxRows));
  AddValue(command, "--seed", &flags->seed, "N", "of all random draws; default 1")
      ->transform(WholeNumber(0, std::numeric_limits<int64_t>::max()));
  AddValue(command, "--skew", &flags->skew, "X",
           "exponent of the ids' Zipf distributions; default 1.05");
  AddValue(command, "--shrink", &flags->shrink, "X",
           "divides the cardinalities of the large columns; default 1");
  AddValue(command, "--correlation", &flags->correlation, "C",
           "how far the ids of a row are popular together, in [0, 1]; default 0: not at all");
  AddValue(command, "--threads", &flags->threads, "N", "0 (default): one for each core")
      ->transform(WholeNumber(0, 1024));
  command->callback([=] {
    flags->test_rows = test_rows->value_or(flags->rows / 10);
    *action = [=] { return RunGenerate(*flags); };
  });
}

}  // namespace thermocline
