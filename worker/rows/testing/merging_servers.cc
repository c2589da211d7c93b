#include "worker/rows/testing/merging_servers.h"

#include <algorithm>
#include <set>
#include <utility>

#include "common/base/hash.h"
#include "common/math/gradient_merge.h"
#include "gtest/gtest.h"

namespace thermocline {

class MergingServers::Connection : public Transport {
 public:
  Connection(MergingServers* servers, uint32_t rank) : servers_(servers), rank_(rank) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t, PullDone done) override {
    servers_->After([this, server, call, done = std::move(done)] {
      servers_->Pull(rank_, server.value(), call, done);
    });
  }
  void Push(ServerIndex server, const PushCall& call, int64_t, PushDone done) override {
    servers_->After([this, server, call, done = std::move(done)] {
      servers_->Push(rank_, server.value(), call, done);
    });
  }
  void Close() override { servers_->Close(rank_); }

 private:
  MergingServers* const servers_;
  const uint32_t rank_;
};

MergingServers::MergingServers(const Options& options, Scheduler* scheduler, uint64_t seed)
    : options_(options),
      scheduler_(scheduler),
      random_(seed),
      servers_(options.num_servers),
      is_closed_(options.num_workers) {
  for (Server& server : servers_) server.applied = options.start_step - 1;
}

std::unique_ptr<Transport> MergingServers::TransportOf(uint32_t rank) {
  return std::make_unique<Connection>(this, rank);
}

void MergingServers::After(std::function<void()> task) {
  int64_t delay_us = 0;
  {
    absl::MutexLock lock(&mutex_);
    delay_us = random_.Draw(0, static_cast<int>(options_.most_delay_us));
  }
  scheduler_->RunAfter(delay_us, std::move(task));
}

ServerRow& MergingServers::Find(const TableKey& key, Rows* rows) const {
  const auto found = rows->find(key);
  if (found != rows->end()) return found->second;
  const TableLayout& layout = options_.layouts.at(key.first);
  ServerRow& row = (*rows)[key];
  row.values.resize(layout.row_floats());
  InitialRow(layout, kInitSeed, key.second, absl::MakeSpan(row.values));
  return row;
}

ServerRow MergingServers::RowAfter(Step step, const TableKey& key) {
  const uint64_t hash = KeyHash(TableSalt(TableId(key.first)), key.second);
  const uint32_t server = ClusterMap(options_.num_servers).ServerOfHash(hash).value();
  absl::MutexLock lock(&mutex_);
  return Find(key, &servers_[server].rows_after.at(step));
}

RowTraffic MergingServers::TrafficOf(Step step) {
  absl::MutexLock lock(&mutex_);
  return traffic_[step];
}

int64_t MergingServers::rows_pulled() {
  absl::MutexLock lock(&mutex_);
  return rows_pulled_;
}

bool MergingServers::IsReady(const Server& server, const PullCall& call) const {
  const Step through =
      call.kind == wire::PullKind::kRead ? call.step - 1 : call.step - 1 - call.staleness_steps;
  return server.applied >= std::max(through, call.after_step);
}

void MergingServers::Read(Server* server, const PullCall& call) {
  for (const PullSlice& slice : call.tables) {
    auto to = slice.rows.begin();
    for (const Key key : slice.keys) {
      const Floats& row = Find({slice.table.value(), key}, &server->rows).values;
      const int dim = options_.layouts.at(slice.table.value()).dim;
      to = std::copy(row.begin(), call.with_state ? row.end() : row.begin() + dim, to);
    }
    EXPECT_EQ(to, slice.rows.end());
    if (call.kind == wire::PullKind::kTrain) {
      rows_pulled_ += static_cast<int64_t>(slice.keys.size());
    }
  }
}

void MergingServers::Pull(uint32_t rank, uint32_t index, const PullCall& call, PullDone done) {
  absl::StatusOr<wire::PullAnswer> answer = absl::CancelledError("closed");
  {
    absl::MutexLock lock(&mutex_);
    Server& server = servers_[index];
    if (!is_closed_[rank] && !IsReady(server, call)) {
      server.waiting.push_back({rank, call, std::move(done)});
      return;
    }
    if (!is_closed_[rank]) {
      Read(&server, call);
      answer = wire::PullAnswer{wire::Readiness::kReady, server.applied, {}};
    }
  }
  done(answer);
}

void MergingServers::Push(uint32_t rank, uint32_t index, const PushCall& call,
                          const PushDone& done) {
  wire::PushAnswer answer;
  std::vector<WaitingPull> ready;
  {
    absl::MutexLock lock(&mutex_);
    Server& server = servers_[index];
    auto& of_ranks = server.pushes[call.step];
    auto& whole = server.is_whole[call.step];
    of_ranks.resize(options_.num_workers);
    whole.resize(options_.num_workers);
    std::vector<Written>& chunk = of_ranks[rank][call.chunk];
    for (const wire::PushSlice& slice : call.tables) {
      const size_t width = slice.values.size() / slice.keys.size();
      for (size_t i = 0; i < slice.keys.size(); ++i) {
        const absl::Span<const float> values = slice.values.subspan(i * width, width);
        chunk.push_back({{slice.table.value(), slice.keys[i]},
                         slice.kind,
                         slice.counts[i],
                         Floats(values.begin(), values.end())});
        RowTraffic& traffic = traffic_[call.step];
        (slice.kind == wire::PushKind::kAssign ? traffic.assigned : traffic.gradients) += 1;
      }
    }
    whole[rank] = of_ranks[rank].size() == call.num_chunks;
    if (std::count(whole.begin(), whole.end(), true) ==
        static_cast<int64_t>(options_.num_workers)) {
      EXPECT_EQ(call.step, server.applied + 1);
      Apply(&server, call.step, call.learning_rate);
    }
    answer = {wire::Readiness::kReady, whole[rank] ? call.step : call.step - 1};
    for (auto pull = server.waiting.begin(); pull != server.waiting.end();) {
      const bool is_ready = IsReady(server, pull->call);
      if (is_ready) ready.push_back(std::move(*pull));
      pull = is_ready ? server.waiting.erase(pull) : pull + 1;
    }
  }
  done(answer);
  for (const WaitingPull& pull : ready) Pull(pull.rank, index, pull.call, pull.done);
}

void MergingServers::Apply(Server* server, Step step, float learning_rate) {
  std::map<TableKey, ServerRow> sums;
  std::set<TableKey> assigned;
  for (const auto& chunks : server->pushes[step]) {
    for (const auto& [chunk, all] : chunks) {
      for (const Written& one : all) {
        const TableLayout& layout = options_.layouts.at(one.key.first);
        if (one.kind == wire::PushKind::kGradient) {
          ServerRow& sum = sums[one.key];
          const bool is_first = sum.values.empty();
          sum.values.resize(layout.dim);
          MergeGradient(is_first, one.values.data(), layout.dim, sum.values.data());
          sum.lookups += one.count;
          continue;
        }
        EXPECT_TRUE(assigned.insert(one.key).second) << "row assigned twice in step " << step;
        EXPECT_EQ(one.values.size(), static_cast<size_t>(layout.row_floats()));
        ServerRow& row = Find(one.key, &server->rows);
        row.values = one.values;
        row.lookups += one.count;
      }
    }
  }
  for (const auto& [key, sum] : sums) {
    const TableLayout& layout = options_.layouts.at(key.first);
    EXPECT_EQ(assigned.count(key), 0u) << "row assigned beside a gradient in step " << step;
    ServerRow& row = Find(key, &server->rows);
    row.lookups += sum.lookups;
    UpdateRow(ScalarsForStep(layout.row_optimizer(), learning_rate, step), sum.values.data(),
              sum.lookups, row.values.data(), row.values.data() + layout.dim, layout.dim);
  }
  server->pushes.erase(step);
  server->applied = step;
  server->rows_after[step] = server->rows;
}

void MergingServers::Close(uint32_t rank) {
  std::vector<WaitingPull> ended;
  {
    absl::MutexLock lock(&mutex_);
    is_closed_[rank] = true;
    for (Server& server : servers_) {
      for (auto pull = server.waiting.begin(); pull != server.waiting.end();) {
        const bool ends = pull->rank == rank;
        if (ends) ended.push_back(std::move(*pull));
        pull = ends ? server.waiting.erase(pull) : pull + 1;
      }
    }
  }
  for (const WaitingPull& pull : ended) pull.done(absl::CancelledError("closed"));
}

}  // namespace thermocline
