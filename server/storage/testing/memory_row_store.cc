#include "server/storage/testing/memory_row_store.h"

#include <cstring>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// Shares nothing with `status`: what counts its references lies in a library that the thread
// sanitizer does not see into.
absl::Status Copy(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

}  // namespace

// Holds a copy of the rows.
class MemoryRowStore::Cursor final : public RowCursor {
 public:
  Cursor(std::map<Place, std::string> rows, size_t row_bytes)
      : rows_(std::move(rows)), row_bytes_(row_bytes), next_(rows_.begin()) {}

  absl::Status Next(size_t max_rows, std::vector<Key>* keys,
                    UninitializedVector<uint8_t>* rows) override {
    keys->clear();
    rows->clear();
    for (; keys->size() < max_rows && next_ != rows_.end(); ++next_) {
      keys->push_back(next_->first.second);
      rows->resize(rows->size() + row_bytes_);
      std::memcpy(rows->data() + rows->size() - row_bytes_, next_->second.data(), row_bytes_);
    }
    return absl::OkStatus();
  }

 private:
  const std::map<Place, std::string> rows_;
  const size_t row_bytes_;
  std::map<Place, std::string>::const_iterator next_;
};

MemoryRowStore::MemoryRowStore(const TableLayout& layout)
    : table_salt_(TableSalt(layout.id)), row_bytes_(StoredRowBytes(layout)) {}

MemoryRowStore::Place MemoryRowStore::PlaceOf(Key key) const {
  return {PartitionOfHash(KeyHash(table_salt_, key)), key};
}

absl::Status MemoryRowStore::MultiGet(absl::Span<const Key> keys, absl::Span<uint8_t> rows,
                                      absl::Span<bool> found) {
  CHECK_EQ(rows.size(), keys.size() * row_bytes_);
  CHECK_EQ(found.size(), keys.size());
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(Copy(read_error_));
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto row = rows_.find(PlaceOf(keys[i]));
    found[i] = row != rows_.end();
    if (found[i]) std::memcpy(rows.data() + i * row_bytes_, row->second.data(), row_bytes_);
  }
  return absl::OkStatus();
}

absl::Status MemoryRowStore::Write(absl::Span<const Key> keys, absl::Span<const uint8_t> rows) {
  CHECK_EQ(rows.size(), keys.size() * row_bytes_);
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(Copy(write_error_));
  for (size_t i = 0; i < keys.size(); ++i) {
    const char* row = reinterpret_cast<const char*>(rows.data()) + i * row_bytes_;
    rows_[PlaceOf(keys[i])].assign(row, row_bytes_);
  }
  return absl::OkStatus();
}

absl::Status MemoryRowStore::Erase(absl::Span<const Key> keys) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(Copy(write_error_));
  for (const Key key : keys) rows_.erase(PlaceOf(key));
  return absl::OkStatus();
}

std::unique_ptr<RowCursor> MemoryRowStore::NewCursor() {
  absl::MutexLock lock(&mutex_);
  return std::make_unique<Cursor>(rows_, row_bytes_);
}

uint64_t MemoryRowStore::bytes() const {
  absl::MutexLock lock(&mutex_);
  return rows_.size() * (sizeof(Place) + row_bytes_);
}

void MemoryRowStore::FailReads(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  read_error_ = status;
}

void MemoryRowStore::FailWrites(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  write_error_ = status;
}

}  // namespace thermocline
