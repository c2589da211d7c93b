#include "deploy/console/progress_bar.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/console/format.h"

namespace thermocline {
namespace {

constexpr int kBarWidth = 24;
constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(100);
constexpr absl::Duration kPlainPeriod = absl::Seconds(2);
// "Return to the line's begin" and "clear to the line's end".
constexpr char kClearLine[] = "\r\x1b[K";

std::string Bar(double fraction) {
  const int filled = static_cast<int>(std::floor(fraction * kBarWidth));
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  return absl::StrFormat("[%s] %3.0f%%", bar, std::floor(fraction * 100));
}

}  // namespace

std::string RenderProgress(const Progress& progress, absl::Duration elapsed) {
  std::string line;
  if (progress.fraction)
    absl::StrAppend(&line, Bar(std::clamp(*progress.fraction, 0.0, 1.0)), "  ");
  absl::StrAppend(&line, "step ", FormatCount(progress.step), "  ", FormatCount(progress.samples),
                  " samples  ",
                  FormatCount(static_cast<uint64_t>(std::max(0.0, progress.samples_per_s))), "/s");
  if (progress.loss) absl::StrAppend(&line, absl::StrFormat("  loss %.4f", *progress.loss));
  if (progress.auc) absl::StrAppend(&line, absl::StrFormat("  batch AUC %.4f", *progress.auc));
  if (progress.hit_rate) {
    absl::StrAppend(&line, absl::StrFormat("  cache hits %.0f%%", 100 * *progress.hit_rate));
  }
  if (progress.fraction && *progress.fraction > 0 && *progress.fraction < 1) {
    const double left =
        absl::ToDoubleSeconds(elapsed) * (1 - *progress.fraction) / *progress.fraction;
    absl::StrAppend(&line, "  ", FormatSeconds(left), " left");
  }
  return line;
}

void ProgressBar::Update(const Progress& progress, absl::Duration elapsed) {
  const bool is_last = progress.fraction && *progress.fraction >= 1;
  const absl::Duration period = is_terminal_ ? kTerminalPeriod : kPlainPeriod;
  if (!is_last && elapsed - last_drawn_ < period) return;
  last_drawn_ = elapsed;
  const std::string line = RenderProgress(progress, elapsed);
  if (is_terminal_) {
    line_stands_ |= out_(absl::StrCat(kClearLine, line));
  } else {
    out_(absl::StrCat(line, "\n"));
  }
}

void ProgressBar::Clear() {
  if (line_stands_ && out_(kClearLine)) line_stands_ = false;
}

}  // namespace thermocline
