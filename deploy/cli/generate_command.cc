// thermocline generate: a synthetic click log.
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_join.h"
#include "deploy/cli/command_line.h"
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

}  // namespace

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

}  // namespace thermocline
