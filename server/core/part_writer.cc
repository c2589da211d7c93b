#include "server/core/part_writer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

// Enough that neither side waits for the other's jitter: a slice of 128-byte rows has 0.6 MB.
constexpr int kSlicesAhead = 4;

std::vector<size_t> RowFloats(const std::vector<PartWriter::Source>& sources) {
  std::vector<size_t> floats;
  for (const PartWriter::Source& source : sources) floats.push_back(source.row_floats);
  return floats;
}

std::vector<TableId> Tables(const std::vector<PartWriter::Source>& sources) {
  std::vector<TableId> tables;
  for (const PartWriter::Source& source : sources) tables.push_back(source.table);
  return tables;
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

absl::Status CalledOff() { return absl::CancelledError("the cut was called off"); }

}  // namespace

std::shared_ptr<PartWriter> PartWriter::Start(const CheckpointIo& io, Spec spec, Done done) {
  std::shared_ptr<PartWriter> writer(new PartWriter(io, std::move(spec), std::move(done)));
  absl::MutexLock lock(&writer->mutex_);
  writer->ScheduleRead();
  return writer;
}

PartWriter::PartWriter(const CheckpointIo& io, Spec spec, Done done)
    : io_(io),
      spec_({spec.directory, spec.path, spec.server, spec.base_step, {}}),
      row_floats_(RowFloats(spec.sources)),
      tables_(Tables(spec.sources)),
      sources_(std::move(spec.sources)),
      done_(std::move(done)),
      empty_(kSlicesAhead) {}

PartWriter::~PartWriter() = default;

void PartWriter::Cancel() { cancelled_ = true; }

void PartWriter::Stop() {
  Cancel();
  ReleaseSources();
  absl::MutexLock lock(&writing_);
  done_ = nullptr;
  file_.reset();
}

void PartWriter::ReleaseSources() {
  absl::MutexLock lock(&reading_);
  sources_.clear();
}

// Whoever owns the writer may be gone when a task runs.
void PartWriter::ScheduleRead() {
  if (read_scheduled_ || all_read_ || empty_.empty()) return;
  read_scheduled_ = true;
  Scheduler* scheduler = io_.read_scheduler != nullptr ? io_.read_scheduler : io_.scheduler;
  scheduler->RunAfter(0, [weak = weak_from_this()] {
    if (const std::shared_ptr<PartWriter> self = weak.lock()) self->RunRead();
  });
}

void PartWriter::ScheduleWrite() {
  if (write_scheduled_ || (full_.empty() && !all_read_)) return;
  write_scheduled_ = true;
  io_.scheduler->RunAfter(0, [weak = weak_from_this()] {
    if (const std::shared_ptr<PartWriter> self = weak.lock()) self->RunWrite();
  });
}

// Reading
// ---------------------------------------------------------------------------------------------

void PartWriter::RunRead() {
  absl::MutexLock reading(&reading_);
  Slice slice;
  {
    absl::MutexLock lock(&mutex_);
    slice = std::move(empty_.back());
    empty_.pop_back();
  }
  const absl::StatusOr<bool> some = cancelled_ ? CalledOff() : ReadSlice(&slice);
  absl::MutexLock lock(&mutex_);
  read_scheduled_ = false;
  if (some.ok() && *some) {
    full_.push_back(std::move(slice));
  } else {
    all_read_ = true;
    read_status_ = some.status();
  }
  ScheduleRead();
  ScheduleWrite();
}

// False: there is nothing more to read.
absl::StatusOr<bool> PartWriter::ReadSlice(Slice* slice) {
  for (; source_ < sources_.size(); ++source_) {
    ASSIGN_OR_RETURN(const bool some, sources_[source_].snapshot->Next(&slice->rows));
    slice->source = source_;
    if (some) return true;
    sources_[source_].snapshot.reset();  // The table's changes need keep no old images any more.
  }
  return false;
}

// Writing
// ---------------------------------------------------------------------------------------------

void PartWriter::RunWrite() {
  Done done;
  absl::StatusOr<CheckpointPart> part = CalledOff();
  {
    absl::MutexLock writing(&writing_);
    if (done_ == nullptr) return;
    std::optional<Slice> slice;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      write_scheduled_ = false;
      if (!full_.empty()) {
        slice = std::move(full_.front());
        full_.pop_front();
      } else {
        status = read_status_;
      }
    }
    if (cancelled_) status = CalledOff();
    if (status.ok() && file_ == nullptr) status = OpenFile();
    if (status.ok() && slice.has_value()) {
      status = WriteSlice(*slice);
      if (status.ok()) {
        absl::MutexLock lock(&mutex_);
        empty_.push_back(*std::move(slice));
        ScheduleRead();
        ScheduleWrite();
        return;
      }
    }
    if (status.ok()) {
      part = Finish();
    } else {
      part = status;
      Cancel();
    }
    file_.reset();
    done = std::exchange(done_, nullptr);
  }
  ReleaseSources();
  done(std::move(part));
}

absl::Status PartWriter::OpenFile() {
  RETURN_IF_ERROR(io_.disk->CreateDirectory(spec_.directory));
  // A process that was restarted may come to a cut whose checkpoint is there already.
  const std::string manifest =
      absl::StrCat(spec_.directory, "/", FolderOf(spec_.path), "/", kManifestName);
  const absl::Status found = io_.disk->Open(manifest).status();
  if (found.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", manifest, "' is there: the checkpoint is whole"));
  }
  if (!absl::IsNotFound(found)) return found;
  ASSIGN_OR_RETURN(file_, RowsFileWriter::Create(io_.disk, spec_.directory, spec_.path));
  return absl::OkStatus();
}

absl::Status PartWriter::WriteSlice(const Slice& slice) {
  const size_t row_floats = row_floats_[slice.source];
  const SnapshotRows& rows = slice.rows;
  const absl::Span<const float> values(rows.rows.data(), rows.rows.size());
  for (size_t i = 0; i < rows.keys.size(); ++i) {
    RETURN_IF_ERROR(file_->Add(tables_[slice.source], rows.keys[i], rows.counts[i], rows.changed[i],
                               values.subspan(i * row_floats, row_floats)));
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointPart> PartWriter::Finish() {
  ASSIGN_OR_RETURN(std::optional<CheckpointFile> file, file_->Finish());
  CheckpointPart part;
  part.set_server_index(spec_.server.value());
  part.set_base_step(spec_.base_step.value());
  if (file.has_value()) *part.add_files() = *std::move(file);
  return part;
}

}  // namespace thermocline
