#include "kernels/transfer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {
namespace {

std::vector<float> Counting(size_t size, float first) {
  std::vector<float> values(size);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// All that an upload brought to the device, fetched back by its own operations.
std::vector<float> ReadBack(Device* device, DeviceSpan<const float> on_device) {
  std::vector<float> values(on_device.size);
  device->CopyToHost(values.data(), on_device.data, sizeof(float) * values.size(),
                     Stream::kCompute);
  EXPECT_TRUE(device->Synchronize().ok());
  return values;
}

TEST(UploadArenaTest, OnTheHostsMemoryNothingIsCopied) {
  const std::unique_ptr<Device> device = MakeCpuDevice({});
  UploadArena arena(device.get());
  const std::vector<float> values = Counting(100, 1);
  EXPECT_EQ(arena.Add(absl::MakeConstSpan(values)).data, values.data());
}

// Far more than one block, again and again; every array arrives whole, and later arrays do not
// overwrite those sent before.
TEST(UploadArenaTest, BringsArraysOfAnySizeOverManySteps) {
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  UploadArena arena(device.get());
  for (int step = 0; step < 4; ++step) {
    arena.Clear();
    std::vector<std::vector<float>> sent;
    std::vector<DeviceSpan<const float>> on_device;
    for (const size_t size : {1, 0, 17, 40'000, 3, 200'000, 16}) {
      sent.push_back(Counting(size, static_cast<float>(1000 * step + sent.size())));
      on_device.push_back(arena.Add(absl::MakeConstSpan(sent.back())));
      EXPECT_EQ(on_device.back().size, static_cast<int64_t>(size));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(on_device.back().data) % (size == 0 ? 1 : 64), 0u);
      if (size == 17) arena.Send(Stream::kCompute);
    }
    arena.Send(Stream::kCompute);
    for (size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(ReadBack(device.get(), on_device[i]), sent[i])
          << "step " << step << ", array " << i;
    }
  }
}

// Values made in place, beside values that are copied; on the host's memory too.
TEST(UploadArenaTest, BringsWhatWasWrittenIntoItsRoom) {
  for (const bool own_memory : {false, true}) {
    const std::unique_ptr<Device> device =
        own_memory ? MakeEmulatedCudaDevice() : MakeCpuDevice({});
    UploadArena arena(device.get());
    for (int step = 0; step < 3; ++step) {
      arena.Clear();
      std::vector<UploadArena::Array<float>> arrays;
      for (const size_t size : {7, 50'000, 0, 30}) {
        arrays.push_back(arena.Reserve<float>(size));
        ASSERT_EQ(arrays.back().host.size(), size);
      }
      const std::vector<float> copied = Counting(20, static_cast<float>(-step));
      const DeviceSpan<const float> copy = arena.Add(absl::MakeConstSpan(copied));
      for (const UploadArena::Array<float>& array : arrays) {
        std::iota(array.host.begin(), array.host.end(),
                  static_cast<float>(step + array.host.size()));
      }
      arena.Send(Stream::kCompute);
      EXPECT_EQ(ReadBack(device.get(), copy), copied);
      for (const UploadArena::Array<float>& array : arrays) {
        EXPECT_EQ(ReadBack(device.get(), array.device),
                  Counting(array.host.size(), static_cast<float>(step + array.host.size())));
      }
    }
  }
}

// The same on the host's memory, where nothing is copied: arrays take whole multiples of 64 bytes.
TEST(TransferTest, BytesAreCountedInBothDirections) {
  for (const bool own_memory : {false, true}) {
    SCOPED_TRACE(own_memory);
    const std::unique_ptr<Device> device =
        own_memory ? MakeEmulatedCudaDevice() : MakeCpuDevice({});
    const CopiedBytes before = device->copies().bytes();
    UploadArena upload(device.get());
    DownloadArena download(device.get());
    const std::vector<float> values = Counting(50'000, 1);
    for (int step = 0; step < 3; ++step) {
      upload.Clear();
      download.Clear();
      for (const size_t size : {1, 0, 16, 17, 50'000}) {
        upload.Add(absl::MakeConstSpan(values).subspan(0, size));
      }
      upload.Reserve<int64_t>(100);
      upload.Send(Stream::kCompute);
      upload.Send(Stream::kCompute);  // There is nothing new.
      download.Add<float>(33);
      download.Send(Stream::kCompute);
    }
    double loss = 0;
    const std::unique_ptr<DeviceBuffer> buffer = device->Allocate(sizeof(loss));
    device->CopyToHost(&loss, buffer->data(), sizeof(loss), Stream::kCompute);
    ASSERT_TRUE(device->Synchronize().ok());
    const CopiedBytes after = device->copies().bytes();
    EXPECT_EQ(after.to_device - before.to_device, 3u * (64 + 64 + 128 + 200'000 + 832));
    EXPECT_EQ(after.from_device - before.from_device, 3u * 192 + 8);
  }
}

// Pinned memory is allocated between steps, as long as none is far larger than all before: also by
// an arena that has not met them itself.
TEST(UploadArenaTest, AStepSomewhatLargerThanAllBeforeAllocatesNothing) {
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  std::vector<std::unique_ptr<UploadArena>> arenas;
  for (int i = 0; i < 3; ++i) arenas.push_back(std::make_unique<UploadArena>(device.get()));
  size_t largest_bytes = 0;
  int64_t between_steps = 0;
  double size = 20'000;
  for (size_t step = 0; step < 30; ++step, size *= 1.2) {
    UploadArena& arena = *arenas[step % arenas.size()];
    const int64_t before = NumEmulatedHostAllocations();
    arena.Clear(largest_bytes);
    const int64_t begun = NumEmulatedHostAllocations();
    between_steps += begun - before;
    const std::vector<float> values = Counting(static_cast<size_t>(size), 1);
    const DeviceSpan<const float> first = arena.Add(absl::MakeConstSpan(values));
    arena.Reserve<float>(values.size() / 3);
    arena.Send(Stream::kCompute);
    EXPECT_TRUE(step == 0 || NumEmulatedHostAllocations() == begun) << "step " << step;
    EXPECT_EQ(ReadBack(device.get(), first), values);
    largest_bytes = std::max(largest_bytes, arena.used_bytes());
  }
  EXPECT_LT(between_steps, 30) << "and not in each";
}

// Once there is memory for all, so that captured work finds the first arrays again.
TEST(UploadArenaTest, TheFirstArraysLieInTheSamePlaceEachTime) {
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice();
  UploadArena arena(device.get());
  const std::vector<float> dense = Counting(30'000, 0), labels = Counting(2'000, 0);
  std::set<const float*> places;
  for (const size_t rest : {200'000, 190'000, 3, 200'000, 150'000}) {
    arena.Clear();
    const float* const first = arena.Add(absl::MakeConstSpan(dense)).data;
    const float* const second = arena.Add(absl::MakeConstSpan(labels)).data;
    arena.Reserve<float>(rest);
    if (!places.empty() || rest < 200'000) places.insert({first, second});
  }
  EXPECT_EQ(places.size(), 2u);
}

TEST(DownloadArenaTest, FetchesWhatTheDeviceWrote) {
  for (const bool own_memory : {false, true}) {
    const std::unique_ptr<Device> device =
        own_memory ? MakeEmulatedCudaDevice() : MakeCpuDevice({});
    DownloadArena arena(device.get());
    for (int step = 0; step < 3; ++step) {
      arena.Clear();
      std::vector<DownloadArena::Array<float>> arrays;
      std::vector<std::vector<float>> written;
      for (const size_t size : {5, 60'000, 1}) {
        arrays.push_back(arena.Add<float>(size));
        ASSERT_EQ(arrays.back().host.size(), size);
        written.push_back(Counting(size, static_cast<float>(step + size)));
        device->CopyToDevice(arrays.back().device.data, written.back().data(), sizeof(float) * size,
                             Stream::kCompute);
      }
      arena.Send(Stream::kCompute);
      ASSERT_TRUE(device->Synchronize().ok());
      for (size_t i = 0; i < arrays.size(); ++i) {
        EXPECT_EQ(std::vector<float>(arrays[i].host.begin(), arrays[i].host.end()), written[i]);
      }
    }
  }
}

TEST(DownloadArenaTest, WithoutMemoryTheDeviceSaysSo) {
  EmulatedDeviceOptions options;
  options.memory_bytes = size_t{16} << 20;
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice(options);
  ASSERT_TRUE(device->Synchronize().ok());
  UploadArena arena(device.get());
  const std::vector<float> much = Counting(size_t{8} << 20, 0);
  arena.Add(absl::MakeConstSpan(much));
  arena.Add(absl::MakeConstSpan(much));
  arena.Send(Stream::kCompute);
  EXPECT_EQ(device->Synchronize().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace thermocline
