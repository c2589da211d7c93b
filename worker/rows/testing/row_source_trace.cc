#include "worker/rows/testing/row_source_trace.h"

#include "absl/strings/str_cat.h"
#include "common/math/testing/random_optimizers.h"
#include "worker/session/transport.h"

namespace thermocline {
namespace {

TableLayout DrawLayout(Random* random) {
  TableLayout layout;
  layout.dim = std::vector<int>{1, 2, 3, 4, 8, 16}[random->Draw(0, 5)];
  DrawRowOptimizers([&](int n) { return random->Draw(0, n - 1); }, &layout);
  layout.init_scale = 0.5f;
  return layout;
}

void DrawTables(Random* random, RowTrace* trace) {
  RowSourceOptions& options = trace->options;
  std::vector<CacheGroupLayout> groups(random->Draw(1, 2));
  const std::vector<TableLayout> layouts = {DrawLayout(random), DrawLayout(random)};
  const int num_tables = random->Draw(1, 3);
  for (int t = 0; t < num_tables; ++t) {
    const int group = random->Draw(0, static_cast<int>(groups.size()) - 1);
    TableLayout layout = layouts[group];
    layout.id = TableId(static_cast<uint32_t>(10 * random->Draw(0, 7) + t));
    layout.name = absl::StrCat("C", t);
    options.tables.push_back(layout);
    trace->layouts[layout.id.value()] = layout;
    groups[group].tables.push_back(t);
    for (int features = random->Draw(1, 2); features > 0; --features) {
      trace->feature_tables.push_back(t);
    }
  }
  for (CacheGroupLayout& group : groups) {
    if (group.tables.empty()) continue;
    const TableLayout& layout = options.tables[group.tables[0]];
    group.dim = layout.dim;
    group.row_floats = layout.row_floats();
    group.stride = (group.row_floats + 3) / 4 * 4;
    group.staging_rows = random->Draw(1, 8);  // Often too few: the slab grows.
    group.capacity = random->OneIn(4) ? random->Draw(0, 1) : random->Draw(0, 40);
    options.layout.groups.push_back(group);
  }
}

}  // namespace

RowTrace DrawTrace(uint32_t num_workers, Random* random) {
  RowTrace trace;
  RowSourceOptions& options = trace.options;
  options.num_workers = num_workers;
  options.held = num_workers == 1 ? HeldSet::kCache : HeldSet::kNone;
  options.num_servers = random->Draw(1, 3);
  options.staleness_steps = random->Draw(0, 4);
  options.start_step = Step(random->OneIn(2) ? 0 : random->Draw(1, 50));
  options.window_steps = random->Draw(1, 8);
  options.prefetch_steps = random->Draw(0, options.window_steps - 1);
  if (!random->OneIn(3)) options.max_unwritten_bytes = random->OneIn(2) ? 0 : random->Draw(1, 300);
  DrawTables(random, &trace);
  // Three pieces, or one: a trace has one thread, which can't wait for places.
  if (random->OneIn(2)) options.piece_bytes = options.layout.capacity_bytes() / 3 + 1;
  TableLayout dense;
  dense.id = TableId(kDenseTable);
  dense.name = "dense";
  dense.dim = kDenseBlockFloats;
  dense.init_scale = 0.5f;
  dense.role = TableRole::kDense;
  trace.layouts[kDenseTable] = dense;

  trace.num_steps = random->Draw(1, 25);
  trace.key_space = random->Draw(1, 30);
  trace.most_samples = random->Draw(0, 8);
  trace.pipelines_steps = trace.holds_rows() && options.prefetch_steps > 0 && random->OneIn(2);
  trace.one_cut_in = random->Draw(1, 12);
  trace.most_delay_us = std::vector<int>{0, 500, 5'000, 40'000}[random->Draw(0, 3)];
  trace.one_failure_in = random->OneIn(2) ? 0 : random->Draw(3, 30);
  trace.max_chunk_bytes = random->OneIn(3)
                              ? 512 << 10
                              : kMaxHeaderBytes + 2 * kMaxSliceHeaderBytes + random->Draw(50, 400);
  trace.max_calls_in_flight = random->Draw(1, 4);
  return trace;
}

}  // namespace thermocline
