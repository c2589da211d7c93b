// What a job means to those who run it: its tables, its model, the learning rate of a step, and
// what its servers are configured with.
//
// Every function REQUIRES a job that LoadJob returned (or a part of one): checked, with all
// defaults.
#ifndef THERMOCLINE_COMMON_JOB_RESOLVED_JOB_H_
#define THERMOCLINE_COMMON_JOB_RESOLVED_JOB_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "common/model/model_spec.h"
#include "common/net/tls_files.h"
#include "proto/job.pb.h"

namespace thermocline {

class ConfigureRequest;  // proto/parameter_server.proto

// Lookups of a batch: one input column (or several neighbouring ones, see Feature.columns) and the
// table it reads. A list may be looked up twice: pooled, and step by step.
struct FeatureSpec {
  std::string name;
  int table_index = 0;  // in JobTables::sparse; also the table's id
  Pooling pooling = SUM;
  int columns = 1;
  int source = 0;  // The one of the job's categorical features whose keys it looks up.
  // Where its keys are steps: of which of the job's sequences; and the one of the job's categorical
  // features whose key is the last step; -1: none.
  int sequence = -1;
  int then = -1;
};

// A dense tensor of the model, kept as the rows 0 .. num_blocks()-1 of a table of its own: its
// floats in row-major order, kDenseBlockFloats a row, the last one padded.
struct DenseTable {
  TableLayout layout;
  int rows = 0;
  int cols = 0;
  bool is_vector = false;  // An export has it as [cols].

  int64_t num_floats() const { return int64_t{rows} * cols; }
  int64_t num_blocks() const { return (num_floats() + kDenseBlockFloats - 1) / kDenseBlockFloats; }
};

struct JobTables {
  std::vector<TableLayout> sparse;  // ids 0 .. S-1, in the order the features mention them
  // [sparse] Where a cache keeps the rows; only workers ask. A table beyond its end is CACHED.
  std::vector<TableSettings::Placement> placements;
  // In the order of the data's columns; then those that are read step by step, sequence by
  // sequence.
  std::vector<FeatureSpec> features;
  std::vector<DenseTable> dense;  // Ids S, S+1, ..., in the order of ModelSpec::tensors.
  // Id S, where the model is a script: what it keeps in checkpoints (worker/train/script_state.h).
  std::optional<TableLayout> script_state;

  // All layouts by id.
  std::vector<TableLayout> AllLayouts() const;
  TableSettings::Placement PlacementOf(size_t sparse_table) const {
    return sparse_table < placements.size() ? placements[sparse_table] : TableSettings::CACHED;
  }
};

JobTables ResolveTables(const Job& resolved);

// What the job's features may give its model: each pooled, also those of which the model reads
// steps alone (DescribeModel leaves these out), and those of sequences step by step, named
// "SEQUENCE.FEATURE". And the model that they make of it.
ModelInputs InputsOf(const Job& resolved);
ModelSpec DescribeModel(const Job& resolved);

// The tables of the model's dense tensors; their ids begin with `first_id`.
std::vector<DenseTable> DenseTablesOf(const Job& resolved, const ModelSpec& model,
                                      uint32_t first_id);

// The bytes of a server's memory (cluster.max_pending_size) that the pushes of dense parameters
// take until they are applied, on the server that gets most: the rows, at a checkpoint and at the
// end, where the workers hold the parameters; else the gradients of all workers, in each step.
// Counts keys, lookup counts and values alone.
uint64_t DensePushBytes(const Job& resolved);

// The learning rate of a step. A pure function: the same bits on every machine for whole and half
// powers (the default is 2); other powers use libm's pow.
//   warm-up, steps 0 .. warmup_steps-1:  base * (step + 1) / warmup_steps
//   decay, from decay.start_step on:     max(end, base * (1 - progress)^power),
//                                        progress = min(1, (step - start_step) / steps)
// REQUIRES: step >= 0
float LearningRateAt(const LearningRate& schedule, Step step);

// cache.prefetch_steps, or the default that follows from the window where the job file has none.
uint32_t PrefetchSteps(const Cache& cache);

// Whether the job has no server processes (cluster.servers is 0): its worker has a server within
// its own process, the embedded one, which holds every row.
bool HasEmbeddedServer(const Cluster& cluster);
// How many servers hold the rows, each one shard; the embedded one counts.
uint32_t NumServers(const Cluster& cluster);

// Whether the workers send each other blocks (worker/exchange): several in sync mode.
bool ExchangesBlocks(const Job& resolved);
// Whether the workers hold the dense parameters: a single one all, those that exchange blocks a
// slice each. Else they live on the servers.
bool HoldsDenseParameters(const Job& resolved);

// The files that a process of `role` uses; all empty: plain text.
TlsFiles TlsFilesOf(const Tls& tls, Role role);

// Whether the job has checkpoints at all, and with them a folder for these.
bool WritesCheckpoints(const Job& resolved);

// The request that makes a server the owner of its shard of a job. The launcher sends it, and each
// worker sends it again to check that its servers hold the tables that it expects.
// REQUIRES: index < NumServers(resolved.cluster())
ConfigureRequest MakeConfigureRequest(const Job& resolved, const std::string& job_id,
                                      uint64_t generation, ServerIndex index);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_RESOLVED_JOB_H_
