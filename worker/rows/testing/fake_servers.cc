#include "worker/rows/testing/fake_servers.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace thermocline {

FakeServers::FakeServers(const RowTrace& trace, VirtualScheduler* scheduler, uint64_t seed,
                         OnApplied on_applied)
    : trace_(trace),
      scheduler_(scheduler),
      random_(seed),
      on_applied_(std::move(on_applied)),
      servers_(trace.options.num_servers) {
  for (Server& server : servers_) {
    server.applied = trace.options.start_step - 1;
    server.others_applied = trace.holds_rows() ? trace.last_step() : server.applied;
  }
  if (!trace.holds_rows()) scheduler_->RunAfter(0, [this] { PlayOtherWorker(); });
}

void FakeServers::Pull(ServerIndex server, const PullCall& call, int64_t,
                       std::function<void(absl::StatusOr<wire::PullAnswer>)> done) {
  const Fate fate = DrawFate();
  const int holds = random_.OneIn(2) ? 0 : 20;
  scheduler_->RunAfter(Delay(), [this, server, call, fate, holds, done = std::move(done)] {
    ArrivePull(server.value(), call, fate, holds, done);
  });
}

// Values are looked at when the call arrives: they are borrowed until it is answered.
void FakeServers::Push(ServerIndex server, const PushCall& call, int64_t,
                       std::function<void(absl::StatusOr<wire::PushAnswer>)> done) {
  const Fate fate = DrawFate();
  scheduler_->RunAfter(Delay(), [this, server, call, fate, done = std::move(done)] {
    absl::StatusOr<wire::PushAnswer> answer = absl::UnavailableError("lost");
    if (fate != Fate::kLost) {
      const Step accepted = Accept(server.value(), call);
      if (fate == Fate::kArrives) answer = wire::PushAnswer{wire::Readiness::kReady, accepted};
    }
    scheduler_->RunAfter(Delay(), [done, answer] { done(answer); });
  });
}

bool FakeServers::WasReadable(const TableKey& key, Step through,
                              absl::Span<const float> values) const {
  const Server& server = servers_[trace_.ServerOf(key)];
  const int64_t steps = through - trace_.options.start_step + 1;
  if (steps > static_cast<int64_t>(server.complete_at.size())) return false;
  const int64_t since = steps > 0 ? server.complete_at[steps - 1] : 0;
  const auto equals = [values](const Floats& row) {
    return std::equal(values.begin(), values.end(), row.begin());
  };
  bool is_equal = equals(trace_.NewRow(key).values);
  const auto history = server.history.find(key);
  if (history == server.history.end()) return is_equal;
  for (const auto& [event, row] : history->second) {
    if (event > since && is_equal) return true;
    is_equal = equals(row);
  }
  return is_equal;
}

FakeServers::Fate FakeServers::DrawFate() {
  if (trace_.one_failure_in == 0 || !random_.OneIn(trace_.one_failure_in)) return Fate::kArrives;
  return random_.OneIn(2) ? Fate::kLost : Fate::kAnswerLost;
}

// Rows are read when the call arrives or, if it is held, when it is ready; they come with the
// answer.
void FakeServers::ArrivePull(uint32_t server, const PullCall& call, Fate fate, int holds,
                             const std::function<void(absl::StatusOr<wire::PullAnswer>)>& done) {
  absl::StatusOr<wire::PullAnswer> answer = absl::UnavailableError("lost");
  std::vector<Floats> rows;
  if (fate == Fate::kArrives && !closed_) {
    const Server& from = servers_[server];
    const bool ready = from.applied >= call.after_step &&
                       from.complete_through() >= call.step - 1 - call.staleness_steps;
    if (!ready && holds > 0) {
      scheduler_->RunAfter(500, [this, server, call, fate, holds, done] {
        ArrivePull(server, call, fate, holds - 1, done);
      });
      return;
    }
    answer = wire::PullAnswer{ready ? wire::Readiness::kReady : wire::Readiness::kNotReady,
                              from.complete_through()};
    if (ready) rows = Read(server, call);
  }
  scheduler_->RunAfter(Delay(), [call, answer, rows = std::move(rows), done] {
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy(rows[i].begin(), rows[i].end(), call.tables[i].rows.begin());
    }
    done(answer);
  });
}

std::vector<Floats> FakeServers::Read(uint32_t server, const PullCall& call) {
  std::vector<Floats> rows;
  for (const PullSlice& slice : call.tables) {
    rows.emplace_back();
    for (const Key key : slice.keys) {
      const TableKey table_key(slice.table.value(), key);
      EXPECT_EQ(trace_.ServerOf(table_key), server);
      const Floats& row = trace_.RowOf(table_key, &servers_[server].rows).values;
      const int dim = trace_.layouts.at(slice.table.value()).dim;
      rows.back().insert(rows.back().end(), row.begin(),
                         call.with_state ? row.end() : row.begin() + dim);
    }
    EXPECT_EQ(rows.back().size(), slice.rows.size());
  }
  return rows;
}

Step FakeServers::Accept(uint32_t index, const PushCall& call) {
  Server& server = servers_[index];
  if (call.step <= server.applied) return server.applied;
  EXPECT_EQ(call.step, server.applied + 1);
  std::vector<Written>& chunk = server.chunks[call.chunk];
  chunk.clear();
  for (const wire::PushSlice& slice : call.tables) {
    const size_t width = slice.values.size() / slice.keys.size();
    for (size_t i = 0; i < slice.keys.size(); ++i) {
      const absl::Span<const float> values = slice.values.subspan(i * width, width);
      chunk.push_back({{slice.table.value(), slice.keys[i]},
                       slice.kind,
                       slice.counts[i],
                       Floats(values.begin(), values.end())});
    }
  }
  if (server.chunks.size() < call.num_chunks) return server.applied;
  std::vector<Written> all;
  for (auto& [i, some] : server.chunks) all.insert(all.end(), some.begin(), some.end());
  server.chunks.clear();
  server.applied = call.step;
  Apply(index, call.step, call.learning_rate, all);
  on_applied_(index, call.step, all);
  return server.applied;
}

void FakeServers::Apply(uint32_t index, Step step, float learning_rate,
                        const std::vector<Written>& all) {
  Server& server = servers_[index];
  ++server.events;
  std::set<TableKey> keys;
  for (const Written& written : all) {
    EXPECT_EQ(trace_.ServerOf(written.key), index);
    EXPECT_TRUE(keys.insert(written.key).second) << "key written twice in step " << step;
    ServerRow& row = trace_.RowOf(written.key, &server.rows);
    row.lookups += written.count;
    if (written.kind == wire::PushKind::kAssign) {
      EXPECT_EQ(row.values.size(), written.values.size());
      row.values = written.values;
    } else if (written.kind == wire::PushKind::kCount) {
      EXPECT_TRUE(written.values.empty());
    } else {
      trace_.Descend(written.key, learning_rate, step, written.values.data(), &row.values);
    }
    if (!trace_.holds_rows()) {
      server.history[written.key].emplace_back(server.events, row.values);
    }
  }
  const int64_t complete = server.complete_through() - trace_.options.start_step + 1;
  server.complete_at.resize(complete, server.events);
}

// Each server gets the next push at another time, within the bound of staleness.
void FakeServers::PlayOtherWorker() {
  Step slowest = trace_.last_step();
  for (const Server& server : servers_) slowest = std::min(slowest, server.applied);
  bool ended = true;
  for (uint32_t index = 0; index < servers_.size(); ++index) {
    Server& server = servers_[index];
    ended = ended && server.others_applied == trace_.last_step();
    const Step next = server.others_applied + 1;
    if (next > trace_.last_step() || next - 1 - trace_.options.staleness_steps > slowest ||
        random_.OneIn(2)) {
      continue;
    }
    server.others_applied = next;
    Apply(index, next, LearningRateOf(next), OthersPush(index));
  }
  if (ended || closed_) return;
  scheduler_->RunAfter(Delay() + 100, [this] { PlayOtherWorker(); });
}

std::vector<Written> FakeServers::OthersPush(uint32_t server) {
  std::vector<Written> push;
  for (const auto& [table, layout] : trace_.layouts) {
    const int keys = table == kDenseTable ? kDenseBlocks : trace_.key_space;
    for (int key = 0; key < keys; ++key) {
      const TableKey table_key(table, static_cast<Key>(key));
      if (trace_.ServerOf(table_key) != server || random_.OneIn(2)) continue;
      push.push_back({table_key, wire::PushKind::kGradient, 1, Floats(layout.dim)});
      random_.Fill(absl::MakeSpan(push.back().values));
    }
  }
  return push;
}

}  // namespace thermocline
