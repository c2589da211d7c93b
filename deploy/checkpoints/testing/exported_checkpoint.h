// A checkpoint of a small job, for tests of the commands.
#ifndef THERMOCLINE_DEPLOY_CHECKPOINTS_TESTING_EXPORTED_CHECKPOINT_H_
#define THERMOCLINE_DEPLOY_CHECKPOINTS_TESTING_EXPORTED_CHECKPOINT_H_

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/math/script_state_rows.h"
#include "tests/testing/checkpoints.h"

namespace thermocline {

inline constexpr char kExportedJob[] = R"(
  name: "export"
  seed: 5
  data { format: DLRM_NPY path: "/nowhere" num_dense: 3 num_categorical: 2 }
  default_table { dim: 4 }
  table { name: "C2" settings { dim: 4 optimizer { row_wise_adagrad {} } } }
  dlrm { bottom: [100] top: [7] }
  dense_optimizer { sgd {} }
  train { batch_size: 8 learning_rate { base: 1 } }
)";

inline constexpr size_t kTestStateBytes = 2000;  // A script's state has so many bytes 's'.

// Fills `rows` with every block of the dense tensors but bottom.1.weight's first, and some rows of
// table C1; C2 stays empty. A script's table has its state, if `has_state`. Every float shows its
// place: 1000 * table + key + 0.001 * index.
inline void MakeExportedRows(const JobTables& tables, bool has_state, TestRows* rows) {
  const auto add = [&](const TableLayout& layout, Key key) {
    TestRow row;
    row.lookups = row.changed = 1;
    for (int i = 0; i < layout.row_floats(); ++i) {
      row.values.push_back(static_cast<float>(1000 * layout.id.value() + key + 0.001 * i));
    }
    (*rows)[RowKeyOf(layout.id, key)] = row;
  };
  for (Key key = 0; key < 100; ++key) add(tables.sparse[0], key * key);
  if (tables.script_state.has_value() && has_state) {
    const std::vector<float> state = RowsOfState(std::string(kTestStateBytes, 's'));
    for (size_t at = 0; at < state.size(); at += kDenseBlockFloats) {
      const Key key = at / kDenseBlockFloats;
      add(*tables.script_state, key);
      std::copy_n(state.begin() + static_cast<int64_t>(at), kDenseBlockFloats,
                  (*rows)[RowKeyOf(tables.script_state->id, key)].values.begin());
    }
  }
  for (const DenseTable& tensor : tables.dense) {
    const Key first = tensor.layout.name == "bottom.1.weight" ? 1 : 0;
    for (Key block = first; block < static_cast<Key>(tensor.num_blocks()); ++block) {
      add(tensor.layout, block);
    }
  }
}

// Commits step-000000004 (full; other values) and step-000000009 (incremental) of two servers in
// `directory`. Returns the second one's manifest; `rows` gets its rows. `overrides` change the job,
// which lacks the fields `cleared`.
inline CheckpointManifest MakeExportedCheckpoint(Disk* disk, const std::string& directory,
                                                 TestRows* rows,
                                                 const std::vector<std::string>& overrides = {},
                                                 const std::vector<std::string>& cleared = {},
                                                 bool has_state = true) {
  const auto job = ParseJob(kExportedJob, "test", overrides, cleared);
  CHECK(job.ok());
  const JobTables tables = ResolveTables(*job);
  MakeExportedRows(tables, has_state, rows);
  TestRows old_rows = *rows, new_rows;
  for (auto& [key, row] : old_rows) {
    if (key.key % 2 == 0) continue;
    new_rows[key] = row;
    row.values.assign(row.values.size(), -1);
  }
  CheckpointStore store(disk, directory);
  CHECK(store.Prepare().ok());
  CheckpointManifest manifest;
  for (const int64_t step : {4, 9}) {
    const CheckpointManifest base = manifest;
    manifest = WriteTestCheckpoint(disk, directory, {1, Step(step)}, 2,
                                   step == 4 ? old_rows : new_rows, step == 4 ? nullptr : &base);
    *manifest.mutable_job() = *job;
    manifest.set_seed(job->seed());
    manifest.set_samples(static_cast<uint64_t>(step + 1) * 8);
    manifest.clear_tables();
    for (const TableLayout& layout : tables.AllLayouts()) {
      *manifest.add_tables() = TableLayoutToProto(layout);
    }
    CHECK(store.Commit(manifest).ok());
  }
  return manifest;
}

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CHECKPOINTS_TESTING_EXPORTED_CHECKPOINT_H_
