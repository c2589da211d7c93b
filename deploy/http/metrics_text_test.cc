#include "deploy/http/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace thermocline {
namespace {

using prometheus::MetricFamily;
using testing::HasSubstr;
using testing::Not;

MonitoredProcess* AddProcess(const char* role, uint32_t index, MonitorSnapshot* snapshot) {
  MonitoredProcess* const process = snapshot->add_processes();
  process->set_role(role);
  process->set_index(index);
  process->set_host(absl::StrCat("host", index % 8));
  return process;
}

void FillTimes(LatencyStats* times) {
  times->set_count(2);
  times->set_mean_us(1000);
  for (int i = 0; i < 17; ++i) times->add_buckets(i < 3 ? 0 : 2);
}

// As a server of a job with so many workers and tables answers, with all that it may have.
void FillServer(int num_workers, int num_tables, MonitoredProcess* process) {
  ServerStats* const stats = process->mutable_server();
  stats->set_pushes_accepted(10);
  for (int i = 0; i <= num_tables; ++i) {
    TableStats* const table = stats->add_tables();
    table->set_name(absl::StrCat("table", i));
    table->set_rows(5);
    table->set_keys_pulled(50);
  }
  for (int i = 0; i < 2; ++i) {
    TableStats* const dense = stats->add_tables();
    dense->set_name(absl::StrCat("dense", i));
    dense->set_role(TableSpec::DENSE);
    dense->set_rows(3);
  }
  for (const char* method :
       {"Pull", "Read", "Push", "Configure", "GetStats", "GetDigest", "Checkpoint", "Watch"}) {
    RpcStats* const rpc = stats->add_rpcs();
    rpc->set_method(method);
    rpc->set_count(2);
    FillTimes(rpc->mutable_latency());
  }
  for (const char* stage : {"apply", "log", "fold", "read"}) {
    stats->add_stages()->set_stage(stage);
  }
  FillTimes(stats->mutable_hold_time());
  for (int i = 0; i < num_workers; ++i) stats->add_accepted_through(process->index() + i);
}

void FillWorker(int num_workers, MonitoredProcess* process) {
  WorkerStats* const stats = process->mutable_worker();
  stats->set_worker_rank(process->index());
  stats->set_device("CPU");
  stats->mutable_cache()->set_hits(1);
  stats->mutable_hot()->set_rate(50);
  FillTimes(stats->mutable_step_time());
  for (int i = 0; i < 30; ++i) stats->add_stages()->set_stage(absl::StrCat("stage", i));
  for (int i = 0; i < 8; ++i) {
    stats->mutable_exchange()->add_phases()->set_name(absl::StrCat("phase", i));
    for (int j = 0; j < num_workers; ++j) {
      WorkerWait* const wait = stats->add_waits();
      wait->set_kind(static_cast<WorkerWait::Kind>(i));
      wait->set_seconds(j);
    }
  }
  for (int i = 0; i < num_workers; ++i) stats->mutable_exchange()->add_wait_for_rank_s(0.5);
}

MonitorSnapshot SnapshotOf(uint32_t num_servers, uint32_t num_workers, int num_tables) {
  MonitorSnapshot snapshot;
  for (uint32_t i = 0; i < num_servers; ++i) {
    FillServer(static_cast<int>(num_workers), num_tables, AddProcess("server", i, &snapshot));
  }
  for (uint32_t i = 0; i < num_workers; ++i) {
    FillWorker(static_cast<int>(num_workers), AddProcess("worker", i, &snapshot));
  }
  return snapshot;
}

// How many series a family has: of a histogram each bucket, +Inf, the sum and the count.
size_t NumSeries(const MetricFamily& family) {
  if (family.type != prometheus::MetricType::Histogram) return family.metric.size();
  size_t series = 0;
  for (const auto& metric : family.metric) series += metric.histogram.bucket.size() + 3;
  return series;
}

TEST(MetricsOf, ALargeJobHasABoundedNumberOfSeries) {
  const MonitorSnapshot snapshot = SnapshotOf(1024, 64, 26);
  size_t series = 0;
  std::set<std::string> names;
  for (const MetricFamily& family : MetricsOf("job", snapshot)) {
    series += NumSeries(family);
    EXPECT_TRUE(names.insert(family.name).second) << family.name;
    std::set<std::string> labels;
    for (const auto& metric : family.metric) {
      std::string all;
      for (const auto& label : metric.label) absl::StrAppend(&all, label.name, label.value, ";");
      EXPECT_TRUE(labels.insert(all).second) << family.name << " has twice " << all;
    }
  }
  EXPECT_LT(series, 100'000u);
  EXPECT_GT(series, 50'000u);
}

TEST(MetricsText, HasLabelsAndHelp) {
  const std::string text = MetricsText("small", SnapshotOf(1, 1, 1));
  EXPECT_THAT(text, HasSubstr("# HELP thermocline_server_pushes_accepted_total How many pushes the "
                              "server has accepted.\n# TYPE "
                              "thermocline_server_pushes_accepted_total counter\n"
                              "thermocline_server_pushes_accepted_total{job=\"small\",role="
                              "\"server\",index=\"0\",host=\"host0\"} 10\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_up{job=\"small\",role=\"worker\",index=\"0\",host="
                              "\"host0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("device=\"CPU\"} 1\n"));
}

TEST(MetricsText, TablesAndTimesAreSumsOverServers) {
  const std::string text = MetricsText("j", SnapshotOf(3, 0, 1));
  EXPECT_THAT(text, HasSubstr("thermocline_table_rows{job=\"j\",table=\"table0\"} 15\n"));
  EXPECT_THAT(text,
              HasSubstr("thermocline_table_keys_pulled_total{job=\"j\",table=\"table1\"} 150\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_table_rows{job=\"j\",table=\"dense parameters\"} 18\n"));
  // Two values of 1 ms on each server: below 2^10 us, not below 2^9.
  EXPECT_THAT(text, HasSubstr("thermocline_pull_hold_seconds_count{job=\"j\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_pull_hold_seconds_bucket{job=\"j\",le=\"0.000512\"} 0"));
  EXPECT_THAT(text, HasSubstr("thermocline_pull_hold_seconds_bucket{job=\"j\",le=\"+Inf\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_request_seconds_count{job=\"j\",method=\"Push\"} 6\n"));
}

TEST(MetricsText, AWorkerHasItsLongestWaitAndTheLeastOfAllServers) {
  const std::string text = MetricsText("j", SnapshotOf(3, 2, 1));
  EXPECT_THAT(text, HasSubstr("thermocline_worker_wait_seconds{job=\"j\",role=\"worker\",index="
                              "\"1\",host=\"host1\",kind=\"server_rows\"} 1\n"));
  // Servers 0 to 2 have accepted its steps up to 1, 2 and 3.
  EXPECT_THAT(text, HasSubstr("thermocline_worker_accepted_steps{job=\"j\",role=\"worker\",index="
                              "\"1\",host=\"host1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_worker_awaited_seconds_total{job=\"j\",role=\"worker\","
                              "index=\"1\",host=\"host1\"} 1\n"));
}

TEST(MetricsText, AProcessThatDoesNotAnswerKeepsItsCounters) {
  MonitorSnapshot snapshot = SnapshotOf(1, 0, 1);
  snapshot.mutable_processes(0)->set_error("gone");
  snapshot.mutable_processes(0)->mutable_server_before()->set_pushes_accepted(5);
  const std::string text = MetricsText("j", snapshot);
  EXPECT_THAT(text, HasSubstr("thermocline_up{job=\"j\",role=\"server\",index=\"0\",host="
                              "\"host0\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_server_pushes_accepted_total{job=\"j\",role=\"server\","
                              "index=\"0\",host=\"host0\"} 15\n"));
}

TEST(MetricsText, WhatIsNotKnownIsLeftOut) {
  MonitorSnapshot snapshot;
  snapshot.mutable_job()->set_loss(0.5);
  const std::string text = MetricsText("j", snapshot);
  EXPECT_THAT(text, HasSubstr("thermocline_job_loss{job=\"j\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_job_rollbacks_total{job=\"j\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("thermocline_job_eval_auc")));
  EXPECT_THAT(text, Not(HasSubstr("thermocline_server")));
}

TEST(MetricsText, EachOfSeveralTasksIsALabel) {
  MonitorSnapshot snapshot = SnapshotOf(1, 1, 1);
  TaskFigures* const task = snapshot.mutable_job()->add_tasks();
  task->set_task("buy");
  task->set_loss(0.25);
  task->set_eval_gauc(0.5);
  for (MonitoredProcess& process : *snapshot.mutable_processes()) {
    if (!process.has_worker()) continue;
    TaskStats* const losses = process.mutable_worker()->add_task_losses();
    losses->set_task("buy");
    losses->set_loss(0.5);
  }
  const std::string text = MetricsText("j", snapshot);
  EXPECT_THAT(text, HasSubstr("thermocline_job_task_loss{job=\"j\",task=\"buy\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("thermocline_job_task_eval_gauc{job=\"j\",task=\"buy\"} 0.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("thermocline_job_task_eval_auc")));
  EXPECT_THAT(text, HasSubstr("thermocline_worker_task_loss{job=\"j\",role=\"worker\",index="
                              "\"0\",host=\"host0\",task=\"buy\"} 0.5\n"));
}

TEST(MetricsTable, IsThatOfThePage) {
  std::ifstream file("docs/monitoring.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, HasSubstr(MetricsTable()));
}

}  // namespace
}  // namespace thermocline
