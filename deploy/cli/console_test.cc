#include "deploy/cli/console.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace thermocline {
namespace {

SignalWatch& Signals() {
  static SignalWatch* const signals = new SignalWatch;
  return *signals;
}

class ConsoleTest : public testing::Test {
 protected:
  ConsoleTest() : pipe_(), console_(pipe_.ends[1], &Signals()) {}

  // Writes until there is no room. Returns the bytes there was room for.
  size_t Fill() {
    size_t bytes = 0;
    while (console_.TryWrite("x")) ++bytes;
    return bytes;
  }
  std::string Read(size_t bytes) {
    std::string text(bytes, '\0');
    size_t got = 0;
    while (got < bytes) {
      const ssize_t n = read(pipe_.ends[0], &text[got], bytes - got);
      if (n <= 0) break;
      got += static_cast<size_t>(n);
    }
    text.resize(got);
    return text;
  }

  struct Pipe {
    Pipe() { EXPECT_EQ(pipe(ends), 0); }
    ~Pipe() {
      for (const int end : ends) {
        if (end >= 0) close(end);
      }
    }
    int ends[2];
  };
  Pipe pipe_;
  Console console_;
};

TEST_F(ConsoleTest, TextWithoutRoomIsDropped) {
  EXPECT_TRUE(console_.TryWrite("first\n"));
  const size_t filled = Fill();
  EXPECT_FALSE(console_.TryWrite("dropped\n"));
  EXPECT_EQ(Read(6 + filled), "first\n" + std::string(filled, 'x'));
  EXPECT_TRUE(console_.TryWrite("again\n"));
  EXPECT_EQ(Read(6), "again\n");
}

TEST_F(ConsoleTest, WriteWaitsForTheReader) {
  const size_t filled = Fill();
  const std::string text(1 << 20, 'y');
  std::string got;
  std::thread reader([&] { got = Read(filled + text.size()); });
  EXPECT_TRUE(console_.Write(text));
  reader.join();
  EXPECT_EQ(got, std::string(filled, 'x') + text);
}

TEST_F(ConsoleTest, ARequestToStopEndsAWriteThatWaits) {
  Fill();
  raise(SIGINT);  // To this thread: gRPC's threads, from tests before this one, do not block it.
  const int requests = Signals().stop_requests();
  EXPECT_FALSE(console_.Write("the result"));
  EXPECT_EQ(Signals().stop_requests(), requests + 1);
}

TEST_F(ConsoleTest, AReaderThatIsGoneEndsAWrite) {
  close(pipe_.ends[0]);
  pipe_.ends[0] = -1;
  EXPECT_FALSE(console_.Write("the result"));
  EXPECT_FALSE(console_.TryWrite("progress"));
}

TEST_F(ConsoleTest, AScanIsShownAndARequestToStopEndsIt) {
  const int requests = Signals().stop_requests();
  const ByteScan scan = ScanOnConsole(pipe_.ends[1], &Signals());
  raise(SIGINT);
  EXPECT_EQ(scan.on_progress(1 << 20, 4 << 20),
            absl::CancelledError("stopped by signal 2 (Interrupt)"));
  EXPECT_EQ(Signals().stop_requests(), requests + 1);
  const std::string line =
      "[======>                 ]  25%  reading the checkpoint  1.0 MiB of 4.0 MiB";
  EXPECT_EQ(Read(line.size()), line);
}

}  // namespace
}  // namespace thermocline
