// Which server holds a key: every server owns a contiguous range of the partitions.
#ifndef THERMOCLINE_COMMON_BASE_CLUSTER_MAP_H_
#define THERMOCLINE_COMMON_BASE_CLUSTER_MAP_H_

#include <cstdint>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/ids.h"

namespace thermocline {

class ClusterMap {
 public:
  // REQUIRES: 1 <= num_servers <= kNumPartitions
  explicit ClusterMap(uint32_t num_servers) : num_servers_(num_servers) {
    CHECK_GE(num_servers, 1u);
    CHECK_LE(num_servers, kNumPartitions);
  }

  uint32_t num_servers() const { return num_servers_; }

  // The server of a partition: floor(partition * n / 65536), so the ranges are contiguous and even.
  ServerIndex ServerOfPartition(uint32_t partition) const {
    return ServerIndex(
        static_cast<uint32_t>((static_cast<uint64_t>(partition) * num_servers_) >> 16));
  }
  // The partitions of a server: [begin, end). The least s with floor(s * n / 65536) == server, and
  // that of the server behind it.
  struct PartitionRange {
    uint32_t begin;
    uint32_t end;
  };
  PartitionRange PartitionRangeOf(ServerIndex server) const {
    CHECK_LT(server.value(), num_servers_);
    return {FirstPartition(server.value()), FirstPartition(uint64_t{server.value()} + 1)};
  }
  ServerIndex ServerOfHash(uint64_t key_hash) const {
    return ServerOfPartition(PartitionOfHash(key_hash));
  }

 private:
  uint32_t FirstPartition(uint64_t server) const {
    return static_cast<uint32_t>((server * kNumPartitions + num_servers_ - 1) / num_servers_);
  }

  uint32_t num_servers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_CLUSTER_MAP_H_
