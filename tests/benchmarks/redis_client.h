// Stores rows in Redis, one string value of dim floats a key, and reads them back by MGET.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_REDIS_CLIENT_H_
#define THERMOCLINE_TESTS_BENCHMARKS_REDIS_CLIENT_H_

#include <hiredis/hiredis.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace thermocline {

// One connection. Not thread-safe.
class RedisClient {
 public:
  static absl::StatusOr<std::unique_ptr<RedisClient>> Connect(const std::string& unix_socket);

  // Stores rows[i] under keys[i]. rows: [n, dim]
  absl::Status Set(absl::Span<const Key> keys, absl::Span<const float> rows);

  // Reads rows by MGETs of `keys_per_command` keys each, all sent at once. rows: [n, dim]
  // Errors: kNotFound (a key has no row), kDataLoss (a row of another size).
  absl::Status MultiGet(absl::Span<const Key> keys, size_t keys_per_command,
                        absl::Span<float> rows);

 private:
  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  explicit RedisClient(redisContext* context) : context_(context) {}
  absl::Status ReadMultiGet(absl::Span<const Key> keys, absl::Span<float> rows);
  absl::Status Broken() const;

  std::unique_ptr<redisContext, Free> context_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_REDIS_CLIENT_H_
