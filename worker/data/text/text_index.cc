#include "worker/data/text/text_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/process.h"
#include "common/data/data_identity.h"
#include "common/disk/file_list.h"

namespace thermocline {
namespace {

constexpr absl::string_view kMagic = "TclnTxIx";
constexpr uint32_t kVersion = 2;
constexpr size_t kChecksumAt = 12;  // The checksum's place in the header, behind magic and version.
constexpr int64_t kIdentityBytes = 64 << 10;
constexpr int64_t kRecordHeadBytes = 8;  // A record begins with its body's size and its checksum.

enum RecordKind : uint32_t { kPlaces = 1, kPoint = 2, kRows = 3 };

template <typename T>
void Put(T value, std::string* to) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));  // Little-endian, as all machines that we build for.
  to->append(bytes, sizeof(T));
}

template <typename T>
void PutAt(size_t at, T value, std::string* to) {
  std::memcpy(to->data() + at, &value, sizeof(T));
}

template <typename T>
T Get(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

void PutText(absl::string_view text, std::string* to) {
  Put(static_cast<uint32_t>(text.size()), to);
  to->append(text.data(), text.size());
}

// Takes values from the front of `bytes`. Once too few bytes are left, it returns zeros.
class Taker {
 public:
  explicit Taker(absl::string_view bytes) : left_(bytes) {}

  template <typename T>
  T Take() {
    if (is_short_ || sizeof(T) > left_.size()) {
      is_short_ = true;
      return 0;
    }
    const T value = Get<T>(left_, 0);
    left_.remove_prefix(sizeof(T));
    return value;
  }
  absl::string_view left() const { return left_; }
  bool is_short() const { return is_short_; }

 private:
  absl::string_view left_;
  bool is_short_ = false;
};

// Returns the checksum of a record. It covers the file's header, too (by `header_checksum`), so
// that no other file's record has it.
uint32_t RecordChecksum(uint32_t header_checksum, uint32_t bytes, absl::string_view body) {
  const uint32_t head = ExtendCrc32c(header_checksum, &bytes, sizeof(bytes));
  return ExtendCrc32c(head, body.data(), body.size());
}

// Appends records to `to`.
class RecordWriter {
 public:
  RecordWriter(uint32_t header_checksum, std::string* to)
      : header_checksum_(header_checksum), to_(to) {}

  void Begin(RecordKind kind) {
    begin_ = to_->size();
    Put(uint64_t{0}, to_);
    Put(static_cast<uint32_t>(kind), to_);
  }
  void End() {
    const absl::string_view body = absl::string_view(*to_).substr(begin_ + kRecordHeadBytes);
    const auto bytes = static_cast<uint32_t>(body.size());
    const uint32_t checksum = RecordChecksum(header_checksum_, bytes, body);
    PutAt(begin_, bytes, to_);
    PutAt(begin_ + sizeof(bytes), checksum, to_);
  }

 private:
  const uint32_t header_checksum_;
  std::string* const to_;
  size_t begin_ = 0;
};

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

// Whether a place or point that was read from a file can come after `last`. (A checksum may be
// right by chance.)
bool CanFollow(const RowPlace& last, const RowPlace& place) {
  return place.offset > last.offset && place.line >= last.line &&
         place.before.rows >= last.before.rows && place.before.held_out >= last.before.held_out &&
         place.before.held_out <= place.before.rows;
}

bool CanFollow(const RestartPoint& last, const RestartPoint& point) {
  return point.offset >= last.offset && point.file_offset >= last.file_offset && point.bits >= -1 &&
         point.bits <= 7;
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
  saved_offset_ = file_bytes_ = 0;
  file_places_ = file_points_ = 0;
  file_has_rows_ = false;
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
    if (place.offset - saved_offset_ < options_.write_bytes || !BeginSave()) return;
  }
  Save(version);
}

void TextIndex::Note(uint64_t version, RestartPoint point) {
  absl::MutexLock lock(&mutex_);
  const int64_t last = points_.empty() ? 0 : points_.back().point.offset;
  if (version == version_ && point.offset - last >= options_.point_bytes) {
    points_.push_back({std::move(point)});
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

std::optional<TextIndex::KeptPoint> TextIndex::PointBefore(const RowPlace& place, int64_t offset,
                                                           bool compressed) const {
  if (place.offset <= offset) return std::nullopt;
  // The byte before the row is read, too: it shows that a row begins there.
  if (!compressed) return KeptPoint{{place.offset - 1, place.offset - 1, -1, ""}};
  const auto end = std::partition_point(
      points_.begin(), points_.end(),
      [&place](const KeptPoint& kept) { return kept.point.offset < place.offset; });
  if (end == points_.begin() || (end - 1)->point.offset <= offset) return std::nullopt;
  return *(end - 1);
}

bool TextIndex::ReadWindow(KeptPoint* point) const {
  if (point->window_bytes == 0) return true;
  std::string& window = point->point.window;
  window.resize(point->window_bytes);
  std::ifstream file(FileName(), std::ios::binary);
  file.seekg(point->window_at);
  file.read(window.data(), static_cast<std::streamsize>(window.size()));
  return file.good() && Crc32c(window.data(), window.size()) == point->window_crc;
}

// ---- the file

std::string TextIndex::FileName() const {
  // Two files may have the same name here. That is no harm: the header says whose index it is.
  const uint64_t hash = HashText(path_.size(), absl::StrCat(path_, "\n", reading_));
  return absl::StrCat(options_.folder, "/", absl::Hex(hash, absl::kZeroPad16), ".index");
}

std::string TextIndex::EncodeHeader() const {
  std::string bytes(kMagic);
  Put(kVersion, &bytes);
  Put(uint32_t{0}, &bytes);
  PutText(path_, &bytes);
  PutText(reading_, &bytes);
  Put(identity_->size, &bytes);
  Put(identity_->modified_ns, &bytes);
  Put(identity_->head_crc, &bytes);
  Put(identity_->tail_crc, &bytes);
  const absl::string_view rest = absl::string_view(bytes).substr(kChecksumAt + sizeof(uint32_t));
  PutAt(kChecksumAt, ExtendCrc32c(Crc32c(bytes.data(), kChecksumAt), rest.data(), rest.size()),
        &bytes);
  return bytes;
}

TextIndex::Update TextIndex::NextUpdate() const {
  Update update;
  update.header = EncodeHeader();
  update.at = file_bytes_;
  const auto first = file_bytes_ > 0 ? file_bytes_ : static_cast<int64_t>(update.header.size());
  std::string* const to = &update.records;
  const auto here = [&] { return first + static_cast<int64_t>(to->size()); };
  RecordWriter writer(Get<uint32_t>(update.header, kChecksumAt), to);
  if (file_places_ < places_.size()) {
    writer.Begin(kPlaces);
    for (size_t i = file_places_; i < places_.size(); ++i) PutPlace(places_[i], to);
    writer.End();
  }
  for (size_t i = file_points_; i < points_.size(); ++i) {
    const RestartPoint& point = points_[i].point;
    writer.Begin(kPoint);
    Put(point.offset, to);
    Put(point.file_offset, to);
    Put(static_cast<int32_t>(point.bits), to);
    update.windows.push_back(here());
    to->append(point.window);
    writer.End();
  }
  if (rows_.has_value() && !file_has_rows_) {
    writer.Begin(kRows);
    Put(rows_->rows, to);
    Put(rows_->held_out, to);
    writer.End();
  }
  update.end = here();
  update.places = places_.size();
  update.has_rows = rows_.has_value();
  return update;
}

bool TextIndex::TakeRecord(absl::string_view body, int64_t at) {
  Taker taker(body);
  const auto kind = taker.Take<uint32_t>();
  if (kind == kPlaces) {
    std::vector<RowPlace> places;
    RowPlace last = places_.empty() ? RowPlace() : places_.back();
    while (!taker.left().empty()) {
      places.push_back(TakePlace(&taker));
      if (taker.is_short() || !CanFollow(last, places.back())) return false;
      last = places.back();
    }
    places_.insert(places_.end(), places.begin(), places.end());
    return true;
  }
  if (kind == kPoint) {
    KeptPoint kept;
    kept.point.offset = taker.Take<int64_t>();
    kept.point.file_offset = taker.Take<int64_t>();
    kept.point.bits = taker.Take<int32_t>();
    const absl::string_view window = taker.left();
    kept.window_at = at + static_cast<int64_t>(body.size() - window.size());
    kept.window_bytes = static_cast<uint32_t>(window.size());
    kept.window_crc = Crc32c(window.data(), window.size());
    const RestartPoint last = points_.empty() ? RestartPoint() : points_.back().point;
    if (taker.is_short() || !CanFollow(last, kept.point)) return false;
    points_.push_back(std::move(kept));
    return true;
  }
  if (kind != kRows || rows_.has_value()) return false;
  const RowCount rows = {taker.Take<int64_t>(), taker.Take<int64_t>()};
  if (taker.is_short() || !taker.left().empty()) return false;
  if (rows.rows < 0 || rows.held_out < 0 || rows.held_out > rows.rows) return false;
  rows_ = rows;
  return true;
}

void TextIndex::Load() {
  if (options_.folder.empty()) return;
  std::ifstream file(FileName(), std::ios::binary | std::ios::ate);
  const auto size = static_cast<int64_t>(file.tellg());
  file.seekg(0);
  std::string bytes;
  const auto read = [&](int64_t count) {
    bytes.resize(static_cast<size_t>(count));
    return static_cast<bool>(file.read(bytes.data(), count));
  };
  const std::string header = EncodeHeader();
  auto at = static_cast<int64_t>(header.size());
  if (size < at || !read(at) || bytes != header) return;
  const auto header_checksum = Get<uint32_t>(header, kChecksumAt);
  while (size - at >= kRecordHeadBytes && read(kRecordHeadBytes)) {
    const auto body = Get<uint32_t>(bytes, 0);
    const auto checksum = Get<uint32_t>(bytes, sizeof(body));
    if (body > size - at - kRecordHeadBytes || !read(body)) break;
    if (checksum != RecordChecksum(header_checksum, body, bytes)) break;
    if (!TakeRecord(bytes, at + kRecordHeadBytes)) break;
    at += kRecordHeadBytes + body;
  }
  if (!file) {
    // The disk fails, or another process is shortening the file: it may not be whole.
    Forget();
    return;
  }
  file_bytes_ = at;
  file_places_ = places_.size();
  file_points_ = points_.size();
  file_has_rows_ = rows_.has_value();
  if (!places_.empty()) saved_offset_ = places_.back().offset;
  if (at == size || !options_.writes) return;
  std::error_code error;
  std::filesystem::resize_file(FileName(), static_cast<uintmax_t>(at), error);
  if (error) CannotWrite(error.value());
}

bool TextIndex::BeginSave() {
  if (!places_.empty()) saved_offset_ = places_.back().offset;
  return options_.writes && !options_.folder.empty() && !cannot_write_;
}

void TextIndex::Save(uint64_t version) {
  // The places are those of the file that was opened. This look may take long, since an object's
  // store has to answer.
  const std::optional<Identity> identity = ReadIdentity();
  absl::MutexLock saving(&save_mutex_);
  Update update;
  {
    absl::MutexLock lock(&mutex_);
    if (version != version_ || !(identity == identity_) || cannot_write_) return;
    update = NextUpdate();
  }
  if (update.records.empty()) return;  // Another reader's Save() has written them all.
  const Written written = update.at > 0 ? Append(update) : Replace(update);
  const int error = errno;
  absl::MutexLock lock(&mutex_);
  if (written == Written::kFailed) CannotWrite(error);
  if (version != version_) return;
  if (written == Written::kNotOurs) {
    // It was removed, or another process writes it. The records that this object had written are
    // lost, so the next reading begins with the file that is there.
    Forget();
    is_loaded_ = false;
  }
  if (written != Written::kYes) return;
  file_bytes_ = update.end;
  file_places_ = update.places;
  file_has_rows_ = update.has_rows;
  for (const int64_t window_at : update.windows) {
    KeptPoint& kept = points_[file_points_++];
    std::string window;
    window.swap(kept.point.window);
    kept.window_at = window_at;
    kept.window_bytes = static_cast<uint32_t>(window.size());
    kept.window_crc = Crc32c(window.data(), window.size());
  }
}

TextIndex::Written TextIndex::Append(const Update& update) const {
  std::fstream file(FileName(), std::ios::in | std::ios::out | std::ios::binary);
  if (!file) return errno == ENOENT ? Written::kNotOurs : Written::kFailed;
  std::string header(update.header.size(), '\0');
  file.read(header.data(), static_cast<std::streamsize>(header.size()));
  file.seekp(0, std::ios::end);
  if (!file || header != update.header || file.tellp() != update.at) return Written::kNotOurs;
  file << update.records;
  file.close();
  return file.good() ? Written::kYes : Written::kFailed;
}

TextIndex::Written TextIndex::Replace(const Update& update) const {
  const std::string name = FileName();
  const std::string temporary = absl::StrCat(name, ".", getpid(), ".tmp");
  std::error_code none;
  std::filesystem::create_directories(options_.folder, none);
  std::ofstream file(temporary, std::ios::binary);
  file << update.header << update.records;
  file.close();
  if (file.good() && std::rename(temporary.c_str(), name.c_str()) == 0) return Written::kYes;
  const int error = errno;
  std::remove(temporary.c_str());
  errno = error;
  return Written::kFailed;
}

void TextIndex::CannotWrite(int error) {
  cannot_write_ = true;
  LogLine(absl::StrCat("can't write ", FileName(), ": ", std::strerror(error),
                       "; a worker that goes on amid ", path_, " has to read what lies before"));
}

}  // namespace thermocline
