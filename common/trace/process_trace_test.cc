#include "common/trace/process_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace thermocline {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

ProcessTraceOptions Server1(const std::string& directory) {
  ProcessTraceOptions options;
  options.directory = directory;
  options.job = "clicks";
  options.role = "server";
  options.index = 1;
  options.generation = 4;
  options.first = Step(7);
  options.last = Step(9);
  return options;
}

// A folder of this test that isn't there yet.
std::string Folder() {
  const std::string path = absl::StrCat(
      ::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::filesystem::remove_all(path);
  return path;
}

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(std::string(std::istreambuf_iterator<char>(file), {}), nullptr, false);
}

// The events of a kind ("X", "b", ...).
std::vector<Json> EventsOf(const Json& trace, const std::string& kind) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == kind) events.push_back(event);
  }
  return events;
}

TEST(ProcessTraceTest, TheTextIsChromesFormat) {
  RecordedTrace recorded;
  recorded.dropped = 2;
  recorded.threads.push_back(
      {"train", {{"forward", {}, 1'000'000'123, 1'000'002'124, Step(7), false}}});
  recorded.threads.push_back(
      {"answers", {{"push to", {"server", 3}, 1'000'001'000, 1'000'005'000, Step(8), true}}});
  const Json trace = Json::parse(TraceFileText(Server1("unused"), recorded));
  const Json& about = trace["otherData"];
  EXPECT_EQ(about["process"], "server 1");
  EXPECT_EQ(about["generation"], 4);
  EXPECT_EQ(about["job"], "clicks");
  EXPECT_EQ(about["first_step"], 7);
  EXPECT_EQ(about["last_step"], 9);
  EXPECT_EQ(about["pid"], getpid());
  EXPECT_EQ(about["base_ns"], 1'000'000'123);
  EXPECT_EQ(about["events"], 2);
  EXPECT_EQ(about["dropped"], 2);
  EXPECT_EQ(about["clock"], ClockName());

  const std::vector<Json> spans = EventsOf(trace, "X");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0]["name"], "forward");
  EXPECT_EQ(spans[0]["ts"], 0.0);
  EXPECT_EQ(spans[0]["dur"], 2.001);
  EXPECT_EQ(spans[0]["args"], Json({{"step", 7}}));
  const std::vector<Json> begins = EventsOf(trace, "b"), ends = EventsOf(trace, "e");
  ASSERT_EQ(begins.size(), 1u);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(begins[0]["name"], "push to server 3");
  EXPECT_EQ(begins[0]["ts"], 0.877);
  EXPECT_EQ(ends[0]["ts"], 4.877);
  EXPECT_EQ(begins[0]["id2"], Json({{"local", "0x1"}}));  // An id of this process.
  for (const char* same : {"name", "cat", "id2", "pid", "tid"}) {
    EXPECT_EQ(begins[0][same], ends[0][same]);
  }
  std::vector<Json> names;
  for (const Json& event : EventsOf(trace, "M")) {
    if (event["name"] == "thread_name") names.push_back(event["args"]["name"]);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("train", "answers"));
}

TEST(ProcessTraceTest, WritesItsFileAtItsEnd) {
  const std::string directory = Folder() + "/run/trace";
  {
    const ProcessTrace trace(Server1(directory));
    const TraceSpan span("apply", Step(8));
  }
  const Json trace = ReadJson(directory + "/server-1.json");
  ASSERT_TRUE(trace.is_object());
  // The span ended before the process did, and nothing else is in the folder.
  EXPECT_EQ(EventsOf(trace, "X").size(), 1u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);
}

TEST(ProcessTraceTest, WritesItsFileOnceTheLastStepIsOver) {
  const std::string directory = Folder();
  const ProcessTrace trace(Server1(directory));
  { const TraceSpan span("apply", Step(9)); }
  EndTraceOf(Step(9));
  while (!std::filesystem::exists(directory + "/server-1.json")) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_FALSE(IsTracing());
}

TEST(ProcessTraceTest, AFileThatCantBeWrittenIsAnError) {
  const std::string path = Folder();
  std::ofstream(path) << "no folder";
  const absl::Status status = WriteTraceFile(Server1(path), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("can't write"), HasSubstr("server-1")));
}

}  // namespace
}  // namespace thermocline
