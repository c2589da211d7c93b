#include "kernels/transfer.h"

#include <algorithm>
#include <utility>

namespace thermocline {
namespace {

constexpr size_t kMinBlockBytes = size_t{64} << 10;

}  // namespace

void TransferBlocks::AddBlock(size_t bytes) {
  Block block;
  block.size = bytes;
  block.host = device_->AllocateHost(bytes);
  if (!device_->is_host_memory()) block.device = device_->Allocate(bytes);
  blocks_.push_back(std::move(block));
}

TransferBlocks::Place TransferBlocks::Take(size_t bytes) {
  const size_t taken = TakenBytes(bytes);
  if (blocks_.empty() || blocks_.back().size - blocks_.back().used < taken) {
    AddBlock(std::max(kMinBlockBytes + size_bytes(), taken));
  }
  Block& block = blocks_.back();
  const Place place = {block.DeviceAt(block.used), block.HostAt(block.used)};
  block.used += taken;
  return place;
}

size_t TransferBlocks::size_bytes() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

size_t TransferBlocks::used_bytes() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += block.used;
  return total;
}

// One block for all, so that there is one copy; replaced by one of twice what is needed once it is
// three quarters full.
void TransferBlocks::Clear(size_t expected_bytes) {
  const size_t needed = std::max(used_bytes(), expected_bytes);
  if (blocks_.size() > 1 || needed > size_bytes() / 4 * 3) {
    blocks_.clear();
    AddBlock(std::max(kMinBlockBytes, TakenBytes(2 * needed)));
  }
  for (Block& block : blocks_) block.used = block.visited = 0;
}

void UploadArena::Send(Stream stream) {
  blocks_.ForEachNew([&](void* device, const void* host, size_t bytes) {
    if (device != host) {
      device_->CopyToDevice(device, host, bytes, stream);
    } else {
      device_->copies().AddToDevice(bytes);
    }
  });
}

void DownloadArena::Send(Stream stream) {
  blocks_.ForEachNew([&](const void* device, void* host, size_t bytes) {
    if (device != host) {
      device_->CopyToHost(host, device, bytes, stream);
    } else {
      device_->copies().AddFromDevice(bytes);
    }
  });
}

}  // namespace thermocline
