#include "worker/source/embedding_source.h"

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

}  // namespace thermocline
