#include "deploy/report/stats_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

ServerStats Stats(uint32_t index) {
  ServerStats stats;
  stats.set_configured(true);
  stats.set_server_index(index);
  stats.set_uptime_s(61);
  stats.set_complete_through(99);
  stats.set_push_duplicates(7);
  stats.set_max_staleness_seen(2);
  stats.set_resident_bytes(uint64_t{3} << 20);
  for (uint32_t id = 0; id < 3; ++id) {
    TableStats* table = stats.add_tables();
    table->set_id(id);
    table->set_name(absl::StrCat("T", id));
    table->set_dim(16);
    table->set_role(id == 0 ? TableSpec::SPARSE : TableSpec::DENSE);
    table->set_rows(1000);
    table->set_keys_pulled(uint64_t{1} << 40);
  }
  RpcStats* rpc = stats.add_rpcs();
  rpc->set_method("Pull");
  rpc->mutable_latency()->set_count(1);
  rpc->mutable_latency()->set_p50_us(120);
  rpc->mutable_latency()->set_p99_us(2300);
  return stats;
}

TEST(StatsTable, ServersAreLinesAndTablesAreSummed) {
  const std::vector<ServerReport> reports = {{"127.0.0.1:1", Stats(0)}, {"127.0.0.1:2", Stats(1)}};
  const std::string text = RenderServerStats(reports);
  EXPECT_THAT(text, ContainsRegex("127.0.0.1:1 +1:01 +99 +3,000 .*3.0 MiB +120 us / 2.3 ms +- +0"));
  EXPECT_THAT(text, ContainsRegex("127.0.0.1:2"));
  const std::string tables = RenderTableStats(reports);
  EXPECT_THAT(tables, ContainsRegex("T0 +16 +2,000 +0 B +2,199,023,255,552 "));
  EXPECT_THAT(tables, ContainsRegex("dense \\(2 tensors\\) +16 +4,000 "));
  EXPECT_EQ(RenderTableStats({{"127.0.0.1:1", ServerStats()}}), "");
  ServerStats of_script = Stats(0);
  of_script.mutable_tables()->RemoveLast();
  of_script.mutable_tables(1)->set_name("script.state");
  EXPECT_THAT(RenderTableStats({{"127.0.0.1:1", of_script}}),
              ContainsRegex("script.state +16 +1,000 "));
}

TEST(StatsTable, RowsOnDiskAreShownWhereThereAreSome) {
  ServerStats stats = Stats(0);
  EXPECT_THAT(RenderTableStats({{"127.0.0.1:1", stats}}), Not(HasSubstr("rows in memory")));
  stats.mutable_tables(0)->set_rows_in_memory(400);
  stats.mutable_tables(0)->set_bytes_spilled(uint64_t{5} << 20);
  stats.mutable_tables(0)->set_rows_spilled(700);
  stats.mutable_tables(0)->set_rows_read_back(60);
  const std::string tables = RenderTableStats({{"127.0.0.1:1", stats}, {"127.0.0.1:2", Stats(1)}});
  EXPECT_THAT(tables, ContainsRegex("rows created +rows in memory +on disk +rows spilled"));
  EXPECT_THAT(tables, ContainsRegex("T0 .* 400 +5.0 MiB +700 +60"));
}

TEST(StatsTable, KeysWithoutARowAreShownWhereThereAreSome) {
  ServerStats stats = Stats(0);
  EXPECT_THAT(RenderTableStats({{"127.0.0.1:1", stats}}), Not(HasSubstr("keys without a row")));
  stats.mutable_tables(0)->set_candidates(400);
  stats.mutable_tables(0)->set_gradients_dropped(7000);
  stats.mutable_tables(0)->set_rows_forgotten(60);
  const std::string tables = RenderTableStats({{"127.0.0.1:1", stats}, {"127.0.0.1:2", Stats(1)}});
  EXPECT_THAT(tables, ContainsRegex("keys without a row +gradients dropped +rows forgotten"));
  EXPECT_THAT(tables, ContainsRegex("T0 .* 400 +7,000 +60"));
}

TEST(StatsTable, RowsThatStayOnTheDeviceAreShownWhereThereAreSome) {
  WorkerStats stats;
  stats.mutable_cache()->set_rows_held(1500);
  stats.mutable_cache()->set_capacity_rows(3000);
  EXPECT_THAT(RenderWorkerStats({{"w:0", stats}}), Not(HasSubstr("kept (DEVICE)")));
  stats.mutable_cache()->set_rows_kept(1200);
  stats.mutable_cache()->set_kept_capacity_rows(2222);
  EXPECT_THAT(RenderWorkerStats({{"w:0", stats}}), ContainsRegex("1,500 +3,000 .*1,200 +2,222"));
}

TEST(StatsTable, AServerThatDoesNotAnswerIsNamed) {
  const std::string text =
      RenderServerStats({{"127.0.0.1:1", absl::UnavailableError("connection refused")}});
  EXPECT_THAT(text, HasSubstr("127.0.0.1:1: connection refused\n"));
}

TEST(StatsTable, AServerWhoseDiskIsFullSaysWhich) {
  ServerStats stats;
  EXPECT_THAT(RenderServerStats({{"h:1", stats}}), Not(HasSubstr("h:1: ")));
  stats.set_push_log_full("can't write '/data/x'");
  EXPECT_THAT(RenderServerStats({{"h:1", stats}}), HasSubstr("\nh:1: can't write '/data/x'\n"));
}

TEST(StatsTable, AServerWithoutJobSaysSo) {
  EXPECT_THAT(RenderServerStats({{"127.0.0.1:1", ServerStats()}}), HasSubstr("(no job)"));
}

TEST(StatsTable, WorkersSayHowStaleTheirRowsWere) {
  WorkerStats worker;
  worker.set_max_staleness(3);
  worker.set_mean_staleness(1.25);
  EXPECT_THAT(RenderWorkerStats({{"w:3", worker}}), ContainsRegex("w:3 .* 3 max, 1.25 mean"));
}

TEST(StatsTable, ALossThatThereIsNotIsNoNumber) {
  WorkerStats worker;
  worker.set_loss(std::nan(""));
  EXPECT_THAT(RenderWorkerStats({{"w:3", worker}}), ContainsRegex("w:3 .* n/a "));
  worker.set_loss(0);
  TaskStats* const click = worker.add_task_losses();
  click->set_task("click");
  click->set_loss(0.25);
  TaskStats* const buy = worker.add_task_losses();
  buy->set_task("buy");
  buy->set_loss(std::nan(""));
  const std::string text = RenderWorkerStats({{"w:3", worker}});
  EXPECT_THAT(text, ContainsRegex("w:3 .* 0.0000 "));
  EXPECT_THAT(text, HasSubstr("worker 0: loss  click 0.2500  buy n/a\n"));
}

TEST(StatsTable, WorkersSayWhatTheyDo) {
  WorkerStats worker;
  worker.mutable_phase()->set_name("training");
  EXPECT_THAT(RenderWorkerStats({{"w:3", worker}}), ContainsRegex("w:3 +0 +training +0 "));
  worker.mutable_phase()->set_name("counting lines");
  worker.mutable_phase()->set_done(999);
  worker.mutable_phase()->set_total(2000);
  EXPECT_THAT(RenderWorkerStats({{"w:3", worker}}), ContainsRegex("w:3 +0 +counting lines 49% "));
}

TEST(StatsTable, WorkersSayWhichBatchesTheyTrain) {
  WorkerStats stats;
  stats.mutable_hot()->set_rate(12.5);
  stats.mutable_hot()->set_hot_rows(1200);
  stats.mutable_hot()->set_changes(3);
  const std::string text = RenderWorkerStats({{"127.0.0.1:1", stats}});
  EXPECT_NE(text.find("1,200"), std::string::npos) << text;
  EXPECT_NE(text.find("cold batches"), std::string::npos) << text;
  EXPECT_NE(text.find("12.5%"), std::string::npos) << text;
}

TEST(StatsTable, JsonHasNumbersAndAllFields) {
  WorkerStats worker;
  worker.set_samples(5);
  const auto json = nlohmann::json::parse(
      StatsToJson({{"a:1", Stats(0)}, {"b:2", absl::UnavailableError("gone")}}, {{"w:3", worker}}));
  EXPECT_EQ(json["servers"][0]["address"], "a:1");
  EXPECT_EQ(json["servers"][0]["stats"]["tables"][0]["keys_pulled"], uint64_t{1} << 40);
  EXPECT_EQ(json["servers"][0]["stats"]["tables"][1]["role"], "DENSE");
  EXPECT_EQ(json["servers"][0]["stats"]["pulls_held"], 0);
  EXPECT_EQ(json["servers"][0]["stats"]["rpcs"][0]["latency"]["p99_us"], 2300.0);
  EXPECT_EQ(json["servers"][1]["error"], "gone");
  EXPECT_EQ(json["workers"][0]["stats"]["samples"], 5);
}

}  // namespace
}  // namespace thermocline
