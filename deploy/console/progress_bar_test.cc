#include "deploy/console/progress_bar.h"

#include <gtest/gtest.h>

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
            "[============>           ]  50%  step 1,200  307,200 samples  10,240/s  loss 0.4712  "
            "0:30 left");
  Progress bare;
  bare.step = 3;
  EXPECT_EQ(RenderProgress(bare, absl::Seconds(1)), "step 3  0 samples  0/s");
}

TEST(RenderProgress, OddFractionsStayInTheBar) {
  Progress progress = Half();
  progress.fraction = 7;
  progress.auc = 0.75;
  EXPECT_EQ(RenderProgress(progress, absl::Seconds(1)),
            "[========================] 100%  step 1,200  307,200 samples  10,240/s  loss 0.4712  "
            "AUC 0.7500");
}

// What a bar writes for updates at the given times, in ms.
std::string Drawn(bool is_terminal, const std::vector<int>& times_ms, double last_fraction) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  {
    ProgressBar bar(out, is_terminal);
    for (size_t i = 0; i < times_ms.size(); ++i) {
      Progress progress;
      progress.step = i;
      progress.fraction = i + 1 == times_ms.size() ? last_fraction : 0;
      bar.Update(progress, absl::Milliseconds(times_ms[i]));
    }
  }
  std::fclose(out);
  const std::string result(text, size);
  std::free(text);
  return result;
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

TEST(ProgressBar, ATerminalLineIsRedrawnAndRemoved) {
  const std::string text = Drawn(true, {0, 50, 150}, 0.5);
  EXPECT_EQ(Count(text, "\n"), 0) << text;
  EXPECT_EQ(Count(text, "step"), 2) << text;
  EXPECT_EQ(text.substr(text.size() - 4), "\r\x1b[K");
}

}  // namespace
}  // namespace thermocline
