#include "deploy/report/progress_bar.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace thermocline {
namespace {

Progress Half() {
  Progress progress;
  progress.step = 1200;
  progress.samples = 307200;
  progress.samples_per_s = 10240.5;
  progress.fraction = 0.5;
  progress.loss = 0.47123;
  return progress;
}

TEST(RenderProgress, ShowsAllThatIsKnown) {
  EXPECT_EQ(RenderProgress(Half(), absl::Seconds(30)),
            "[============>           ]  50%  1,200 steps  307,200 samples  10,240/s  loss 0.4712  "
            "0:30 left");
  Progress bare;
  bare.step = 3;
  EXPECT_EQ(RenderProgress(bare, std::nullopt), "3 steps  0 samples  0/s");
}

TEST(RenderProgress, NamesTheWorkerThatOthersWaitFor) {
  Progress progress;
  progress.hit_rate = 0.5;
  progress.slowest = SlowestWorker{2, 0.31};
  EXPECT_EQ(RenderProgress(progress, std::nullopt),
            "0 steps  0 samples  0/s  cache hits 50%  31% waits for worker 2");
  progress.slowest->share = 0.04;
  EXPECT_EQ(RenderProgress(progress, std::nullopt), "0 steps  0 samples  0/s  cache hits 50%");
}

TEST(RenderProgress, SaysWhichBatchesAreTrained) {
  Progress progress;
  progress.hot = HotProgress{true, 12.5, 3};
  EXPECT_EQ(RenderProgress(progress, std::nullopt),
            "0 steps  0 samples  0/s  hot batches, rate 12.5%, 3 changes");
}

TEST(RenderProgress, OddFractionsStayInTheBar) {
  Progress progress = Half();
  progress.fraction = 7;
  progress.auc = 0.75;
  EXPECT_EQ(RenderProgress(progress, std::nullopt),
            "[========================] 100%  1,200 steps  307,200 samples  10,240/s  loss 0.4712  "
            "batch AUC 0.7500");
}

TEST(RenderProgress, APhaseStandsInPlaceOfTheSteps) {
  Progress progress = Half();
  progress.phase = PhaseProgress{"counting lines", 3 << 20, 12 << 20, "bytes", 5};
  EXPECT_EQ(RenderProgress(progress, absl::Seconds(30)),
            "[======>                 ]  25%  counting lines  3.0 MiB of 12.0 MiB  0:15 left");
  progress.phase = PhaseProgress{"evaluating", 4096, 4096, "samples", 5};
  EXPECT_EQ(RenderProgress(progress, absl::Seconds(30)),
            "[========================] 100%  evaluating  4,096 of 4,096 samples");
  // As far as the bytes read tell.
  progress.phase = PhaseProgress{"scoring", 46080, 51192, "rows", 9, /*is_total_estimated=*/true};
  EXPECT_EQ(RenderProgress(progress, std::nullopt),
            "[=====================>  ]  90%  scoring  46,080 of about 51,000 rows  0:01 left");
  // Where the total is unknown: a pipe has no size, and a file of held-out rows isn't counted.
  progress.phase = PhaseProgress{"counting lines", 512, 0, "bytes", 5};
  EXPECT_EQ(RenderProgress(progress, absl::Seconds(30)), "counting lines  512 B");
  progress.phase = PhaseProgress{"evaluating", 8192, 0, "samples", 5};
  EXPECT_EQ(RenderProgress(progress, absl::Seconds(30)), "evaluating  8,192 samples");
}

// What a bar writes for updates at the given times, in ms.
std::string Drawn(bool is_terminal, const std::vector<int>& times_ms, double last_fraction) {
  std::string text;
  const auto sink = [&text](absl::string_view piece) {
    text += std::string(piece);
    return true;
  };
  ProgressBar bar(sink, is_terminal);
  for (size_t i = 0; i < times_ms.size(); ++i) {
    Progress progress;
    progress.step = i;
    progress.fraction = i + 1 == times_ms.size() ? last_fraction : 0;
    bar.Update(progress, absl::Milliseconds(times_ms[i]));
  }
  bar.Clear();
  return text;
}

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(ProgressBar, PlainLinesAreRareAndTheLastIsShown) {
  const std::string text = Drawn(false, {0, 500, 1000, 2500, 2600}, 1);
  EXPECT_EQ(Count(text, "\n"), 3) << text;
  EXPECT_EQ(Count(text, "100%"), 1) << text;
  EXPECT_EQ(Count(text, "\r"), 0) << text;
}

TEST(ProgressBar, PlainLinesOfAWaitBecomeRare) {
  std::vector<std::string> lines;
  ProgressBar bar(
      [&lines](absl::string_view piece) {
        lines.emplace_back(piece);
        return true;
      },
      /*is_terminal=*/false);
  Progress progress;
  progress.phase = PhaseProgress{"waiting for the script's first step", 0, 0, "s", 0};
  for (int second = 0; second < 600; ++second) {
    progress.phase->done = static_cast<uint64_t>(second);
    bar.Update(progress, absl::Seconds(second));
  }
  // At 0, 4, 12, 28, 60, then each minute.
  ASSERT_EQ(lines.size(), 13u);
  EXPECT_EQ(lines[4], "waiting for the script's first step  60 s\n");
  EXPECT_EQ(lines[12], "waiting for the script's first step  540 s\n");
  // What is known again is shown again.
  progress.phase.reset();
  bar.Update(progress, absl::Seconds(603));
  EXPECT_EQ(lines.size(), 14u);
}

// What a launch did not train itself, it does not count; nor what it trains again.
TEST(ProgressBar, TheTimeLeftFollowsWhatWasTrainedLately) {
  std::vector<std::string> lines;
  const auto sink = [&lines](absl::string_view piece) {
    lines.emplace_back(piece);
    return true;
  };
  ProgressBar bar(sink, /*is_terminal=*/false);
  const auto update = [&](uint64_t step, int seconds) {
    Progress progress;
    progress.step = step;
    progress.first_step = 800;
    progress.fraction = static_cast<double>(step) / 1000;
    bar.Update(progress, absl::Seconds(seconds));
    return lines.back().substr(lines.back().find("/s") + 2);
  };
  EXPECT_EQ(update(850, 10), "  0:30 left\n");
  EXPECT_EQ(update(900, 20), "  0:20 left\n");
  EXPECT_EQ(update(820, 30), "\n") << "it has gone back";
  EXPECT_EQ(update(860, 40), "  0:35 left\n");
}

TEST(ProgressBar, ATerminalLineIsRedrawnAndRemoved) {
  const std::string text = Drawn(true, {0, 50, 150}, 0.5);
  EXPECT_EQ(Count(text, "\n"), 0) << text;
  EXPECT_EQ(Count(text, "step"), 2) << text;
  EXPECT_EQ(text.substr(text.size() - 4), "\r\x1b[K");
}

TEST(ProgressBar, ALineThatWasDroppedDoesNotStand) {
  bool ready = false;
  std::vector<std::string> written;
  const auto sink = [&](absl::string_view piece) {
    if (ready) written.emplace_back(piece);
    return ready;
  };
  ProgressBar bar(sink, true);
  bar.Update(Half(), absl::ZeroDuration());
  ready = true;
  bar.Clear();
  EXPECT_TRUE(written.empty());
  bar.Update(Half(), absl::Seconds(1));
  ASSERT_EQ(written.size(), 1u);
  ready = false;
  bar.Clear();
  ready = true;
  bar.Clear();
  EXPECT_EQ(written.size(), 2u);
}

}  // namespace
}  // namespace thermocline
