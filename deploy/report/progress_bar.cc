#include "deploy/report/progress_bar.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "deploy/report/format.h"

namespace thermocline {
namespace {

constexpr int kBarWidth = 24;
constexpr double kWaitWorthShowing = 0.05;  // A share of the time.
constexpr absl::Duration kTerminalPeriod = absl::Milliseconds(100);
constexpr absl::Duration kPlainPeriod = absl::Seconds(2);
// Plain lines that only say that something is waited for become as rare as this.
constexpr absl::Duration kLongestPlainPeriod = absl::Minutes(1);
// "Return to the line's begin" and "clear to the line's end".
constexpr char kClearLine[] = "\r\x1b[K";

std::string Bar(double fraction) {
  const int filled = static_cast<int>(std::floor(fraction * kBarWidth));
  std::string bar(static_cast<size_t>(filled), '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  return absl::StrFormat("[%s] %3.0f%%", bar, std::floor(fraction * 100));
}

std::string Amount(uint64_t amount, const std::string& unit) {
  return unit == "bytes" ? FormatBytes(amount) : FormatCount(amount);
}

// To two digits.
uint64_t Rounded(uint64_t amount) {
  uint64_t unit = 1;
  while (amount / unit >= 100) unit *= 10;
  return (amount + unit / 2) / unit * unit;
}

double FractionOf(const PhaseProgress& phase) {
  return std::min(1.0, static_cast<double>(phase.done) / static_cast<double>(phase.total));
}

std::string RenderPhase(const PhaseProgress& phase) {
  const std::string what = absl::StrCat(phase.name, "  ", Amount(phase.done, phase.unit));
  const std::string unit = phase.unit == "bytes" ? "" : absl::StrCat(" ", phase.unit);
  if (phase.total == 0) return absl::StrCat(what, unit);
  const double fraction = FractionOf(phase);
  std::string line = absl::StrCat(
      Bar(fraction), "  ", what, phase.is_total_estimated ? " of about " : " of ",
      Amount(phase.is_total_estimated ? Rounded(phase.total) : phase.total, phase.unit), unit);
  if (fraction > 0 && fraction < 1) {
    const double left = phase.seconds * (1 - fraction) / fraction;
    absl::StrAppend(&line, "  ", FormatSeconds(left), " left");
  }
  return line;
}

}  // namespace

std::string RenderProgress(const Progress& progress, std::optional<absl::Duration> left) {
  if (progress.phase) return RenderPhase(*progress.phase);
  std::string line;
  if (progress.fraction)
    absl::StrAppend(&line, Bar(std::clamp(*progress.fraction, 0.0, 1.0)), "  ");
  absl::StrAppend(&line, FormatCount(progress.step), progress.step == 1 ? " step  " : " steps  ",
                  FormatCount(progress.samples), " samples  ",
                  FormatCount(static_cast<uint64_t>(std::max(0.0, progress.samples_per_s))), "/s");
  if (progress.loss) absl::StrAppend(&line, absl::StrFormat("  loss %.4f", *progress.loss));
  if (!progress.task_aucs.empty()) {
    absl::StrAppend(&line, "  batch AUC");
    for (const auto& [label, auc] : progress.task_aucs) {
      absl::StrAppend(&line, " ", label, " ", auc ? absl::StrFormat("%.4f", *auc) : "n/a");
    }
  } else if (progress.auc) {
    absl::StrAppend(&line, absl::StrFormat("  batch AUC %.4f", *progress.auc));
  }
  if (progress.hit_rate) {
    absl::StrAppend(&line, absl::StrFormat("  cache hits %.0f%%", 100 * *progress.hit_rate));
  }
  if (progress.hot) {
    absl::StrAppend(&line, absl::StrFormat("  %s batches, rate %.4g%%, %d changes",
                                           progress.hot->is_hot ? "hot" : "cold",
                                           progress.hot->rate, progress.hot->changes));
  }
  if (progress.slowest && progress.slowest->share >= kWaitWorthShowing) {
    absl::StrAppend(&line, absl::StrFormat("  %.0f%% waits for worker %d",
                                           100 * progress.slowest->share, progress.slowest->rank));
  }
  if (left) absl::StrAppend(&line, "  ", FormatSeconds(absl::ToDoubleSeconds(*left)), " left");
  return line;
}

std::optional<absl::Duration> ProgressBar::TimeLeft(const Progress& progress,
                                                    absl::Duration elapsed) {
  if (progress.phase || !progress.fraction || progress.step == 0) return std::nullopt;
  const double fraction = *progress.fraction;
  if (!first_fraction_) {
    first_fraction_ =
        fraction * static_cast<double>(progress.first_step) / static_cast<double>(progress.step);
  } else if (progress.step < last_step_) {  // The job has gone back.
    first_fraction_ = fraction;
    first_elapsed_ = elapsed;
  }
  last_step_ = progress.step;
  const double done = fraction - *first_fraction_;
  if (done <= 0 || fraction <= 0 || fraction >= 1) return std::nullopt;
  return (elapsed - first_elapsed_) * ((1 - fraction) / done);
}

absl::Duration ProgressBar::Period(const Progress& progress) {
  if (is_terminal_) return kTerminalPeriod;
  const bool waits = progress.phase.has_value() && progress.phase->total == 0;
  const std::string waits_for = waits ? progress.phase->name : "";
  if (!waits || waits_for != waits_for_) wait_period_ = kPlainPeriod;
  waits_for_ = waits_for;
  return wait_period_;
}

void ProgressBar::Update(const Progress& progress, absl::Duration elapsed) {
  const std::optional<absl::Duration> left = TimeLeft(progress, elapsed);
  const bool is_last = !progress.phase && progress.fraction && *progress.fraction >= 1;
  if (!is_last && elapsed - last_drawn_ < Period(progress)) return;
  last_drawn_ = elapsed;
  if (!waits_for_.empty()) wait_period_ = std::min(2 * wait_period_, kLongestPlainPeriod);
  const std::string line = RenderProgress(progress, left);
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
