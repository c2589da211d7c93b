#include "server/storage/push_log.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

constexpr uint64_t kWritebackBytes = 4 << 20;

// Of the size at which a segment ends anyway: from here on DropThroughStep ends it early.
constexpr uint64_t kLargeFraction = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<PushLog>> PushLog::Start(Disk* disk, const PushLogOptions& options,
                                                        const LogHistory& history) {
  std::unique_ptr<PushLog> log(new PushLog(disk, options, history));
  absl::MutexLock lock(&log->mutex_);
  RETURN_IF_ERROR(log->StartSegment());
  return log;
}

PushLog::PushLog(Disk* disk, const PushLogOptions& options, const LogHistory& history)
    : disk_(disk),
      options_(options),
      segments_(history.segments.begin(), history.segments.end()),
      last_(history.last),
      newest_(history.newest),
      // A replay syncs what it keeps.
      synced_through_(last_) {}

std::string PushLog::PathOf(Lsn first) const {
  return absl::StrCat(options_.directory, "/", SegmentName({options_.identity.epoch, first}));
}

absl::Status PushLog::Break(absl::Status status) {
  if (broken_.ok()) broken_ = status;
  return status;
}

absl::Status PushLog::StartSegment() {
  const Lsn first = last_ + 1;
  ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, disk_->Create(PathOf(first)));
  const auto header = EncodeSegmentHeader({options_.identity, first, newest_});
  absl::Status status = file->Append({absl::string_view(header.data(), header.size())});
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = disk_->SyncDirectory(options_.directory);
  if (!status.ok()) {
    disk_->Remove(PathOf(first)).IgnoreError();  // it holds nothing
    return status;
  }
  file_ = std::move(file);
  segments_.push_back({first, last_, kNoStep, header.size()});
  return absl::OkStatus();
}

// Only the last segment may have a torn end: the others are on the medium.
absl::Status PushLog::EndSegment() {
  RETURN_IF_ERROR(file_->Sync());
  synced_through_ = std::max(synced_through_, last_);
  return StartSegment();
}

absl::StatusOr<Lsn> PushLog::Append(uint32_t type, Step step,
                                    absl::Span<const absl::string_view> payload) {
  static constexpr char kZeros[kRecordAlignment] = {};
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(broken_);
  if (segments_.back().bytes >= options_.segment_bytes) {
    absl::Status status = EndSegment();
    // A full disk is no reason to end: the present segment is whole and on the medium.
    if (absl::IsResourceExhausted(status)) return status;
    if (!status.ok()) return Break(std::move(status));
  }
  LogSegment& segment = segments_.back();
  RecordHeader header;
  header.lsn = last_ + 1;
  header.epoch = options_.identity.epoch;
  header.synced_through = synced_through_;
  header.type = type;
  const auto header_bytes = EncodeRecordHeader(header, payload);
  std::vector<absl::string_view> pieces = {
      absl::string_view(header_bytes.data(), header_bytes.size())};
  pieces.insert(pieces.end(), payload.begin(), payload.end());
  uint64_t bytes = 0;
  for (absl::string_view piece : pieces) bytes += piece.size();
  const uint64_t padded = PaddedPayloadBytes(bytes);
  pieces.emplace_back(kZeros, padded - bytes);

  absl::Status status = file_->Append(pieces);
  if (absl::IsResourceExhausted(status)) {
    const absl::Status cut = file_->Truncate(segment.bytes);
    return cut.ok() ? status : Break(cut);
  }
  if (!status.ok()) return Break(std::move(status));
  last_ = segment.last = header.lsn;
  segment.newest = std::max(segment.newest, step);
  newest_ = std::max(newest_, step);
  segment.bytes += padded;
  // Else the sync at the segment's end would write all of it, and the next push waits for that.
  if (segment.bytes / kWritebackBytes > (segment.bytes - padded) / kWritebackBytes) {
    file_->StartWriteback(segment.bytes);
  }
  return last_;
}

absl::Status PushLog::Sync() {
  std::shared_ptr<AppendFile> file;
  Lsn through;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(broken_);
    if (synced_through_ == last_) return absl::OkStatus();
    file = file_;
    through = last_;
  }
  absl::Status status = file->Sync();
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) return Break(std::move(status));
  synced_through_ = std::max(synced_through_, through);
  return absl::OkStatus();
}

absl::Status PushLog::DropThroughStep(Step through) {
  absl::MutexLock drop_lock(&drop_mutex_);
  RETURN_IF_ERROR(EndLargeSegment());
  while (true) {
    Lsn first;
    {
      absl::MutexLock lock(&mutex_);
      if (segments_.size() == 1 || segments_.front().newest > through) return absl::OkStatus();
      first = segments_.front().first;
    }
    RETURN_IF_ERROR(disk_->Remove(PathOf(first)));
    // One by one: a host that dies must not keep a removal and lose the one before it.
    absl::Status synced = disk_->SyncDirectory(options_.directory);
    absl::MutexLock lock(&mutex_);
    segments_.pop_front();
    if (!synced.ok()) return Break(std::move(synced));
  }
}

absl::Status PushLog::EndLargeSegment() {
  const auto is_large = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return segments_.back().last >= segments_.back().first &&
           segments_.back().bytes >= options_.segment_bytes / kLargeFraction;
  };
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(broken_);
    if (!is_large()) return absl::OkStatus();
  }
  RETURN_IF_ERROR(Sync());  // The most of it, while nobody waits for the mutex.
  absl::MutexLock lock(&mutex_);
  if (!is_large()) return absl::OkStatus();
  absl::Status status = EndSegment();
  // A full disk is no reason to end: the present segment goes on.
  if (status.ok() || absl::IsResourceExhausted(status)) return absl::OkStatus();
  return Break(std::move(status));
}

Lsn PushLog::last() const {
  absl::MutexLock lock(&mutex_);
  return last_;
}

Lsn PushLog::synced_through() const {
  absl::MutexLock lock(&mutex_);
  return synced_through_;
}

absl::Status PushLog::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

uint64_t PushLog::bytes() const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const LogSegment& segment : segments_) bytes += segment.bytes;
  return bytes;
}

}  // namespace thermocline
