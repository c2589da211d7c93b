#include "common/json/message_json.h"

#include <gtest/gtest.h>

#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

TEST(MessageJson, HasNumbersAndDefaultsAndNoAbsentMessage) {
  WorkerStats stats;
  stats.set_job_id("j");
  stats.set_samples(uint64_t{1} << 60);
  stats.set_step(-1);
  StageStats* const stage = stats.add_stages();
  stage->set_stage("forward");
  stage->set_total_s(0.5);
  stats.add_waits()->set_kind(WorkerWait::ROWS);
  stats.mutable_exchange()->add_wait_for_rank_s(2.5);
  const nlohmann::ordered_json json = MessageToJson(stats);
  EXPECT_EQ(json.at("job_id"), "j");
  EXPECT_EQ(json.at("samples").get<uint64_t>(), uint64_t{1} << 60);
  EXPECT_EQ(json.at("step"), -1);
  EXPECT_EQ(json.at("loss"), 0);
  EXPECT_EQ(json.at("device"), "");
  EXPECT_EQ(json.at("stages").dump(),
            R"([{"stage":"forward","count":0,"total_s":0.5,"mean_us":0.0}])");
  EXPECT_EQ(json.at("waits")[0].at("kind"), "ROWS");
  EXPECT_EQ(json.at("exchange").at("wait_for_rank_s").dump(), "[2.5]");
  EXPECT_EQ(json.at("exchange").at("phases").dump(), "[]");
  EXPECT_FALSE(json.contains("cache"));
  EXPECT_EQ(json.begin().key(), "job_id");
}

}  // namespace
}  // namespace thermocline
