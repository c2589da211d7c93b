#include "worker/fae/pack_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// The medium is busy while rows are read, so that the last sync is short.
constexpr uint64_t kWritebackBytes = 16 << 20;

// Keeps the memory.
void ClearRows(Batch* batch) {
  batch->size = 0;
  batch->dense.clear();
  batch->labels.clear();
  batch->weights.clear();
  batch->groups.clear();
  for (FeatureLookups& feature : batch->features) {
    feature.keys.clear();
    feature.offsets.clear();
    feature.weights.clear();
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackWriter>> PackWriter::Create(Disk* disk, const std::string& path,
                                                               const PackIdentity& identity,
                                                               int64_t batch_size,
                                                               const LookupLimit& lookups) {
  CHECK_GE(batch_size, 1);
  std::unique_ptr<PackWriter> writer(new PackWriter(disk, path));
  writer->tail_.batch_size = batch_size;
  writer->lookups_ = lookups;
  ASSIGN_OR_RETURN(writer->file_, disk->Create(writer->temporary()));
  RETURN_IF_ERROR(writer->Append(EncodePackHeader(identity)));
  return writer;
}

PackWriter::~PackWriter() {
  if (finished_ || file_ == nullptr) return;
  file_.reset();
  // Best effort: a later run removes it, too.
  disk_.Remove(temporary()).IgnoreError();
}

absl::Status PackWriter::Append(const std::string& bytes) {
  RETURN_IF_ERROR(file_->Append({bytes}));
  bytes_ += bytes.size();
  if (bytes_ - started_writeback_ >= kWritebackBytes) {
    file_->StartWriteback(bytes_);
    started_writeback_ = bytes_;
  }
  return absl::OkStatus();
}

absl::Status PackWriter::WriteBatch(bool is_hot) {
  Batch& batch = open_[is_hot];
  const ChunkName name{is_hot, tail_.counts.batches[is_hot]};
  const std::string chunk = EncodeChunk(name, batch);
  tail_.chunks[is_hot].push_back({bytes_, chunk.size()});
  tail_.samples.Add(ChunkDigest(name, chunk));
  RETURN_IF_ERROR(Append(chunk));
  ++tail_.counts.batches[is_hot];
  ClearRows(&batch);
  return absl::OkStatus();
}

absl::Status PackWriter::Add(const Batch& from, int row, bool is_hot) {
  const Batch& to = open_[is_hot];
  for (size_t f = 0; f < from.features.size(); ++f) {
    const UninitializedVector<int32_t>& offsets = from.features[f].offsets;
    const size_t all = (to.features.empty() ? 0 : to.features[f].keys.size()) +
                       static_cast<size_t>(offsets[row + 1] - offsets[row]);
    if (all <= static_cast<size_t>(lookups_.most)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "training row ", from.first_row + row, " or a malformed one behind it: feature '",
        lookups_.features[f], "' has ", all, " values in a batch with it, and may have ",
        lookups_.most, "; make train.batch_size smaller, or the lists shorter"));
  }
  AppendRow(from, row, &open_[is_hot]);
  ++tail_.counts.rows[is_hot];
  return open_[is_hot].size < tail_.batch_size ? absl::OkStatus() : WriteBatch(is_hot);
}

absl::Status PackWriter::Finish(HotSet hot_set, std::string report) {
  for (const bool is_hot : {false, true}) {
    if (open_[is_hot].size > 0) RETURN_IF_ERROR(WriteBatch(is_hot));
  }
  tail_.hot_set = std::move(hot_set);
  tail_.report = std::move(report);
  RETURN_IF_ERROR(Append(EncodePackTail(tail_, bytes_)));
  RETURN_IF_ERROR(file_->Sync());
  RETURN_IF_ERROR(disk_.Rename(temporary(), path_));
  finished_ = true;
  return disk_.SyncDirectory(path_.substr(0, path_.rfind('/')));
}

}  // namespace thermocline
