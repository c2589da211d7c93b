#include "server/core/part_writer.h"

#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "common/status_macros.h"

namespace thermocline {

std::shared_ptr<PartWriter> PartWriter::Start(const CheckpointIo& io, Spec spec, Done done) {
  std::shared_ptr<PartWriter> writer(new PartWriter(io, std::move(spec), std::move(done)));
  writer->Schedule();
  return writer;
}

PartWriter::PartWriter(const CheckpointIo& io, Spec spec, Done done)
    : io_(io), spec_(std::move(spec)), done_(std::move(done)) {}

PartWriter::~PartWriter() = default;

void PartWriter::Cancel() { cancelled_ = true; }

void PartWriter::Stop() {
  Cancel();
  absl::MutexLock lock(&mutex_);
  done_ = nullptr;
  Release();
}

// Whoever owns the writer may be gone when the task runs.
void PartWriter::Schedule() {
  io_.scheduler->RunAfter(0, [weak = weak_from_this()] {
    if (const std::shared_ptr<PartWriter> self = weak.lock()) self->RunSlice();
  });
}

void PartWriter::RunSlice() {
  Done done;
  absl::StatusOr<CheckpointPart> part = absl::CancelledError("the cut was called off");
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) return;
    if (!cancelled_) {
      const absl::StatusOr<bool> more = WriteSlice();
      if (more.ok() && *more) return Schedule();
      if (more.ok()) {
        part = Finish();
      } else {
        part = more.status();
      }
    }
    Release();
    done = std::exchange(done_, nullptr);
  }
  done(std::move(part));
}

// False: all is written.
absl::StatusOr<bool> PartWriter::WriteSlice() {
  if (file_ == nullptr) {
    RETURN_IF_ERROR(io_.disk->CreateDirectory(spec_.directory));
    ASSIGN_OR_RETURN(file_, RowsFileWriter::Create(io_.disk, spec_.directory, spec_.path));
  }
  if (source_ == spec_.sources.size()) return false;
  Source& source = spec_.sources[source_];
  ASSIGN_OR_RETURN(const bool more, source.snapshot->Next(&rows_));
  if (!more) {
    source.snapshot.reset();  // From now on the table's changes keep no old images.
    ++source_;
    return true;
  }
  const absl::Span<const float> values(rows_.rows.data(), rows_.rows.size());
  for (size_t i = 0; i < rows_.keys.size(); ++i) {
    RETURN_IF_ERROR(file_->Add(source.table, rows_.keys[i], rows_.counts[i], rows_.changed[i],
                               values.subspan(i * source.row_floats, source.row_floats)));
  }
  return true;
}

absl::StatusOr<CheckpointPart> PartWriter::Finish() {
  ASSIGN_OR_RETURN(std::optional<CheckpointFile> file, file_->Finish());
  CheckpointPart part;
  part.set_server_index(spec_.server.value());
  part.set_base_step(spec_.base_step.value());
  if (file.has_value()) *part.add_files() = *std::move(file);
  return part;
}

void PartWriter::Release() {
  spec_.sources.clear();
  file_.reset();
  rows_ = SnapshotRows();
}

}  // namespace thermocline
