#include "deploy/trace/trace_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/trace/process_trace.h"
#include "deploy/trace/job_trace.h"

namespace thermocline {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A run directory with files of two workers and a server, which trace the steps 7 to 9.
class TraceMergeTest : public ::testing::Test {
 protected:
  TraceMergeTest() {
    options_.run_dir = absl::StrCat(
        ::testing::TempDir(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(options_.run_dir);
    std::filesystem::create_directory(options_.run_dir);
    options_.job = "clicks";
    options_.steps.set_first_step(7);
    options_.steps.set_last_step(9);
    options_.workers = 2;
    options_.servers = 1;
    options_.first_generation = 1;
    options_.version = "1.2.3";
  }

  std::string PathOf(const std::string& role, uint32_t index) const {
    return absl::StrCat(options_.run_dir, "/trace/", TraceFileName(role, index));
  }

  // A process has a span and a call, from begin_ns of its clock on.
  void Write(const std::string& role, uint32_t index, int64_t begin_ns, uint64_t generation = 1,
             uint64_t dropped = 0) {
    ProcessTraceOptions process;
    process.directory = options_.run_dir + "/trace";
    process.job = options_.job;
    process.role = role;
    process.index = index;
    process.generation = generation;
    process.first = Step(7);
    process.last = Step(9);
    RecordedTrace recorded;
    recorded.dropped = dropped;
    recorded.threads.push_back({"main", {}});
    recorded.threads[0].events.push_back({"span", {}, begin_ns, begin_ns + 2000, Step(7), false});
    recorded.threads[0].events.push_back(
        {"call", {"server", 0}, begin_ns + 1000, begin_ns + 5000, Step(7), true});
    ASSERT_TRUE(WriteTraceFile(process, recorded).ok());
  }
  void WriteAll() {
    Write("worker", 0, 100'000);
    Write("worker", 1, 104'000);
    Write("server", 0, 103'000);
  }
  // Has a process's file say that it was written on another machine.
  void MoveToOtherHost(const std::string& role, uint32_t index) {
    Json file = Json::parse(ReadText(PathOf(role, index)));
    std::string text = ReadText(PathOf(role, index));
    const std::string clock = file["otherData"]["clock"];
    text.replace(text.find(clock), clock.size(), "another boot");
    std::ofstream(PathOf(role, index)) << text;
  }

  MergedTrace Merge(const ClockOffsets& clocks = {}) {
    const absl::StatusOr<MergedTrace> merged = MergeTraces(options_, clocks);
    EXPECT_TRUE(merged.ok()) << merged.status();
    line_ = DescribeTrace(options_, merged);
    trace_ = Json();
    if (merged->path.empty()) return *merged;
    trace_ = Json::parse(ReadText(merged->path), nullptr, false);
    EXPECT_TRUE(trace_.is_object());
    for (const Json& event : trace_["traceEvents"]) {
      const std::string kind = event["ph"];
      if (kind == "M" && event["name"] == "process_name") {
        names_[event["pid"]] = event["args"]["name"];
      } else if (kind != "M") {
        begins_[names_[event["pid"]] + " " + kind] = event["ts"];
      }
    }
    return *merged;
  }

  TraceMergeOptions options_;
  std::string line_;                      // What the console says.
  Json trace_;                            // trace.json
  std::map<int, std::string> names_;      // pid -> process
  std::map<std::string, double> begins_;  // "worker 0 X" -> ts
};

TEST_F(TraceMergeTest, ProcessesOfThisMachineHaveOneClock) {
  WriteAll();
  EXPECT_TRUE(HasAllTraces(options_));
  const MergedTrace merged = Merge();
  EXPECT_EQ(merged.events, 6u);
  EXPECT_THAT(merged.missing, IsEmpty());
  EXPECT_EQ(begins_["worker 0 X"], 0);
  EXPECT_EQ(begins_["server 0 X"], 3);
  EXPECT_EQ(begins_["worker 1 X"], 4);
  EXPECT_EQ(begins_["worker 1 b"], 5);
  EXPECT_EQ(begins_["worker 1 e"], 9);
  for (const Json& process : trace_["otherData"]["processes"]) {
    EXPECT_EQ(process["clock_error_us"], 0) << process;
  }
  EXPECT_EQ(line_, absl::StrCat("trace: ", options_.run_dir,
                                "/trace.json (open it in https://ui.perfetto.dev)"));
}

TEST_F(TraceMergeTest, MetadataNameProcessesInOrder) {
  WriteAll();
  Write("server", 0, 103'000, /*generation=*/3);
  Merge();
  EXPECT_EQ(names_, (std::map<int, std::string>{
                        {1, "worker 0"}, {2, "worker 1"}, {3, "server 0 (generation 3)"}}));
  const Json& about = trace_["otherData"];
  EXPECT_EQ(about["job"], "clicks");
  EXPECT_EQ(about["version"], "1.2.3");
  EXPECT_EQ(about["first_step"], 7);
  EXPECT_EQ(about["last_step"], 9);
  EXPECT_EQ(about["missing"], Json::array());
  std::map<std::string, int> metadata;
  for (const Json& event : trace_["traceEvents"]) {
    if (event["ph"] == "M") ++metadata[event["name"]];
  }
  EXPECT_EQ(metadata, (std::map<std::string, int>{{"process_name", 3},
                                                  {"process_labels", 3},
                                                  {"process_sort_index", 3},
                                                  {"thread_name", 3},
                                                  {"thread_sort_index", 3}}));
}

TEST_F(TraceMergeTest, AnotherMachinesClockIsMovedByItsOffset) {
  WriteAll();
  Write("server", 0, 5'000'103'000);
  MoveToOtherHost("server", 0);
  ClockOffsets clocks;
  clocks.Add("server 0", {102'000, 104'000, 5'000'103'000});
  Merge(clocks);
  EXPECT_EQ(begins_["server 0 X"], 3);
  for (const Json& process : trace_["otherData"]["processes"]) {
    EXPECT_EQ(process["clock_error_us"], process["name"] == "server 0" ? 1 : 0);
  }
}

TEST_F(TraceMergeTest, SaysWhereAClockIsNotKnown) {
  WriteAll();
  MoveToOtherHost("server", 0);
  Merge();
  EXPECT_THAT(line_, HasSubstr("; the clock of server 0 is not known"));
  EXPECT_TRUE(trace_["otherData"]["processes"][2]["clock_error_us"].is_null());
}

TEST_F(TraceMergeTest, AProcessWithoutAFileIsMissing) {
  WriteAll();
  std::filesystem::remove(PathOf("server", 0));
  EXPECT_FALSE(HasAllTraces(options_));
  EXPECT_THAT(Merge().missing, ElementsAre("server 0"));
  EXPECT_THAT(line_, HasSubstr("; it lacks server 0"));
  EXPECT_EQ(trace_["otherData"]["missing"], Json({"server 0"}));
  EXPECT_EQ(begins_.count("worker 1 X"), 1u);
}

TEST_F(TraceMergeTest, ADamagedFileIsMissing) {
  WriteAll();
  std::filesystem::resize_file(PathOf("worker", 1),
                               std::filesystem::file_size(PathOf("worker", 1)) - 10);
  std::ofstream(PathOf("server", 0)) << "{";
  EXPECT_THAT(Merge().missing,
              ElementsAre("worker 1 (its file is damaged)", "server 0 (its file is damaged)"));
  EXPECT_EQ(names_.size(), 1u);
}

TEST_F(TraceMergeTest, FilesOfAnEarlierLaunchOrOfOtherStepsDontCount) {
  WriteAll();
  options_.first_generation = 2;
  EXPECT_FALSE(HasAllTraces(options_));
  EXPECT_THAT(Merge().path, IsEmpty());
  EXPECT_THAT(line_, HasSubstr("nothing was recorded of the steps 7 to 9"));
  EXPECT_FALSE(std::filesystem::exists(options_.run_dir + "/trace.json"));
  options_.first_generation = 1;
  options_.steps.set_last_step(10);
  EXPECT_THAT(Merge().path, IsEmpty());
}

TEST_F(TraceMergeTest, SaysWhatAProcessHadNoRoomFor) {
  WriteAll();
  Write("worker", 0, 100'000, /*generation=*/1, /*dropped=*/12);
  Merge();
  EXPECT_THAT(line_, HasSubstr("; worker 0 had no room for 12 events"));
}

TEST_F(TraceMergeTest, ATraceThatIsTooLargeLeavesProcessesOut) {
  WriteAll();
  options_.max_bytes = 200;
  EXPECT_THAT(Merge().missing, ElementsAre(HasSubstr("worker 1 (the trace has more than 200 bytes"),
                                           HasSubstr("server 0 (the trace")));
  EXPECT_EQ(names_.size(), 1u);
}

// Runs tasks at once.
class Inline : public TaskRunner {
 public:
  void Run(std::function<void()> task) override { task(); }
};

std::vector<WorkerReport> WorkersAt(int64_t step) {
  std::vector<WorkerReport> workers;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    WorkerStats stats;
    stats.set_worker_rank(rank);
    stats.set_step(step);
    workers.push_back({"", stats, absl::ZeroDuration(), 0});
  }
  return workers;
}

TEST_F(TraceMergeTest, TheJobsTraceIsMergedOnceAllFilesAreThere) {
  Inline tasks;
  JobTrace trace(options_, &tasks);
  EXPECT_EQ(trace.End(), "");  // The job never began.
  trace.BeginGeneration(1, Step(0));
  WriteAll();
  trace.OnStatus({}, WorkersAt(9));
  EXPECT_EQ(trace.TakeLine(), "");  // Step 9 is not trained yet.
  std::filesystem::remove(PathOf("server", 0));
  trace.OnStatus({}, WorkersAt(10));
  EXPECT_EQ(trace.TakeLine(), "");
  Write("server", 0, 103'000);
  trace.OnStatus({}, WorkersAt(11));
  EXPECT_THAT(trace.TakeLine(), AllOf(HasSubstr("/trace.json"), Not(HasSubstr("lacks"))));
  trace.OnStatus({}, WorkersAt(12));
  EXPECT_EQ(trace.TakeLine(), "");
  EXPECT_EQ(trace.End(), "");  // All is told.
}

TEST_F(TraceMergeTest, ARollbackMayMakeTheStepsAgain) {
  Inline tasks;
  JobTrace trace(options_, &tasks);
  trace.BeginGeneration(1, Step(0));
  WriteAll();
  trace.OnStatus({}, WorkersAt(10));
  EXPECT_NE(trace.TakeLine(), "");
  trace.BeginGeneration(2, Step(9));
  trace.OnStatus({}, WorkersAt(10));
  EXPECT_EQ(trace.TakeLine(), "");  // All files are of generation 1.
  Write("worker", 0, 200'000, /*generation=*/2);
  trace.OnStatus({}, WorkersAt(10));
  EXPECT_EQ(trace.TakeLine(), "");
  EXPECT_THAT(trace.End(), HasSubstr("/trace.json"));
  EXPECT_THAT(ReadText(options_.run_dir + "/trace.json"), HasSubstr("worker 0 (generation 2)"));
}

TEST_F(TraceMergeTest, ARollbackBehindTheTracedStepsLeavesTheTrace) {
  Inline tasks;
  JobTrace trace(options_, &tasks);
  trace.BeginGeneration(1, Step(0));
  WriteAll();
  trace.OnStatus({}, WorkersAt(10));
  EXPECT_NE(trace.TakeLine(), "");
  trace.BeginGeneration(2, Step(10));
  trace.OnStatus({}, WorkersAt(11));
  EXPECT_EQ(trace.TakeLine(), "");
  EXPECT_EQ(trace.End(), "");
}

TEST(ParseTraceTest, TakesTwoSteps) {
  const absl::StatusOr<Trace> trace = ParseTrace("100:104");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->first_step(), 100u);
  EXPECT_EQ(trace->last_step(), 104u);
  EXPECT_TRUE(ParseTrace("0:0").ok());
  EXPECT_TRUE(ParseTrace("0:999").ok());
}

TEST(ParseTraceTest, RefusesAnythingElse) {
  for (const char* text : {"", "5", "5:", ":5", "a:b", "1:2:3", "-1:5", "1.5:2", " 1:2", "+1:2",
                           "99999999999999999999:99999999999999999999"}) {
    const absl::Status status = ParseTrace(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("it takes two steps, FIRST:LAST")) << text;
  }
  EXPECT_THAT(std::string(ParseTrace("5:4").status().message()),
              HasSubstr("--trace 5:4 ends before it begins"));
  EXPECT_THAT(std::string(ParseTrace("0:1000").status().message()),
              HasSubstr("has 1001 steps; at most 1000 are traced"));
  EXPECT_THAT(std::string(ParseTrace("4294967295:4294967295").status().message()),
              HasSubstr("no job has a step 4294967295"));
}

}  // namespace
}  // namespace thermocline
