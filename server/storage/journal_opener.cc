#include "server/storage/journal_opener.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// One segment file, with its header verified.
struct Segment {
  std::string path;
  Lsn number;          // In its name.
  Lsn synced_through;  // When it was made.
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
    for (size_t i = 0; i < segments_.size() && result_.torn_at.empty(); ++i) {
      RETURN_IF_ERROR(ReadSegment(i));
    }
    if (result_.torn_at.empty() && !headless_.path.empty()) RETURN_IF_ERROR(CheckHeadless());
    // The segments behind the torn end are removed before SettleEnd cuts that end off. If the
    // process dies in between, the next replay finds the same torn end, as the last of the log, and
    // cuts it off.
    for (size_t i = result_.history.segments.size(); i < segments_.size(); ++i) {
      RETURN_IF_ERROR(disk_->Remove(segments_[i].path));
    }
    if (!headless_.path.empty()) RETURN_IF_ERROR(disk_->Remove(headless_.path));
    RETURN_IF_ERROR(disk_->SyncDirectory(directory_));
    RETURN_IF_ERROR(SettleEnd());
    result_.history.last = last_;
    return std::move(result_);
  }

 private:
  // Records dropped before the first segment must be of covered steps.
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
      if (id.has_value() && id->generation == identity_.generation) ours.push_back(name);
    }
    for (const std::string& name : ours) {
      RETURN_IF_ERROR(OpenSegment(name, name == ours.back()));
    }
    return absl::OkStatus();
  }

  absl::Status OpenSegment(const std::string& name, bool last) {
    Segment segment;
    segment.path = absl::StrCat(directory_, "/", name);
    segment.number = ParseSegmentName(name)->number;
    segment.synced_through = Lsn(std::max<uint64_t>(segment.number.value(), 1) - 1);
    ASSIGN_OR_RETURN(segment.file, disk_->Open(segment.path));
    const uint64_t size = segment.file->size();
    ASSIGN_OR_RETURN(const std::string header,
                     Read(*segment.file, 0, std::min<uint64_t>(size, kSegmentHeaderBytes)));
    switch (DecodeSegmentHeader(header, &segment.header)) {
      case SegmentHeaderState::kOtherVersion:
        return absl::FailedPreconditionError(absl::StrCat(
            "'", segment.path, "' is a push log of format ", segment.header.version,
            ", this program reads format ", kLogFormatVersion,
            ": start the server with the program that wrote it, or give its generation up and go "
            "on "
            "from the newest checkpoint, which needs no log: thermocline train --run-dir RUN_DIR "
            "--resume"));
      case SegmentHeaderState::kDamaged:
        // Records may come before a header is on the medium, but not in the first segment.
        if (!last || (segments_.empty() && size > kSegmentHeaderBytes)) {
          return absl::DataLossError(absl::StrCat("'", segment.path, "': the header is damaged"));
        }
        headless_ = std::move(segment);
        return absl::OkStatus();
      case SegmentHeaderState::kValid:
        break;
    }
    const LogIdentity& found = segment.header.identity;
    if (found.job_hash != identity_.job_hash || found.server_index != identity_.server_index) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", segment.path, "' is the log of another job or server"));
    }
    if (segment.header.first_lsn < segment.number) {
      return absl::DataLossError(
          absl::StrCat("'", segment.path, "' begins with record ", segment.header.first_lsn.value(),
                       " of generation ", found.generation, ", which is not what its name says"));
    }
    segment.synced_through = std::max(segment.synced_through, segment.header.synced_through);
    segments_.push_back(std::move(segment));
    return absl::OkStatus();
  }

  absl::Status ReadSegment(size_t index) {
    const Segment& segment = segments_[index];
    const Lsn first = segment.header.first_lsn;
    if (index > 0 && first != last_ + 1) {
      // The end of the one before it may have been lost at the end of a record.
      const uint64_t end = segments_[index - 1].file->size();
      ASSIGN_OR_RETURN(const bool torn, NeverSynced(index - 1, end));
      if (torn && first > last_ + 1) return SetTorn(segment, 0);
      return absl::DataLossError(absl::StrCat("records ", last_.value() + 1, " to ",
                                              first.value() - 1, " are missing before '",
                                              segment.path, "'"));
    }
    synced_ = std::max(synced_, segment.synced_through);
    last_ = Lsn(first.value() - 1);
    LogSegment& read = result_.history.segments.emplace_back();
    read = {segment.number, first, last_, kNoStep, kSegmentHeaderBytes};
    while (read.bytes < segment.file->size() && result_.torn_at.empty()) {
      ASSIGN_OR_RETURN(const uint64_t bytes, ReadRecord(segment, &read));
      if (bytes == 0) RETURN_IF_ERROR(CheckTorn(index, read.bytes));
      read.bytes += bytes;
    }
    result_.history.newest = std::max(result_.history.newest, read.newest);
    return absl::OkStatus();
  }

  // Visits the record behind what was read of the segment, and gives its size; 0 where there is no
  // intact one.
  absl::StatusOr<uint64_t> ReadRecord(const Segment& segment, LogSegment* read) {
    const uint64_t offset = read->bytes;
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
    if (header.lsn != last_ + 1 || header.generation != identity_.generation) {
      return absl::DataLossError(
          absl::StrCat(Where(segment.path, offset), ": record ", header.lsn.value(),
                       " of generation ", header.generation, " where record ", last_.value() + 1,
                       " of generation ", identity_.generation, " is due"));
    }
    last_ = read->last = header.lsn;
    synced_ = std::max(synced_, header.synced_through);
    ++result_.records;
    ASSIGN_OR_RETURN(
        const Step step,
        visit_({header.lsn, header.type,
                absl::string_view(record).substr(kRecordHeaderBytes, header.payload_bytes),
                Where(segment.path, offset)}));
    read->newest = std::max(read->newest, step);
    return record.size();
  }

  // OK where what is damaged at `offset` had never been synced. Says what will be cut off.
  absl::Status CheckTorn(size_t index, uint64_t offset) {
    const Segment& segment = segments_[index];
    ASSIGN_OR_RETURN(const bool torn, NeverSynced(index, offset));
    if (torn) return SetTorn(segment, offset);
    return absl::DataLossError(absl::StrCat(Where(segment.path, offset), ": record ",
                                            last_.value() + 1, " is damaged, and had been synced"));
  }

  // The same, of the segment whose header is damaged.
  absl::Status CheckHeadless() {
    ASSIGN_OR_RETURN(const Lsn synced, SyncedAfter(headless_, 0));
    if (std::max(synced_, synced) <= last_ && headless_.synced_through <= last_) {
      return SetTorn(headless_, 0);
    }
    return absl::DataLossError(absl::StrCat("'", headless_.path, "': the header is damaged"));
  }

  absl::Status SetTorn(const Segment& segment, uint64_t offset) {
    result_.torn_at = Where(segment.path, offset);
    result_.torn_bytes = segment.file->size() - offset;
    return absl::OkStatus();
  }

  // Whether nothing behind the last record read, from `offset` of this segment on, says that it was
  // synced. Of two segments behind this one, the second was begun when all of this one was.
  absl::StatusOr<bool> NeverSynced(size_t index, uint64_t offset) {
    std::vector<const Segment*> behind;
    for (size_t i = index + 1; i < segments_.size(); ++i) behind.push_back(&segments_[i]);
    if (!headless_.path.empty()) behind.push_back(&headless_);
    if (behind.size() > 1) return false;
    ASSIGN_OR_RETURN(Lsn synced, SyncedAfter(segments_[index], offset));
    synced = std::max(synced, synced_);
    for (const Segment* next : behind) {
      ASSIGN_OR_RETURN(const Lsn of_records, SyncedAfter(*next, 0));
      synced = std::max({synced, next->synced_through, of_records});
    }
    return synced <= last_;
  }

  // The greatest synced_through of the intact records from `offset` on.
  absl::StatusOr<Lsn> SyncedAfter(const Segment& segment, uint64_t offset) {
    offset = std::min(offset, segment.file->size());
    ASSIGN_OR_RETURN(const std::string rest,
                     Read(*segment.file, offset, segment.file->size() - offset));
    uint64_t unread_bytes = 0;
    for (const Segment& each : segments_) unread_bytes += each.file->size();
    const uint64_t max_records = (unread_bytes + rest.size()) / kRecordHeaderBytes;
    Lsn synced = kNoLsn;
    absl::string_view at(rest);
    for (; at.size() >= kRecordHeaderBytes; at.remove_prefix(kRecordAlignment)) {
      const RecordHeader header = PeekRecordHeader(at);
      const bool plausible = header.lsn > last_ && header.lsn <= last_ + max_records &&
                             header.generation == identity_.generation &&
                             header.payload_bytes <= kMaxPayloadBytes &&
                             RecordBytes(header.payload_bytes) <= at.size();
      if (plausible && RecordIsIntact(at)) synced = std::max(synced, header.synced_through);
    }
    return synced;
  }

  // Cuts the end off that is torn, and has all that is left on the medium: the last two segments
  // may not be. A segment without a record stays: if it is the only one, nothing else says what
  // came before.
  absl::Status SettleEnd() {
    const std::vector<LogSegment>& kept = result_.history.segments;
    for (size_t i = kept.size() - std::min<size_t>(kept.size(), 2); i < kept.size(); ++i) {
      RETURN_IF_ERROR(disk_->Truncate(segments_[i].path, kept[i].bytes));
    }
    return absl::OkStatus();
  }

  Disk* const disk_;
  const std::string directory_;
  const LogIdentity identity_;
  const Step covered_;
  const LogVisitor visit_;
  std::vector<Segment> segments_;
  Segment headless_;     // Was begun behind them, and its header is not on the medium. Or no path.
  Lsn last_ = kNoLsn;    // of the records read
  Lsn synced_ = kNoLsn;  // as far as they know
  ReplayResult result_;
};

}  // namespace

absl::StatusOr<ReplayResult> ReplayPushLog(Disk* disk, const std::string& directory,
                                           const LogIdentity& identity, Step covered,
                                           LogVisitor visit) {
  return Replay(disk, directory, identity, covered, visit).Run();
}

// LogJournalOpener
// -----------------------------------------------------------------------------------------------

namespace {

absl::StatusOr<wire::PushChunk> DecodeRecord(const LogRecord& record) {
  if (record.type != kPushChunkRecord) {
    return absl::FailedPreconditionError(absl::StrCat(
        record.where, ": a record of type ", record.type, ", which this program doesn't know"));
  }
  absl::StatusOr<wire::PushChunk> chunk = DecodePushRecord(record.payload);
  if (chunk.ok()) return chunk;
  return absl::Status(chunk.status().code(),
                      absl::StrCat(record.where, ": ", chunk.status().message()));
}

// The header of a segment, of whatever format; none where it can't be read as one.
absl::StatusOr<std::optional<SegmentHeader>> ReadSegmentHeader(Disk* disk,
                                                               const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> file, disk->Open(path));
  std::string bytes(std::min<uint64_t>(file->size(), kSegmentHeaderBytes), '\0');
  if (!bytes.empty()) {
    RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(&bytes[0], bytes.size())));
  }
  SegmentHeader header;
  if (DecodeSegmentHeader(bytes, &header) == SegmentHeaderState::kDamaged) {
    return std::optional<SegmentHeader>();
  }
  return std::make_optional(header);
}

}  // namespace

LogJournalOpener::LogJournalOpener(Disk* disk, TaskRunner* tasks, const LogJournalOptions& options)
    : disk_(disk), tasks_(tasks), options_(options) {}

absl::StatusOr<std::unique_ptr<PushJournal>> LogJournalOpener::Open(const JournalSpec& spec,
                                                                    Visit visit) {
  RETURN_IF_ERROR(CreateDirectories(disk_, options_.directory));
  ASSIGN_OR_RETURN(lock_, disk_->Lock(options_.directory));
  const LogIdentity identity = {JobHash(spec.job_id), spec.generation, spec.server_index};
  uint64_t skipped = 0;
  const auto visit_record = [&](const LogRecord& record) -> absl::StatusOr<Step> {
    ASSIGN_OR_RETURN(wire::PushChunk chunk, DecodeRecord(record));
    const Step step = chunk.step;
    if (step <= spec.base) {
      ++skipped;
      return step;
    }
    chunk.header.job_id = spec.job_id;
    chunk.header.generation = spec.generation;
    RETURN_IF_ERROR(visit(std::move(chunk)));
    return step;
  };
  ASSIGN_OR_RETURN(const ReplayResult replayed,
                   ReplayPushLog(disk_, options_.directory, identity, spec.base, visit_record));
  if (options_.log_line && !replayed.torn_at.empty()) {
    options_.log_line(absl::StrCat("push log: cut a torn end of ", replayed.torn_bytes,
                                   " bytes at ", replayed.torn_at,
                                   "; nothing of it had been synced"));
  }
  if (options_.log_line && replayed.records > skipped) {
    options_.log_line(absl::StrCat("push log: replayed ", replayed.records - skipped,
                                   " records from '", options_.directory, "'"));
  }
  PushLogOptions log_options;
  log_options.directory = options_.directory;
  log_options.identity = identity;
  log_options.segment_bytes = options_.segment_bytes;
  ASSIGN_OR_RETURN(std::unique_ptr<PushLog> log,
                   PushLog::Start(disk_, log_options, replayed.history));
  RETURN_IF_ERROR(RemoveOlderGenerations(identity));
  return std::make_unique<LogJournal>(std::move(log), spec.durability, tasks_, options_.on_broken,
                                      options_.log_line);
}

// Leaves logs of other jobs and servers, and damaged ones, for inspection.
absl::Status LogJournalOpener::RemoveOlderGenerations(const LogIdentity& identity) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_->List(options_.directory));
  bool removed = false;
  for (const std::string& name : names) {
    const std::optional<SegmentId> id = ParseSegmentName(name);
    if (!id.has_value() || id->generation >= identity.generation) continue;
    const std::string path = absl::StrCat(options_.directory, "/", name);
    ASSIGN_OR_RETURN(const std::optional<SegmentHeader> header, ReadSegmentHeader(disk_, path));
    if (!header.has_value() || header->identity.job_hash != identity.job_hash ||
        header->identity.server_index != identity.server_index) {
      continue;
    }
    RETURN_IF_ERROR(disk_->Remove(path));
    removed = true;
  }
  return removed ? disk_->SyncDirectory(options_.directory) : absl::OkStatus();
}

}  // namespace thermocline
