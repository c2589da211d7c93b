#include "tests/testing/to_wire.h"

namespace thermocline {

wire::PullRequest ToWire(const PullCall& call) {
  wire::PullRequest request;
  request.header = call.header;
  request.kind = call.kind;
  request.step = call.step;
  request.staleness_steps = call.staleness_steps;
  request.after_step = call.after_step;
  request.with_slots = call.with_slots;
  for (const PullSlice& slice : call.tables) {
    request.tables.push_back({slice.table, request.keys.size(), slice.keys.size()});
    request.keys.insert(request.keys.end(), slice.keys.begin(), slice.keys.end());
  }
  return request;
}

wire::PushPart ToWire(const PushCall& call) {
  wire::PushPart part;
  part.header = call.header;
  part.step = call.step;
  part.part = call.part;
  part.num_parts = call.num_parts;
  part.learning_rate = call.learning_rate;
  for (const wire::PushSlice& slice : call.tables) {
    part.tables.push_back({slice.table, slice.kind, part.keys.size(), slice.keys.size(),
                           part.values.size(), slice.values.size()});
    part.keys.insert(part.keys.end(), slice.keys.begin(), slice.keys.end());
    part.counts.insert(part.counts.end(), slice.counts.begin(), slice.counts.end());
    part.values.insert(part.values.end(), slice.values.begin(), slice.values.end());
  }
  return part;
}

}  // namespace thermocline
