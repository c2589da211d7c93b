#include "deploy/page/run_document.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "deploy/page/testing/made_run.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

Json DocumentOf(const MadeRun& run) {
  HistoryReader reader;
  const bool has_metrics = reader.Follow(run.path() + "/metrics.jsonl");
  RunFiles files = ReadRunFiles(run.path());
  ReadStatsOf(&files);
  return MakeRunDocument(reader.history(), files, has_metrics, "label");
}

std::string FigureIn(const Json& run, const std::string& name) {
  for (const Json& figure : run["figures"]) {
    if (figure[0] == name) return figure[1];
  }
  return "";
}

// A run that was trained to its end, with all files.
void WriteWhole(const MadeRun& run) {
  run.Append(ProgressLine(1, 1, 0.7) + ProgressLine(2, 2, 0.6) +
             EventLine("checkpoint", 2, {{"step", 1}, {"name", "step-000000001"}, {"bytes", 10}}) +
             EventLine("end", 3, {{"status", "OK"}, {"has_summary", true}}));
  run.Write("summary.json", R"({"job": "small", "steps": 2, "samples": 20, "auc": 0.75,
                                "samples_per_s": 1234.4, "model_digest": "00ff"})");
  run.Write("server_stats.json", R"({"servers": [
    {"address": "h1:7", "stats": {"resident_bytes": 5, "tables": [
      {"id": 1, "name": "user", "dim": 8, "role": "SPARSE", "rows": 30, "bytes": 300},
      {"id": 2, "name": "top.0", "dim": 4, "role": "DENSE", "rows": 2, "bytes": 7}],
      "rpcs": [{"method": "Pull", "latency": {"count": 3, "p50_us": 100, "p99_us": 200}}]}},
    {"address": "h2:7", "stats": {"tables": [
      {"id": 1, "name": "user", "dim": 8, "role": "SPARSE", "rows": 10, "bytes": 100}]}}]})");
  run.Write("worker-0.json", R"({"worker_rank": 0, "samples": 20, "device": "CPU", "auc": 0.75})");
  run.Write("hosts.json", R"({"server 0": {"host": "big", "log": "/x"}})");
  run.Write("job.textproto", "name: \"small\"\n");
}

TEST(RunDocument, AWholeRun) {
  MadeRun run;
  WriteWhole(run);
  const Json json = DocumentOf(run);
  EXPECT_EQ(json["state"]["kind"], "done");
  EXPECT_EQ(json["job"]["name"], "small");
  EXPECT_THAT(json["notes"], IsEmpty());
  EXPECT_EQ(FigureIn(json, "AUC"), "0.7500");
  EXPECT_EQ(FigureIn(json, "Samples/s"), "1,234");
  EXPECT_EQ(FigureIn(json, "Checkpoints"), "1");
  EXPECT_EQ(FigureIn(json, "Model digest"), "00ff");
  EXPECT_EQ(json["tables"]["name"], Json({"user", "dense parameters"}));
  EXPECT_EQ(json["tables"]["rows"][0], 40);
  EXPECT_EQ(json["tables"]["skew"][0], 1.5);
  EXPECT_EQ(json["processes"]["servers"]["host"], Json({"big", "h2"}));
  EXPECT_EQ(json["processes"]["servers"]["pull_p99"], Json({200, nullptr}));
  EXPECT_EQ(json["processes"]["workers"]["samples"], Json::array({20}));
  EXPECT_EQ(json["checkpoints"]["step"], Json::array({2}));
}

TEST(RunDocument, SeveralTasksHaveFiguresAndColumnsOfTheirOwn) {
  const auto task = [](const char* label, const char* figure, double value) {
    return nlohmann::json{{"label", label}, {figure, value}};
  };
  MadeRun run;
  run.Append(EventLine("progress", 1,
                       {{"step", 1},
                        {"loss", 1.5},
                        {"tasks", {task("buy", "loss", 0.25), task("click", "loss", 0.5)}}}) +
             EventLine("eval", 2,
                       {{"step", 0},
                        {"auc", 0.75},
                        {"tasks",
                         {task("buy", "auc", 0.625), task("click", "auc", 0.75),
                          task("late", "auc", std::nan(""))}}}));
  const Json json = DocumentOf(run);
  EXPECT_EQ(json["progress"]["mean"]["loss"], Json::array({1.5}));
  EXPECT_EQ(json["progress"]["mean"]["loss of buy"], Json::array({0.25}));
  EXPECT_EQ(json["progress"]["mean"]["loss of click"], Json::array({0.5}));
  EXPECT_EQ(json["evals"]["auc of buy"], Json::array({0.625}));
  EXPECT_EQ(json["evals"]["auc of click"], Json::array({0.75}));
  EXPECT_EQ(json["evals"]["logloss of buy"], Json::array({nullptr}));
  EXPECT_EQ(FigureIn(json, "AUC of buy"), "0.6250");
  EXPECT_EQ(FigureIn(json, "AUC of click"), "0.7500");
  EXPECT_EQ(FigureIn(json, "AUC of late"), "n/a") << "no held-out row has the label";
  EXPECT_EQ(FigureIn(json, "Logloss of late"), "");
  EXPECT_EQ(FigureIn(json, "AUC"), "") << "it is one of these";
}

TEST(RunDocument, EachFileMayBeMissingOrDamaged) {
  struct Case {
    const char* file;
    const char* text;  // nullptr: it is missing.
    const char* note;  // "": none.
  };
  const Case cases[] = {
      {"metrics.jsonl", nullptr, "metrics.jsonl is missing"},
      {"metrics.jsonl", "", "metrics.jsonl is empty"},
      {"summary.json", nullptr, "summary.json is missing"},
      {"summary.json", "{\"job\":", "summary.json is cut short or damaged"},
      {"server_stats.json", nullptr, "server_stats.json is missing"},
      {"server_stats.json", "[", "server_stats.json is cut short or damaged"},
      {"job.textproto", nullptr, "job.textproto is missing"},
      {"job.textproto", "name: 7 }", "job.textproto is no job that this program can read"},
      {"worker-0.json", nullptr, ""},
      {"hosts.json", nullptr, ""},
      {"hosts.json", "null", ""},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(absl::StrCat(test.file, " ", test.text == nullptr ? "missing" : test.text));
    MadeRun run;
    WriteWhole(run);
    std::filesystem::remove(run.path() + "/" + test.file);
    if (test.text != nullptr) run.Write(test.file, test.text);
    const Json json = DocumentOf(run);
    if (test.note[0] == '\0') {
      EXPECT_THAT(json["notes"], IsEmpty());
    } else {
      ASSERT_EQ(json["notes"].size(), 1u) << json["notes"];
      EXPECT_THAT(json["notes"][0].get<std::string>(), HasSubstr(test.note));
    }
    EXPECT_EQ(json["job"]["name"], "small");
  }
}

TEST(RunDocument, WhatOtherCommandsFoundInTheData) {
  MadeRun run;
  run.Append(EventLine(
      "pack", 0,
      {{"hot_rows", 9},
       {"tables", {{{"name", "user"}, {"rows", 90}, {"hot_rows", 9}, {"lookup_share", 0.5}}}}}));
  run.Write("inspection.json", R"({"columns": [{"name": "label"},
      {"name": "user", "distinct": 90, "top_1_percent_share": 0.25, "once_share": 0.5}]})");
  run.Write("calibration.json", R"([{"budget_bytes": 1024, "error": "no rows fit"},
      {"budget_bytes": 2048, "hot_rows": 5, "lookup_share": 0.75, "hot_sample_share": 0.125}])");
  const Json found = DocumentOf(run)["found"];
  EXPECT_EQ(found["hot_tables"].dump(),
            R"({"name":["user"],"rows":[90],"hot_rows":[9],"lookup_share":[0.5]})");
  EXPECT_EQ(found["columns"].dump(),
            R"({"name":["user"],"distinct":[90],"top_share":[0.25],"once_share":[0.5]})");
  EXPECT_EQ(
      found["curve"].dump(),
      R"({"budget_bytes":[2048],"hot_rows":[5],"lookup_share":[0.75],"sample_share":[0.125]})");
  run.Write("calibration.json", "{\"a\": 1");
  EXPECT_TRUE(DocumentOf(run)["found"]["curve"].is_null());
}

TEST(RunDocument, AnEmptyFolderIsARunWithoutARecord) {
  MadeRun run;
  const Json json = DocumentOf(run);
  EXPECT_EQ(json["state"]["kind"], "unknown");
  EXPECT_EQ(json["job"]["name"], "label");
  EXPECT_THAT(json["figures"], IsEmpty());
  EXPECT_EQ(json["notes"].size(), 3u);
}

TEST(RunDocument, HowARunStands) {
  const auto state_of = [](const std::string& lines, bool is_locked) {
    MadeRun run;
    run.Append(lines);
    run.Write("lock", "");
    const int fd = is_locked ? open((run.path() + "/lock").c_str(), O_RDONLY) : -1;
    if (is_locked) {
      EXPECT_EQ(flock(fd, LOCK_EX), 0);
    }
    const Json state = DocumentOf(run)["state"];
    if (is_locked) close(fd);
    return state;
  };
  const std::string trains = ProgressLine(1, 1, 0.5);
  EXPECT_EQ(state_of("", true)["why"], "starting");
  EXPECT_EQ(state_of(trains, true)["why"], "training");
  EXPECT_EQ(state_of(trains + EventLine("phase", 2, {{"phase", "evaluating"}}), true)["why"],
            "evaluating");
  EXPECT_EQ(state_of(trains, false)["kind"], "killed");
  const Json stopped = state_of(
      trains + EventLine("end", 2, {{"status", "CANCELLED"}, {"reason", "by a signal"}}), true);
  EXPECT_EQ(stopped["kind"], "stopped");
  EXPECT_EQ(stopped["why"], "by a signal");
  const Json failed = state_of(
      trains + EventLine("checkpoint", 1, {{"step", 0}, {"name", "step-000000000"}}) +
          EventLine("limit", 2, {{"field", "checkpoint.max_rollbacks"}, {"limit", 3}}) +
          EventLine("end", 2, {{"status", "UNAVAILABLE"}, {"reason", "worker 0 was killed"}}),
      false);
  EXPECT_EQ(failed["kind"], "failed");
  EXPECT_EQ(failed["why"], "UNAVAILABLE: worker 0 was killed");
  EXPECT_THAT(failed["next"][0][0].get<std::string>(), HasSubstr("checkpoint.max_rollbacks"));
  EXPECT_EQ(failed["next"][1][0], "Go on from step-000000000");
  EXPECT_THAT(failed["next"][1][1].get<std::string>(), HasSubstr("train --resume --run-dir"));
  const Json bad_job = state_of(
      trains + EventLine("end", 2, {{"status", "INVALID_ARGUMENT"}, {"reason", "no label"}}),
      false);
  EXPECT_EQ(bad_job["next"][0], Json({"Begin a new run, with another job file", nullptr}));
}

TEST(RunDocument, ASummaryOfAnEarlierLaunchIsNotUsed) {
  MadeRun run;
  WriteWhole(run);
  run.Append(EventLine("started", 0, {}) + ProgressLine(3, 1, 0.5) +
             EventLine("end", 2, {{"status", "INTERNAL"}, {"has_summary", false}}));
  const Json json = DocumentOf(run);
  EXPECT_EQ(FigureIn(json, "AUC"), "");
  EXPECT_EQ(FigureIn(json, "Steps"), "3");
  EXPECT_EQ(FigureIn(json, "Loss"), "0.5000");
}

TEST(RunDocument, ItsSizeDoesNotGrowWithTheRun) {
  MadeRun run;
  HistoryReader reader;
  size_t size_before = 0;
  RunFiles files = ReadRunFiles(run.path());
  for (const int64_t lines : {30'000, 300'000}) {
    for (int64_t step = reader.history().num_lines + 1; step <= lines; ++step) {
      reader.TakeLine(step % 1000 == 0
                          ? EventLine("checkpoint", step, {{"step", step}, {"name", "step"}})
                          : ProgressLine(step, static_cast<double>(step), 0.5));
    }
    const size_t size = MakeRunDocument(reader.history(), files, true, "label").dump().size();
    EXPECT_LT(size, 700'000u) << lines;
    if (size_before > 0) {
      EXPECT_LT(size, 2 * size_before);
    }
    size_before = size;
  }
}

TEST(RunDocument, OfManyProcessesSomeAreShown) {
  RunFiles files;
  for (int i = 0; i < 1024; ++i) {
    ServerStats stats;
    TableStats* const table = stats.add_tables();
    table->set_id(1);
    table->set_name("user");
    table->set_rows(i == 700 ? 5000 : 10);
    RpcStats* const pulls = stats.add_rpcs();
    pulls->set_method("Pull");
    pulls->mutable_latency()->set_count(1);
    pulls->mutable_latency()->set_p99_us(i == 900 ? 1e6 : 100);
    files.stats.servers.push_back({absl::StrCat("h", i, ":1"), stats, {}});
    WorkerStats worker;
    worker.mutable_exchange()->add_phases()->set_wait_s(i == 800 ? 60 : 1);
    files.stats.workers.push_back({absl::StrCat("worker ", i), worker, {}});
  }
  const Json json = ProcessColumns(files);
  EXPECT_EQ(json["num_servers"], 1024);
  EXPECT_LE(json["servers"]["name"].size(), 64u);
  EXPECT_EQ(json["workers"]["name"].size(), 64u);
  EXPECT_EQ(json["workers"]["name"][0], "worker 800");
  const Json& names = json["servers"]["name"];
  EXPECT_EQ(std::count(names.begin(), names.end(), "server 700"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "server 900"), 1);
  EXPECT_EQ(TableColumns(files.stats)["rows"][0], 1023 * 10 + 5000);
}

std::optional<Job> JobOf(const std::string& text) {
  Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job));
  return job;
}

TEST(CompareRuns, NamesFieldsTablesAndFeatures) {
  const Json a = {{"figures", {{"AUC", "0.75", ""}, {"Steps", "9", ""}}}};
  const Json b = {{"figures", {{"AUC", "0.76", ""}, {"Time", "0:09", ""}}}};
  const Json compare = CompareRuns(
      a, b,
      JobOf("seed: 1 train { batch_size: 64 } table { name: \"user\" settings { dim: 8 } } "
            "table { name: \"item\" settings { dim: 8 } } dlrm { bottom: [32, 16] }"),
      JobOf("seed: 1 train { batch_size: 128 } table { name: \"item\" settings { dim: 8 } } "
            "table { name: \"user\" settings { dim: 16 } } dlrm { bottom: [32] } fae {}"));
  EXPECT_EQ(compare["figures"],
            Json({{"AUC", "0.75", "0.76"}, {"Steps", "9", nullptr}, {"Time", nullptr, "0:09"}}));
  EXPECT_EQ(compare["fields"], Json({{"table[user].settings.dim", "8", "16"},
                                     {"dlrm.bottom", "32, 16", "32"},
                                     {"train.batch_size", "64", "128"},
                                     {"fae", nullptr, "set"}}));
  EXPECT_EQ(compare["num_fields"], 4);
}

TEST(CompareRuns, ListsAtMostSoManyFields) {
  std::string tables;
  for (int i = 0; i < 600; ++i) absl::StrAppend(&tables, "table { name: \"t", i, "\" } ");
  const Json figures = {{"figures", Json::array()}};
  const Json compare = CompareRuns(figures, figures, JobOf(tables), JobOf(""));
  EXPECT_EQ(compare["num_fields"], 1200);  // A table counts twice: it is there, and it has a name.
  EXPECT_EQ(compare["fields"].size(), 500u);
  EXPECT_TRUE(CompareRuns(figures, figures, JobOf(""), std::nullopt)["num_fields"].is_null());
}

}  // namespace
}  // namespace thermocline
