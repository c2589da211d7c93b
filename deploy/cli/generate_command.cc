// thermocline generate: a synthetic click log.
#include <unistd.h>

#include <cstdio>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "deploy/cli/command.h"
#include "deploy/clicklog/click_log.h"
#include "deploy/console/format.h"

namespace thermocline {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 40;

absl::StatusOr<ClickLogFormat> FormatFromFlag(const std::string& name) {
  if (name == "npy") return ClickLogFormat::kNpy;
  if (name == "tsv") return ClickLogFormat::kTsv;
  if (name == "tsv.gz") return ClickLogFormat::kTsvGzip;
  return absl::InvalidArgumentError(
      absl::StrCat("--format is '", name, "'; it is one of npy, tsv, tsv.gz"));
}

absl::Status ReadDouble(const Flags& flags, absl::string_view name, double* value) {
  if (!flags.Has(name) || absl::SimpleAtod(flags.Get(name), value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is '", flags.Get(name), "'; it must be a number"));
}

absl::StatusOr<ClickLogOptions> OptionsFromFlags(const Flags& flags) {
  ClickLogOptions options;
  if (flags.positional().size() != 1) {
    return absl::InvalidArgumentError("name one folder to write to");
  }
  options.folder = flags.positional()[0];
  ASSIGN_OR_RETURN(options.format, FormatFromFlag(flags.Get("format", "npy")));
  ASSIGN_OR_RETURN(options.rows, flags.GetInt("rows", options.rows, 1, kMaxRows));
  ASSIGN_OR_RETURN(options.test_rows, flags.GetInt("test-rows", options.rows / 10, 0, kMaxRows));
  ASSIGN_OR_RETURN(const int64_t seed, flags.GetInt("seed", static_cast<int64_t>(options.seed), 0,
                                                    std::numeric_limits<int64_t>::max()));
  options.seed = static_cast<uint64_t>(seed);
  ASSIGN_OR_RETURN(const int64_t threads, flags.GetInt("threads", 0, 0, 1024));
  options.threads = static_cast<int>(threads);
  RETURN_IF_ERROR(ReadDouble(flags, "skew", &options.skew));
  RETURN_IF_ERROR(ReadDouble(flags, "shrink", &options.shrink));
  return options;
}

void PrintSplit(const char* name, const ClickLogSplit& split) {
  if (split.rows == 0) return;
  std::printf("%s: %s rows, %.1f%% clicks, %s distinct ids, best possible AUC %.4f\n  %s\n", name,
              FormatCount(static_cast<uint64_t>(split.rows)).c_str(), 100 * split.click_rate,
              FormatCount(static_cast<uint64_t>(split.distinct_ids)).c_str(), split.best_auc,
              absl::StrJoin(split.files, "\n  ").c_str());
}

int Generate(const Flags& flags) {
  const auto options = OptionsFromFlags(flags);
  if (!options.ok()) return Complain(options.status().message(), kExitUsage);
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  const auto summary = GenerateClickLog(*options, [&](int64_t done, int64_t total) {
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

Command GenerateCommand() {
  Command command;
  command.name = "generate";
  command.arguments = "FOLDER [FLAGS]";
  command.summary = "writes a synthetic click log with a planted model";
  command.details =
      "Writes a click log in the shape of Criteo's Kaggle log: 13 dense and 26 categorical\n"
      "columns, skewed and correlated ids, labels from a planted model. The same flags give the\n"
      "same bytes. Existing files of the same names are overwritten; with --test-rows 0 a folder\n"
      "with held-out rows of another log is refused.\n";
  command.examples =
      "  thermocline generate clicklog --rows 1000000\n"
      "  thermocline generate clicklog --format tsv.gz --rows 50000 --seed 3\n";
  command.flags = {
      {"format", "FORMAT", "npy (default), tsv or tsv.gz"},
      {"rows", "N", "rows to train on; default 1000000"},
      {"test-rows", "N", "held-out rows; default a tenth of --rows"},
      {"seed", "N", "of all that is drawn; default 1"},
      {"skew", "X", "exponent of the ids' Zipf distributions; default 1.05"},
      {"shrink", "X", "divides the cardinalities of the large columns; default 1"},
      {"threads", "N", "0 (default): one for each core"},
  };
  command.run = Generate;
  return command;
}

}  // namespace thermocline
