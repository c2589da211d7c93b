// Configurations, pulls and pushes for the tests of this folder.
#ifndef THERMOCLINE_SERVER_CORE_TESTING_CORE_FIXTURES_H_
#define THERMOCLINE_SERVER_CORE_TESTING_CORE_FIXTURES_H_

#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"
#include "server/core/server_config.h"

namespace thermocline::testing_core {

inline TableLayout MakeTable(uint32_t id, int dim, OptimizerKind kind = OptimizerKind::kSgd) {
  TableLayout table;
  table.id = TableId(id);
  table.name = "T" + std::to_string(id);
  table.dim = dim;
  table.optimizer.kind = kind;
  table.init_scale = 0;  // New rows are zeros.
  return table;
}

// One server with the tables 0 (dim 2, SGD) and 1 (dim 1, Adagrad).
inline ServerConfig MakeConfig(uint32_t num_workers, uint32_t staleness_steps = 0) {
  ServerConfig config;
  config.job_id = "job";
  config.generation = 5;
  config.num_workers = num_workers;
  config.staleness_steps = staleness_steps;
  config.tables = {MakeTable(0, 2), MakeTable(1, 1, OptimizerKind::kAdagrad)};
  return config;
}

inline wire::Header MakeHeader(uint32_t rank, Step acked_through = kNoStep) {
  return {"job", 5, WorkerRank(rank), acked_through};
}

inline wire::PullRequest MakePull(uint32_t rank, int64_t step, uint32_t table = 0,
                                  std::vector<Key> keys = {1}) {
  wire::PullRequest pull;
  pull.header = MakeHeader(rank);
  pull.step = Step(step);
  pull.tables = {{TableId(table), 0, keys.size()}};
  pull.keys.assign(keys.begin(), keys.end());
  return pull;
}

// A chunk without content.
inline wire::PushChunk MakeChunk(uint32_t rank, int64_t step, uint32_t chunk = 0,
                                 uint32_t num_chunks = 1) {
  wire::PushChunk push;
  push.header = MakeHeader(rank);
  push.step = Step(step);
  push.chunk = chunk;
  push.num_chunks = num_chunks;
  push.learning_rate = 1.0f;
  return push;
}

// Adds keys with a count of 1 each. values: [keys, dim] or [keys, row_floats]
inline void AddRange(wire::PushChunk* chunk, uint32_t table, const std::vector<Key>& keys,
                     const std::vector<float>& values,
                     wire::PushKind kind = wire::PushKind::kGradient) {
  chunk->tables.push_back(
      {TableId(table), kind, chunk->keys.size(), keys.size(), chunk->values.size(), values.size()});
  chunk->keys.insert(chunk->keys.end(), keys.begin(), keys.end());
  chunk->counts.resize(chunk->keys.size(), 1);
  chunk->values.insert(chunk->values.end(), values.begin(), values.end());
}

}  // namespace thermocline::testing_core

#endif  // THERMOCLINE_SERVER_CORE_TESTING_CORE_FIXTURES_H_
