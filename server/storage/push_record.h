// One part of a push as a record of the push log.
#ifndef THERMOCLINE_SERVER_STORAGE_PUSH_RECORD_H_
#define THERMOCLINE_SERVER_STORAGE_PUSH_RECORD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/wire/messages.h"

namespace thermocline {

inline constexpr uint32_t kPushChunkRecord = 1;

// The pieces of a payload; most of them lie in the chunk itself and are never copied.
class PushRecord {
 public:
  // `chunk` outlives this. REQUIRES: its ranges follow each other in keys and values, as a decoded
  // message's do.
  explicit PushRecord(const wire::PushChunk& chunk);
  PushRecord(const PushRecord&) = delete;
  PushRecord& operator=(const PushRecord&) = delete;

  const std::vector<absl::string_view>& pieces() const { return pieces_; }

 private:
  std::string head_;
  std::vector<absl::string_view> pieces_;
};

// The chunk again, but for its header's job, generation and acknowledgement: those are the log's.
// Errors: kDataLoss (the sizes contradict each other).
absl::StatusOr<wire::PushChunk> DecodePushRecord(absl::string_view payload);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_PUSH_RECORD_H_
