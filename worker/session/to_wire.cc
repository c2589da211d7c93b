#include <algorithm>

#include "worker/session/transport.h"

namespace thermocline {

wire::PullRequest ToWire(const PullCall& call) {
  wire::PullRequest request;
  request.header = call.header;
  request.kind = call.kind;
  request.step = call.step;
  request.staleness_steps = call.staleness_steps;
  request.after_step = call.after_step;
  request.with_state = call.with_state;
  request.count_rows = call.count_rows;
  request.tables.reserve(call.tables.size());
  request.keys.resize(NumKeys(call));
  size_t keys = 0;
  for (const PullSlice& slice : call.tables) {
    request.tables.push_back({slice.table, keys, slice.keys.size()});
    std::copy(slice.keys.begin(), slice.keys.end(), request.keys.data() + keys);
    keys += slice.keys.size();
  }
  return request;
}

wire::PushChunk ToWire(const PushCall& call) {
  wire::PushChunk chunk;
  chunk.header = call.header;
  chunk.step = call.step;
  chunk.chunk = call.chunk;
  chunk.num_chunks = call.num_chunks;
  chunk.learning_rate = call.learning_rate;
  chunk.row_limits = call.row_limits;
  size_t keys = 0, values = 0;
  chunk.tables.reserve(call.tables.size());
  for (const wire::PushSlice& slice : call.tables) {
    chunk.tables.push_back(
        {slice.table, slice.kind, keys, slice.keys.size(), values, slice.values.size()});
    keys += slice.keys.size();
    values += slice.values.size();
  }
  chunk.keys.resize(keys);
  chunk.counts.resize(keys);
  chunk.values.resize(values);
  for (size_t i = 0; i < call.tables.size(); ++i) {
    const wire::PushSlice& slice = call.tables[i];
    const wire::PushRange& range = chunk.tables[i];
    std::copy(slice.keys.begin(), slice.keys.end(), chunk.keys.data() + range.begin);
    std::copy(slice.counts.begin(), slice.counts.end(), chunk.counts.data() + range.begin);
    std::copy(slice.values.begin(), slice.values.end(), chunk.values.data() + range.value_begin);
  }
  return chunk;
}

}  // namespace thermocline
