// Objects of an S3 store as files. A build without Arrow C++ has these functions too; each then
// returns the error of RequireArrow() (parquet.h).
#ifndef THERMOCLINE_COMMON_ARROW_OBJECT_STORE_H_
#define THERMOCLINE_COMMON_ARROW_OBJECT_STORE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace thermocline {

class Data_S3;  // Data::S3 of proto/job.proto

// The bytes of one object, in their order. Not thread-safe.
class ObjectStream {
 public:
  virtual ~ObjectStream() = default;
  // Fills the front of `buffer` and returns how much of it; 0 at the end only.
  // Errors: kUnavailable; names the object.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> buffer) = 0;
  // Read() goes on at `offset`. REQUIRES: 0 <= offset <= size()
  virtual void Seek(int64_t offset) = 0;
  virtual int64_t size() const = 0;
};

// What tells an object from one that replaces it.
struct ObjectIdentity {
  int64_t size = 0;
  std::string tag;         // The store's, of the content (ETag).
  std::string head, tail;  // Its first and last bytes, as many of each as were asked for.
};

// Every request ends: connections and retries are bounded. Errors of all calls name the path:
// kNotFound (no such bucket or key), kPermissionDenied, kUnauthenticated (no credentials, or wrong
// ones), kUnavailable (the endpoint can't be reached), kInvalidArgument (the path, the endpoint).
//
// Thread-safe.
class ObjectStore {
 public:
  // What `s3` leaves out comes from the environment (AWS_ENDPOINT_URL, AWS_REGION,
  // AWS_ACCESS_KEY_ID, ...) and the files that Amazon's tools read. Makes no request.
  static absl::StatusOr<std::unique_ptr<ObjectStore>> Open(const Data_S3& s3);
  virtual ~ObjectStore() = default;

  // The objects that "s3://BUCKET/KEY" stands for, sorted: itself; where KEY ends in '/' those
  // right below it, but not the ones whose names begin with '.' or '_'; with '*', '?' or '['
  // those that match, where '/' matches only itself.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;

  virtual absl::StatusOr<std::unique_ptr<ObjectStream>> OpenStream(const std::string& path) = 0;

  // With up to `end_bytes` of either end. kUnavailable also where the store gives objects no tags.
  virtual absl::StatusOr<ObjectIdentity> Identify(const std::string& path, int64_t end_bytes) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_OBJECT_STORE_H_
