#include "deploy/plan/job_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/rows_file.h"
#include "common/checkpoint/rows_format.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr char kJob[] = R"(
  name: "plan"
  data {
    train { path: "/log.csv" csv { header: true } }
    label { column: "click" }
  }
  feature { column: ["user", "item"] categorical {} }
  feature { name: "cross" cross { of: ["user", "item"] buckets: 1000 } }
  default_table { dim: 16 }
  dlrm { top: [64] }
  train { batch_size: 1024 learning_rate { base: 0.1 } }
  cluster { servers: 2 }
)";

Job Load(const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(kJob, "job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

Json Column(const char* name, double distinct, double in_256, double in_1024) {
  return {{"name", name},           {"rows", 1000000},
          {"missing", 0},           {"values", 1000000},
          {"distinct", distinct},   {"once_share", 0},
          {"text_bytes", 10000000}, {"distinct_in_batch", {{"256", in_256}, {"1024", in_1024}}}};
}

Json Figures() {
  Json figures = {{"rows", 1000000}, {"complete", true}};
  figures["columns"] = {Column("user", 200000, 250, 900), Column("item", 100, 60, 90),
                        Column("click", 2, 2, 2)};
  return figures;
}

Machine BigMachine() {
  Machine machine;
  machine.memory_bytes = uint64_t{64} << 30;
  machine.free_disk_bytes = uint64_t{1} << 40;
  return machine;
}

JobPlan Plan(const Job& job, const Json* figures, double samples_per_s = 0) {
  const auto plan = PlanJob(job, {figures, samples_per_s}, BigMachine());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : JobPlan();
}

uint64_t PartOf(const std::vector<PlanPart>& parts, const std::string& name) {
  for (const PlanPart& part : parts) {
    if (part.name == name) return part.bytes;
  }
  return 0;
}

TEST(JobPlan, RowsComeFromFiguresBucketsOrNowhere) {
  const JobPlan blind = Plan(Load(), nullptr);
  EXPECT_FALSE(blind.is_complete);
  EXPECT_FALSE(blind.tables[0].rows.has_value());
  EXPECT_EQ(blind.tables[2].rows, 1000u);
  const Json figures = Figures();
  const JobPlan plan = Plan(Load(), &figures);
  EXPECT_TRUE(plan.is_complete);
  EXPECT_EQ(plan.tables[0].rows, 200000u);
  EXPECT_EQ(plan.tables[1].rows, 100u);
  EXPECT_EQ(plan.tables[2].rows, 1000u);
  EXPECT_THAT(RenderPlan(Load(), blind, BigMachine()), HasSubstr("at least"));
  EXPECT_THAT(RenderPlan(Load(), plan, BigMachine()), HasSubstr("fits"));
  const JobPlan bucketed = Plan(Load({"feature[0].categorical.buckets=50"}), &figures);
  EXPECT_EQ(bucketed.tables[0].rows, 50u);
}

// A history shares the items' table, and is read pooled, too: its keys count once, its lookups
// twice.
TEST(JobPlan, StepsOfSequencesAreLookups) {
  Json figures = Figures();
  Json history = Column("history", 50, 50, 50);
  history["values"] = 4000000;  // Four of a sample.
  figures["columns"].push_back(history);
  const auto load = [](const std::string& sequence) {
    const auto job = ParseJob(absl::StrCat(R"(name: "plan"
        data { train { path: "/log.csv" csv { header: true } } label { column: "click" } }
        feature { column: "item" categorical {} }
        feature { column: "history" table: "item" sequence { max_length: 5 } }
        train { batch_size: 1024 learning_rate { base: 0.1 } } fae { budget: "1MiB" })",
                                           sequence),
                              "job", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return *job;
  };
  const Job pooled = load("dcnv2 { cross_layers: 1 }");
  const Job both = load(R"(sequence { name: "past" of: "history" then: "item" }
                           layer { name: "p" input: "past" pool {} }
                           task { input: ["p", "categorical"] })");
  const JobPlan one = Plan(pooled, &figures), two = Plan(both, &figures);
  EXPECT_EQ(one.tables[0].rows, 150u);
  EXPECT_EQ(two.tables[0].rows, 150u);
  // As many, if the history has none of the items; it mostly has the same.
  EXPECT_EQ(one.tables[0].rows_from, "its features together, at most");
  EXPECT_EQ(two.pulled_bytes_per_step, one.pulled_bytes_per_step);
  Json in_part = figures;
  in_part["complete"] = false;
  EXPECT_EQ(Plan(pooled, &in_part).tables[0].rows_from, "its features together, inspected in part");
  // Packs: 1 + 4 lookups; with the steps and the item behind them 5 more.
  const auto batch = [](const JobPlan& plan) {
    return PartOf(plan.disk, "pack of hot and cold batches");
  };
  EXPECT_GT(batch(two), batch(one) + 900000 * 5 * sizeof(uint64_t));
}

// Without figures of a list each sample has as many steps as it may have.
TEST(JobPlan, ListsOfWhichNothingIsKnownAreFull) {
  const auto activations = [](int max_length) {
    const auto job = ParseJob(absl::StrCat(R"(name: "plan" device: CPU
        data { train { path: "/log.csv" csv { header: true } } label { column: "click" } }
        feature { column: "item" categorical {} }
        feature { column: "history" table: "item" sequence { max_length: )",
                                           max_length, R"( } }
        default_table { dim: 16 }
        sequence { name: "past" of: "history" then: "item" }
        layer { name: "p" input: "past" pool {} }
        task { input: ["p", "categorical"] }
        train { batch_size: 1024 eval_batch_size: 1024 learning_rate { base: 0.1 } })"),
                              "job", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return PartOf(Plan(*job, nullptr).worker, "activations");
  };
  // A step has a vector and its gradient.
  EXPECT_GE(activations(50) - activations(10), 1024u * 40 * 16 * 2 * sizeof(float));
}

TEST(JobPlan, ListsThatTheJobDividesOtherwiseAreWarnedOf) {
  Json figures = Figures();
  figures["columns"].push_back(Column("tags", 50, 50, 50));
  const auto text = [&](const char* feature, const char* found) {
    figures["columns"].back()["separator"] = found;
    const auto job = ParseJob(absl::StrCat(kJob, feature), "job", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return RenderPlan(*job, Plan(*job, &figures), BigMachine());
  };
  const char* const list = "feature { column: 'tags' sequence { max_length: 5 } }";
  EXPECT_THAT(
      text(list, ","),
      HasSubstr("warning: ',' divides the values of 'tags' in the data, and the separator of "
                "feature 'tags' is '|': as it is, each list is one id; write categorical { "
                "separator: \",\" }\n"));
  // A list of Parquet has none.
  for (const char* found : {"|", ""}) EXPECT_THAT(text(list, found), Not(HasSubstr("warning")));
  EXPECT_THAT(text("feature { column: 'tags' categorical {} }", ","), Not(HasSubstr("warning")));
}

TEST(JobPlan, ATableHasAtMostItsLimit) {
  const Json figures = Figures();
  const Job job = Load({"default_table.eviction.max_rows=5000"});
  const JobPlan blind = Plan(job, nullptr), plan = Plan(job, &figures);
  EXPECT_TRUE(blind.is_complete);
  EXPECT_EQ(blind.tables[0].rows, 5000u);
  EXPECT_EQ(plan.tables[0].rows, 5000u);
  EXPECT_EQ(plan.tables[0].rows_from, "eviction.max_rows");
  EXPECT_EQ(plan.tables[1].rows, 100u);
  EXPECT_EQ(plan.tables[2].rows, 1000u);
}

TEST(JobPlan, ALimitOfRowsIsAsManyAsATableHas) {
  const Json figures = Figures();
  const Job job = Load({"default_table.eviction.max_rows=500"});
  EXPECT_TRUE(Plan(job, nullptr).is_complete);
  const JobPlan plan = Plan(job, &figures);
  EXPECT_EQ(plan.tables[0].rows, 500u);
  EXPECT_EQ(plan.tables[0].rows_from, "eviction.max_rows");
  EXPECT_EQ(plan.tables[1].rows, 100u);
}

TEST(JobPlan, FiguresOfOtherDataAreRefused) {
  Json figures = Figures();
  figures["columns"][1]["name"] = "thing";
  const auto plan = PlanJob(Load(), {&figures, 0}, BigMachine());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr("'item'"));
  const Json whole = Figures();
  const auto misspelled = PlanJob(Load({"data.label.column=clik"}), {&whole, 0}, BigMachine());
  EXPECT_EQ(misspelled.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(misspelled.status().message(),
              HasSubstr("data.label.column names the column 'clik', but the inspected data have "
                        "none (did you mean 'click'?)"));
}

// A row of dim 16 with Adagrad has 64 + 64 + 8 bytes, and an index of 21 to 26.
TEST(JobPlan, MemoryGrowsWithRowsAndState) {
  const Json figures = Figures();
  const JobPlan adagrad = Plan(Load(), &figures);
  const double row = static_cast<double>(adagrad.tables[0].memory_bytes) / 200000;
  EXPECT_GT(row, 136 + 20);
  EXPECT_LT(row, 136 + 40);
  const JobPlan adam = Plan(Load({"default_table.optimizer.adam={}"}), &figures);
  const double adam_row = static_cast<double>(adam.tables[0].memory_bytes) / 200000;
  EXPECT_NEAR(adam_row - row, 64, 2);
  EXPECT_EQ(adagrad.tables[0].checkpoint_bytes, 200000u * (16 + 128 + 2));
  const JobPlan spilled = Plan(Load({"default_table.storage.rocksdb.memory=4MiB"}), &figures);
  EXPECT_LT(spilled.tables[0].memory_bytes, (8u << 20) + 2 * 200000);
  EXPECT_GT(spilled.tables[0].spilled_bytes, 200000u * 150);
  // Few rows don't use the whole buffer.
  const std::string on_their_way = "rows on their way to RocksDB";
  EXPECT_LE(PartOf(spilled.server, on_their_way), spilled.tables[0].spilled_bytes);
  EXPECT_GT(PartOf(spilled.server, on_their_way), 10u << 20);
}

// Keys that only held-out rows have get no row.
TEST(JobPlan, ServersHaveTheRowsOfWhatIsTrainedOn) {
  Json figures = Figures();
  figures["columns"][0]["once_share"] = 0.25;
  const JobPlan plan =
      Plan(Load({"data.split.last_share=0.5", "feature[1].cross.buckets=0"}), &figures);
  EXPECT_EQ(plan.tables[0].rows, 200000u - 25000);
  EXPECT_EQ(plan.tables[2].rows, 500000u);
}

// The default batch of an evaluation is 4,096 samples.
TEST(JobPlan, BatchesOfAnEvaluationCount) {
  const Json figures = Figures();
  const std::string part = "batches of an evaluation";
  const uint64_t few =
      PartOf(Plan(Load({"data.split.last_share=0.001"}), &figures).worker, part);  // 1,000 rows
  const uint64_t many = PartOf(Plan(Load({"data.split.last_share=0.1"}), &figures).worker, part);
  EXPECT_GT(few, 1000u * 3 * 64);
  EXPECT_GT(many, 4 * 4096u * 3 * 64);
}

TEST(JobPlan, AGpuHasTheModelTheCacheAndTheStepsUnderWay) {
  const Json figures = Figures();
  const Job cpu = Load({"device=CPU"}), gpu = Load({"device=CUDA", "cache.budget=64MiB"});
  EXPECT_TRUE(Plan(cpu, &figures).device.empty());
  const JobPlan plan = Plan(gpu, &figures);
  EXPECT_EQ(PartOf(plan.device, "cache"), 64u << 20);
  // 19 + 64 and 64 + 1 weights and biases, a block of 256 floats each at least, with gradients and
  // Adagrad's state.
  EXPECT_EQ(PartOf(plan.device, "dense parameters"), 4u * 3 * 256 * (5 + 1 + 1 + 1));
  // Values for an evaluation's batches, gradients for those of training.
  EXPECT_GT(PartOf(plan.device, "activations"), (4096u + 1024) * 4 * (3 * 16 + 19 + 64 + 1));
  EXPECT_LT(PartOf(plan.device, "activations"), 2 * 4096u * 4 * (3 * 16 + 19 + 64 + 1));
  EXPECT_EQ(PartOf(plan.worker, "activations"), 0u);
  EXPECT_GT(plan.device_bytes, (64u << 20) + (38u << 20));
  // Twice the batch, and twice of what is under way.
  const JobPlan larger =
      Plan(Load({"device=CUDA", "cache.budget=64MiB", "train.batch_size=65536"}), &figures);
  const std::string steps = "rows, gradients and indices of steps under way, at most";
  EXPECT_GT(PartOf(larger.device, steps), 2 * PartOf(plan.device, steps));
}

TEST(JobPlan, EveryWorkerHasTheHotRows) {
  const Job gpu = Load({"device=CUDA", "fae.budget=64MiB", "cluster.workers=2"});
  EXPECT_EQ(PartOf(Plan(gpu, nullptr).device, "hot rows"), 64u << 20);
  const Job cpu = Load({"device=CPU", "fae.budget=64MiB"});
  const JobPlan plan = Plan(cpu, nullptr);
  EXPECT_EQ(PartOf(plan.worker, "hot rows"), 64u << 20);
  EXPECT_EQ(PartOf(plan.worker, "hot rows on their way, at most"), 128u << 20);
  // Rows of 128 bytes; the index is at most half full.
  EXPECT_EQ(PartOf(plan.worker, "keys of hot rows, and their index, at most"), (24u << 20) / 2);
}

TEST(JobPlan, APackTakesDiskAndItsProgramMemoryBeforeAllOthers) {
  const Json figures = Figures();
  EXPECT_TRUE(Plan(Load(), &figures).pack.empty());
  const Job job = Load({"fae.budget=1MiB", "fae.schedule.fixed=true", "checkpoint.none=true"});
  const JobPlan plan = Plan(job, &figures);
  // It has nine tenths of the rows, each with three keys and a label; 879 batches; 8,192 hot rows.
  const uint64_t pack = PartOf(plan.disk, "pack of hot and cold batches");
  EXPECT_EQ(pack, 900000u * 28 + 879 * (64 + 3 * 16) + 8192 * 8);
  EXPECT_EQ(plan.disk_bytes, pack);
  EXPECT_EQ(PartOf(plan.pack, "lookups that are counted, at most"), 201100u * 40);
  EXPECT_THAT(RenderPlan(job, plan, BigMachine()), HasSubstr("thermocline-pack, before"));
  EXPECT_GT(PlanToJson(plan, BigMachine())["pack"]["the program"], 0);
  // It is gone when the others start.
  EXPECT_EQ(plan.memory_bytes, SumOf(plan.server) * 2 + SumOf(plan.worker));
  const Job of_cache =
      Load({"cache={budget: '4MiB' policy: STATIC}", "calibration.directory=/packs"});
  EXPECT_EQ(PartOf(Plan(of_cache, &figures).disk, "pack of hot rows (calibration.directory)"),
            8u * (4 << 20) / 128);
}

TEST(JobPlan, ComparesAGpuWithThatOfTheMachine) {
  const Json figures = Figures();
  const Job job = Load({"device=CUDA", "cluster.workers=3"});
  const JobPlan plan = Plan(job, &figures);
  Machine machine = BigMachine();
  EXPECT_FALSE(Fits(job, plan, machine));
  EXPECT_THAT(RenderPlan(job, plan, machine), HasSubstr("for each worker: this machine has none"));
  machine.gpus = {"Chip", "Chip"};
  EXPECT_TRUE(Fits(job, plan, machine));
  EXPECT_THAT(RenderPlan(job, plan, machine), HasSubstr("is not known"));
  // Two of the three workers share a GPU.
  machine.gpu_memory_bytes = 2 * plan.device_bytes;
  EXPECT_TRUE(Fits(job, plan, machine));
  machine.gpu_memory_bytes = 2 * plan.device_bytes - 1;
  EXPECT_FALSE(Fits(job, plan, machine));
  EXPECT_THAT(RenderPlan(job, plan, machine), HasSubstr("DOES NOT FIT"));
}

TEST(SmallestGpuMemory, IsReadFromMiB) {
  EXPECT_EQ(SmallestGpuMemory("81559\n 40960\n"), uint64_t{40960} << 20);
  EXPECT_EQ(SmallestGpuMemory("[N/A]\n40960\n"), 0u);
  EXPECT_EQ(SmallestGpuMemory(""), 0u);
}

TEST(JobPlan, TrafficIsOfDistinctRows) {
  const Json figures = Figures();
  const JobPlan one = Plan(Load(), &figures, 10240);
  // 900 users, 90 items, and at most 1,000 crosses; a key of 8 bytes and a row of 64.
  EXPECT_EQ(one.pulled_bytes_per_step, (900u + 90 + 1000) * 72);
  EXPECT_EQ(one.pushed_bytes_per_step, (900u + 90 + 1000) * 76);
  EXPECT_DOUBLE_EQ(one.steps_per_s, 10);
  // Four workers have batches of 256 each; with staleness the dense parameters are on the servers.
  const JobPlan four = Plan(Load({"cluster.workers=4", "train.staleness_steps=1"}), &figures);
  EXPECT_GT(four.pulled_bytes_per_step, 4 * (250u + 60 + 256) * 72);
  EXPECT_LT(four.pulled_bytes_per_step, 4 * (250u + 60 + 256) * 72 + 4 * 40 * 1032);
  EXPECT_EQ(four.nothing_held.worker, 0u);
}

// As in the table of docs/performance.md.
TEST(JobPlan, LinksOfWorkersThatExchange) {
  const Json figures = Figures();
  const Job job = Load({"cluster.workers=4", "cluster.servers=1"});
  const JobPlan one = Plan(job, &figures);
  const JobPlan two = Plan(Load({"cluster.workers=4", "cluster.servers=2"}), &figures);
  const uint64_t keys = 566, floats = keys * 16;  // One worker has about so many.
  EXPECT_NEAR(static_cast<double>(one.pulled_bytes_per_step), 4 * (8 * keys + 4 * floats), 4 * 72);
  const uint64_t through_servers = 20 * keys + 4 * floats;
  EXPECT_NEAR(static_cast<double>(one.nothing_held.server), 4 * through_servers, 4 * 84);
  EXPECT_NEAR(static_cast<double>(two.nothing_held.server), 2 * through_servers, 4 * 84);
  EXPECT_EQ(one.nothing_held.worker, two.nothing_held.worker);
  const uint64_t dense = one.nothing_held.worker - one.nothing_held.server / 4;
  EXPECT_NEAR(static_cast<double>(dense % 1536), 0, 2) << "3/2 of blocks of 1 KiB";
  EXPECT_NEAR(static_cast<double>(one.all_held.worker),
              0.75 * static_cast<double>(12 * keys + 8 * floats) + static_cast<double>(dense), 200);
  EXPECT_EQ(one.all_held.server, 0u);
  EXPECT_THAT(RenderPlan(job, one, BigMachine()),
              HasSubstr("rows through servers, dense parameters between workers"));
  const Job cached = Load({"cluster.workers=4", "cache.budget=64MiB"});
  EXPECT_THAT(RenderPlan(cached, Plan(cached, &figures), BigMachine()),
              HasSubstr("if they hold all of them"));
  EXPECT_EQ(PlanToJson(one, BigMachine())["link_bytes_per_step"]["all_held"]["server"], 0);
}

TEST(JobPlan, TellsWhereTheCacheKeepsTheRowsOfATable) {
  const Json figures = Figures();
  EXPECT_EQ(PlanToJson(Plan(Load(), &figures), BigMachine())["tables"][0].count("placement"), 0u);
  const std::vector<std::string> overrides = {
      "cache.budget=24MiB", "table[0]={name: 'user' settings {placement: DEVICE}}",
      "table[1]={name: 'item' settings {placement: REMOTE}}"};
  const Job job = Load(overrides);
  const JobPlan plan = Plan(job, &figures);
  EXPECT_EQ(plan.tables[0].placement, "device");
  EXPECT_EQ(plan.tables[1].placement, "remote");
  EXPECT_EQ(plan.tables[2].placement, "cached");
  // A row of dim 16 with Adagrad has 128 bytes.
  EXPECT_EQ(plan.tables[0].device_bytes, 200000u * 128);
  ASSERT_EQ(plan.kept.size(), 1u);
  EXPECT_EQ(plan.kept[0].bytes, 200000u * 128);
  // A batch's rows of three tables, of 1,024 each, leave 24,772,352 bytes and two rows; `cross`
  // gets half of them. No row of `user` is ever on its way to the cache.
  EXPECT_EQ(plan.kept[0].room_bytes, (24772352u / 2 / 128 + 1 + 1024) * 128);
  EXPECT_FALSE(Fits(job, plan, BigMachine()));
  EXPECT_THAT(RenderPlan(job, plan, BigMachine()),
              HasSubstr("rows of table 'user' (placement DEVICE), in its share of cache.budget: "
                        "24.4 MiB of 11.9 MiB: DOES NOT FIT"));
  std::vector<std::string> of_two = overrides;
  of_two.insert(of_two.end(), {"cluster.workers=2", "cache.budget=28MiB"});
  const Job shared = Load(of_two);
  const JobPlan of_both = Plan(shared, &figures);
  EXPECT_TRUE(Fits(shared, of_both, BigMachine()));
  // Batches of 512: `item`'s rows go through the servers in any case.
  EXPECT_GT(of_both.all_held.server, 20u * 60 + 4 * 60 * 16);
  EXPECT_LT(of_both.all_held.server, of_both.nothing_held.server / 4);
  const Json kept = PlanToJson(of_both, BigMachine())["kept"];
  EXPECT_EQ(kept[0]["tables"], Json({"user"}));
  EXPECT_EQ(kept[0]["bytes"], 200000 * 128);
  EXPECT_LT(kept[0]["room_bytes"], 28 << 20) << "half of both caches, and the rest of a batch";
  EXPECT_GT(kept[0]["room_bytes"], 27 << 20);
}

TEST(JobPlan, ACacheWithoutRoomForABatchIsRefusedAsByItsWorker) {
  const Json figures = Figures();
  const Job job = Load({"cache.budget=64KiB", "default_table.placement=DEVICE"});
  const auto plan = PlanJob(job, {&figures, 0}, BigMachine());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(), HasSubstr("cache.budget is 65536 bytes; at least "));
}

TEST(JobPlan, DiskHasCheckpointsAndLogs) {
  const Json figures = Figures();
  EXPECT_EQ(Plan(Load({"checkpoint.none=true"}), &figures).disk_bytes, 0u);
  const JobPlan one = Plan(Load(), &figures);
  EXPECT_GE(PartOf(one.disk, "one checkpoint"), 201100u * 146);
  const JobPlan several =
      Plan(Load({"checkpoint.every_steps=10", "cluster.durability=LOG_ASYNC"}), &figures);
  // Every eighth has all rows, and those that build on one that is kept stay. Seven change less.
  const uint64_t sets =
      PartOf(several.disk, "files of 11 checkpoints, 2 of them with all rows, at most");
  EXPECT_GT(sets, 2 * one.disk_bytes);
  EXPECT_LT(sets, 11 * one.disk_bytes);
  const JobPlan rare = Plan(Load({"checkpoint.every_steps=900"}), &figures);
  EXPECT_EQ(PartOf(rare.disk, "files of 3 checkpoints, 1 of them with all rows, at most"),
            3 * one.disk_bytes);
  const JobPlan whole =
      Plan(Load({"checkpoint.every_steps=10", "checkpoint.full_every=1"}), &figures);
  EXPECT_EQ(PartOf(whole.disk, "4 checkpoints of all rows, at most"), 4 * one.disk_bytes);
  EXPECT_EQ(PartOf(several.disk, "push logs (cluster.max_log_size)"), uint64_t{16} << 30);
}

TEST(JobPlan, AScriptHasItsMemoryBesideTheWorker) {
  const Json figures = Figures();
  const auto job = ParseJob(kJob, "job",
                            {"worker.command=['python3', 'train.py']", "worker.memory=3GiB",
                             "worker.threads=4", "checkpoint={}", "train.eval_batch_size=1024"},
                            {"dlrm"});
  ASSERT_TRUE(job.ok()) << job.status();
  const JobPlan plan = Plan(*job, &figures);
  const JobPlan layers = Plan(Load({"checkpoint={}", "device=CPU"}), &figures);
  EXPECT_EQ(SumOf(plan.script), uint64_t{3} << 30);
  EXPECT_EQ(plan.memory_bytes, 2 * SumOf(plan.server) + SumOf(plan.worker) + (uint64_t{3} << 30));
  EXPECT_EQ(plan.dense_parameters, 0u);
  EXPECT_EQ(PartOf(plan.server, "dense parameters"), 0u);
  EXPECT_EQ(PartOf(plan.worker, "dense parameters"), 0u);
  EXPECT_EQ(PartOf(plan.worker, "activations"), 0u);
  EXPECT_GT(PartOf(layers.worker, "activations"), 0u);
  // Three batches of about 900 + 90 + 900 keys of dim 16, with gradients.
  const uint64_t shared =
      PartOf(plan.worker, "batches and rows that it shares with the script, about");
  EXPECT_GT(shared, 3u * 1500 * 16 * 8);
  EXPECT_LT(shared, 3u * 4000 * 16 * 8);
  const std::string text = RenderPlan(*job, plan, BigMachine());
  EXPECT_THAT(text, HasSubstr("\nscript: python3 train.py, 3.0 GiB of memory (worker.memory), 4 "
                              "threads (worker.threads); what it keeps in checkpoints is not known "
                              "before\n"));
  EXPECT_THAT(text, Not(HasSubstr("dense parameters")));
  EXPECT_THAT(text, HasSubstr("the worker's script"));
  EXPECT_EQ(PlanToJson(plan, BigMachine())["script"]["worker.memory"], uint64_t{3} << 30);
  EXPECT_FALSE(PlanToJson(layers, BigMachine()).contains("script"));
}

TEST(CheckStart, WarnsOfTheMemoryOfAScript) {
  const auto job =
      ParseJob(kJob, "job", {"worker.command=['train.py']", "worker.memory=2GiB"}, {"dlrm"});
  ASSERT_TRUE(job.ok()) << job.status();
  std::string warning;
  Machine machine;
  machine.memory_bytes = uint64_t{1} << 30;
  EXPECT_TRUE(CheckStart(*job, machine, &warning).ok());
  EXPECT_THAT(warning, HasSubstr("the script (worker.memory) add up to 2.0 GiB"));
  machine.memory_bytes = uint64_t{4} << 30;
  EXPECT_TRUE(CheckStart(*job, machine, &warning).ok());
  EXPECT_EQ(warning, "");
}

TEST(CheckStart, WarnsOfStalenessWithoutWarmUp) {
  std::string warning;
  const auto warned = [&](const std::vector<std::string>& settings) {
    const Job job = Load(settings);
    EXPECT_TRUE(CheckStart(job, Machine(), &warning).ok());
    const Json figures = Figures();
    const bool planned =
        absl::StrContains(RenderPlan(job, Plan(job, &figures), Machine()),
                          "warning: train.staleness_steps is 4, and train.learning");
    EXPECT_EQ(planned, !warning.empty());
    return planned;
  };
  EXPECT_TRUE(warned({"train.staleness_steps=4"}));
  EXPECT_FALSE(warned({"train.staleness_steps=4", "train.learning_rate.warmup_steps=100"}));
  // Nothing is stale, or nothing is new.
  EXPECT_FALSE(warned({}));
  EXPECT_FALSE(warned({"train.staleness_steps=4", "cache.budget=64MiB"}));
  EXPECT_FALSE(warned({"train.staleness_steps=4", "init_from=run"}));
}

// A job with histories, whose layers take more the longer these are, and the larger the batch is.
TEST(CheckStart, WarnsOfBatchesThatMayNotFit) {
  const auto warning = [](int max_length, const std::vector<std::string>& settings) {
    const auto job = ParseJob(absl::StrCat(R"(name: "plan" device: CPU
        data { train { path: "/log.csv" csv { header: true } } label { column: "click" } }
        feature { column: "item" categorical {} }
        feature { column: "past" table: "item" sequence { max_length: )",
                                           max_length, R"( } }
        default_table { dim: 64 } sequence { name: "events" of: "past" then: "item" }
        din { deep: 8 }
        train { batch_size: 16 learning_rate { base: 0.1 } })"),
                              "job", settings);
    EXPECT_TRUE(job.ok()) << job.status();
    Machine machine;
    machine.memory_bytes = uint64_t{1} << 30;
    std::string text;
    EXPECT_TRUE(CheckStart(*job, machine, &text).ok());
    return text;
  };
  EXPECT_EQ(warning(10, {}), "");
  const std::string long_lists = warning(1000, {});
  EXPECT_THAT(long_lists,
              HasSubstr("warning: what the model's layers compute of a batch takes up to "));
  EXPECT_THAT(long_lists,
              HasSubstr(" of memory, where lists have their max_length; this machine has "
                        "1.0 GiB. train.batch_size is 16, train.eval_batch_size 4096"));
  EXPECT_EQ(warning(1000, {"train.eval_batch_size=16"}), "");
  EXPECT_THAT(warning(10, {"train.eval_batch_size=1000000"}), HasSubstr("eval_batch_size 1000000"));
}

TEST(JobPlan, AFileOfRowsIsNoLargerThanPlanned) {
  PosixDisk disk;
  const struct {
    size_t floats;
    uint64_t rows, spare_bytes_a_row;
  } cases[] = {{1, 20000, 3},   {8, 20000, 3},   {32, 20000, 3},
               {128, 20000, 3}, {5000, 200, 12}, {20000, 200, 12}};
  for (const auto& c : cases) {
    auto writer =
        RowsFileWriter::Create(&disk, testing::TempDir(), absl::StrCat("rows-", c.floats));
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::set<RowKey> keys;
    for (Key key = 0; key < c.rows; ++key) keys.insert(RowKeyOf(TableId(1), key));
    for (const RowKey& key : keys) {
      ASSERT_EQ((*writer)->Add(key.table, key.key, 1, 1, std::vector<float>(c.floats, 0.5f)),
                absl::OkStatus());
    }
    const auto file = (*writer)->Finish();
    ASSERT_TRUE(file.ok()) << file.status();
    const uint64_t planned = c.rows * RowsFileRowBytes(c.floats);
    EXPECT_LE((*file)->bytes(), planned) << c.floats;
    EXPECT_GE((*file)->bytes(), planned - c.rows * c.spare_bytes_a_row) << c.floats;
  }
}

TEST(CheckStart, RefusesACacheWithoutRoomForABatch) {
  std::string warning;
  for (const char* workers : {"cluster.workers=1", "cluster.workers=2"}) {
    EXPECT_TRUE(CheckStart(Load({"cache.budget=1GiB", workers}), Machine(), &warning).ok());
    const absl::Status small =
        CheckStart(Load({"cache.budget=64KiB", workers}), Machine(), &warning);
    EXPECT_EQ(small.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(small.message(), HasSubstr("cache.budget"));
  }
}

TEST(CheckStart, RefusesWhatCanNotFitAndWarnsOfWhatMayNot) {
  std::string warning;
  Machine machine;
  machine.memory_bytes = uint64_t{1} << 30;
  EXPECT_TRUE(CheckStart(Load(), machine, &warning).ok());
  EXPECT_EQ(warning, "");
  EXPECT_TRUE(
      CheckStart(Load({"default_table.storage.rocksdb.memory=1GiB"}), machine, &warning).ok());
  EXPECT_THAT(warning, HasSubstr("this machine has 1.0 GiB"));
  const absl::Status refused = CheckStart(Load({"dlrm.top=[20000, 20000]"}), machine, &warning);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("the model's layers"));
  EXPECT_EQ(warning, "");
  EXPECT_THAT(CheckStart(Load({"train.batch_size=1000000"}), machine, &warning).message(),
              HasSubstr("train.batch_size is 1000000"));
  // Where the memory is not known, nothing is said.
  EXPECT_TRUE(CheckStart(Load({"dlrm.top=[20000, 20000]"}), Machine(), &warning).ok());
}

}  // namespace
}  // namespace thermocline
