// Small checkpoints for tests.
#ifndef THERMOCLINE_TESTS_TESTING_CHECKPOINTS_H_
#define THERMOCLINE_TESTS_TESTING_CHECKPOINTS_H_

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"

namespace thermocline {

// A row of a checkpoint: RowMeta's lookups and changed, and its floats.
struct TestRow {
  uint32_t lookups = 0;
  uint32_t changed = 0;
  std::vector<float> values;

  friend bool operator==(const TestRow& a, const TestRow& b) {
    return a.lookups == b.lookups && a.changed == b.changed && a.values == b.values;
  }
};
using TestRows = std::map<RowKey, TestRow>;

// Returns three tables. Table 1 is sparse, with 3 floats a row; table 2 is sparse, of dim 2 with as
// many floats of state; table 9 is dense.
inline std::vector<TableLayout> TestTables() {
  std::vector<TableLayout> tables(3);
  for (TableLayout& table : tables) table.optimizer.kind = OptimizerKind::kSgd;
  tables[0].id = TableId(1);
  tables[0].name = "small";
  tables[0].dim = 3;
  tables[1].id = TableId(2);
  tables[1].name = "with state";
  tables[1].dim = 2;
  tables[1].optimizer.kind = OptimizerKind::kAdagrad;
  tables[2].id = TableId(9);
  tables[2].name = "dense";
  tables[2].dim = 8;
  tables[2].role = TableRole::kDense;
  return tables;
}

// Puts `count` random rows of each table into `rows`. They replace rows of the same keys.
inline void AddRandomRows(int count, uint32_t changed, std::mt19937_64* random, TestRows* rows) {
  for (const TableLayout& table : TestTables()) {
    for (int i = 0; i < count; ++i) {
      TestRow row;
      row.lookups = static_cast<uint32_t>((*random)());
      row.changed = changed;
      for (int f = 0; f < table.row_floats(); ++f) {
        row.values.push_back(static_cast<float>((*random)() % 1000) / 8);
      }
      (*rows)[RowKeyOf(table.id, (*random)() % (8 * static_cast<uint64_t>(count)))] = row;
    }
  }
}

// Writes `rows` to one file; nullopt if there are none.
inline std::optional<CheckpointFile> WriteTestRows(Disk* disk, const std::string& directory,
                                                   const std::string& path, const TestRows& rows) {
  auto writer = RowsFileWriter::Create(disk, directory, path);
  CHECK(writer.ok());
  for (const auto& [key, row] : rows) {
    CHECK((*writer)->Add(key.table, key.key, row.lookups, row.changed, row.values).ok());
  }
  auto file = (*writer)->Finish();
  CHECK(file.ok());
  return *file;
}

// A manifest without files.
inline CheckpointManifest EmptyManifest(const CheckpointId& id, uint32_t num_servers) {
  CheckpointManifest manifest;
  manifest.set_format_version(kCheckpointFormatVersion);
  manifest.set_job_id("test-1");
  manifest.set_generation(id.generation);
  manifest.set_step(id.step.value());
  manifest.set_num_servers(num_servers);
  manifest.set_num_workers(1);
  for (const TableLayout& table : TestTables()) {
    *manifest.add_tables() = TableLayoutToProto(table);
  }
  for (uint32_t server = 0; server < num_servers; ++server) {
    CheckpointShard* shard = manifest.add_shards();
    shard->set_server_index(server);
    shard->set_base_step(kNoStep.value());
  }
  return manifest;
}

// Writes the files of a checkpoint that isn't committed yet, and returns its manifest. With a base,
// `rows` are those that have changed since, and the manifest names the base's files before the new
// ones.
inline CheckpointManifest WriteTestCheckpoint(Disk* disk, const std::string& directory,
                                              const CheckpointId& id, uint32_t num_servers,
                                              const TestRows& rows,
                                              const CheckpointManifest* base = nullptr) {
  CheckpointManifest manifest = EmptyManifest(id, num_servers);
  const ClusterMap map(num_servers);
  for (uint32_t server = 0; server < num_servers; ++server) {
    CheckpointShard* shard = manifest.mutable_shards(static_cast<int>(server));
    if (base != nullptr) {
      shard->set_base_step(base->step());
      *shard->mutable_files() = base->shards(static_cast<int>(server)).files();
    }
    TestRows own;
    for (const auto& [key, row] : rows) {
      if (map.ServerOfPartition(key.partition) == ServerIndex(server)) own[key] = row;
    }
    const auto file = WriteTestRows(disk, directory, RowsFilePath(id, {ServerIndex(server)}), own);
    if (file.has_value()) *shard->add_files() = *file;
  }
  return manifest;
}

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_CHECKPOINTS_H_
