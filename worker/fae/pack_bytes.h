// Writes numbers as the bytes of a pack, and reads them back.
#ifndef THERMOCLINE_WORKER_FAE_PACK_BYTES_H_
#define THERMOCLINE_WORKER_FAE_PACK_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/hash.h"

namespace thermocline {

template <typename T>
void PutPackValues(const T* values, size_t n, std::string* bytes) {
  if (n > 0) bytes->append(reinterpret_cast<const char*>(values), n * sizeof(T));
}

template <typename T>
void PutPackValue(T value, std::string* bytes) {
  PutPackValues(&value, 1, bytes);
}

inline uint32_t PackCrc(absl::string_view bytes) { return Crc32c(bytes.data(), bytes.size()); }

// Takes values from the front of some bytes. Once there are too few, it gives zeros, and is_good()
// is false.
class PackTaker {
 public:
  explicit PackTaker(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value{};
    const absl::string_view taken = TakeBytes(sizeof(T), 1);
    if (good_) std::memcpy(&value, taken.data(), sizeof(T));
    return value;
  }
  // Takes the bytes of n values.
  absl::string_view TakeBytes(uint64_t bytes_each, uint64_t n) {
    good_ = good_ && (bytes_each == 0 || n <= bytes_.size() / bytes_each);
    if (!good_) return {};
    const absl::string_view taken = bytes_.substr(0, n * bytes_each);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  template <typename T>
  bool CopyAll(uint64_t n, std::vector<T>* values) {
    const absl::string_view taken = TakeBytes(sizeof(T), n);
    if (!good_) return false;
    values->resize(n);
    if (n > 0) std::memcpy(values->data(), taken.data(), taken.size());
    return true;
  }
  bool is_good() const { return good_; }
  size_t left() const { return bytes_.size(); }

 private:
  absl::string_view bytes_;
  bool good_ = true;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_BYTES_H_
