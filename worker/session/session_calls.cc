#include "worker/session/session_calls.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/math/table_spec.h"
#include "worker/session/transport.h"

namespace thermocline {
namespace {

uint64_t BytesOf(const PullCall& call) {
  uint64_t bytes = NumKeys(call) * sizeof(Key);
  for (const PullSlice& slice : call.tables) bytes += slice.rows.size() * sizeof(float);
  return bytes;
}
uint64_t BytesOf(const PushCall& call) {
  uint64_t bytes = NumKeys(call) * (sizeof(Key) + sizeof(uint32_t));
  for (const wire::PushSlice& slice : call.tables) bytes += slice.values.size() * sizeof(float);
  return bytes;
}

// Floats of a key's values.
size_t ValueFloats(const TableLayout& table, wire::PushKind kind) {
  switch (kind) {
    case wire::PushKind::kGradient:
      return table.dim;
    case wire::PushKind::kAssign:
      return table.row_floats();
    case wire::PushKind::kCount:
      return 0;
  }
  CHECK(false);
}

}  // namespace

void PushOperation::Release(size_t wave) {
  CHECK(!waves[wave].released);
  const bool again = waves[wave].is_wanted;
  waves[wave].released = true;
  waves[wave].is_wanted = false;
  unreleased -= again ? 0 : 1;
  for (ToServer& server : to) {
    for (size_t i = 0; i < server.chunks.size(); ++i) {
      if (server.chunks[i].wave == wave && wave + 1 != waves.size() &&
          (!again || server.chunks[i].phase == CallPhase::kWaiting)) {
        server.waiting.push_back(i);
      }
    }
  }
  if (!again && unreleased == 0) QueueLastWave();
}

void PushOperation::ReleaseWithLimits(const std::vector<wire::RowLimit>& limits) {
  for (ToServer& server : to) server.chunks.back().call.row_limits = limits;
  if (--unreleased == 0) QueueLastWave();
}

void PushOperation::QueueLastWave() {
  for (ToServer& server : to) {
    for (size_t i = 0; i < server.chunks.size(); ++i) {
      if (server.chunks[i].wave + 1 == waves.size()) server.waiting.push_back(i);
    }
  }
}

SessionCalls::SessionCalls(const PsSessionOptions& options) : options_(options) {
  for (const TableLayout& table : options.tables) tables_.emplace(table.id, &table);
}

std::shared_ptr<PullOperation> SessionCalls::NewPull(const PullWork& work) const {
  CHECK_EQ(work.slices.size(), options_.num_servers);
  auto pull = std::make_shared<PullOperation>();
  pull->step = work.step;
  pull->complete_through = work.step - 1;
  pull->needs_through = work.step - 1;
  if (work.kind == wire::PullKind::kTrain) {
    pull->needs_through = std::max(kNoStep, pull->needs_through - options_.staleness_steps);
  }
  pull->to.resize(options_.num_servers);
  pull->awaited.resize(options_.num_servers);
  const auto width_of = [this, &work](const PullSlice& slice) {
    const TableLayout& table = *tables_.at(slice.table);
    const size_t width = work.with_state ? table.row_floats() : table.dim;
    CHECK_EQ(slice.rows.size(), slice.keys.size() * width);
    return width;
  };
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    for (std::vector<PullSlice>& chunk :
         SplitPull(work.slices[server], options_.max_chunk_bytes, width_of)) {
      PullOperation::Call call;
      call.server = ServerIndex(server);
      call.call.kind = work.kind;
      call.call.step = work.step;
      call.call.staleness_steps = options_.staleness_steps;
      call.call.after_step = work.after_step;
      call.call.with_state = work.with_state;
      call.call.tables = std::move(chunk);
      call.bytes = BytesOf(call.call);
      pull->to[server].is_read = true;
      ++pull->awaited[server];
      pull->to[server].waiting.push_back(pull->calls.size());
      pull->calls.push_back(std::move(call));
    }
  }
  pull->unanswered = pull->calls.size();
  pull->complete = pull->calls.empty();
  return pull;
}

std::shared_ptr<PushOperation> SessionCalls::NewPush(const PushWork& work) const {
  CHECK(!work.waves.empty());
  auto push = std::make_shared<PushOperation>();
  push->step = work.step;
  push->to.resize(options_.num_servers);
  push->waves.resize(work.waves.size());
  push->unreleased = work.waves.size();
  CHECK(work.lent.empty() || (work.lent.size() == work.waves.size() && !work.lent.back()));
  for (size_t wave = 0; wave < work.lent.size(); ++wave) {
    push->waves[wave].is_lent = work.lent[wave];
  }
  push->on_returned = work.on_returned;
  push->on_wanted = work.on_wanted;
  push->unacknowledged = options_.num_servers;
  const auto width_of = [this](const wire::PushSlice& slice) {
    const TableLayout& table = *tables_.at(slice.table);
    const size_t width = ValueFloats(table, slice.kind);
    CHECK_EQ(slice.counts.size(), slice.keys.size());
    CHECK_EQ(slice.values.size(), slice.keys.size() * width);
    return width;
  };
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    std::vector<PushOperation::Chunk>& chunks = push->to[server].chunks;
    for (size_t wave = 0; wave < work.waves.size(); ++wave) {
      CHECK_EQ(work.waves[wave].size(), options_.num_servers);
      std::vector<std::vector<wire::PushSlice>> split =
          SplitPush(work.waves[wave][server], options_.max_chunk_bytes, width_of);
      // Every server gets a chunk of the last wave, and so none accepts the push before it.
      if (split.empty() && wave + 1 == work.waves.size()) split.emplace_back();
      for (std::vector<wire::PushSlice>& slices : split) {
        PushOperation::Chunk chunk;
        chunk.wave = wave;
        chunk.call.step = work.step;
        chunk.call.chunk = static_cast<uint32_t>(chunks.size());
        chunk.call.learning_rate = work.learning_rate;
        chunk.call.tables = std::move(slices);
        chunk.bytes = BytesOf(chunk.call);
        chunks.push_back(std::move(chunk));
        ++push->waves[wave].unanswered;
      }
    }
    for (PushOperation::Chunk& chunk : chunks) {
      chunk.call.num_chunks = static_cast<uint32_t>(chunks.size());
    }
  }
  return push;
}

std::shared_ptr<PullOperation> SessionCalls::NewCount(Step step) const {
  auto count = std::make_shared<PullOperation>();
  for (const TableLayout& table : options_.tables) {
    if (options_.rank == WorkerRank(0) && table.CountsAfter(step - 1)) count->row_counts[table.id];
  }
  if (count->row_counts.empty()) return nullptr;
  count->step = step;
  count->complete_through = count->needs_through = step - 1;
  count->to.resize(options_.num_servers);
  count->awaited.assign(options_.num_servers, 1);
  for (uint32_t server = 0; server < options_.num_servers; ++server) {
    PullOperation::Call call;
    call.server = ServerIndex(server);
    call.call.step = step;
    call.call.count_rows = true;
    count->to[server].is_read = true;
    count->to[server].waiting.push_back(count->calls.size());
    count->calls.push_back(std::move(call));
  }
  count->unanswered = count->calls.size();
  return count;
}

absl::Status SessionCalls::AddCounts(const wire::PullAnswer& answer, PullOperation* count) const {
  const auto is_due = [&](const wire::TableRowCounts& counts) {
    return count->row_counts.count(counts.table) > 0;
  };
  if (answer.row_counts.size() != count->row_counts.size() ||
      !std::all_of(answer.row_counts.begin(), answer.row_counts.end(), is_due)) {
    return absl::InternalError(absl::StrCat(
        "a server counted the rows of ", answer.row_counts.size(), " tables before step ",
        count->step.value(), "; ", count->row_counts.size(), " are due"));
  }
  for (const wire::TableRowCounts& counts : answer.row_counts) {
    for (size_t i = 0; i < counts.groups.size(); ++i) {
      count->row_counts[counts.table][counts.groups[i]] += counts.rows[i];
    }
  }
  return absl::OkStatus();
}

std::vector<wire::RowLimit> SessionCalls::LimitsOf(const PullOperation& count) const {
  std::vector<wire::RowLimit> limits;
  for (const auto& [table, counts] : count.row_counts) {
    limits.push_back({table, OldestKeptOf(counts, tables_.at(table)->max_rows)});
  }
  return limits;
}

absl::Status SessionCalls::CheckFinite(const PushOperation& push, size_t wave) const {
  for (const PushOperation::ToServer& to : push.to) {
    for (const PushOperation::Chunk& chunk : to.chunks) {
      if (chunk.wave != wave) continue;
      for (const wire::PushSlice& slice : chunk.call.tables) {
        const TableLayout& table = *tables_.at(slice.table);
        const bool assign = slice.kind == wire::PushKind::kAssign;
        const size_t width = slice.values.size() / slice.keys.size();
        const size_t bad = FindBadInRows(slice.values, table.dim, width);
        if (bad == slice.values.size()) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", options_.rank.value(), ", step ", push.step.value(), ": ",
            assign ? "row" : "gradient", " of table '", table.name, "', key ",
            slice.keys[bad / width], " holds ", slice.values[bad], assign ? "" : kRateHint));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace thermocline
