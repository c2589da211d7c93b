// Keys of tables, by the server that holds them: with the rows that are read, or what is written.
#ifndef THERMOCLINE_TESTS_SIMULATION_SERVER_BLOCKS_H_
#define THERMOCLINE_TESTS_SIMULATION_SERVER_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"
#include "tests/simulation/sequential_model.h"
#include "worker/session/transport.h"

namespace thermocline {

// The rows that a worker has of a table in a step.
struct RowsOfTable {
  TableId table;
  std::vector<Key> keys;
  std::vector<float> values;  // [keys, dim]
};

class ServerBlocks {
 public:
  struct Block {
    TableId table;
    wire::PushKind kind = wire::PushKind::kGradient;
    std::vector<Key> keys;
    std::vector<uint32_t> counts;
    std::vector<float> values;  // [keys, width]
  };

  explicit ServerBlocks(uint32_t num_servers = 1) : cluster_(num_servers), servers_(num_servers) {}

  // A row of `width` floats to be read.
  void AddRead(TableId table, Key key, int width) {
    Block* const block = Find(table, wire::PushKind::kGradient, key);
    block->keys.push_back(key);
    block->values.resize(block->keys.size() * width, -1.0f);
  }
  void Add(const ModelUpdate& update) {
    Block* const block = Find(update.table, update.kind, update.key);
    block->keys.push_back(update.key);
    block->counts.push_back(update.count);
    block->values.insert(block->values.end(), update.values.begin(), update.values.end());
  }
  std::vector<RowsOfTable> rows() const {
    std::vector<RowsOfTable> rows;
    for (const std::vector<Block>& blocks : servers_) {
      for (const Block& block : blocks) rows.push_back({block.table, block.keys, block.values});
    }
    return rows;
  }

  // Valid as long as nothing is added. [num_servers]
  std::vector<std::vector<PullSlice>> PullSlices() {
    std::vector<std::vector<PullSlice>> slices(servers_.size());
    for (size_t server = 0; server < servers_.size(); ++server) {
      for (Block& block : servers_[server]) {
        slices[server].push_back({block.table, block.keys, absl::MakeSpan(block.values)});
      }
    }
    return slices;
  }
  std::vector<std::vector<wire::PushSlice>> PushSlices() const {
    std::vector<std::vector<wire::PushSlice>> slices(servers_.size());
    for (size_t server = 0; server < servers_.size(); ++server) {
      for (const Block& block : servers_[server]) {
        slices[server].push_back({block.table, block.kind, block.keys, block.counts, block.values});
      }
    }
    return slices;
  }

  // Where what is said of a key is, or comes.
  Block* Find(TableId table, wire::PushKind kind, Key key) {
    std::vector<Block>& blocks =
        servers_[cluster_.ServerOfHash(KeyHash(TableSalt(table), key)).value()];
    for (Block& block : blocks) {
      if (block.table == table && block.kind == kind) return &block;
    }
    blocks.push_back({table, kind, {}, {}, {}});
    return &blocks.back();
  }

 private:
  ClusterMap cluster_;
  std::vector<std::vector<Block>> servers_;  // [num_servers][blocks]
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SERVER_BLOCKS_H_
