// The worker's end of the connection to its script: messages over a socket pair, and slots, the
// memory that holds a batch and the script's answer to it (script_protocol.h).
//
// What the script sends is checked as input: a message that breaks the protocol, an answer for a
// slot that the script does not hold, or a state that could still change is the script's error
// (kInvalidArgument) and does no harm to this process. Of a slot's memory only values are read.
#ifndef THERMOCLINE_WORKER_API_SCRIPT_CHANNEL_H_
#define THERMOCLINE_WORKER_API_SCRIPT_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/api/script_protocol.h"

namespace thermocline {

// Memory that another process can map, and whose size can't change. Movable.
class SharedMemory {
 public:
  // Takes `bytes` of memory, at least one, filled with 0. Errors: kResourceExhausted.
  static absl::StatusOr<SharedMemory> Create(size_t bytes);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  int fd() const { return fd_; }  // -1: closed
  size_t bytes() const { return bytes_; }
  uint8_t* data() const { return data_; }
  // Closes the descriptor; the memory stays.
  void CloseFd();

 private:
  SharedMemory(int fd, uint8_t* data, size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}

  int fd_ = -1;
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Where the arrays of a batch lie in its slot. Offsets are multiples of 64 bytes; the same arrays
// in the same order have the same offsets.
class SlotLayout {
 public:
  // Adds an array and returns its offset in bytes.
  size_t Add(tc_array_kind kind, uint32_t index, size_t elements, size_t element_bytes);
  // How large a slot has to be.
  size_t bytes() const { return bytes_; }
  absl::Span<const tc_array_place> places() const { return places_; }
  void Clear() {
    places_.clear();
    bytes_ = 0;
  }

 private:
  std::vector<tc_array_place> places_;
  size_t bytes_ = 0;
};

// A message of the script.
struct ScriptMessage {
  tc_header header = {};
  std::string payload;  // text
  std::string state;    // the bytes of TC_STATE
};

struct ScriptChannelOptions {
  int fd = -1;     // this end of the pair; the channel closes it
  int pidfd = -1;  // the script's, borrowed; the end of the process ends the channel, even where
                   // a child of the script still has the other end of the socket open; -1: none
  uint64_t max_state_bytes = 0;                     // of one TC_STATE
  absl::Duration send_timeout = absl::Seconds(10);  // how long Send waits for a full socket
};

// Not thread-safe.
class ScriptChannel {
 public:
  explicit ScriptChannel(const ScriptChannelOptions& options);
  ScriptChannel(const ScriptChannel&) = delete;
  ScriptChannel& operator=(const ScriptChannel&) = delete;
  ~ScriptChannel();

  // Sends a message, with a descriptor where fd >= 0, which stays the caller's.
  //
  // REQUIRES: payload.size() <= TC_PAYLOAD_BYTES.
  // Errors: kUnavailable (the script's end is closed; Receive still returns what the script had
  // sent before), kDeadlineExceeded (the script reads nothing for send_timeout).
  absl::Status Send(const tc_header& header, absl::string_view payload = "", int fd = -1);
  // Sends TC_HELLO: this build's version, and the job as JSON of any length. Errors: those of Send,
  // kResourceExhausted.
  absl::Status SendHello(absl::string_view job);

  // Waits for the next message. `on_wait` runs after each second without one; an error of it ends
  // the wait. TC_RELEASE is carried out here and not returned. TC_STEP and TC_SCORES that are
  // returned name a slot that the script holds; the caller compares slot and step with its own.
  //
  // Errors: kUnavailable (the script has ended or closed its end, and all that it sent before was
  // returned), kInvalidArgument (it breaks the protocol), kFailedPrecondition (TC_READY of another
  // build; names both), kResourceExhausted (a state beyond max_state_bytes), those of `on_wait`.
  absl::StatusOr<ScriptMessage> Receive(const std::function<absl::Status()>& on_wait);

  // A slot of at least so many bytes that the script does not hold, and its number. It is the
  // script's from SendBatch on, until the script releases it; before SendBatch, another TakeSlot
  // may return it again, and take other memory for it. Errors: kResourceExhausted.
  absl::StatusOr<uint32_t> TakeSlot(size_t bytes);
  // The memory of a slot, aligned to pages. The script can write to it while it holds it.
  uint8_t* slot(uint32_t number) const { return slots_[number].memory->data(); }
  // Sends TC_BATCH: `header` with slot and count filled in here, the places of its arrays, and the
  // slot's memory where the script does not have it yet. Errors: those of Send, kInvalidArgument
  // (more arrays than a message has room for).
  absl::Status SendBatch(uint32_t number, tc_header header, const SlotLayout& layout);

 private:
  struct Slot {
    std::unique_ptr<SharedMemory> memory;
    bool is_known = false;  // The script was sent this memory.
    bool is_held = false;   // The script uses it.
  };
  absl::StatusOr<ScriptMessage> Read();
  absl::Status Check(const ScriptMessage& message) const;
  absl::StatusOr<std::string> ReadState(int fd, uint64_t bytes) const;

  const ScriptChannelOptions options_;
  std::vector<Slot> slots_;
  std::vector<char> packet_;  // [TC_MESSAGE_BYTES]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_API_SCRIPT_CHANNEL_H_
