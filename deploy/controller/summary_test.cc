#include "deploy/controller/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

Job TwoByTwo() {
  Job job;
  job.set_name("j");
  job.mutable_cluster()->set_servers(4);
  job.mutable_cluster()->set_workers(2);
  return job;
}

TEST(Summary, DigestHasTheHighHalfFirst) {
  EXPECT_EQ(DigestText({0xabc, 1}), "00000000000000010000000000000abc");
}

TEST(Summary, PutsTheWorkersTogether) {
  const Json first = Json::parse(
      R"({"steps": 100, "samples": 1000, "train_s": 2, "auc": 0.75, "logloss": 0.5,
          "eval_samples": 300, "bad_lines": 1})");
  const Json second =
      Json::parse(R"({"steps": 100, "samples": 900, "train_s": 1.9, "auc": null, "bad_lines": 2,
          "first_bad_line": "log.tsv:7: no label"})");
  const Json summary = MakeSummary(TwoByTwo(), {first, second}, Digest{1, 2}, 3.14159);
  EXPECT_EQ(summary["steps"], 100);
  EXPECT_EQ(summary["samples"], 1900);
  EXPECT_EQ(summary["samples_per_s"], 950.0);
  EXPECT_EQ(summary["auc"], 0.75);
  EXPECT_EQ(summary["logloss"], 0.5);
  EXPECT_EQ(summary["wall_s"], 3.142);
  EXPECT_EQ(summary["servers"], 4);
  EXPECT_EQ(summary["workers"], 2);
  EXPECT_EQ(summary["bad_lines"], 3);
  EXPECT_EQ(summary["model_digest"], "00000000000000020000000000000001");
  const std::string text = RenderSummary(summary);
  EXPECT_THAT(text, HasSubstr("AUC 0.7500  logloss 0.5000  on 300 held-out samples\n"));
  EXPECT_THAT(text, HasSubstr("100 steps, 1,900 samples, 950 samples/s; 3.1 s in all\n"));
  EXPECT_EQ(summary["first_bad_line"], "log.tsv:7: no label");
  EXPECT_THAT(text, HasSubstr("3 malformed lines were skipped; log.tsv:7: no label\n"));
}

TEST(Summary, WhatNobodyReportedIsNull) {
  const Json summary = MakeSummary(TwoByTwo(), {Json::object()}, absl::nullopt, 1);
  EXPECT_TRUE(summary["auc"].is_null());
  EXPECT_TRUE(summary["samples_per_s"].is_null());
  EXPECT_TRUE(summary["model_digest"].is_null());
  EXPECT_TRUE(summary["first_bad_line"].is_null());
  EXPECT_THAT(RenderSummary(summary), HasSubstr("unknown steps"));
  EXPECT_EQ(MakeSummary(TwoByTwo(), {Json{{"samples_per_s", 5}}, Json{{"samples_per_s", 6}}}, {},
                        1)["samples_per_s"],
            11.0);
}

TEST(Summary, ARunThatTrainedNothingHasNoSpeed) {
  const Json done = Json::parse(
      R"({"steps": 100, "samples": 1000, "new_samples": 0, "train_s": 0.01, "samples_per_s": 0})");
  const Json summary = MakeSummary(TwoByTwo(), {done, done}, absl::nullopt, 1.5);
  EXPECT_EQ(summary["samples"], 2000);
  EXPECT_TRUE(summary["samples_per_s"].is_null());
  EXPECT_THAT(RenderSummary(summary), HasSubstr("100 steps, 2,000 samples; 1.5 s in all\n"));
}

TEST(Summary, ReadsResultFiles) {
  const std::string path = testing::TempDir() + "/summary_test.json";
  std::ofstream(path) << "{\"steps\": 3}";
  const auto result = ReadWorkerResult(path);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ((*result)["steps"], 3);
  std::ofstream(path) << "{\"steps\": ";
  EXPECT_EQ(ReadWorkerResult(path).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(ReadWorkerResult("/no/such.json").status().message()),
              HasSubstr("/no/such.json"));
}

TEST(Summary, TellsWhatHappenedToTheJob) {
  Json summary = {{"steps", 200}, {"server_restarts", 0}, {"rollbacks", 0}};
  EXPECT_THAT(RenderSummary(summary), Not(HasSubstr("rollback")));
  summary["rollbacks"] = 1;
  summary["server_restarts"] = 2;
  summary["checkpoints"] = {{"committed", 5}, {"last", "epoch-2-step-199"}};
  EXPECT_THAT(RenderSummary(summary),
              HasSubstr("1 rollback, 2 restarts of servers, 5 checkpoints, the last "
                        "epoch-2-step-199\n"));
}

TEST(Summary, OfAnEvaluation) {
  const Json summary = {
      {"auc", 0.75}, {"logloss", 0.5}, {"eval_samples", 2000}, {"model_digest", "00ff"}};
  EXPECT_EQ(RenderEvaluation(summary),
            "AUC 0.7500  logloss 0.5000  on 2,000 held-out samples\nmodel digest 00ff\n");
  EXPECT_EQ(RenderEvaluation({{"auc", nullptr}}), "no held-out samples\nmodel digest unknown\n");
}

}  // namespace
}  // namespace thermocline
