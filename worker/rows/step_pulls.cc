#include "worker/rows/step_pulls.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace thermocline {
namespace {

// visit(server, first key, number of keys) for each server that has keys.
template <typename Visit>
void ForEachShare(const KeyShares& keys, Visit visit) {
  for (size_t server = 0; server + 1 < keys.server_begin.size(); ++server) {
    const size_t begin = keys.server_begin[server];
    const size_t count = keys.server_begin[server + 1] - begin;
    if (count > 0) visit(server, begin, count);
  }
}

template <typename Values>
size_t FloatsPerKey(const KeyShares& keys, const Values& values) {
  if (keys.keys.empty()) return 0;
  const size_t width = values.size() / keys.keys.size();
  CHECK_EQ(values.size(), keys.keys.size() * width);
  return width;
}

bool HasKeys(const PullWork& pull) {
  return std::any_of(pull.slices.begin(), pull.slices.end(),
                     [](const auto& of_server) { return !of_server.empty(); });
}

}  // namespace

void AddPull(const KeyShares& keys, absl::Span<float> rows, PullsByServer* slices) {
  const size_t width = FloatsPerKey(keys, rows);
  ForEachShare(keys, [&](size_t server, size_t begin, size_t count) {
    (*slices)[server].push_back(
        {keys.table, keys.keys.subspan(begin, count), rows.subspan(begin * width, count * width)});
  });
}

void AddPush(const KeyShares& keys, wire::PushKind kind, absl::Span<const float> values,
             PushesByServer* slices) {
  const size_t width = FloatsPerKey(keys, values);
  ForEachShare(keys, [&](size_t server, size_t begin, size_t count) {
    (*slices)[server].push_back({keys.table, kind, keys.keys.subspan(begin, count),
                                 keys.counts.subspan(begin, count),
                                 values.subspan(begin * width, count * width)});
  });
}

void StepPulls::Begin(uint32_t num_servers) {
  for (PullWork& pull : pulls_) {
    pull = PullWork();
    pull.slices.resize(num_servers);
  }
  pulls_[kWithState].with_state = true;
}

void StepPulls::Start(PsSession* session, Step default_through, std::shared_ptr<const void> keep) {
  {
    absl::MutexLock lock(&mutex_);
    under_way_ = static_cast<int>(std::count_if(pulls_.begin(), pulls_.end(), HasKeys));
    status_ = absl::OkStatus();
    complete_through_ = default_through;
  }
  for (PullWork& pull : pulls_) {
    if (!HasKeys(pull)) continue;
    session->Pull(std::move(pull), [this, keep](const absl::Status& status, Step through) {
      OnAnswer(status, through);
    });
  }
}

void StepPulls::OnAnswer(const absl::Status& status, Step complete_through) {
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
  complete_through_ = std::min(complete_through_, complete_through);
  --under_way_;
}

bool StepPulls::IsOver() const {
  absl::MutexLock lock(&mutex_);
  return under_way_ == 0;
}

void StepPulls::Wait() const {
  const auto is_over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return under_way_ == 0; };
  absl::MutexLock lock(&mutex_, absl::Condition(&is_over));
}

absl::Status StepPulls::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

Step StepPulls::complete_through() const {
  absl::MutexLock lock(&mutex_);
  return complete_through_;
}

}  // namespace thermocline
