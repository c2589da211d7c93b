#include "server/checkpoint/shard_writer.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "common/checkpoint/checkpoint_store.h"

namespace thermocline {
namespace {

// Enough that neither side waits for the other's jitter: a slice of 128-byte rows has 0.6 MB.
constexpr int kSlicesAhead = 4;

std::vector<size_t> RowFloats(const std::vector<ShardWriter::Source>& sources) {
  std::vector<size_t> floats;
  for (const ShardWriter::Source& source : sources) floats.push_back(source.row_floats);
  return floats;
}

std::vector<TableId> Tables(const std::vector<ShardWriter::Source>& sources) {
  std::vector<TableId> tables;
  for (const ShardWriter::Source& source : sources) tables.push_back(source.table);
  return tables;
}

absl::Status CalledOff() { return absl::CancelledError("the checkpoint was called off"); }

}  // namespace

std::shared_ptr<ShardWriter> ShardWriter::Start(const CheckpointIo& io, Spec spec, Done done) {
  std::shared_ptr<ShardWriter> writer(new ShardWriter(io, std::move(spec), std::move(done)));
  absl::MutexLock lock(&writer->mutex_);
  writer->ScheduleRead();
  return writer;
}

ShardWriter::ShardWriter(const CheckpointIo& io, Spec spec, Done done)
    : io_(io),
      spec_({spec.directory,
             spec.paths,
             spec.server,
             spec.generation,
             spec.base_step,
             {},
             spec.row_limits,
             spec.on_read,
             spec.cut}),
      row_floats_(RowFloats(spec.sources)),
      tables_(Tables(spec.sources)),
      sources_(std::move(spec.sources)),
      full_(io.num_files),
      empty_(kSlicesAhead * io.num_files),
      write_scheduled_(io.num_files, 0),
      lanes_left_(io.num_files),
      files_(io.num_files),
      done_(std::move(done)) {
  CHECK_EQ(spec_.paths.size(), io_.num_files);
  while (lanes_.size() < io_.num_files) lanes_.push_back(std::make_unique<Lane>());
}

ShardWriter::~ShardWriter() = default;

void ShardWriter::Cancel() { cancelled_ = true; }

void ShardWriter::Stop() {
  Cancel();
  ReleaseSources();
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    absl::MutexLock lock(&lane->writing);
    lane->ended = true;
    lane->file.reset();
  }
  CheckpointShard written;
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) return;
    done_ = nullptr;
    for (const auto& file : files_) {
      if (file.has_value()) *written.add_files() = *file;
    }
  }
  RemoveFiles(written);
}

void ShardWriter::RemoveFiles(const CheckpointShard& shard) {
  for (const CheckpointFile& file : shard.files()) {
    io_.disk->Remove(absl::StrCat(spec_.directory, "/", file.path())).IgnoreError();
  }
}

void ShardWriter::ReleaseSources() {
  absl::MutexLock lock(&reading_);
  sources_.clear();
}

// The writer may be gone when a task runs.
void ShardWriter::ScheduleRead() {
  if (read_scheduled_ || all_read_ || empty_.empty()) return;
  read_scheduled_ = true;
  io_.tasks->Run([weak = weak_from_this()] {
    if (const std::shared_ptr<ShardWriter> self = weak.lock()) self->RunRead();
  });
}

void ShardWriter::ScheduleWrite(size_t lane) {
  if (write_scheduled_[lane] || (full_[lane].empty() && !all_read_ && !cancelled_)) return;
  write_scheduled_[lane] = true;
  io_.tasks->Run([weak = weak_from_this(), lane] {
    if (const std::shared_ptr<ShardWriter> self = weak.lock()) self->RunWrite(lane);
  });
}

// Reading
// ---------------------------------------------------------------------------------------------

void ShardWriter::RunRead() {
  {
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
      full_[next_lane_].push_back(std::move(slice));
      ScheduleWrite(next_lane_);
      next_lane_ = (next_lane_ + 1) % lanes_.size();
      ScheduleRead();
    } else {
      all_read_ = true;
      read_status_ = some.status();
      for (size_t lane = 0; lane < lanes_.size(); ++lane) ScheduleWrite(lane);
    }
  }
  if (spec_.on_read) spec_.on_read();
}

// False: there is nothing more to read.
absl::StatusOr<bool> ShardWriter::ReadSlice(Slice* slice) {
  NameTraceThread("checkpoint");
  const TraceSpan span("read checkpoint rows", spec_.cut);
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

void ShardWriter::RunWrite(size_t index) {
  Lane& lane = *lanes_[index];
  absl::StatusOr<std::optional<CheckpointFile>> file = std::optional<CheckpointFile>();
  {
    absl::MutexLock writing(&lane.writing);
    if (lane.ended) return;
    const absl::StatusOr<bool> more = WriteNext(index, &lane);
    if (more.ok() && *more) return;
    if (!more.ok()) {
      file = more.status();
    } else if (lane.file != nullptr) {
      const TraceSpan span("finish checkpoint file", spec_.cut);
      file = lane.file->Finish();
    }
    lane.file.reset();
    lane.ended = true;
  }
  EndLane(index, std::move(file));
}

absl::StatusOr<bool> ShardWriter::WriteNext(size_t index, Lane* lane) {
  NameTraceThread("checkpoint");
  const TraceSpan span("write checkpoint", spec_.cut);
  std::optional<Slice> slice;
  {
    absl::MutexLock lock(&mutex_);
    write_scheduled_[index] = false;
    if (cancelled_) return CalledOff();
    if (full_[index].empty()) {
      RETURN_IF_ERROR(read_status_);
      // A shard without rows goes the way of others up to here: the folder is looked at.
      if (index > 0 || lane->file != nullptr) return false;
    } else {
      slice = std::move(full_[index].front());
      full_[index].pop_front();
    }
  }
  if (lane->file == nullptr) RETURN_IF_ERROR(OpenFile(index, lane));
  if (!slice.has_value()) return false;
  RETURN_IF_ERROR(WriteSlice(*slice, lane->file.get()));
  absl::MutexLock lock(&mutex_);
  empty_.push_back(*std::move(slice));
  ScheduleRead();
  ScheduleWrite(index);
  return true;
}

// The last one to end makes the shard, or removes what others have written.
void ShardWriter::EndLane(size_t index, absl::StatusOr<std::optional<CheckpointFile>> file) {
  CheckpointShard shard;
  shard.set_server_index(spec_.server.value());
  shard.set_base_step(spec_.base_step.value());
  for (const RowLimit& limit : spec_.row_limits) *shard.add_row_limits() = limit;
  absl::Status status;
  Done done;
  {
    absl::MutexLock lock(&mutex_);
    if (done_ == nullptr) {  // Stopped meanwhile.
      if (file.ok() && file->has_value()) *shard.add_files() = **file;
    } else if (file.ok()) {
      files_[index] = *std::move(file);
    } else {
      status_.Update(file.status());
      Cancel();
      for (size_t lane = 0; lane < lanes_.size(); ++lane) ScheduleWrite(lane);
    }
    if (--lanes_left_ > 0 && done_ != nullptr) return;
    for (const auto& written : files_) {
      if (written.has_value() && done_ != nullptr) *shard.add_files() = *written;
    }
    status = status_;
    done = std::exchange(done_, nullptr);
  }
  if (done == nullptr) return RemoveFiles(shard);
  ReleaseSources();
  if (status.ok()) {
    done(std::move(shard));
  } else {
    RemoveFiles(shard);
    done(std::move(status));
  }
}

absl::Status ShardWriter::OpenFile(size_t index, Lane* lane) {
  RETURN_IF_ERROR(io_.disk->CreateDirectory(spec_.directory));
  // A process that was restarted may come to a cut whose checkpoint is there already, and one that
  // is taken for dead to that of a later generation. An earlier one's is replaced by the commit.
  const std::string folder = FolderOf(spec_.paths[index]);
  const auto there = CheckpointStore(io_.disk, spec_.directory).Load(folder);
  if (absl::IsUnavailable(there.status())) return there.status();
  if (there.ok() && there->generation() >= spec_.generation) {
    return absl::FailedPreconditionError(absl::StrCat("the checkpoint ", folder, " of generation ",
                                                      there->generation(), " is there already"));
  }
  ASSIGN_OR_RETURN(lane->file,
                   RowsFileWriter::Create(io_.disk, spec_.directory, spec_.paths[index]));
  return absl::OkStatus();
}

absl::Status ShardWriter::WriteSlice(const Slice& slice, RowsFileWriter* file) {
  const SnapshotRows& rows = slice.rows;
  return file->AddRows(
      tables_[slice.source], row_floats_[slice.source],
      {rows.keys, rows.counts, rows.changed, rows.has_row, {rows.rows.data(), rows.rows.size()}});
}

}  // namespace thermocline
