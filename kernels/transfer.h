// Many small arrays on their way to a device, or back, in few copies. On a device whose memory is
// the host's nothing is copied, but counted (Device::copies) as if it were.
//
// An arena is reused and keeps its memory: its arrays are valid until the next Clear(), and the
// caller makes sure that the device has finished with them before. Pinned memory takes long to
// allocate, and its allocation may make the device wait: Clear() allocates more than was used so
// far, so that a step allocates only if it is far larger than all before.
//
// Not thread-safe.
#ifndef THERMOCLINE_KERNELS_TRANSFER_H_
#define THERMOCLINE_KERNELS_TRANSFER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kernels/device.h"

namespace thermocline {

// Blocks of memory, on the device and on the host, taken from front to back.
class TransferBlocks {
 public:
  explicit TransferBlocks(Device* device) : device_(device) {}

  struct Place {
    uint8_t* device = nullptr;
    uint8_t* host = nullptr;
  };
  // Returns memory that is aligned to 64 bytes on both sides.
  Place Take(size_t bytes);
  static size_t TakenBytes(size_t bytes) { return (bytes + 63) / 64 * 64; }
  // Makes room for the bytes used since the last call, or for `expected_bytes`, and some more.
  void Clear(size_t expected_bytes);
  size_t used_bytes() const;

  // Calls visit(device pointer, host pointer, bytes) for what was taken since the last visit.
  template <typename Visit>
  void ForEachNew(Visit visit) {
    for (Block& block : blocks_) {
      if (block.visited == block.used) continue;
      visit(block.DeviceAt(block.visited), block.HostAt(block.visited), block.used - block.visited);
      block.visited = block.used;
    }
  }

 private:
  struct Block {
    std::unique_ptr<DeviceBuffer> device;  // null: the host's memory is the device's
    std::unique_ptr<DeviceBuffer> host;
    size_t size = 0;
    size_t used = 0;
    size_t visited = 0;
    // Null where the memory could not be allocated; the device has the error.
    uint8_t* HostAt(size_t offset) { return At(*host, offset); }
    uint8_t* DeviceAt(size_t offset) { return At(device == nullptr ? *host : *device, offset); }
    static uint8_t* At(DeviceBuffer& buffer, size_t offset) {
      auto* const bytes = static_cast<uint8_t*>(buffer.data());
      return bytes == nullptr ? nullptr : bytes + offset;
    }
  };
  void AddBlock(size_t bytes);
  size_t size_bytes() const;

  Device* const device_;
  std::vector<Block> blocks_;  // all but the last are full
};

class UploadArena {
 public:
  explicit UploadArena(Device* device) : device_(device), blocks_(device) {}

  // expected_bytes: what used_bytes() will come to.
  void Clear(size_t expected_bytes = 0) { blocks_.Clear(expected_bytes); }
  size_t used_bytes() const { return blocks_.used_bytes(); }
  template <typename T>
  struct Array {
    DeviceSpan<const T> device;  // Where the values are after Send's copy.
    absl::Span<T> host;          // The caller fills it before Send.
  };
  // Returns where `values` will be on the device after Send's copy. On a device with the host's
  // memory these are `values` themselves, which must stay valid until the next Clear().
  template <typename T>
  DeviceSpan<const T> Add(absl::Span<const T> values) {
    const auto size = static_cast<int64_t>(values.size());
    if (values.empty()) return {values.data(), size};
    if (device_->is_host_memory()) {
      device_->copies().AddToDevice(TransferBlocks::TakenBytes(sizeof(T) * values.size()));
      return {values.data(), size};
    }
    const Array<T> room = Reserve<T>(values.size());
    std::memcpy(room.host.data(), values.data(), sizeof(T) * values.size());
    return room.device;
  }
  // Returns uninitialized room for values that are made in place.
  template <typename T>
  Array<T> Reserve(size_t size) {
    const TransferBlocks::Place place = blocks_.Take(sizeof(T) * size);
    return {{reinterpret_cast<const T*>(place.device), static_cast<int64_t>(size)},
            absl::MakeSpan(reinterpret_cast<T*>(place.host), size)};
  }
  // Queues copies of what was added and reserved since the last Send.
  void Send(Stream stream);

 private:
  Device* const device_;
  TransferBlocks blocks_;
};

class DownloadArena {
 public:
  explicit DownloadArena(Device* device) : device_(device), blocks_(device) {}

  template <typename T>
  struct Array {
    DeviceSpan<T> device;  // The device writes it before Send.
    absl::Span<T> host;    // Where the values are after Send's copy.
  };

  // expected_bytes: what used_bytes() will come to.
  void Clear(size_t expected_bytes = 0) { blocks_.Clear(expected_bytes); }
  size_t used_bytes() const { return blocks_.used_bytes(); }
  template <typename T>
  Array<T> Add(size_t size) {
    const TransferBlocks::Place place = blocks_.Take(sizeof(T) * size);
    return {{reinterpret_cast<T*>(place.device), static_cast<int64_t>(size)},
            absl::MakeSpan(reinterpret_cast<T*>(place.host), size)};
  }
  // Queues copies of the arrays that were added since the last Send.
  void Send(Stream stream);

 private:
  Device* const device_;
  TransferBlocks blocks_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_TRANSFER_H_
