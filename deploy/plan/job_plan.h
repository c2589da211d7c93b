// What a job will need of memory, disk and network, before it runs. The formulas of rows, index,
// pushes and checkpoints are those that the programs work by; what no formula has (threads, gRPC,
// allocators) is a constant.
#ifndef THERMOCLINE_DEPLOY_PLAN_JOB_PLAN_H_
#define THERMOCLINE_DEPLOY_PLAN_JOB_PLAN_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/plan/machine.h"
#include "proto/job.pb.h"

namespace thermocline {

struct PlanInputs {
  // The figures of `inspect --json` of the job's data; null: there are none.
  const nlohmann::ordered_json* figures = nullptr;
  double samples_per_s = 0;  // All workers together; 0: not known.
};

struct PlannedTable {
  std::string name;
  int dim = 0;
  std::optional<uint64_t> rows;  // Over all servers; none: nothing tells.
  std::string rows_from;         // "inspected", "buckets", ...
  uint64_t memory_bytes = 0;     // Over all servers.
  uint64_t checkpoint_bytes = 0;
  uint64_t spilled_bytes = 0;  // In RocksDB, for a while: twice of what lies there.
  // Where the job's cache keeps its rows: "" without one, "cached", "remote" (pulled and pushed
  // every step), "device" (all of them, in the end).
  std::string placement;
  uint64_t device_bytes = 0;  // Placement DEVICE: of its rows, over all workers.
};

// A part of what a process needs.
struct PlanPart {
  std::string name;
  uint64_t bytes = 0;
};

// Bytes of one step over the link of a worker, or of a server, in its busier direction.
struct LinkBytes {
  uint64_t worker = 0, server = 0;
};

// The rows of tables with placement DEVICE that share a slab, over all workers.
struct PlannedSlab {
  std::vector<std::string> tables;
  uint64_t bytes = 0;
  uint64_t room_bytes = 0;  // Their share of cache.budget.
};

// The bytes of all of them.
uint64_t SumOf(const std::vector<PlanPart>& parts);

struct JobPlan {
  std::vector<PlannedTable> tables;
  uint64_t dense_parameters = 0;  // Floats.
  bool is_complete = true;        // The rows of all tables are known.

  // The memory of one server, of one worker, and of a worker's device if that has memory of its
  // own.
  std::vector<PlanPart> server, worker, device;
  // The memory of thermocline-pack, which ends before the servers start, if the job counts hot
  // rows.
  std::vector<PlanPart> pack;
  // The memory of the script that the worker starts, if the job's model is one: as the job says.
  std::vector<PlanPart> script;
  // Over all processes, in the run directory. What a script keeps in checkpoints is not known.
  std::vector<PlanPart> disk;

  // Between workers and servers, over all; the rows of a step are known from figures, else as many
  // as lookups. Without what a cache saves.
  uint64_t pulled_bytes_per_step = 0, pushed_bytes_per_step = 0;
  // Where the workers exchange blocks: if a cache held no row of the step, and if it held all that
  // it may. A real step lies between them.
  LinkBytes nothing_held, all_held;
  double steps_per_s = 0;  // 0: not known.

  // The most that all processes take at a time, and devices that use the host's memory.
  uint64_t memory_bytes = 0;
  uint64_t device_bytes = 0;  // On one worker's device, if that has memory of its own; else 0.
  uint64_t disk_bytes = 0;
  std::vector<PlannedSlab> kept;
  std::vector<std::string> warnings;  // What the figures show that the job may not mean.
};

// REQUIRES: a resolved, valid job. Errors: kInvalidArgument (the figures lack a column that the job
// reads: names both; a cache with tables of placement DEVICE has no room for a batch).
absl::StatusOr<JobPlan> PlanJob(const Job& job, const PlanInputs& inputs, const Machine& machine);

// Whether the machine has what the plan needs, as far as both are known. A job that computes on a
// GPU needs one.
bool Fits(const Job& job, const JobPlan& plan, const Machine& machine);

// As the command prints it, and as JSON.
std::string RenderPlan(const Job& job, const JobPlan& plan, const Machine& machine);
nlohmann::ordered_json PlanToJson(const JobPlan& plan, const Machine& machine);

// A warning of what may keep the job from learning; "": nothing that its file shows.
std::string DescribeRisks(const Job& job);

// What is known of a job before it starts, without its data. kInvalidArgument: its cache's budget
// has no room for the rows of a batch. kFailedPrecondition: what it takes in any case is more than
// the machine has: its dense parameters, or these and the activations of a batch without its steps,
// where workers compute in the host's memory. In `*warning`: with the memory that its budgets allow
// it to take it is more than that, and DescribeRisks(); "": neither.
absl::Status CheckStart(const Job& job, const Machine& machine, std::string* warning);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PLAN_JOB_PLAN_H_
