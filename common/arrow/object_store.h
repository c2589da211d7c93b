// Lists, identifies and reads objects of an S3 store. In a build without Arrow C++ every function
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

// Identifies an object's content: an object that replaces it has another identity.
struct ObjectIdentity {
  int64_t size = 0;
  std::string tag;         // The tag that the store gives the content (ETag).
  std::string head, tail;  // Its first and last bytes, up to Identify's `end_bytes` of each.
};

// A store of objects. Every request ends: connections and retries are bounded. The errors of all
// calls name the path: kNotFound (no such bucket or key), kPermissionDenied, kUnauthenticated (no
// credentials, or wrong ones), kUnavailable (the endpoint can't be reached), kInvalidArgument (the
// path or the endpoint is malformed).
//
// Thread-safe.
class ObjectStore {
 public:
  // Settings that `s3` leaves out come from the environment (AWS_ENDPOINT_URL, AWS_REGION,
  // AWS_ACCESS_KEY_ID, ...) and the files that Amazon's tools read. Makes no request.
  static absl::StatusOr<std::unique_ptr<ObjectStore>> Open(const Data_S3& s3);
  virtual ~ObjectStore() = default;

  // Returns the paths of the objects that `path`, "s3://BUCKET/KEY", stands for, sorted. If KEY
  // ends in '/' it is a folder, and stands for the objects right in it but those whose names begin
  // with '.' or '_'. With '*', '?' or '[' it is a pattern, in which '/' matches only itself. Else
  // it is one object.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;

  // Opens an object to read it from the front.
  virtual absl::StatusOr<std::unique_ptr<ObjectStream>> OpenStream(const std::string& path) = 0;

  // Reads an object's identity, with up to `end_bytes` of either end. Errors: also kUnavailable if
  // the store gives objects no tags.
  virtual absl::StatusOr<ObjectIdentity> Identify(const std::string& path, int64_t end_bytes) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ARROW_OBJECT_STORE_H_
