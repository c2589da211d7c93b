#include "server/storage/push_log.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr uint64_t kWritebackBytes = 4 << 20;

// Of the size at which a segment ends anyway: from here on DropThroughStep ends it early.
constexpr uint64_t kLargeFraction = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<PushLog>> PushLog::Start(Disk* disk, const PushLogOptions& options,
                                                        const LogHistory& history) {
  std::unique_ptr<PushLog> log(new PushLog(disk, options, history));
  const Lsn first = history.last + 1;
  const std::string path = log->PathOf(first);
  ASSIGN_OR_RETURN(std::shared_ptr<AppendFile> file, disk->Create(path));
  EndedFile none;
  absl::Status status = log->SwitchTo(file, first, &none);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = disk->SyncDirectory(options.directory);
  if (status.ok()) return log;
  disk->Remove(path).IgnoreError();  // it holds nothing
  return status;
}

PushLog::PushLog(Disk* disk, const PushLogOptions& options, const LogHistory& history)
    : disk_(disk),
      options_(options),
      segments_(history.segments.begin(), history.segments.end()),
      last_(history.last),
      newest_(history.newest),
      // A replay syncs what it keeps.
      synced_through_(last_) {}

std::string PushLog::PathOf(Lsn number) const {
  return absl::StrCat(options_.directory, "/", SegmentName({options_.identity.generation, number}));
}

absl::Status PushLog::Break(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (broken_.ok()) broken_ = status;
  return status;
}

absl::StatusOr<Lsn> PushLog::Append(uint32_t type, Step step,
                                    absl::Span<const absl::string_view> payload) {
  static constexpr char kZeros[kRecordAlignment] = {};
  absl::MutexLock appending(&append_mutex_);
  RecordHeader header;
  std::shared_ptr<AppendFile> file;
  uint64_t begin;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(broken_);
    file = file_;
    begin = segments_.back().bytes;
    header.lsn = last_ + 1;
    header.synced_through = synced_through_;
  }
  header.generation = options_.identity.generation;
  header.type = type;
  const auto header_bytes = EncodeRecordHeader(header, payload);
  std::vector<absl::string_view> pieces = {
      absl::string_view(header_bytes.data(), header_bytes.size())};
  pieces.insert(pieces.end(), payload.begin(), payload.end());
  uint64_t bytes = 0;
  for (absl::string_view piece : pieces) bytes += piece.size();
  const uint64_t padded = PaddedPayloadBytes(bytes);
  pieces.emplace_back(kZeros, padded - bytes);

  absl::Status status = file->Append(pieces);
  if (absl::IsResourceExhausted(status)) {
    const absl::Status cut = file->Truncate(begin);
    return cut.ok() ? status : Break(cut);
  }
  if (!status.ok()) return Break(std::move(status));
  const uint64_t end = begin + padded;
  {
    absl::MutexLock lock(&mutex_);
    LogSegment& segment = segments_.back();
    last_ = segment.last = header.lsn;
    segment.newest = std::max(segment.newest, step);
    newest_ = std::max(newest_, step);
    segment.bytes = end;
  }
  // Else a sync would write all of it at once.
  if (end / kWritebackBytes > begin / kWritebackBytes) file->StartWriteback(end);
  return header.lsn;
}

absl::Status PushLog::Sync() {
  absl::MutexLock syncing(&sync_mutex_);
  return SyncThis();
}

// Syncs the last segment, and so, as sync_mutex_ is held, all of the log.
absl::Status PushLog::SyncThis() {
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
  if (!status.ok()) return Break(std::move(status));
  absl::MutexLock lock(&mutex_);
  synced_through_ = std::max(synced_through_, through);
  return absl::OkStatus();
}

bool PushLog::IsDue(uint64_t min_bytes) const {
  return segments_.back().last >= segments_.back().first && segments_.back().bytes >= min_bytes;
}

bool PushLog::segment_is_full() const {
  absl::MutexLock lock(&mutex_);
  return IsDue(options_.segment_bytes);
}

absl::Status PushLog::EndFullSegment() { return EndSegment(options_.segment_bytes); }

// Ends the present segment where it has `min_bytes`. What the next one's header says was synced
// includes a record of this one: a replay that finds the one and not the other notices.
absl::Status PushLog::EndSegment(uint64_t min_bytes) {
  absl::MutexLock syncing(&sync_mutex_);
  Lsn number;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(broken_);
    if (!IsDue(min_bytes)) return absl::OkStatus();
    number = last_ + 1;
  }
  RETURN_IF_ERROR(SyncThis());
  const absl::StatusOr<std::shared_ptr<AppendFile>> next = disk_->Create(PathOf(number));
  EndedFile ended;
  absl::Status status = next.status();
  if (status.ok()) {
    status = SwitchTo(*next, number, &ended);
    if (!status.ok()) disk_->Remove(PathOf(number)).IgnoreError();  // It holds nothing.
  }
  if (absl::IsResourceExhausted(status)) return absl::OkStatus();
  if (status.ok()) status = ended.file->Sync();
  if (status.ok()) status = (*next)->Sync();
  if (status.ok()) status = disk_->SyncDirectory(options_.directory);
  if (!status.ok()) return Break(std::move(status));
  absl::MutexLock lock(&mutex_);
  synced_through_ = std::max(synced_through_, ended.last);
  return absl::OkStatus();
}

// From here on records go to `next`. Errors: those of writing its header.
absl::Status PushLog::SwitchTo(std::shared_ptr<AppendFile> next, Lsn number, EndedFile* ended) {
  absl::MutexLock appending(&append_mutex_);
  SegmentHeader header;
  {
    absl::MutexLock lock(&mutex_);
    header = {options_.identity, last_ + 1, newest_, synced_through_};
  }
  const auto bytes = EncodeSegmentHeader(header);
  RETURN_IF_ERROR(next->Append({absl::string_view(bytes.data(), bytes.size())}));
  absl::MutexLock lock(&mutex_);
  *ended = {std::move(file_), last_};
  file_ = std::move(next);
  segments_.push_back({number, header.first_lsn, last_, kNoStep, bytes.size()});
  return absl::OkStatus();
}

absl::Status PushLog::DropThroughStep(Step through) {
  absl::MutexLock drop_lock(&drop_mutex_);
  RETURN_IF_ERROR(EndSegment(options_.segment_bytes / kLargeFraction));
  while (true) {
    Lsn number;
    {
      absl::MutexLock lock(&mutex_);
      if (segments_.size() == 1 || segments_.front().newest > through) return absl::OkStatus();
      // Until it is synced the next one's header needn't be on the medium, either.
      if (segments_.front().last > synced_through_) return absl::OkStatus();
      number = segments_.front().number;
    }
    RETURN_IF_ERROR(disk_->Remove(PathOf(number)));
    // One by one: a host that dies must not keep a removal and lose the one before it.
    absl::Status synced = disk_->SyncDirectory(options_.directory);
    {
      absl::MutexLock lock(&mutex_);
      segments_.pop_front();
    }
    if (!synced.ok()) return Break(std::move(synced));
  }
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
