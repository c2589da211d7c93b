#include "tests/testing/to_wire.h"

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
  for (const PullSlice& slice : call.tables) {
    request.tables.push_back({slice.table, request.keys.size(), slice.keys.size()});
    request.keys.insert(request.keys.end(), slice.keys.begin(), slice.keys.end());
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
  for (const wire::PushSlice& slice : call.tables) {
    chunk.tables.push_back({slice.table, slice.kind, chunk.keys.size(), slice.keys.size(),
                            chunk.values.size(), slice.values.size()});
    chunk.keys.insert(chunk.keys.end(), slice.keys.begin(), slice.keys.end());
    chunk.counts.insert(chunk.counts.end(), slice.counts.begin(), slice.counts.end());
    chunk.values.insert(chunk.values.end(), slice.values.begin(), slice.values.end());
  }
  return chunk;
}

}  // namespace thermocline
