// The bytes of a pack file (docs/formats.md, "Packs"): a header that says what the pack was made
// of, a chunk for each batch, a tail with the hot rows and the places of the chunks, and a footer
// that says where the tail is. Nothing is written twice, so a file is made by appending.
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

// What decides what is in a pack, as lines "NAME: VALUE\n".
struct PackIdentity {
  std::string job;    // The job.
  std::string data;   // The data files: paths, sizes, checksums of their beginnings and ends.
  std::string times;  // When they were modified: the same files may differ in it between hosts.
};

// ---- header

inline constexpr uint64_t kPackHeaderBytes = 32;  // Without the identity.
inline constexpr uint32_t kMaxIdentityBytes = 1u << 28;

std::string EncodePackHeader(const PackIdentity& identity);
// Bytes of the identity that follow `header`, the first kPackHeaderBytes of a file. Errors:
// kDataLoss (no pack), kFailedPrecondition (of another version); without the file's name.
absl::StatusOr<uint64_t> IdentityBytes(absl::string_view header);
// `bytes`: header and identity. Errors: kDataLoss, without the file's name.
absl::StatusOr<PackIdentity> DecodePackHeader(absl::string_view bytes);

// ---- chunks

struct ChunkName {
  bool is_hot = false;
  int64_t batch = 0;  // Of its kind, from 0.
};

// The samples of `batch` (its dense row, label, weight, group and lookups) as a chunk.
std::string EncodeChunk(const ChunkName& name, const Batch& batch);
// Fills `batch` as BatchSource::Parse() does, with rows [begin, end) of a chunk of `rows` rows.
// Errors: kDataLoss (damaged, or another chunk), without the file's name.
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
  int64_t batch_size = 0;  // Rows of each batch but the last of its kind.
  PackCounts counts;
  HotSet hot_set;
  std::vector<ChunkPlace> chunks[2];  // As PackCounts::batches.
  Digest samples;                     // Of all chunks.
  std::string report;                 // What calibration found, as JSON.
};

inline constexpr uint64_t kPackFooterBytes = 32;

// The tail, and the footer of a file in which it begins at `offset`.
std::string EncodePackTail(const PackTail& tail, uint64_t offset);
// `footer`: the last bytes of a file of `file_bytes`. Errors: kDataLoss, without the file's name.
absl::StatusOr<ChunkPlace> DecodePackFooter(absl::string_view footer, uint64_t file_bytes);
// `bytes`: what the footer names. `offset`: where they are. Errors: kDataLoss, as above.
absl::StatusOr<PackTail> DecodePackTail(absl::string_view bytes, uint64_t offset);

// What PackTail::samples adds up.
Digest ChunkDigest(const ChunkName& name, absl::string_view chunk);
// Equal for packs of the same hot rows and batches: 32 hexadecimal digits.
std::string PackDigest(const PackTail& tail);

// HotSet::digest of its tables.
Digest DigestOf(const std::vector<std::vector<Key>>& tables);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_FORMAT_H_
