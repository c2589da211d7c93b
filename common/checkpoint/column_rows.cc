// Reads the rows files of rows_format.h.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/uninitialized_vector.h"
#include "common/checkpoint/listed_file.h"
#include "common/checkpoint/rows_format.h"
#include "common/checkpoint/rows_readers.h"

namespace thermocline {
namespace {

// A scan reads so many bytes at a time, in whole blocks: enough for a disk, and little compared
// with the part of a table that one of many threads reads.
constexpr uint64_t kScanBytes = 256 << 10;

// An open file. Of those for single rows, several readers share it.
struct ColumnFile {
  std::string path;
  CheckpointFile listed;
  RowsFileUse use;
  std::unique_ptr<ReadFile> file;
  RowsFooter footer;
  std::vector<PlacedRowsBlock> blocks;
};

absl::Status DamagedBlock(const ColumnFile& file, const PlacedRowsBlock& block,
                          absl::string_view what) {
  return DamagedFile(file.path, absl::StrCat("the block at byte ", block.offset, " ", what));
}

// "'path' is damaged: ...", or, of another version, "'path': ..."
absl::Status InFile(const std::string& path, const absl::Status& status) {
  if (absl::IsDataLoss(status)) return DamagedFile(path, status.message());
  return absl::Status(status.code(), absl::StrCat("'", path, "': ", status.message()));
}

// Reads header, footer and index.
absl::Status ReadEnds(ColumnFile* file) {
  const uint64_t size = file->file->size();
  if (size < kRowsHeaderBytes + kRowsFooterBytes) return DamagedFile(file->path, "too short");
  char header[kRowsHeaderBytes], footer[kRowsFooterBytes];
  RETURN_IF_ERROR(file->file->ReadAt(0, absl::MakeSpan(header)));
  RETURN_IF_ERROR(file->file->ReadAt(size - kRowsFooterBytes, absl::MakeSpan(footer)));
  const absl::Status is_rows_file = CheckRowsHeader({header, sizeof(header)});
  if (!is_rows_file.ok()) return InFile(file->path, is_rows_file);
  const auto decoded = DecodeRowsFooter({footer, sizeof(footer)}, size);
  if (!decoded.ok()) return InFile(file->path, decoded.status());
  file->footer = *decoded;
  RETURN_IF_ERROR(CheckListedCrc32c(
      file->path, file->listed,
      CombineCrc32c(file->footer.crc32c, Crc32c(footer, sizeof(footer)), sizeof(footer))));
  RETURN_IF_ERROR(CheckListedRows(file->path, file->listed, file->footer.rows));
  std::string index(file->footer.blocks * kRowsBlockEntryBytes, '\0');
  RETURN_IF_ERROR(file->file->ReadAt(size - kRowsFooterBytes - index.size(),
                                     absl::MakeSpan(&index[0], index.size())));
  auto blocks = DecodeRowsIndex(index, file->footer, size);
  if (!blocks.ok()) return InFile(file->path, blocks.status());
  file->blocks = *std::move(blocks);
  return absl::OkStatus();
}

class ColumnRows final : public RowsFileReader {
 public:
  explicit ColumnRows(std::shared_ptr<const ColumnFile> file) : file_(std::move(file)) {}

  std::unique_ptr<RowsFileReader> Share() const override {
    CHECK(file_->use == RowsFileUse::kSingleRows);
    return std::make_unique<ColumnRows>(file_);
  }
  absl::StatusOr<bool> Next(SavedRow* row) override;
  void Seek(const RowKey& key) override;
  absl::flat_hash_map<TableId, uint64_t> CountRows(uint32_t begin_partition,
                                                   uint32_t end_partition) const override;
  absl::Status CheckBytes() const override;
  const std::string& path() const override { return file_->path; }

 private:
  const PlacedRowsBlock& block() const { return file_->blocks[block_]; }
  // Checks the bytes of block_, which are read where they are not in the buffer, and goes to its
  // first row.
  absl::Status Enter();
  // Checks that the block has as many rows of each kind as the index says.
  absl::Status CheckKinds() const;
  // Reads blocks from block_ on.
  absl::Status ReadBlocks();
  void FindSought();
  Key KeyAt(uint32_t row) const { return Get<Key>(row * sizeof(Key)); }
  template <typename Number>
  Number Get(uint64_t at) const {
    Number number;
    std::memcpy(&number, bytes_ + at, sizeof(number));
    return number;
  }

  const std::shared_ptr<const ColumnFile> file_;
  // What was read last: the bytes of blocks [begin_, end_).
  UninitializedVector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  // The place: a row of a block, or behind the last block.
  size_t block_ = 0;
  bool entered_ = false;  // What follows is of block_.
  uint32_t row_ = 0;
  uint32_t rows_with_values_ = 0;  // Rows before row_ that are no candidates.
  const char* bytes_ = nullptr;    // The block's first byte, in buffer_.
  std::optional<RowKey> last_key_;
  std::optional<RowKey> sought_;
  size_t checked_ = 0;  // The bytes of so many blocks, from the first on, were read and checked.
};

absl::Status ColumnRows::ReadBlocks() {
  const std::vector<PlacedRowsBlock>& blocks = file_->blocks;
  const uint64_t offset = block().offset;
  uint64_t bytes = block().bytes();
  begin_ = end_ = 0;  // In case of an error.
  size_t end = block_ + 1;
  if (file_->use == RowsFileUse::kScan) {
    for (; end < blocks.size() && bytes + blocks[end].bytes() <= kScanBytes; ++end) {
      bytes += blocks[end].bytes();
    }
  }
  buffer_.resize(bytes);
  RETURN_IF_ERROR(file_->file->ReadAt(offset, absl::MakeSpan(buffer_.data(), bytes)));
  begin_ = block_;
  end_ = end;
  return absl::OkStatus();
}

absl::Status ColumnRows::Enter() {
  if (block_ < begin_ || block_ >= end_) RETURN_IF_ERROR(ReadBlocks());
  bytes_ = buffer_.data() + (block().offset - file_->blocks[begin_].offset);
  const uint32_t crc = Crc32c(bytes_, block().bytes());
  if (crc != block().crc32c) {
    return DamagedBlock(
        *file_, block(),
        absl::StrFormat("has the CRC-32C %08x, the index says %08x", crc, block().crc32c));
  }
  if (block_ == checked_) ++checked_;
  if (KeyAt(0) != block().first_key) {
    return DamagedBlock(*file_, block(), "does not begin with the key that the index says");
  }
  RETURN_IF_ERROR(CheckKinds());
  row_ = rows_with_values_ = 0;
  entered_ = true;
  return absl::OkStatus();
}

absl::Status ColumnRows::CheckKinds() const {
  if (block().candidates == 0) return absl::OkStatus();
  const char* const kinds = bytes_ + block().kinds_at();
  const char* const end = kinds + block().rows;
  const auto candidates = static_cast<uint32_t>(std::count(kinds, end, kKindCandidate));
  const auto rows = static_cast<uint32_t>(std::count(kinds, end, kKindRow));
  if (candidates + rows != block().rows) {
    return DamagedBlock(*file_, block(), "has a row of an unknown kind");
  }
  if (candidates == block().candidates) return absl::OkStatus();
  return DamagedBlock(
      *file_, block(),
      absl::StrCat("has ", candidates, " candidates, the index says ", block().candidates));
}

void ColumnRows::Seek(const RowKey& key) {
  const std::vector<PlacedRowsBlock>& blocks = file_->blocks;
  const auto behind = std::upper_bound(
      blocks.begin(), blocks.end(), key,
      [](const RowKey& sought, const PlacedRowsBlock& b) { return sought < b.first; });
  const size_t at = behind == blocks.begin() ? 0 : behind - blocks.begin() - 1;
  entered_ = entered_ && at == block_;
  block_ = at;
  sought_ = key;
  last_key_.reset();
}

absl::flat_hash_map<TableId, uint64_t> ColumnRows::CountRows(uint32_t begin_partition,
                                                             uint32_t end_partition) const {
  absl::flat_hash_map<TableId, uint64_t> rows;
  for (const PlacedRowsBlock& block : file_->blocks) {
    const uint32_t partition = block.first.partition;
    if (partition < begin_partition || partition >= end_partition) continue;
    rows[block.table] += block.rows - block.candidates;
  }
  return rows;
}

// Goes to the first row of the block that is not before *sought_.
void ColumnRows::FindSought() {
  uint32_t begin = 0, end = block().rows;
  while (begin < end) {
    const uint32_t middle = begin + (end - begin) / 2;
    if (RowKeyOf(block().table, KeyAt(middle)) < *sought_) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  row_ = rows_with_values_ = begin;
  if (block().candidates > 0) {
    const char* const kinds = bytes_ + block().kinds_at();
    rows_with_values_ = static_cast<uint32_t>(std::count(kinds, kinds + begin, kKindRow));
  }
  sought_.reset();
}

absl::StatusOr<bool> ColumnRows::Next(SavedRow* row) {
  for (;;) {
    if (block_ == file_->blocks.size()) return false;
    if (!entered_) RETURN_IF_ERROR(Enter());
    if (sought_.has_value()) FindSought();
    if (row_ < block().rows) break;
    ++block_;
    entered_ = false;
  }
  const PlacedRowsBlock& block = this->block();
  row->key = RowKeyOf(block.table, KeyAt(row_));
  row->lookups = Get<uint32_t>(block.lookups_at() + 4 * row_);
  row->changed = Get<uint32_t>(block.changed_at() + 4 * row_);
  if (last_key_.has_value() && !(*last_key_ < row->key)) {
    return DamagedBlock(*file_, block,
                        absl::StrCat("has key ", row->key.key, " of table ", block.table.value(),
                                     ", which is not behind the one before it"));
  }
  last_key_ = row->key;
  row->values = {};
  const char kind = block.candidates == 0 ? kKindRow : bytes_[block.kinds_at() + row_];
  if (kind == kKindRow) {
    const auto* const values = reinterpret_cast<const float*>(bytes_ + block.values_at());
    row->values = {values + uint64_t{rows_with_values_} * block.floats, block.floats};
    ++rows_with_values_;
  }
  ++row_;
  return true;
}

absl::Status ColumnRows::CheckBytes() const {
  ColumnRows rest(file_);
  for (rest.block_ = checked_; rest.block_ < file_->blocks.size(); ++rest.block_) {
    RETURN_IF_ERROR(rest.Enter());
  }
  const auto header = EncodeRowsHeader();  // Open has compared it.
  uint32_t crc = Crc32c(header.data(), header.size());
  for (const PlacedRowsBlock& block : file_->blocks) {
    crc = CombineCrc32c(crc, block.crc32c, block.bytes());
  }
  crc = CombineCrc32c(crc, file_->footer.index_crc32c, file_->blocks.size() * kRowsBlockEntryBytes);
  if (crc == file_->footer.crc32c) return absl::OkStatus();
  return DamagedFile(file_->path,
                     absl::StrFormat("the CRC-32C of its blocks is %08x, its last bytes say %08x",
                                     crc, file_->footer.crc32c));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowsFileReader>> OpenColumnRows(Disk* disk, std::string path,
                                                               const CheckpointFile& listed,
                                                               RowsFileUse use) {
  auto file = std::make_shared<ColumnFile>();
  ASSIGN_OR_RETURN(file->file, OpenListedFile(disk, path, listed));
  file->path = std::move(path);
  file->listed = listed;
  file->use = use;
  RETURN_IF_ERROR(ReadEnds(file.get()));
  return std::make_unique<ColumnRows>(std::move(file));
}

}  // namespace thermocline
