#include "server/storage/log_replay.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

// One segment file, with its header verified.
struct Segment {
  std::string path;
  SegmentHeader header;
  std::unique_ptr<ReadFile> file;
};

std::string Where(const std::string& path, uint64_t offset) {
  return absl::StrCat("'", path, "', offset ", offset);
}

absl::StatusOr<std::string> Read(const ReadFile& file, uint64_t offset, uint64_t bytes) {
  std::string text(bytes, '\0');
  RETURN_IF_ERROR(file.ReadAt(offset, absl::MakeSpan(&text[0], text.size())));
  return text;
}

class Replay {
 public:
  Replay(Disk* disk, std::string directory, const LogIdentity& identity, Step covered,
         LogVisitor visit)
      : disk_(disk),
        directory_(std::move(directory)),
        identity_(identity),
        covered_(covered),
        visit_(visit) {}

  absl::StatusOr<ReplayResult> Run() {
    RETURN_IF_ERROR(OpenSegments());
    if (!segments_.empty()) RETURN_IF_ERROR(CheckBeginning(segments_.front()));
    for (size_t i = 0; i < segments_.size(); ++i) {
      RETURN_IF_ERROR(ReadSegment(segments_[i], i + 1 == segments_.size()));
    }
    // Not earlier: without it, damage before it would pass for a torn end the next time.
    if (!headless_.empty()) {
      RETURN_IF_ERROR(disk_->Remove(headless_));
      RETURN_IF_ERROR(disk_->SyncDirectory(directory_));
    }
    result_.history.last = last_;
    return std::move(result_);
  }

 private:
  // What was dropped before it must be covered.
  absl::Status CheckBeginning(const Segment& first) {
    const Lsn lsn = first.header.first_lsn;
    const Step before = first.header.newest_before;
    result_.history.newest = before;
    if (lsn == kNoLsn + 1 || (before != kNoStep && before <= covered_)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat(
        "'", first.path, "' begins with record ", lsn.value(), "; those before it, of steps up to ",
        before.value(), ", are needed from step ", covered_.value() + 1, " on"));
  }

  absl::Status OpenSegments() {
    ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List(directory_));
    std::vector<std::string> ours;  // in order
    for (const std::string& name : names) {
      const std::optional<SegmentId> id = ParseSegmentName(name);
      if (id.has_value() && id->epoch == identity_.epoch) ours.push_back(name);
    }
    for (const std::string& name : ours) {
      RETURN_IF_ERROR(OpenSegment(name, name == ours.back()));
    }
    return absl::OkStatus();
  }

  absl::Status OpenSegment(const std::string& name, bool last) {
    Segment segment;
    segment.path = absl::StrCat(directory_, "/", name);
    ASSIGN_OR_RETURN(segment.file, disk_->Open(segment.path));
    const uint64_t size = segment.file->size();
    ASSIGN_OR_RETURN(const std::string header,
                     Read(*segment.file, 0, std::min<uint64_t>(size, kSegmentHeaderBytes)));
    switch (DecodeSegmentHeader(header, &segment.header)) {
      case SegmentHeaderState::kOtherVersion:
        return absl::FailedPreconditionError(
            absl::StrCat("'", segment.path, "' is of a format that this program doesn't know"));
      case SegmentHeaderState::kDamaged:
        // A header is synced before the first record is written.
        if (!last || size > kSegmentHeaderBytes) {
          return absl::DataLossError(absl::StrCat("'", segment.path, "': the header is damaged"));
        }
        headless_ = segment.path;
        result_.torn_at = Where(segment.path, 0);
        result_.torn_bytes = size;
        return absl::OkStatus();
      case SegmentHeaderState::kValid:
        break;
    }
    const LogIdentity& found = segment.header.identity;
    if (found.job_hash != identity_.job_hash || found.server_index != identity_.server_index) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", segment.path, "' is the log of another job or server"));
    }
    if (SegmentName({found.epoch, segment.header.first_lsn}) != name) {
      return absl::DataLossError(absl::StrCat("'", segment.path, "' begins with record ",
                                              segment.header.first_lsn.value(), " of epoch ",
                                              found.epoch, ", which is not what its name says"));
    }
    segments_.push_back(std::move(segment));
    return absl::OkStatus();
  }

  absl::Status ReadSegment(const Segment& segment, bool last) {
    const Lsn first = segment.header.first_lsn;
    if (&segment != &segments_.front() && first != last_ + 1) {
      return absl::DataLossError(absl::StrCat("records ", last_.value() + 1, " to ",
                                              first.value() - 1, " are missing before '",
                                              segment.path, "'"));
    }
    last_ = Lsn(first.value() - 1);
    newest_ = kNoStep;
    uint64_t offset = kSegmentHeaderBytes;
    while (offset < segment.file->size()) {
      ASSIGN_OR_RETURN(const uint64_t bytes, ReadRecord(segment, offset));
      if (bytes == 0) {
        RETURN_IF_ERROR(CheckTorn(segment, last, offset));
        break;
      }
      offset += bytes;
    }
    if (last && last_ < first) {  // Not a single record: its name will be that of the next.
      RETURN_IF_ERROR(disk_->Remove(segment.path));
      return disk_->SyncDirectory(directory_);
    }
    if (last) RETURN_IF_ERROR(disk_->Truncate(segment.path, offset));
    result_.history.segments.push_back({first, last_, newest_, offset});
    result_.history.newest = std::max(result_.history.newest, newest_);
    return absl::OkStatus();
  }

  // Visits the record at `offset` and gives its size; 0 where there is no intact one.
  absl::StatusOr<uint64_t> ReadRecord(const Segment& segment, uint64_t offset) {
    const uint64_t left = segment.file->size() - offset;
    if (left < kRecordHeaderBytes) return 0;
    ASSIGN_OR_RETURN(std::string record, Read(*segment.file, offset, kRecordHeaderBytes));
    const RecordHeader header = PeekRecordHeader(record);
    if (header.payload_bytes > kMaxPayloadBytes || RecordBytes(header.payload_bytes) > left) {
      return 0;
    }
    record.resize(RecordBytes(header.payload_bytes));
    RETURN_IF_ERROR(segment.file->ReadAt(
        offset + kRecordHeaderBytes,
        absl::MakeSpan(&record[0], record.size()).subspan(kRecordHeaderBytes)));
    if (!RecordIsIntact(record)) return 0;
    if (header.lsn != last_ + 1 || header.epoch != identity_.epoch) {
      return absl::DataLossError(absl::StrCat(
          Where(segment.path, offset), ": record ", header.lsn.value(), " of epoch ", header.epoch,
          " where record ", last_.value() + 1, " of epoch ", identity_.epoch, " is due"));
    }
    last_ = header.lsn;
    synced_ = std::max(synced_, header.synced_through);
    ++result_.records;
    ASSIGN_OR_RETURN(
        const Step step,
        visit_({header.lsn, header.type,
                absl::string_view(record).substr(kRecordHeaderBytes, header.payload_bytes),
                Where(segment.path, offset)}));
    newest_ = std::max(newest_, step);
    return record.size();
  }

  // OK where what is damaged at `offset` had never been synced. Says what will be cut off.
  absl::Status CheckTorn(const Segment& segment, bool last, uint64_t offset) {
    const Lsn damaged = last_ + 1;
    ASSIGN_OR_RETURN(const Lsn synced, SyncedAfter(segment, offset));
    // A segment is synced before the next is begun.
    if (!last || !headless_.empty() || damaged <= std::max(synced_, synced)) {
      return absl::DataLossError(absl::StrCat(Where(segment.path, offset), ": record ",
                                              damaged.value(), " is damaged, and had been synced"));
    }
    result_.torn_at = Where(segment.path, offset);
    result_.torn_bytes = segment.file->size() - offset;
    return absl::OkStatus();
  }

  // What the intact records behind a damaged one say was synced before them.
  absl::StatusOr<Lsn> SyncedAfter(const Segment& segment, uint64_t offset) {
    ASSIGN_OR_RETURN(const std::string rest,
                     Read(*segment.file, offset, segment.file->size() - offset));
    const uint64_t max_records = rest.size() / kRecordHeaderBytes;
    Lsn synced = kNoLsn;
    absl::string_view at(rest);
    for (; at.size() >= kRecordHeaderBytes; at.remove_prefix(kRecordAlignment)) {
      const RecordHeader header = PeekRecordHeader(at);
      const bool plausible = header.lsn > last_ && header.lsn <= last_ + max_records &&
                             header.epoch == identity_.epoch &&
                             header.payload_bytes <= kMaxPayloadBytes &&
                             RecordBytes(header.payload_bytes) <= at.size();
      if (plausible && RecordIsIntact(at)) synced = std::max(synced, header.synced_through);
    }
    return synced;
  }

  Disk* const disk_;
  const std::string directory_;
  const LogIdentity identity_;
  const Step covered_;
  const LogVisitor visit_;
  std::vector<Segment> segments_;
  std::string headless_;   // A segment that was begun behind them; its header is not on the medium.
  Lsn last_ = kNoLsn;      // of the records read
  Step newest_ = kNoStep;  // of the present segment's
  Lsn synced_ = kNoLsn;    // as far as they know
  ReplayResult result_;
};

}  // namespace

absl::StatusOr<ReplayResult> ReplayPushLog(Disk* disk, const std::string& directory,
                                           const LogIdentity& identity, Step covered,
                                           LogVisitor visit) {
  return Replay(disk, directory, identity, covered, visit).Run();
}

}  // namespace thermocline
