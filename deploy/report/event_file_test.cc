#include "deploy/report/event_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <vector>

#include "common/base/hash.h"
#include "deploy/report/appended_file.h"
#include "deploy/report/metrics_log.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;
using tensorboard::Event;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

const absl::Time kNow = absl::FromUnixSeconds(1700000000);

std::string NewFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

std::string ReadOnlyFile(const std::string& folder) {
  const std::filesystem::directory_iterator first(folder);
  std::ifstream file(first->path(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

uint32_t Unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

// The events of the folder's only file; every length and checksum is right.
std::vector<Event> ReadEvents(const std::string& folder) {
  const std::string bytes = ReadOnlyFile(folder);
  std::vector<Event> events;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, &bytes[at], 8);
    std::memcpy(&crc, &bytes[at + 8], 4);
    EXPECT_EQ(Unmask(crc), Crc32c(&bytes[at], 8));
    const std::string record = bytes.substr(at + 12, length);
    EXPECT_EQ(record.size(), length);
    std::memcpy(&crc, &bytes[at + 12 + length], 4);
    EXPECT_EQ(Unmask(crc), Crc32c(record.data(), record.size()));
    EXPECT_TRUE(events.emplace_back().ParseFromString(record));
    at += 16 + length;
  }
  return events;
}

std::map<std::string, float> ScalarsOf(const Event& event) {
  std::map<std::string, float> scalars;
  for (const auto& value : event.summary().value()) scalars[value.tag()] = value.simple_value();
  return scalars;
}

TEST(EventFileTest, TheScriptsOwnMetricHasATagOfItsName) {
  const std::string folder = NewFolder("event_file_own_metric");
  auto file = EventFile::Create(folder, "host", kNow, "hit_rate");
  ASSERT_TRUE(file.ok()) << file.status();
  const Json lines[] = {Json::parse(R"({"event":"eval","step":9,"auc":0.75,"own_metric":0.25})"),
                        Json::parse(R"({"event":"eval","step":19,"own_metric":null})")};
  for (const Json& line : lines) ASSERT_TRUE((*file)->Append(line, kNow).ok());
  const std::vector<Event> events = ReadEvents(folder);
  ASSERT_EQ(events.size(), 2u);  // The first is the version.
  EXPECT_THAT(ScalarsOf(events[1]),
              ElementsAre(Pair("eval/auc", 0.75f), Pair("eval/own/hit_rate", 0.25f)));
}

TEST(EventFileTest, EachOfSeveralTasksHasTagsOfItsName) {
  const std::string folder = NewFolder("event_file_tasks");
  auto file = EventFile::Create(folder, "host", kNow);
  ASSERT_TRUE(file.ok()) << file.status();
  const Json line = Json::parse(R"({"event":"progress","step":9,"loss":0.75,
      "tasks":[{"label":"click","loss":0.5,"auc":0.625},{"label":"buy","loss":0.25,"auc":null}]})");
  ASSERT_TRUE((*file)->Append(line, kNow).ok());
  const std::vector<Event> events = ReadEvents(folder);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_THAT(ScalarsOf(events[1]),
              ElementsAre(Pair("train/auc/click", 0.625f), Pair("train/loss", 0.75f),
                          Pair("train/loss/buy", 0.25f), Pair("train/loss/click", 0.5f)));
}

TEST(EventFileTest, LinesBecomeScalarsAtTheStepsTrained) {
  const std::string folder = NewFolder("event_file_scalars");
  auto file = EventFile::Create(folder, "host", kNow);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->WriteJob("name: \"a\"\nseed: 1\n", kNow).ok());
  const char* const lines[] = {
      (R"({"event":"progress","step":20,"loss":0.5,"auc":null,"samples_per_s":1000,)"
       R"("cache":{"hit_rate":0.75},"stages_us_per_step":{"forward":12.5},"text":"no figure"})"),
      R"({"event":"eval","step":19,"auc":0.625,"logloss":0.25})",
      R"({"event":"decision","step":19,"is_best":true})",
      R"({"event":"checkpoint","step":19,"bytes":4096})",
      R"({"event":"progress"})",
  };
  for (const char* line : lines) ASSERT_TRUE((*file)->Append(Json::parse(line), kNow).ok());

  const std::vector<Event> events = ReadEvents(folder);
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[0].wall_time(), 1700000000);
  const auto& job = events[1].summary().value(0);
  EXPECT_EQ(job.metadata().plugin_data().plugin_name(), "text");
  EXPECT_EQ(job.tensor().string_val(0), "    name: \"a\"\n    seed: 1\n    ");
  for (size_t i = 2; i < 5; ++i) EXPECT_EQ(events[i].step(), 20);
  EXPECT_THAT(ScalarsOf(events[2]),
              ElementsAre(Pair("cache/hit_rate", 0.75f), Pair("perf/samples_per_second", 1000.f),
                          Pair("stage_us/forward", 12.5f), Pair("train/loss", 0.5f)));
  EXPECT_THAT(ScalarsOf(events[3]),
              ElementsAre(Pair("eval/auc", 0.625f), Pair("eval/logloss", 0.25f)));
  EXPECT_THAT(ScalarsOf(events[4]), ElementsAre(Pair("checkpoint/bytes", 4096.f)));
}

// TensorBoard drops what it has of the session's step and later ones.
TEST(EventFileTest, ARollbackVoidsTheStepsAfterIt) {
  const std::string folder = NewFolder("event_file_rollback");
  auto file = EventFile::Create(folder, "host", kNow);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(Json::parse(R"({"event":"rollback","step":40})"), kNow).ok());
  const std::vector<Event> events = ReadEvents(folder);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[1].step(), 41);
}

// A limit of the size stands for a full disk: the kernel writes what still fits.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

TEST(AppendedFileTest, ARecordIsWrittenWholeOrNotAtAll) {
  const std::string folder = NewFolder("appended_file");
  auto file = AppendedFile::Open(folder + "/log");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append("first\n").ok());
  {
    const SizeLimit limit(8);
    const absl::Status full = (*file)->Append("second\n");
    EXPECT_EQ(full.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(full.message()), HasSubstr(folder + "/log"));
  }
  EXPECT_EQ(ReadOnlyFile(folder), "first\n");
  ASSERT_TRUE((*file)->Append("third\n").ok());
  EXPECT_EQ(ReadOnlyFile(folder), "first\nthird\n");
}

TEST(MetricsLogTest, AfterAFullDiskItGoesOnAndSaysSoOnce) {
  const std::string folder = NewFolder("metrics_full");
  std::ofstream(folder + "/metrics.jsonl") << "{\"cut";
  auto log = MetricsLog::Create(folder + "/metrics.jsonl");
  ASSERT_TRUE(log.ok()) << log.status();
  {
    const SizeLimit limit(20);
    (*log)->AppendEvent({{"event", "limit"}}, absl::ZeroDuration());
    (*log)->AppendEvent({{"event", "limit"}}, absl::ZeroDuration());
    EXPECT_THAT((*log)->TakeWarnings(), ElementsAre(HasSubstr("can't write")));
  }
  (*log)->AppendEvent({{"event", "end"}}, absl::ZeroDuration());
  EXPECT_THAT((*log)->TakeWarnings(), ElementsAre());
  EXPECT_EQ(ReadOnlyFile(folder), "{\"cut\n{\"event\":\"end\",\"wall_s\":0.0}\n");
}

}  // namespace
}  // namespace thermocline
