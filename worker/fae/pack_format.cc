#include "worker/fae/pack_format.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "worker/fae/pack_bytes.h"

namespace thermocline {
namespace {

constexpr absl::string_view kHeaderMagic = "TclnPack";
constexpr absl::string_view kFooterMagic = "TclnPEnd";
constexpr size_t kTailHeaderBytes = 80;

int64_t CeilDivide(int64_t a, int64_t b) { return a / b + (a % b == 0 ? 0 : 1); }

void SetCrc(uint32_t crc, size_t at, std::string* bytes) {
  std::memcpy(bytes->data() + at, &crc, sizeof(crc));
}

}  // namespace

// ---- header

std::string EncodePackHeader(const PackIdentity& identity) {
  std::string bytes(kHeaderMagic);
  PutPackValue(kPackVersion, &bytes);
  PutPackValue(uint32_t{0}, &bytes);  // the checksum
  for (const std::string* text : {&identity.job, &identity.data, &identity.times}) {
    PutPackValue(static_cast<uint32_t>(text->size()), &bytes);
  }
  PutPackValue(uint32_t{0}, &bytes);
  CHECK_EQ(bytes.size(), kPackHeaderBytes);
  absl::StrAppend(&bytes, identity.job, identity.data, identity.times);
  CHECK_LE(bytes.size(), kMaxIdentityBytes);
  SetCrc(PackCrc(bytes), 12, &bytes);
  return bytes;
}

absl::StatusOr<uint64_t> IdentityBytes(absl::string_view header) {
  PackTaker taker(header);
  if (taker.TakeBytes(1, kHeaderMagic.size()) != kHeaderMagic) {
    return absl::DataLossError("is no pack: its first bytes are others");
  }
  const uint32_t version = taker.Take<uint32_t>();
  if (version != kPackVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "is a pack of version ", version, "; this program reads version ", kPackVersion));
  }
  taker.Take<uint32_t>();
  uint64_t bytes = 0;
  for (int i = 0; i < 3; ++i) bytes += taker.Take<uint32_t>();
  if (!taker.is_good() || bytes > kMaxIdentityBytes) {
    return absl::DataLossError("is damaged at byte 0, in its header");
  }
  return bytes;
}

absl::StatusOr<PackIdentity> DecodePackHeader(absl::string_view bytes) {
  const absl::Status damaged = absl::DataLossError("is damaged at byte 0, in its header");
  if (bytes.size() < kPackHeaderBytes) return damaged;
  std::string copy(bytes);
  uint32_t crc;
  std::memcpy(&crc, bytes.data() + 12, sizeof(crc));
  SetCrc(0, 12, &copy);
  if (PackCrc(copy) != crc) return damaged;
  PackTaker sizes(bytes.substr(16));
  PackTaker texts(bytes.substr(kPackHeaderBytes));
  PackIdentity identity;
  for (std::string* text : {&identity.job, &identity.data, &identity.times}) {
    *text = std::string(texts.TakeBytes(1, sizes.Take<uint32_t>()));
  }
  if (!texts.is_good() || texts.left() > 0) return damaged;
  return identity;
}

// ---- tail and footer

std::string EncodePackTail(const PackTail& tail, uint64_t offset) {
  std::string bytes;
  PutPackValue(tail.batch_size, &bytes);
  for (int kind : {0, 1}) {
    CHECK_EQ(static_cast<int64_t>(tail.chunks[kind].size()), tail.counts.batches[kind]);
    PutPackValue(tail.counts.batches[kind], &bytes);
    PutPackValue(tail.counts.rows[kind], &bytes);
  }
  PutPackValue(tail.hot_set.digest.low, &bytes);
  PutPackValue(tail.hot_set.digest.high, &bytes);
  PutPackValue(tail.samples.low, &bytes);
  PutPackValue(tail.samples.high, &bytes);
  PutPackValue(static_cast<uint32_t>(tail.hot_set.tables.size()), &bytes);
  PutPackValue(static_cast<uint32_t>(tail.report.size()), &bytes);
  CHECK_EQ(bytes.size(), kTailHeaderBytes);
  for (const std::vector<Key>& keys : tail.hot_set.tables)
    PutPackValue(uint64_t{keys.size()}, &bytes);
  for (const std::vector<Key>& keys : tail.hot_set.tables) {
    PutPackValues(keys.data(), keys.size(), &bytes);
  }
  for (int kind : {0, 1}) PutPackValues(tail.chunks[kind].data(), tail.chunks[kind].size(), &bytes);
  absl::StrAppend(&bytes, tail.report);

  std::string footer(kFooterMagic);
  PutPackValue(offset, &footer);
  PutPackValue(uint64_t{bytes.size()}, &footer);
  PutPackValue(PackCrc(bytes), &footer);
  PutPackValue(PackCrc(footer), &footer);
  CHECK_EQ(footer.size(), kPackFooterBytes);
  return bytes + footer;
}

absl::StatusOr<ChunkPlace> DecodePackFooter(absl::string_view footer, uint64_t file_bytes) {
  PackTaker taker(footer);
  const absl::string_view magic = taker.TakeBytes(1, kFooterMagic.size());
  ChunkPlace place;
  place.offset = taker.Take<uint64_t>();
  place.bytes = taker.Take<uint64_t>();
  taker.Take<uint32_t>();
  const uint32_t crc = taker.Take<uint32_t>();
  if (!taker.is_good() || magic != kFooterMagic ||
      crc != PackCrc(footer.substr(0, kPackFooterBytes - sizeof(crc))) ||
      place.bytes > file_bytes || place.offset != file_bytes - kPackFooterBytes - place.bytes) {
    return absl::DataLossError(absl::StrCat("has no intact end: it is cut short at byte ",
                                            file_bytes, ", or damaged before"));
  }
  return ChunkPlace{place.offset, place.bytes + kPackFooterBytes};
}

Digest ChunkDigest(const ChunkName& name, absl::string_view chunk) {
  const uint64_t place = static_cast<uint64_t>(name.batch) * 2 + (name.is_hot ? 1 : 0);
  const uint64_t seed = Mix64(place ^ Mix64(Crc32c(chunk.data(), chunk.size())));
  return {seed, Mix64(seed)};
}

std::string PackDigest(const PackTail& tail) {
  Digest all = tail.samples;
  all.Add(tail.hot_set.digest);
  return absl::StrCat(absl::Hex(all.high, absl::kZeroPad16), absl::Hex(all.low, absl::kZeroPad16));
}

absl::StatusOr<PackTail> DecodePackTail(absl::string_view bytes, uint64_t offset) {
  const absl::Status damaged =
      absl::DataLossError(absl::StrCat("is damaged in its tail, from byte ", offset, " on"));
  if (bytes.size() < kPackFooterBytes + kTailHeaderBytes) return damaged;
  const absl::string_view body = bytes.substr(0, bytes.size() - kPackFooterBytes);
  uint32_t crc;
  std::memcpy(&crc, bytes.data() + body.size() + 24, sizeof(crc));
  if (crc != PackCrc(body)) return damaged;
  PackTaker taker(body);
  PackTail tail;
  tail.batch_size = taker.Take<int64_t>();
  if (tail.batch_size < 1) return damaged;
  for (int kind : {0, 1}) {
    tail.counts.batches[kind] = taker.Take<int64_t>();
    tail.counts.rows[kind] = taker.Take<int64_t>();
    if (tail.counts.rows[kind] < 0 ||
        tail.counts.batches[kind] != CeilDivide(tail.counts.rows[kind], tail.batch_size)) {
      return damaged;
    }
  }
  tail.hot_set.digest.low = taker.Take<uint64_t>();
  tail.hot_set.digest.high = taker.Take<uint64_t>();
  tail.samples.low = taker.Take<uint64_t>();
  tail.samples.high = taker.Take<uint64_t>();
  const uint32_t num_tables = taker.Take<uint32_t>();
  const uint32_t report_bytes = taker.Take<uint32_t>();
  std::vector<uint64_t> sizes;
  if (!taker.CopyAll(num_tables, &sizes)) return damaged;
  for (const uint64_t size : sizes) {
    if (!taker.CopyAll(size, &tail.hot_set.tables.emplace_back())) return damaged;
  }
  for (int kind : {0, 1}) {
    if (!taker.CopyAll(static_cast<uint64_t>(tail.counts.batches[kind]), &tail.chunks[kind])) {
      return damaged;
    }
  }
  tail.report = std::string(taker.TakeBytes(1, report_bytes));
  if (!taker.is_good() || taker.left() > 0) return damaged;
  return tail;
}

Digest DigestOf(const std::vector<std::vector<Key>>& tables) {
  Digest digest;
  for (size_t t = 0; t < tables.size(); ++t) {
    const TableId table(static_cast<uint32_t>(t));
    for (const Key key : tables[t]) digest.Add(CandidateDigest(table, key, /*count=*/0));
  }
  return digest;
}

}  // namespace thermocline
