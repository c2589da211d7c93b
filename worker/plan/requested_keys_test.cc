#include "worker/plan/requested_keys.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/math/gradient_merge.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

const TableId kTable(7);

struct Request {
  std::vector<Key> keys;
  std::vector<uint32_t> counts;
  std::vector<float> gradients;  // [keys, dim]
};

Key OwnedKey(WorkerRank owner, uint32_t num_ranks, Key from) {
  const ClusterMap ranks(num_ranks);
  while (ranks.ServerOfHash(KeyHash(TableSalt(kTable), from)).value() != owner.value()) ++from;
  return from;
}

std::vector<KeyRequest> Views(const std::vector<Request>& requests) {
  std::vector<KeyRequest> views;
  for (const Request& request : requests) views.push_back({request.keys, request.counts});
  return views;
}

// The same as the servers' merge of what each rank would have pushed, for any number of servers.
TEST(RequestedKeysTest, AgreesWithTheServersMerge) {
  std::mt19937_64 random(TestSeed());
  RequestedKeys requested;
  for (int round = 0; round < 300; ++round) {
    const uint32_t num_ranks = 1 + random() % 8;
    const WorkerRank owner(random() % num_ranks);
    const ClusterMap servers(1 + random() % 5);
    const int dim = 1 + static_cast<int>(random() % 9);
    std::vector<Request> requests(num_ranks);
    for (Request& request : requests) {
      std::set<Key> keys;
      for (size_t i = random() % 40; i > 0; --i) {
        keys.insert(OwnedKey(owner, num_ranks, random() % 60 * 1000));
      }
      request.keys.assign(keys.begin(), keys.end());
      std::shuffle(request.keys.begin(), request.keys.end(), random);
      for (size_t i = 0; i < request.keys.size(); ++i) {
        request.counts.push_back(1 + static_cast<uint32_t>(random() % 5));
        for (int d = 0; d < dim; ++d) {
          request.gradients.push_back(static_cast<float>(random() % 2001) / 7.0f - 100.0f);
        }
      }
    }
    RequestPlanner planner(owner, num_ranks, servers);
    ASSERT_TRUE(planner.Plan(kTable, Views(requests), &requested).ok());

    std::vector<GradientBlock> blocks;
    std::vector<absl::Span<const float>> gradients;
    for (const Request& request : requests) {
      blocks.push_back({request.keys, request.counts, request.gradients});
      gradients.push_back(request.gradients);
    }
    GradientMerge merge;
    merge.Run(blocks, dim);
    std::vector<float> merged(requested.keys.size() * dim);
    MergeRequested(requested, gradients, dim, absl::MakeSpan(merged));
    ASSERT_EQ(requested.keys.size(), merge.result().keys.size());
    std::map<Key, size_t> at;
    for (int32_t u = 0; u < requested.num_unique(); ++u) at[requested.keys[u]] = u;
    for (size_t i = 0; i < merge.result().keys.size(); ++i) {
      const size_t u = at.at(merge.result().keys[i]);
      EXPECT_EQ(requested.counts[u], merge.result().counts[i]);
      ASSERT_EQ(std::memcmp(merged.data() + u * dim, merge.result().gradients.data() + i * dim,
                            dim * sizeof(float)),
                0);
    }

    for (uint32_t r = 0; r < num_ranks; ++r) {
      ASSERT_EQ(requested.positions[r].size(), requests[r].keys.size());
      for (size_t i = 0; i < requests[r].keys.size(); ++i) {
        ASSERT_EQ(requested.keys[requested.positions[r][i]], requests[r].keys[i]);
      }
    }
    ASSERT_EQ(requested.server_begin.size(), servers.num_servers() + 1);
    ASSERT_EQ(requested.server_begin.front(), 0);
    ASSERT_EQ(requested.server_begin.back(), requested.num_unique());
    for (uint32_t s = 0; s < servers.num_servers(); ++s) {
      for (int32_t u = requested.server_begin[s]; u < requested.server_begin[s + 1]; ++u) {
        const uint64_t hash = KeyHash(TableSalt(kTable), requested.keys[u]);
        ASSERT_EQ(servers.ServerOfHash(hash).value(), s);
      }
    }
  }
}

// As if nothing else had been asked for.
TEST(RequestedKeysTest, RetainsKeysAndTheirPositions) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 300; ++round) {
    const uint32_t num_ranks = 1 + random() % 4;
    const ClusterMap servers(1 + random() % 3);
    const WorkerRank owner(random() % num_ranks);
    std::vector<Request> requests(num_ranks), kept_requests(num_ranks);
    const uint64_t salt = random();
    const auto is_kept = [&](Key key) { return Mix64(key ^ salt) % 3 != 0; };
    for (uint32_t rank = 0; rank < num_ranks; ++rank) {
      std::set<Key> keys;
      for (size_t i = random() % 20; i > 0; --i) {
        keys.insert(OwnedKey(owner, num_ranks, random() % 30 * 1000));
      }
      for (const Key key : keys) {
        const auto count = static_cast<uint32_t>(1 + random() % 5);
        for (Request* request : {&requests[rank], &kept_requests[rank]}) {
          if (request == &kept_requests[rank] && !is_kept(key)) continue;
          request->keys.push_back(key);
          request->counts.push_back(count);
        }
      }
    }
    RequestPlanner planner(owner, num_ranks, servers);
    RequestedKeys requested, expected;
    ASSERT_TRUE(planner.Plan(kTable, Views(requests), &requested).ok());
    ASSERT_TRUE(planner.Plan(kTable, Views(kept_requests), &expected).ok());
    std::vector<uint8_t> keep;
    for (const Key key : requested.keys) keep.push_back(is_kept(key) ? 1 : 0);
    RetainKeys(keep, &requested);
    EXPECT_EQ(requested.keys, expected.keys);
    EXPECT_EQ(requested.counts, expected.counts);
    EXPECT_EQ(requested.first_ranks, expected.first_ranks);
    EXPECT_EQ(requested.server_begin, expected.server_begin);
    EXPECT_EQ(requested.positions, expected.positions);
  }
}

TEST(RequestedKeysTest, RequestsTravel) {
  std::mt19937_64 random(TestSeed());
  for (size_t num_tables = 1; num_tables < 6; ++num_tables) {
    std::vector<Request> requests(num_tables);
    for (Request& request : requests) {
      for (size_t i = random() % 4; i > 0; --i) {
        request.keys.push_back(random());
        request.counts.push_back(static_cast<uint32_t>(random()));
      }
    }
    UninitializedVector<uint8_t> bytes = EncodeRequests(Views(requests));
    const auto decoded = DecodeRequests(bytes, num_tables);
    ASSERT_TRUE(decoded.ok());
    ASSERT_EQ(decoded->size(), num_tables);
    for (size_t t = 0; t < num_tables; ++t) {
      EXPECT_EQ((*decoded)[t].keys, absl::MakeConstSpan(requests[t].keys));
      EXPECT_EQ((*decoded)[t].counts, absl::MakeConstSpan(requests[t].counts));
    }
    bytes.push_back(0);
    EXPECT_EQ(DecodeRequests(bytes, num_tables).status().code(),
              absl::StatusCode::kInvalidArgument);
    bytes.resize(3);
    EXPECT_EQ(DecodeRequests(bytes, num_tables).status(),
              absl::InvalidArgumentError(absl::StrCat("requests for the keys of ", num_tables,
                                                      " tables can't have 3 bytes")));
  }
}

TEST(RequestedKeysTest, CountsSaturate) {
  const Key key = OwnedKey(WorkerRank(1), 2, 0);
  const std::vector<Request> requests = {{{key}, {std::numeric_limits<uint32_t>::max()}, {}},
                                         {{key}, {2}, {}}};
  RequestedKeys requested;
  RequestPlanner planner(WorkerRank(1), 2, ClusterMap(1));
  ASSERT_TRUE(planner.Plan(kTable, Views(requests), &requested).ok());
  EXPECT_EQ(requested.counts[0], std::numeric_limits<uint32_t>::max());
}

TEST(RequestedKeysTest, RefusesWhatNoWorkerSends) {
  const Key own = OwnedKey(WorkerRank(1), 3, 0), another = OwnedKey(WorkerRank(2), 3, 0);
  RequestedKeys requested;
  RequestPlanner planner(WorkerRank(1), 3, ClusterMap(2));
  const auto error_of = [&](Request request) {
    return planner.Plan(kTable, Views({{}, std::move(request), {}}), &requested);
  };
  const std::string key = std::to_string(own);
  EXPECT_TRUE(error_of({{own}, {1}, {}}).ok());
  EXPECT_EQ(error_of({{own, own}, {1, 1}, {}}),
            absl::InvalidArgumentError("rank 1 asks rank 1 for key " + key + " of table 7 twice"));
  EXPECT_EQ(error_of({{own}, {0}, {}}),
            absl::InvalidArgumentError("rank 1 asks rank 1 for key " + key +
                                       " of table 7 without a lookup"));
  EXPECT_EQ(error_of({{another}, {1}, {}}),
            absl::InvalidArgumentError("rank 1 asks rank 1 for key " + std::to_string(another) +
                                       " of table 7, which rank 2 owns"));
  // More than there are numbers: none of them is looked at.
  const KeyRequest most = {absl::MakeConstSpan(&own, KeyNumbers::kMaxKeys / 2), {}};
  EXPECT_EQ(planner.Plan(kTable, {most, most, {}}, &requested).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace thermocline
