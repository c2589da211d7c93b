#include "worker/rows/embedding_source.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "common/base/check.h"

namespace thermocline {
namespace {

// visit(server, first key, number of keys) for each server that has keys.
template <typename Visit>
void ForEachShare(const KeyShares& shares, Visit visit) {
  for (size_t server = 0; server + 1 < shares.server_begin.size(); ++server) {
    const size_t begin = shares.server_begin[server];
    const size_t count = shares.server_begin[server + 1] - begin;
    if (count > 0) visit(server, begin, count);
  }
}

template <typename Values>
size_t FloatsPerKey(const KeyShares& shares, const Values& values) {
  if (shares.keys.empty()) return 0;
  const size_t width = values.size() / shares.keys.size();
  CHECK_EQ(values.size(), shares.keys.size() * width);
  return width;
}

// A step's pulls; done when the last of them is.
struct PullsOfStep {
  absl::Mutex mutex;
  size_t under_way ABSL_GUARDED_BY(mutex) = 0;
  absl::Status status ABSL_GUARDED_BY(mutex);
  Step complete_through ABSL_GUARDED_BY(mutex);
};

}  // namespace

void AddPullSlices(const std::vector<std::vector<PullSlice>>& more,
                   std::vector<std::vector<PullSlice>>* slices) {
  for (size_t server = 0; server < more.size(); ++server) {
    (*slices)[server].insert((*slices)[server].end(), more[server].begin(), more[server].end());
  }
}

void AddPullSlices(const KeyShares& shares, absl::Span<float> rows,
                   std::vector<std::vector<PullSlice>>* slices) {
  const size_t width = FloatsPerKey(shares, rows);
  ForEachShare(shares, [&](size_t server, size_t begin, size_t count) {
    (*slices)[server].push_back({shares.table, shares.keys.subspan(begin, count),
                                 rows.subspan(begin * width, count * width)});
  });
}

void AddPushSlices(const KeyShares& shares, wire::PushKind kind, absl::Span<const uint32_t> counts,
                   absl::Span<const float> values,
                   std::vector<std::vector<wire::PushSlice>>* slices) {
  const size_t width = FloatsPerKey(shares, values);
  ForEachShare(shares, [&](size_t server, size_t begin, size_t count) {
    (*slices)[server].push_back({shares.table, kind, shares.keys.subspan(begin, count),
                                 counts.subspan(begin, count),
                                 values.subspan(begin * width, count * width)});
  });
}

void StartPulls(PsSession* session, std::vector<PullWork> pulls,
                const std::shared_ptr<StepContext>& context, Completion* fetched) {
  const auto state = std::make_shared<PullsOfStep>();
  {
    absl::MutexLock lock(&state->mutex);
    state->under_way = pulls.size();
    state->complete_through = context->step() - 1;
  }
  fetched->Reset();
  for (PullWork& pull : pulls) {
    session->Pull(std::move(pull), [state, fetched, context](absl::Status status, Step through) {
      bool last = false;
      {
        absl::MutexLock lock(&state->mutex);
        state->status.Update(status);
        state->complete_through = std::min(state->complete_through, through);
        last = --state->under_way == 0;
        if (last) context->complete_through = state->complete_through;
        status = state->status;
      }
      if (last) fetched->Deliver(std::move(status));
    });
  }
}

}  // namespace thermocline
