// Encodes and decodes the parts of a pack file (docs/formats.md, "Packs"): a header that identifies
// the job and the data, a chunk for each batch, a tail with the hot rows and the places of the
// chunks, and a footer that says where the tail is. Each is written once, so a file is made by
// appending.
#ifndef THERMOCLINE_WORKER_FAE_PACK_FORMAT_H_
#define THERMOCLINE_WORKER_FAE_PACK_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/batch.h"
#include "worker/fae/pack.h"
#include "worker/plan/hot_set.h"

namespace thermocline {

inline constexpr uint32_t kPackVersion = 1;

// All that decides what is in a pack. Each text has lines "NAME: VALUE\n".
struct PackIdentity {
  std::string job;   // The job's settings.
  std::string data;  // The data files: paths, sizes, checksums of both ends.
  std::string
      times;  // When they were modified. The same files may have other times on other hosts.
};

// ---- header

inline constexpr uint64_t kPackHeaderBytes = 32;  // Without the identity.
inline constexpr uint32_t kMaxIdentityBytes = 1u << 28;

std::string EncodePackHeader(const PackIdentity& identity);
// Returns the size of the identity that follows `header`, the first kPackHeaderBytes of a file.
// Errors, which don't name the file: kDataLoss (it is no pack), kFailedPrecondition (it has another
// version).
absl::StatusOr<uint64_t> IdentityBytes(absl::string_view header);
// Decodes `bytes`, the header and the identity. Errors: kDataLoss, without the file's name.
absl::StatusOr<PackIdentity> DecodePackHeader(absl::string_view bytes);

// ---- chunks

struct ChunkName {
  bool is_hot = false;
  int64_t batch = 0;  // The batch's number among those of its kind, from 0.
};

// Makes a chunk of the samples of `batch` (dense rows, labels, weights, groups and lookups).
std::string EncodeChunk(const ChunkName& name, const Batch& batch);
// Fills `batch`, as BatchSource::Parse() does, with rows [begin, end) of a chunk of `rows` rows.
// Errors: kDataLoss (it is damaged, or another chunk), without the file's name.
absl::Status DecodeChunk(absl::string_view bytes, const ChunkName& name, int64_t rows,
                         int64_t begin, int64_t end, Batch* batch);

// Adds row `row` of `from` to `to`, which has rows of the same job or none.
void AppendRow(const Batch& from, int row, Batch* to);

// ---- tail and footer

struct ChunkPlace {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct PackTail {
  int64_t batch_size = 0;  // The rows of each batch but the last of its kind.
  PackCounts counts;
  HotSet hot_set;
  std::vector<ChunkPlace> chunks[2];  // [0] cold, [1] hot; [batches]
  Digest samples;                     // The sum of all ChunkDigests.
  std::string report;                 // The figures of calibration, as JSON.
};

inline constexpr uint64_t kPackFooterBytes = 32;

// Encodes the tail, which begins at byte `offset` of its file, and the footer.
std::string EncodePackTail(const PackTail& tail, uint64_t offset);
// Decodes `footer`, the last bytes of a file of `file_bytes`. Returns the tail's place. Errors:
// kDataLoss, without the file's name.
absl::StatusOr<ChunkPlace> DecodePackFooter(absl::string_view footer, uint64_t file_bytes);
// Decodes the tail, whose `bytes` begin at byte `offset` of the file. Errors: kDataLoss, without
// the file's name.
absl::StatusOr<PackTail> DecodePackTail(absl::string_view bytes, uint64_t offset);

// The digest of one chunk; PackTail::samples is the sum of all.
Digest ChunkDigest(const ChunkName& name, absl::string_view chunk);
// Returns 32 hexadecimal digits, which are equal for packs with the same hot rows and batches.
std::string PackDigest(const PackTail& tail);

// Returns HotSet::digest of its tables.
Digest DigestOf(const std::vector<std::vector<Key>>& tables);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_FORMAT_H_
