#include "deploy/report/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
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
      R"({"steps": 100, "samples": 1000, "train_s": 2, "auc": 0.75, "gauc": 0.625,
          "logloss": 0.5, "normalized_entropy": 0.875, "calibration": 1.25, "eval_samples": 300, "bad_lines": 1, "repeated_headers": 4,
          "padding_ids": 1000})");
  const Json second = Json::parse(
      R"({"steps": 100, "samples": 900, "train_s": 1.9, "auc": null, "bad_lines": 2, "padding_ids": 234,
          "first_bad_line": "log.tsv:7: no label"})");
  const Json summary = MakeSummary(TwoByTwo(), {first, second}, Digest{1, 2}, 3.14159);
  EXPECT_EQ(summary["steps"], 100);
  EXPECT_EQ(summary["samples"], 1900);
  EXPECT_EQ(summary["samples_per_s"], 950.0);
  EXPECT_EQ(summary["auc"], 0.75);
  EXPECT_EQ(summary["gauc"], 0.625);
  EXPECT_EQ(summary["logloss"], 0.5);
  EXPECT_EQ(summary["normalized_entropy"], 0.875);
  EXPECT_EQ(summary["calibration"], 1.25);
  EXPECT_EQ(summary["wall_s"], 3.142);
  EXPECT_EQ(summary["servers"], 4);
  EXPECT_EQ(summary["workers"], 2);
  EXPECT_EQ(summary["bad_lines"], 3);
  EXPECT_EQ(summary["repeated_headers"], 4);
  EXPECT_EQ(summary["padding_ids"], 1234);
  EXPECT_EQ(summary["model_digest"], "00000000000000020000000000000001");
  const std::string text = RenderSummary(summary);
  EXPECT_THAT(text, HasSubstr("AUC 0.7500  GAUC 0.6250  logloss 0.5000  normalized entropy 0.8750  "
                              "calibration 1.2500  on 300 held-out samples\n"));
  EXPECT_THAT(text, HasSubstr("100 steps, 1,900 samples, 950 samples/s; 3.1 s in all\n"));
  EXPECT_EQ(summary["first_bad_line"], "log.tsv:7: no label");
  EXPECT_THAT(text, HasSubstr("3 malformed lines were skipped; log.tsv:7: no label\n"));
  EXPECT_THAT(text, HasSubstr("\n1,234 ids were padding\n"));
}

TEST(Summary, AddsUpTheCachesAndWhatWorkersSentEachOther) {
  Json first = Json::parse(
      R"({"bytes_pulled": 100, "bytes_pushed": 10, "bytes_to_device": 7, "cache": {"hits": 6, "loaded": 1, "bypassed": 1},
          "exchange": {"phases": [{"name": "keys", "bytes_sent": 1048000},
                                  {"name": "rows", "bytes_sent": 576}], "bytes_sent_again": 5, "wait_for_rank_s": [0, 2.5]}})");
  Json second = Json::parse(
      R"({"bytes_pulled": 50, "bytes_pushed": 20, "bytes_to_device": 8, "cache": {"hits": 0, "loaded": 4, "bypassed": 0},
          "exchange": {"phases": [{"name": "rows", "bytes_sent": 1048576}], "bytes_sent_again": 0, "wait_for_rank_s": [1, 0]}})");
  Json summary = MakeSummary(TwoByTwo(), {first, second}, std::nullopt, 1);
  EXPECT_EQ(summary["bytes_pulled"], 150);
  EXPECT_EQ(summary["bytes_pushed"], 30);
  EXPECT_EQ(summary["bytes_to_device"], (Json{7, 8}));
  EXPECT_EQ(summary["bytes_from_device"], (Json{nullptr, nullptr}));
  EXPECT_EQ(summary["cache"], Json::parse(R"({"mode": "shared", "hit_rate": 0.5, "hits": 6,
                                              "loaded": 5, "bypassed": 1})"));
  EXPECT_EQ(summary["exchange"], Json::parse(R"({"bytes_sent": 2097152, "bytes_sent_again": 5,
                            "wait_for_rank_s": [1.0, 2.5], "slowest_rank": 1})"));
  EXPECT_THAT(
      RenderSummary(summary),
      HasSubstr("cache hits 50.0%, 2.0 MiB exchanged between workers, which waited most for "
                "worker 1 (2.5 s)\n"));
  first.erase("exchange");
  second.erase("exchange");
  summary = MakeSummary(TwoByTwo(), {first, second}, std::nullopt, 1);
  EXPECT_FALSE(summary.contains("exchange"));
  EXPECT_EQ(MakeSummary(TwoByTwo(), {first}, std::nullopt, 1)["cache"]["mode"], "own");
}

TEST(Summary, WhatNobodyReportedIsNull) {
  const Json summary = MakeSummary(TwoByTwo(), {Json::object()}, std::nullopt, 1);
  EXPECT_TRUE(summary["auc"].is_null());
  EXPECT_TRUE(summary["samples_per_s"].is_null());
  EXPECT_TRUE(summary["model_digest"].is_null());
  EXPECT_TRUE(summary["first_bad_line"].is_null());
  EXPECT_THAT(RenderSummary(summary), HasSubstr("unknown steps"));
  EXPECT_THAT(RenderSummary(summary), StartsWith("no row was held out "));
  EXPECT_EQ(MakeSummary(TwoByTwo(), {Json{{"samples_per_s", 5}}, Json{{"samples_per_s", 6}}}, {},
                        1)["samples_per_s"],
            11.0);
}

// After a resume, or a rollback: so that samples, rate and seconds belong together.
TEST(Summary, TheSpeedIsOfTheSamplesThatItNames) {
  const Json lately = Json::parse(
      R"({"steps": 100, "samples": 1000, "new_samples": 300, "train_s": 2, "eval_samples": 9})");
  const Json summary = MakeSummary(TwoByTwo(), {lately, lately}, std::nullopt, 2.5);
  EXPECT_EQ(summary["new_samples"], 600);
  EXPECT_THAT(RenderSummary(summary),
              HasSubstr("100 steps, 2,000 samples, the last 600 at 300 samples/s; 2.5 s in all\n"));
}

TEST(Summary, ARunThatTrainedNothingHasNoSpeed) {
  const Json done = Json::parse(
      R"({"steps": 100, "samples": 1000, "new_samples": 0, "train_s": 0.01, "samples_per_s": 0})");
  const Json summary = MakeSummary(TwoByTwo(), {done, done}, std::nullopt, 1.5);
  EXPECT_EQ(summary["samples"], 2000);
  EXPECT_TRUE(summary["samples_per_s"].is_null());
  EXPECT_THAT(RenderSummary(summary), HasSubstr("100 steps, 2,000 samples; 1.5 s in all\n"));
}

TEST(Summary, ARunThatTrainedNothingKeepsTheCountsOfTheOneBefore) {
  const Json before = Json::parse(
      R"({"steps": 100, "samples": 2000, "auc": 0.7, "samples_per_s": 950.5, "wall_s": 3.5,
          "servers": 2, "bad_lines": 3, "first_bad_line": "log.tsv:7: no label",
          "padding_ids": 9, "server_restarts": 1, "rollbacks": 2,
          "checkpoints": {"committed": 4, "called_off": 1, "last": "step-000000009"},
          "evaluations": {"best_step": 7}})");
  const Json again = Json::parse(
      R"({"steps": 100, "samples": 2000, "auc": 0.75, "samples_per_s": null, "wall_s": 0.5,
          "servers": 8, "bad_lines": 0, "first_bad_line": null, "padding_ids": 0, "server_restarts": 0,
          "rollbacks": 0, "checkpoints": {"committed": 0, "called_off": 0, "last": "e"}})");
  Json summary = again;
  EXPECT_TRUE(KeepCounts(before, &summary));
  Json expected = before;
  expected["auc"] = 0.75;
  expected["servers"] = 8;
  expected["checkpoints"]["last"] = "e";
  EXPECT_EQ(summary, expected);
  // Evaluations of its own are kept.
  Json evaluated = again;
  evaluated["evaluations"] = {{"best_step", 9}};
  EXPECT_TRUE(KeepCounts(before, &evaluated));
  EXPECT_EQ(evaluated["evaluations"]["best_step"], 9);
  // A summary of another step is not used.
  Json further = again;
  further["steps"] = 101;
  const Json unchanged = further;
  EXPECT_FALSE(KeepCounts(before, &further));
  EXPECT_EQ(further, unchanged);
  EXPECT_FALSE(KeepCounts(Json(), &summary));
}

TEST(Summary, WhetherAnythingWasTrained) {
  const Json none = {{"new_samples", 0}}, some = {{"new_samples", 7}};
  EXPECT_FALSE(TrainedAnything({none, none}));
  EXPECT_TRUE(TrainedAnything({none, some}));
  EXPECT_TRUE(TrainedAnything({none, Json::object()}));
}

TEST(Summary, ReadsWorkersResults) {
  const auto result = ParseWorkerResult("{\"steps\": 3}", "worker-0.json");
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ((*result)["steps"], 3);
  for (const char* text : {"", "{\"steps\": ", "[3]"}) {
    const absl::Status status = ParseWorkerResult(text, "worker-0.json").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker-0.json"));
  }
}

TEST(Summary, TellsWhatHappenedToTheJob) {
  Json summary = {{"steps", 200}, {"server_restarts", 0}, {"rollbacks", 0}};
  EXPECT_THAT(RenderSummary(summary), Not(HasSubstr("rollback")));
  summary["rollbacks"] = 1;
  summary["server_restarts"] = 2;
  summary["checkpoints"] = {{"committed", 5}, {"last", "step-000000199"}};
  EXPECT_THAT(RenderSummary(summary),
              HasSubstr("1 rollback, 2 restarts of servers, 5 checkpoints, the last "
                        "step-000000199\n"));
}

TEST(Summary, OfAnEvaluation) {
  const Json summary = {
      {"auc", 0.75}, {"logloss", 0.5}, {"eval_samples", 2000}, {"model_digest", "00ff"}};
  EXPECT_EQ(RenderEvaluation(summary),
            "AUC 0.7500  logloss 0.5000  on 2,000 held-out samples\nmodel digest 00ff\n");
  EXPECT_TRUE(IsScored(summary));
  const Json none = {{"auc", nullptr}};
  EXPECT_FALSE(IsScored(none));
  EXPECT_EQ(RenderEvaluation(none),
            "no row was held out (data.split, data.test), so none was scored\n"
            "model digest unknown\n");
}

TEST(Summary, AModelThatIsWorseThanTheRateAloneIsWarnedOf) {
  const auto says = [](double entropy) {
    return RenderSummary({{"auc", 0.5}, {"eval_samples", 20}, {"normalized_entropy", entropy}});
  };
  EXPECT_THAT(says(1.01), HasSubstr("warning: a normalized entropy above 1"));
  EXPECT_THAT(says(0.99), ::testing::Not(HasSubstr("warning")));
}

TEST(Summary, RowsOfOneClassHaveNoAuc) {
  const Json summary = MakeSummary(
      TwoByTwo(), {Json::parse(R"({"auc": null, "logloss": 0.5, "eval_samples": 20})")}, {}, 1);
  EXPECT_TRUE(summary["auc"].is_null());
  const std::string line = "AUC n/a (only one class)  logloss 0.5000  on 20 held-out samples\n";
  EXPECT_THAT(RenderEvaluation(summary), HasSubstr(line + "warning: every held-out label is 0, "));
  EXPECT_THAT(RenderSummary(summary), HasSubstr(line + "warning: every held-out label is 0, "));
  Json of_clicks = summary;
  of_clicks["calibration"] = 0.9;
  EXPECT_THAT(RenderSummary(of_clicks), HasSubstr("warning: every held-out label is 1, "));
  EvaluationEvent event;
  event.report.step = Step(99);
  event.report.auc = std::nan("");
  event.report.logloss = 0.5;
  event.state.set_best_step(-1);
  EXPECT_EQ(DescribeEvaluation(event, 0),
            "evaluation after step 99 (pass 0): AUC n/a (only one class)  logloss 0.5000");
  const Json evaluations = SummarizeEvaluations(event.state, false);
  for (const char* name : {"best_step", "best_auc", "best_logloss", "best_checkpoint"}) {
    EXPECT_TRUE(evaluations[name].is_null()) << name;
  }
  Json with_evaluations = summary;
  with_evaluations["evaluations"] = evaluations;
  EXPECT_THAT(RenderSummary(with_evaluations), Not(HasSubstr("best")));
  // By the logloss one of them is the best.
  event.state.set_best_step(99);
  event.state.set_best_auc(std::nan(""));
  event.state.set_best_logloss(0.5);
  with_evaluations["evaluations"] = SummarizeEvaluations(event.state, false);
  EXPECT_TRUE(with_evaluations["evaluations"]["best_auc"].is_null());
  EXPECT_THAT(RenderSummary(with_evaluations),
              HasSubstr("best AUC n/a (only one class)  logloss 0.5000  after step 99\n"));
}

TEST(Summary, SaysWhatEachOfSeveralTasksHas) {
  const Json summary =
      MakeSummary(TwoByTwo(),
                  {Json::parse(R"({"eval_samples": 20, "auc": 0.75, "logloss": 0.5, "task": "click",
          "tasks": [{"label": "buy", "samples": 5, "auc": null, "logloss": 0.25},
                    {"label": "click", "samples": 20, "auc": 0.75, "logloss": 0.5,
                     "normalized_entropy": 1.5},
                    {"label": "like", "samples": 0, "auc": null, "logloss": null}]})"),
                   Json::parse(R"({"task_losses": []})")},
                  {}, 1);
  EXPECT_EQ(summary["auc"], 0.75);
  EXPECT_EQ(summary["task"], "click");
  EXPECT_EQ(summary["tasks"].size(), 3u);
  EXPECT_EQ(
      RenderEvaluation(summary),
      "buy: AUC n/a (only one class)  logloss 0.2500  on 5 held-out samples\n"
      "click: AUC 0.7500  logloss 0.5000  normalized entropy 1.5000  on 20 held-out samples\n"
      "like: n/a (no row has the label)\n"
      "warning: every held-out label of 'buy' is 0, so they say nothing of the model: are the "
      "rows sorted by the label? data.label.positive names the texts that are a 1\n"
      "warning: a normalized entropy of 'click' above 1 is worse than that of a model which "
      "knows the rate of 1s alone; a lower learning rate, warm-up or shuffled rows may help\n"
      "model digest unknown\n");
  EvaluationEvent event;
  event.report.step = Step(99);
  event.report.pass = 1;
  event.report.auc = 0.75;
  event.report.logloss = 0.5;
  event.report.other_tasks = {{"buy", 0.625, 0.25}};
  event.state.set_task("click");
  event.state.set_best_step(49);
  event.state.set_best_auc(0.76);
  event.state.set_best_logloss(0.49);
  EXPECT_EQ(DescribeEvaluation(event, 0),
            "evaluation after step 99 (pass 1): click: AUC 0.7500  logloss 0.5000, buy: AUC 0.6250 "
            " logloss 0.2500; the best is click: AUC 0.7600  logloss 0.4900 after step 49");
  EXPECT_EQ(SummarizeEvaluations(event.state, false)["task"], "click");
  event.report.other_tasks = {{"buy", std::nan(""), std::nan("")}};
  EXPECT_THAT(DescribeEvaluation(event, 0),
              HasSubstr("logloss 0.5000, buy: n/a (no row has the label); the best"));
}

TEST(Summary, SaysThatTheLastCheckpointIsMissing) {
  Json summary = {{"auc", 0.7}, {"eval_samples", 20}, {"checkpoints", {{"missing", nullptr}}}};
  EXPECT_THAT(RenderSummary(summary), Not(HasSubstr("missing")));
  summary["checkpoints"]["missing"] = "server 1: disk full";
  EXPECT_THAT(RenderSummary(summary),
              HasSubstr("the checkpoint of the last step is missing: server 1: disk full\n"));
}

TEST(Summary, SaysTheLastAndTheBestOfSeveralEvaluations) {
  EvaluationState state;
  state.set_evaluations(5);
  state.set_best_step(1199);
  state.set_best_auc(0.7571);
  state.set_best_logloss(0.45);
  state.set_without_improvement(2);
  Json summary = Json::parse(R"({"auc": 0.663, "logloss": 0.5, "steps": 2000})");
  summary["evaluations"] = SummarizeEvaluations(state, true);
  EXPECT_TRUE(summary["evaluations"]["best_checkpoint"].is_null());
  std::string text = RenderSummary(summary);
  EXPECT_THAT(text, HasSubstr("AUC 0.6630  logloss 0.5000\n"
                              "best AUC 0.7571  logloss 0.4500  after step 1199; training ended "
                              "early, 2 evaluations brought nothing better\n"));
  state.set_best_checkpoint("step-000001199");
  summary["evaluations"] = SummarizeEvaluations(state, false);
  text = RenderSummary(summary);
  EXPECT_THAT(text, HasSubstr("after step 1199, checkpoint step-000001199\n"));
}

TEST(Summary, ShowsTheMetricOfAScriptUnderItsName) {
  Job job;
  job.mutable_worker()->add_command("python3");
  job.mutable_worker()->add_command("train.py");
  Json summary = MakeSummary(job, {Json::parse(R"({"steps": 40, "auc": null})")}, {}, 1);
  EXPECT_EQ(summary["script"], "python3 train.py");
  EXPECT_FALSE(summary.contains("own_metric"));
  EXPECT_THAT(RenderSummary(summary), StartsWith("no row was scored: none was held out "
                                                 "(data.split, data.test), or the script did not "
                                                 "evaluate at its end\n40 steps"));
  EXPECT_THAT(RenderEvaluation(summary), StartsWith("no row was scored: none was held out "));
  job.mutable_evaluate()->set_own_metric("hit_rate");
  const Json scored =
      Json::parse(R"({"auc": 0.75, "logloss": 0.5, "eval_samples": 20, "own_metric": 0.25})");
  summary = MakeSummary(job, {scored}, {}, 1);
  EXPECT_EQ(summary["own_metric"].dump(), R"({"hit_rate":0.25})");
  EvaluationState state;
  state.set_own_metric("hit_rate");
  state.set_best_step(19);
  state.set_best_own(0.375);
  state.set_best_auc(0.7);
  state.set_best_logloss(0.625);
  summary["evaluations"] = SummarizeEvaluations(state, false);
  EXPECT_EQ(summary["evaluations"]["metric"], "hit_rate");
  EXPECT_EQ(summary["evaluations"]["best_own_metric"], 0.375);
  EXPECT_THAT(RenderSummary(summary),
              StartsWith("hit_rate 0.25  AUC 0.7500  logloss 0.5000  on 20 held-out samples\n"
                         "best hit_rate 0.375  AUC 0.7000  logloss 0.6250  after step 19\n"));
  // A script that scores with its own metric alone.
  const Json alone = Json::parse(R"({"auc": null, "logloss": null, "own_metric": 0.25})");
  summary = MakeSummary(job, {alone}, {}, 1);
  EXPECT_THAT(RenderSummary(summary), StartsWith("hit_rate 0.25\nunknown steps"));
  EvaluationEvent event;
  event.report.step = Step(29);
  event.report.own_metric = 0.25;
  event.report.auc = event.report.logloss = std::nan("");
  event.state = state;
  EXPECT_EQ(DescribeEvaluation(event, 0),
            "evaluation after step 29 (pass 0): hit_rate 0.25; the best is hit_rate 0.375  AUC "
            "0.7000  logloss 0.6250 after step 19");
}

TEST(Summary, SaysHowHotAndColdBatchesTookTurns) {
  Json summary = Json::parse(R"({"auc": 0.7, "logloss": 0.5})");
  const Json pack = Json::parse(R"({"hot_rows": 1200, "samples": {"hot": 630, "cold": 370}})");
  const Json worker = Json::parse(R"({"hot": {"hot_rows": 1200, "changes": 12, "rate": 25}})");
  summary["hot"] = SummarizeHot({worker, worker}, pack);
  EXPECT_EQ(summary["hot"].dump(), R"({"rows":1200,"sample_share":0.63,"changes":12,"rate":25.0})");
  const std::string text = RenderSummary(summary);
  EXPECT_THAT(text, HasSubstr("\n1,200 hot rows, 63.0% of the samples in hot batches, 12 changes, "
                              "the last rate 25%\n"));
  EXPECT_THAT(text, Not(HasSubstr("best")));
  EXPECT_EQ(SummarizeHot({}, {{"hot_rows", 7}}).dump(), R"({"rows":7})") << "a cache's";
}

TEST(Summary, CountsWhatPackingMetAsWell) {
  Json summary = MakeSummary(Job(), {{{"bad_lines", 1}, {"first_bad_line", "log:900: held out"}}},
                             std::nullopt, 1);
  AddReadByPacking({{"bad_lines", 2}, {"first_bad_line", "log:7: no label"}, {"padding_ids", 40}},
                   &summary);
  EXPECT_EQ(summary["bad_lines"], 3);
  EXPECT_EQ(summary["first_bad_line"], "log:7: no label");
  EXPECT_EQ(summary["padding_ids"], 40);
  // The pack of a static cache has no rows, and says nothing of them.
  const Json before = summary;
  AddReadByPacking({{"hot_rows", 7}}, &summary);
  EXPECT_EQ(summary, before);
}

TEST(Summary, DescribesAChange) {
  ScheduleState next;
  next.set_first_step(120);
  next.set_logloss(0.4512);
  next.set_rate(25);
  const std::string what = "cold batches from step 120 on, after a loss of 0.4512 on held-out rows";
  EXPECT_EQ(DescribeChange(next, std::nullopt), what + "; the rate is 25%");
  EXPECT_EQ(DescribeChange(next, 50), what + "; the rate is 25%, and was 50%");
}

TEST(Summary, DescribesAnEvaluationAndWhatFollows) {
  EvaluationEvent event;
  event.report.step = Step(99);
  event.report.pass = 1;
  event.report.auc = 0.75;
  event.report.logloss = 0.5;
  event.decision.is_best = true;
  event.state.set_best_checkpoint("step-000000099");
  EXPECT_EQ(DescribeEvaluation(event, 2),
            "evaluation after step 99 (pass 1): AUC 0.7500  logloss 0.5000; the best so far, kept "
            "as step-000000099");
  event.checkpoint_error = absl::AbortedError("disk full");
  EXPECT_THAT(DescribeEvaluation(event, 2), HasSubstr("can't be made: disk full"));
  event.decision = {/*is_best=*/false, /*stops=*/true};
  event.state.set_best_step(49);
  event.state.set_best_auc(0.76);
  event.state.set_best_logloss(0.49);
  event.state.set_without_improvement(2);
  EXPECT_EQ(DescribeEvaluation(event, 2),
            "evaluation after step 99 (pass 1): AUC 0.7500  logloss 0.5000; the best is AUC 0.7600 "
            " logloss 0.4900 after step 49 (2 of 2 without improvement); training ends");
}

}  // namespace
}  // namespace thermocline
