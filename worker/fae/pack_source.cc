#include "worker/fae/pack_source.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("'", path, "' ", status.message()));
}

absl::StatusOr<std::string> ReadBytes(const ReadFile& file, uint64_t offset, uint64_t bytes) {
  if (offset > file.size() || bytes > file.size() - offset) {
    return absl::DataLossError(absl::StrCat("is cut short at byte ", file.size()));
  }
  std::string text(bytes, '\0');
  RETURN_IF_ERROR(file.ReadAt(offset, absl::MakeSpan(text.data(), text.size())));
  return text;
}

absl::Status ReadHeader(PackFile* pack) {
  ASSIGN_OR_RETURN(const std::string header, ReadBytes(*pack->file, 0, kPackHeaderBytes));
  ASSIGN_OR_RETURN(const uint64_t bytes, IdentityBytes(header));
  ASSIGN_OR_RETURN(const std::string all, ReadBytes(*pack->file, 0, kPackHeaderBytes + bytes));
  ASSIGN_OR_RETURN(pack->identity, DecodePackHeader(all));
  return absl::OkStatus();
}

absl::Status ReadTail(PackFile* pack) {
  const uint64_t size = pack->file->size();
  ASSIGN_OR_RETURN(
      const std::string footer,
      ReadBytes(*pack->file, size - std::min(size, kPackFooterBytes), kPackFooterBytes));
  ASSIGN_OR_RETURN(const ChunkPlace place, DecodePackFooter(footer, size));
  ASSIGN_OR_RETURN(const std::string bytes, ReadBytes(*pack->file, place.offset, place.bytes));
  ASSIGN_OR_RETURN(pack->tail, DecodePackTail(bytes, place.offset));
  for (const auto& chunks : pack->tail.chunks) {
    for (const ChunkPlace& chunk : chunks) {
      if (chunk.offset > place.offset || chunk.bytes > place.offset - chunk.offset) {
        return absl::DataLossError("is damaged in its tail: a batch lies outside of it");
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const PackFile>> PackFile::Open(Disk* disk,
                                                               const std::string& path) {
  auto pack = std::make_shared<PackFile>();
  pack->path = path;
  ASSIGN_OR_RETURN(pack->file, disk->Open(path));
  absl::Status status = ReadHeader(pack.get());
  if (status.ok()) status = ReadTail(pack.get());
  if (!status.ok()) return WithPath(path, status);
  return pack;
}

int64_t PackFile::RowsOf(const ChunkName& name) const {
  return std::min(tail.batch_size, tail.counts.rows[name.is_hot] - name.batch * tail.batch_size);
}

absl::Status PackSource::Rewind(uint32_t) {
  next_batch_ = first_batch_;
  return absl::OkStatus();
}

absl::StatusOr<bool> PackSource::Read(int64_t, RawBatch* raw) {
  if (cancelled_.load(std::memory_order_relaxed)) {
    return absl::CancelledError("reading was cancelled");
  }
  raw->ClearText();
  if (next_batch_ == first_batch_ + num_batches_) return false;
  const ChunkPlace& place = pack_->tail.chunks[is_hot_][next_batch_];
  raw->text.resize(place.bytes);
  RETURN_IF_ERROR(
      pack_->file->ReadAt(place.offset, absl::MakeSpan(raw->text.data(), raw->text.size())));
  raw->num_rows = pack_->RowsOf(NextChunk());
  raw->first_row = next_batch_ * pack_->tail.batch_size;
  ++next_batch_;
  raw->pass_progress = static_cast<double>(next_batch_ - first_batch_) / num_batches_;
  return true;
}

absl::StatusOr<int64_t> PackSource::Skip(int64_t rows) {
  int64_t skipped = 0;
  for (; next_batch_ < first_batch_ + num_batches_ && skipped < rows; ++next_batch_) {
    skipped += pack_->RowsOf(NextChunk());
  }
  return skipped;
}

absl::Status PackSource::Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>*) {
  const ChunkName name{is_hot_, raw.first_row / pack_->tail.batch_size};
  absl::Status status = DecodeChunk({raw.text.data(), raw.text.size()}, name, raw.num_rows,
                                    raw.slice_begin, raw.slice_end, batch);
  const PackShape shape = {batch->features.size(), static_cast<size_t>(batch->num_dense),
                           static_cast<size_t>(batch->num_tasks)};
  if (status.ok() && !(shape == shape_)) {
    status = absl::DataLossError(
        absl::StrCat("is damaged: batch ", name.batch, " has ", shape.num_features, " features, ",
                     shape.num_dense, " dense columns and ", shape.num_tasks,
                     " labels of a sample, the job has ", shape_.num_features, ", ",
                     shape_.num_dense, " and ", shape_.num_tasks));
  }
  if (status.ok()) return status;
  // Only header and tail are looked at before a run begins.
  return WithPath(
      pack_->path,
      absl::Status(status.code(), absl::StrCat(status.message(),
                                               "; remove the file: the next start makes it anew")));
}

absl::Status PackSource::DescribeBadRow(const RawBatch&, int64_t) {
  return absl::InternalError("a pack has no malformed rows");
}

std::string PackSource::PlaceOf(const RawBatch& raw, int64_t row) {
  return absl::StrCat("'", pack_->path, "': ", is_hot_ ? "hot" : "cold", " batch ",
                      raw.first_row / pack_->tail.batch_size, ", row ", row);
}

}  // namespace thermocline
