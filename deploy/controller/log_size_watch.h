// Notices push logs that a checkpoint should make shorter.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_LOG_SIZE_WATCH_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_LOG_SIZE_WATCH_H_

#include <algorithm>
#include <cstdint>

namespace thermocline {

// Not thread-safe.
class LogSizeWatch {
 public:
  explicit LogSizeWatch(uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Takes the size of the longest log. A checkpoint drops whole segments, so a log may stay beyond
  // the limit: another checkpoint is worth it only once the log has grown by half the limit since.
  void Look(uint64_t bytes) {
    floor_ = std::min(floor_, bytes);
    wants_checkpoint_ = bytes > max_bytes_ && bytes - floor_ > max_bytes_ / 2;
  }
  bool wants_checkpoint() const { return wants_checkpoint_; }

  // A checkpoint was committed; logs get shorter from now on.
  void OnCheckpoint() {
    floor_ = UINT64_MAX;
    wants_checkpoint_ = false;
  }

 private:
  const uint64_t max_bytes_;
  uint64_t floor_ = 0;  // The least since the last checkpoint.
  bool wants_checkpoint_ = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_LOG_SIZE_WATCH_H_
