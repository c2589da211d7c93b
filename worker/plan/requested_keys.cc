#include "worker/plan/requested_keys.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/math/gradient_merge.h"

namespace thermocline {
namespace {

uint32_t AddSaturating(uint32_t a, uint32_t b) {
  const uint32_t sum = a + b;
  return sum < a ? std::numeric_limits<uint32_t>::max() : sum;
}

size_t RoundUp(size_t bytes) { return (bytes + sizeof(Key) - 1) / sizeof(Key) * sizeof(Key); }

template <typename T>
uint8_t* Append(absl::Span<const T> values, uint8_t* to) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
  return to + values.size() * sizeof(T);
}

}  // namespace

UninitializedVector<uint8_t> EncodeRequests(absl::Span<const KeyRequest> tables) {
  std::vector<uint32_t> sizes;
  size_t keys = 0;
  for (const KeyRequest& table : tables) {
    sizes.push_back(static_cast<uint32_t>(table.keys.size()));
    keys += table.keys.size();
  }
  if (sizes.size() % 2 != 0) sizes.push_back(0);
  const size_t header = sizes.size() * sizeof(uint32_t);
  UninitializedVector<uint8_t> bytes(header + keys * (sizeof(Key) + sizeof(uint32_t)));
  uint8_t* to = Append<uint32_t>(sizes, bytes.data());
  for (const KeyRequest& table : tables) to = Append(table.keys, to);
  for (const KeyRequest& table : tables) to = Append(table.counts, to);
  return bytes;
}

absl::StatusOr<std::vector<KeyRequest>> DecodeRequests(absl::Span<const uint8_t> bytes,
                                                       size_t num_tables) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(bytes.data()) % sizeof(Key), 0u);
  const size_t header = RoundUp(num_tables * sizeof(uint32_t));
  const auto error = [&] {
    return absl::InvalidArgumentError(absl::StrCat("requests for the keys of ", num_tables,
                                                   " tables can't have ", bytes.size(), " bytes"));
  };
  if (bytes.size() < header) return error();
  const auto* sizes = reinterpret_cast<const uint32_t*>(bytes.data());
  uint64_t num_keys = 0;
  for (size_t t = 0; t < num_tables; ++t) num_keys += sizes[t];
  if (bytes.size() - header != num_keys * (sizeof(Key) + sizeof(uint32_t))) return error();
  const auto* keys = reinterpret_cast<const Key*>(bytes.data() + header);
  const auto* counts = reinterpret_cast<const uint32_t*>(keys + num_keys);
  std::vector<KeyRequest> tables;
  for (size_t t = 0; t < num_tables; ++t) {
    tables.push_back({absl::MakeConstSpan(keys, sizes[t]), absl::MakeConstSpan(counts, sizes[t])});
    keys += sizes[t];
    counts += sizes[t];
  }
  return tables;
}

RequestPlanner::RequestPlanner(WorkerRank owner, uint32_t num_ranks, const ClusterMap& servers)
    : owner_(owner), ranks_(num_ranks), servers_(servers) {
  CHECK_LT(owner.value(), num_ranks);
}

absl::Status RequestPlanner::Plan(TableId table, absl::Span<const KeyRequest> requests,
                                  RequestedKeys* to) {
  CHECK_EQ(requests.size(), ranks_.num_servers());
  to->id = table;
  salt_ = TableSalt(table);
  size_t most_keys = 0;
  for (const KeyRequest& request : requests) most_keys += request.keys.size();
  if (most_keys >= KeyNumbers::kMaxKeys) {
    return absl::InvalidArgumentError(absl::StrCat(
        requests.size(), " ranks ask rank ", owner_.value(), " for ", most_keys, " keys of table ",
        table.value(), ", which are more than it can number; make train.batch_size smaller"));
  }
  numbers_.Begin(most_keys);
  for (auto* scratch : {&servers_of_, &counts_, &first_ranks_, &last_ranks_}) {
    scratch->resize(most_keys);
  }
  to->positions.resize(requests.size());
  for (uint32_t rank = 0; rank < requests.size(); ++rank) {
    RETURN_IF_ERROR(AddRequest(rank, requests[rank], to));
  }
  SortByServer(to);
  return absl::OkStatus();
}

absl::Status RequestPlanner::AddRequest(uint32_t rank, const KeyRequest& request,
                                        RequestedKeys* to) {
  CHECK_EQ(request.keys.size(), request.counts.size());
  UninitializedVector<int32_t>& numbers = to->positions[rank];
  numbers.resize(request.keys.size());
  for (size_t i = 0; i < request.keys.size(); ++i) {
    const Key key = request.keys[i];
    const auto error = [&](absl::string_view what) {
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " asks rank ", owner_.value(),
                                                     " for key ", key, " of table ", to->id.value(),
                                                     what));
    };
    const uint64_t hash = KeyHash(salt_, key);
    if (ranks_.ServerOfHash(hash).value() != owner_.value()) {
      return error(absl::StrCat(", which rank ", ranks_.ServerOfHash(hash).value(), " owns"));
    }
    if (request.counts[i] == 0) return error(" without a lookup");
    const uint32_t known = numbers_.size();
    const uint32_t number = numbers_.Add(key, hash);
    if (number == known) {
      servers_of_[number] = servers_.ServerOfHash(hash).value();
      counts_[number] = 0;
      first_ranks_[number] = rank;
    } else if (last_ranks_[number] == rank) {
      return error(" twice");
    }
    last_ranks_[number] = rank;
    counts_[number] = AddSaturating(counts_[number], request.counts[i]);
    numbers[i] = static_cast<int32_t>(number);
  }
  return absl::OkStatus();
}

void RequestPlanner::SortByServer(RequestedKeys* to) {
  const uint32_t n = numbers_.size();
  const uint32_t num_servers = servers_.num_servers();
  to->server_begin.assign(num_servers + 1, 0);
  for (uint32_t i = 0; i < n; ++i) ++to->server_begin[servers_of_[i] + 1];
  for (uint32_t s = 0; s < num_servers; ++s) to->server_begin[s + 1] += to->server_begin[s];
  next_of_server_.assign(to->server_begin.begin(), to->server_begin.end() - 1);
  to->keys.resize(n);
  to->counts.resize(n);
  to->first_ranks.resize(n);
  positions_.resize(n);
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t position = next_of_server_[servers_of_[i]]++;
    positions_[i] = position;
    to->keys[position] = numbers_.keys()[i];
    to->counts[position] = counts_[i];
    to->first_ranks[position] = first_ranks_[i];
  }
  for (UninitializedVector<int32_t>& positions : to->positions) {
    for (int32_t& position : positions) position = positions_[position];
  }
}

void RetainKeys(absl::Span<const uint8_t> keep, RequestedKeys* requested) {
  CHECK_EQ(keep.size(), requested->keys.size());
  UninitializedVector<int32_t> kept_at(keep.size());  // Where the key is afterwards; -1: nowhere.
  int32_t kept = 0;
  int32_t u = 0;
  for (size_t s = 0; s + 1 < requested->server_begin.size(); ++s) {
    for (; u < requested->server_begin[s + 1]; ++u) {
      kept_at[u] = keep[u] != 0 ? kept : -1;
      if (keep[u] == 0) continue;
      requested->keys[kept] = requested->keys[u];
      requested->counts[kept] = requested->counts[u];
      requested->first_ranks[kept] = requested->first_ranks[u];
      ++kept;
    }
    requested->server_begin[s + 1] = kept;
  }
  requested->keys.resize(kept);
  requested->counts.resize(kept);
  requested->first_ranks.resize(kept);
  for (UninitializedVector<int32_t>& positions : requested->positions) {
    size_t n = 0;
    for (const int32_t position : positions) {
      if (kept_at[position] >= 0) positions[n++] = kept_at[position];
    }
    positions.resize(n);
  }
}

void MergeRequested(const RequestedKeys& requested,
                    absl::Span<const absl::Span<const float>> gradients, int dim,
                    absl::Span<float> merged) {
  CHECK_EQ(gradients.size(), requested.positions.size());
  CHECK_EQ(merged.size(), requested.keys.size() * dim);
  for (uint32_t rank = 0; rank < gradients.size(); ++rank) {
    const UninitializedVector<int32_t>& positions = requested.positions[rank];
    CHECK_EQ(gradients[rank].size(), positions.size() * dim);
    const float* gradient = gradients[rank].data();
    for (const int32_t position : positions) {
      MergeGradient(requested.first_ranks[position] == rank, gradient, dim,
                    merged.data() + size_t{1} * position * dim);
      gradient += dim;
    }
  }
}

}  // namespace thermocline
