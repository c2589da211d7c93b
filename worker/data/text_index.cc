#include "worker/data/text_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/process.h"
#include "common/data/data_identity.h"
#include "common/disk/file_list.h"

namespace thermocline {
namespace {

constexpr absl::string_view kMagic = "TclnTxIx";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;  // Magic, version, checksum.
constexpr int64_t kIdentityBytes = 64 << 10;

template <typename T>
void Put(T value, std::string* to) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));  // Little-endian, as all machines that we build for.
  to->append(bytes, sizeof(T));
}

void PutText(absl::string_view text, std::string* to) {
  Put(static_cast<uint32_t>(text.size()), to);
  to->append(text.data(), text.size());
}

// Takes values from the front of `bytes`; once they are too few, zeros.
class Taker {
 public:
  explicit Taker(absl::string_view bytes) : left_(bytes) {}

  template <typename T>
  T Take() {
    T value = 0;
    const absl::string_view from = TakeBytes(sizeof(T));
    if (from.size() == sizeof(T)) std::memcpy(&value, from.data(), sizeof(T));
    return value;
  }
  absl::string_view TakeText() { return TakeBytes(Take<uint32_t>()); }
  // So many things of at least `bytes` each follow; 0 where there can't be so many.
  uint64_t TakeCount(size_t bytes) {
    const auto count = Take<uint64_t>();
    if (count <= left_.size() / bytes) return count;
    is_short_ = true;
    return 0;
  }
  bool is_whole() const { return !is_short_ && left_.empty(); }

 private:
  absl::string_view TakeBytes(size_t bytes) {
    if (is_short_ || bytes > left_.size()) {
      is_short_ = true;
      return {};
    }
    const absl::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  absl::string_view left_;
  bool is_short_ = false;
};

uint32_t ChecksumOf(absl::string_view file) {
  const uint32_t begin = Crc32c(file.data(), kHeaderBytes - sizeof(uint32_t));
  return ExtendCrc32c(begin, file.data() + kHeaderBytes, file.size() - kHeaderBytes);
}

uint64_t HashText(uint64_t seed, absl::string_view text) {
  uint64_t hash = Mix64(seed);
  for (const char c : text) hash = Mix64(hash ^ static_cast<uint8_t>(c));
  return hash;
}

void PutPlace(const RowPlace& place, std::string* to) {
  for (const int64_t value : {place.offset, place.line, place.before.rows, place.before.held_out}) {
    Put(value, to);
  }
}

RowPlace TakePlace(Taker* from) {
  RowPlace place;
  place.offset = from->Take<int64_t>();
  place.line = from->Take<int64_t>();
  place.before.rows = from->Take<int64_t>();
  place.before.held_out = from->Take<int64_t>();
  return place;
}

// Whether the numbers of an index, whose checksum is right, can be those of a file.
bool CanBe(const RowCount& rows, const std::vector<RowPlace>& places,
           const std::vector<RestartPoint>& points) {
  if (rows.rows < -1 || rows.held_out < -1 || rows.held_out > rows.rows) return false;
  RowPlace last;
  for (const RowPlace& place : places) {
    if (place.offset <= last.offset || place.line < last.line ||
        place.before.rows < last.before.rows || place.before.held_out < last.before.held_out ||
        place.before.held_out > place.before.rows) {
      return false;
    }
    last = place;
  }
  RestartPoint before;
  for (const RestartPoint& point : points) {
    if (point.offset < before.offset || point.file_offset < before.file_offset || point.bits < -1 ||
        point.bits > 7) {
      return false;
    }
    before.offset = point.offset;
    before.file_offset = point.file_offset;
  }
  return true;
}

}  // namespace

std::optional<TextIndex::Identity> TextIndex::ReadIdentity() const {
  const bool is_object = IsObjectPath(path_);
  const auto found = IdentifyFile(path_, store_.get(), is_object ? 0 : kIdentityBytes);
  if (!found.ok() || !found->bytes.has_value()) return std::nullopt;
  Identity identity = {*found->bytes, found->modified_ns, found->head_crc, found->tail_crc};
  if (is_object) {
    const uint64_t hash = HashText(0, found->tag);
    identity.head_crc = static_cast<uint32_t>(hash >> 32);
    identity.tail_crc = static_cast<uint32_t>(hash);
  }
  return identity;
}

uint64_t TextIndex::Prepare() {
  const std::optional<Identity> identity = ReadIdentity();
  absl::MutexLock lock(&mutex_);
  if (!(identity_ == identity)) Forget();
  identity_ = identity;
  if (!identity_.has_value()) return 0;
  if (!std::exchange(is_loaded_, true)) Load();
  return version_;
}

void TextIndex::Forget() {
  ++version_;
  places_.clear();
  points_.clear();
  rows_.reset();
  written_offset_ = 0;
}

void TextIndex::Drop() {
  absl::MutexLock lock(&mutex_);
  Forget();
}

bool TextIndex::WantsPlace(uint64_t version, int64_t offset) const {
  absl::MutexLock lock(&mutex_);
  if (version != version_) return false;
  return offset - (places_.empty() ? 0 : places_.back().offset) >= options_.row_bytes;
}

void TextIndex::Note(uint64_t version, const RowPlace& place) {
  {
    absl::MutexLock lock(&mutex_);
    const int64_t last = places_.empty() ? 0 : places_.back().offset;
    if (version != version_ || place.offset - last < options_.row_bytes) return;
    places_.push_back(place);
    if (place.offset - written_offset_ < options_.write_bytes || !BeginSave()) return;
  }
  Save(version);
}

void TextIndex::Note(uint64_t version, RestartPoint point) {
  absl::MutexLock lock(&mutex_);
  const int64_t last = points_.empty() ? 0 : points_.back().offset;
  if (version == version_ && point.offset - last >= options_.point_bytes) {
    points_.push_back(std::move(point));
  }
}

void TextIndex::NoteEnd(uint64_t version, const RowCount& rows) {
  {
    absl::MutexLock lock(&mutex_);
    if (version != version_ || rows_.has_value()) return;
    rows_ = rows;
    if (!BeginSave()) return;
  }
  Save(version);
}

std::optional<RowCount> TextIndex::rows(uint64_t version) const {
  absl::MutexLock lock(&mutex_);
  return version == version_ ? rows_ : std::nullopt;
}

std::optional<TextIndex::Way> TextIndex::WayTo(const RowPlace& place, int64_t offset,
                                               bool compressed) const {
  if (place.offset <= offset) return std::nullopt;
  // The byte before the row is read, too: it shows that a row begins there.
  if (!compressed) return Way{place, {place.offset - 1, place.offset - 1, -1, ""}};
  const auto end = std::partition_point(
      points_.begin(), points_.end(),
      [&place](const RestartPoint& point) { return point.offset < place.offset; });
  if (end == points_.begin() || (end - 1)->offset <= offset) return std::nullopt;
  return Way{place, *(end - 1)};
}

// ---- the file

std::string TextIndex::FileName() const {
  // The names of two files that meet are no harm: what is in the file says whose it is.
  const uint64_t hash = HashText(path_.size(), absl::StrCat(path_, "\n", reading_));
  return absl::StrCat(options_.folder, "/", absl::Hex(hash, absl::kZeroPad16), ".index");
}

std::string TextIndex::Encode() const {
  std::string bytes(kMagic);
  Put(kVersion, &bytes);
  Put(uint32_t{0}, &bytes);
  PutText(path_, &bytes);
  PutText(reading_, &bytes);
  Put(identity_->size, &bytes);
  Put(identity_->modified_ns, &bytes);
  Put(identity_->head_crc, &bytes);
  Put(identity_->tail_crc, &bytes);
  Put(rows_.has_value() ? rows_->rows : int64_t{-1}, &bytes);
  Put(rows_.has_value() ? rows_->held_out : int64_t{-1}, &bytes);
  Put(uint64_t{places_.size()}, &bytes);
  for (const RowPlace& place : places_) PutPlace(place, &bytes);
  Put(uint64_t{points_.size()}, &bytes);
  for (const RestartPoint& point : points_) {
    Put(point.offset, &bytes);
    Put(point.file_offset, &bytes);
    Put(static_cast<int32_t>(point.bits), &bytes);
    PutText(point.window, &bytes);
  }
  const uint32_t checksum = ChecksumOf(bytes);
  std::memcpy(bytes.data() + kHeaderBytes - sizeof(checksum), &checksum, sizeof(checksum));
  return bytes;
}

bool TextIndex::Decode(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes || !absl::StartsWith(bytes, kMagic)) return false;
  Taker taker(bytes.substr(kMagic.size()));
  if (taker.Take<uint32_t>() != kVersion || taker.Take<uint32_t>() != ChecksumOf(bytes)) {
    return false;
  }
  if (taker.TakeText() != path_ || taker.TakeText() != reading_) return false;
  Identity identity;
  identity.size = taker.Take<int64_t>();
  identity.modified_ns = taker.Take<int64_t>();
  identity.head_crc = taker.Take<uint32_t>();
  identity.tail_crc = taker.Take<uint32_t>();
  if (!(identity == *identity_)) return false;
  const RowCount rows = {taker.Take<int64_t>(), taker.Take<int64_t>()};
  std::vector<RowPlace> places(taker.TakeCount(4 * sizeof(int64_t)));
  for (RowPlace& place : places) place = TakePlace(&taker);
  std::vector<RestartPoint> points(taker.TakeCount(2 * sizeof(int64_t) + 2 * sizeof(int32_t)));
  for (RestartPoint& point : points) {
    point.offset = taker.Take<int64_t>();
    point.file_offset = taker.Take<int64_t>();
    point.bits = taker.Take<int32_t>();
    point.window = std::string(taker.TakeText());
  }
  if (!taker.is_whole() || !CanBe(rows, places, points)) return false;
  places_ = std::move(places);
  points_ = std::move(points);
  if (rows.rows >= 0) rows_ = rows;
  if (!places_.empty()) written_offset_ = places_.back().offset;
  return true;
}

void TextIndex::Load() {
  if (options_.folder.empty()) return;
  std::ifstream file(FileName(), std::ios::binary);
  if (!file) return;
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Decode(bytes);
}

bool TextIndex::BeginSave() {
  if (!places_.empty()) written_offset_ = places_.back().offset;
  return options_.writes && !options_.folder.empty() && !cannot_write_;
}

void TextIndex::Save(uint64_t version) {
  // What was noted is of the file that was opened. The look may take long: of an object, its store
  // is asked.
  const std::optional<Identity> identity = ReadIdentity();
  absl::MutexLock lock(&mutex_);
  if (version != version_ || !(identity == identity_)) return;
  const std::string name = FileName();
  const std::string temporary = absl::StrCat(name, ".", getpid(), ".tmp");
  std::error_code error;
  std::filesystem::create_directories(options_.folder, error);
  std::ofstream file(temporary, std::ios::binary);
  file << Encode();
  file.close();
  if (file.good() && std::rename(temporary.c_str(), name.c_str()) == 0) return;
  cannot_write_ = true;
  LogLine(absl::StrCat("can't write ", temporary, ": ", std::strerror(errno),
                       "; a worker that goes on amid ", path_, " has to read what lies before"));
  std::remove(temporary.c_str());
}

}  // namespace thermocline
