// Where rows begin in a text file: gathered as the file is read the first time, appended to a file
// of the run directory (docs/formats.md), so that a later reader goes to a row within seconds.
#ifndef THERMOCLINE_WORKER_DATA_TEXT_TEXT_INDEX_H_
#define THERMOCLINE_WORKER_DATA_TEXT_TEXT_INDEX_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/byte_source.h"

namespace thermocline {

// Rows of a file before some place of it, without its header.
struct RowCount {
  int64_t rows = 0;
  int64_t held_out = 0;  // of `rows`, as data.split.column says
};

// A row's begin.
struct RowPlace {
  int64_t offset = 0;  // in the text, more than 0
  int64_t line = 0;    // of the file, from 1
  RowCount before;
};

struct TextIndexOptions {
  // Where files are kept; "": nowhere, and what is known lives as long as the object.
  std::string folder;
  // Whether they are written here, or only read.
  bool writes = false;
  // Bytes of text between places of rows, and between points where compressed text is read again.
  int64_t row_bytes = 4 << 20;
  int64_t point_bytes = 64 << 20;
  // Bytes of the file between writes, before its end is known.
  int64_t write_bytes = int64_t{1} << 30;
};

// Thread-safe: several readers of a file share it.
class TextIndex {
 public:
  // `reading`: all that decides which rows the file has, and which of them are held out. `store`:
  // of a path that names an object.
  TextIndex(std::string path, std::string reading, TextIndexOptions options,
            std::shared_ptr<ObjectStore> store = nullptr)
      : path_(std::move(path)),
        reading_(std::move(reading)),
        options_(std::move(options)),
        store_(std::move(store)) {}

  // Called before each reading of the file. Takes what is kept of it the first time; forgets what
  // is known if the file is no longer the same by its size, time, first and last bytes; an object
  // by its size and tag. Returns the file's version here, which the calls below are about: of
  // another one nothing is noted or known. 0: it is no regular file, or can't be read.
  uint64_t Prepare();

  // Whether a place is far enough from the last to be noted.
  bool WantsPlace(uint64_t version, int64_t offset) const;
  void Note(uint64_t version, const RowPlace& place);
  void Note(uint64_t version, RestartPoint point);
  // The file has so many rows.
  void NoteEnd(uint64_t version, const RowCount& rows);

  // All rows, once they are known.
  std::optional<RowCount> rows(uint64_t version) const;
  // How to get to a place that lies beyond byte `offset` of the text, the last of those for which
  // is_before(place.before); false from some place on, for all after it. Reading begins at `point`.
  // None also where what `point` needs can't be read from the index's file as it was written.
  struct Way {
    RowPlace place;
    RestartPoint point;
  };
  template <typename IsBefore>
  std::optional<Way> Find(uint64_t version, int64_t offset, bool compressed,
                          const IsBefore& is_before) const {
    RowPlace place;
    std::optional<KeptPoint> point;
    {
      absl::MutexLock lock(&mutex_);
      if (version != version_) return std::nullopt;
      const auto end = std::partition_point(
          places_.begin(), places_.end(),
          [&](const RowPlace& candidate) { return is_before(candidate.before); });
      if (end == places_.begin()) return std::nullopt;
      place = *(end - 1);
      point = PointBefore(place, offset, compressed);
    }
    if (!point.has_value() || !ReadWindow(&*point)) return std::nullopt;
    return Way{place, std::move(point->point)};
  }

  // Forgets all: it has led astray.
  void Drop();

  int64_t point_bytes() const { return options_.point_bytes; }

 private:
  // What tells a file from others, and from itself after a change. Of an object size and tag, the
  // halves of whose hash stand as checksums.
  struct Identity {
    int64_t size = -1;
    int64_t modified_ns = 0;
    uint32_t head_crc = 0, tail_crc = 0;
    friend bool operator==(const Identity& a, const Identity& b) {
      return a.size == b.size && a.modified_ns == b.modified_ns && a.head_crc == b.head_crc &&
             a.tail_crc == b.tail_crc;
    }
  };
  std::optional<Identity> ReadIdentity() const;

  // A point whose window is in memory, or in the file alone.
  struct KeptPoint {
    RestartPoint point;
    int64_t window_at = 0;      // Of the file, its first byte, where the window lies there.
    uint32_t window_bytes = 0;  // 0: it is in memory, or there is none.
    uint32_t window_crc = 0;
  };
  // What a Save() appends.
  struct Update {
    std::string header;  // Of the file.
    int64_t at = 0;      // Bytes of the file before it; 0: it becomes a new file.
    std::string records;
    // What the file has then. `windows`: the first bytes of those in `records`.
    int64_t end = 0;
    size_t places = 0;
    std::vector<int64_t> windows;
    bool has_rows = false;
  };
  enum class Written { kYes, kNotOurs, kFailed };

  // The point to begin at on the way to a place.
  std::optional<KeptPoint> PointBefore(const RowPlace& place, int64_t offset, bool compressed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a point's window into memory. False: it can't be read, or is no longer what it was.
  bool ReadWindow(KeptPoint* point) const;
  // Without what the file has: the next Save() replaces it.
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string FileName() const;
  std::string EncodeHeader() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is known and not in the file.
  Update NextUpdate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a record, whose body lies at byte `at` of the file. False, and nothing taken: its numbers
  // can't be those of a file.
  bool TakeRecord(absl::string_view body, int64_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the whole records at the file's front, and cuts what follows them if it is written here.
  void Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether what is known is to be written now: the caller calls Save().
  bool BeginSave() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Where the file can't be written, says so once and goes on without.
  void Save(uint64_t version) ABSL_LOCKS_EXCLUDED(save_mutex_, mutex_);
  // kNotOurs: the file is not as this object has left it. kFailed: errno says why.
  Written Append(const Update& update) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(save_mutex_);
  Written Replace(const Update& update) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(save_mutex_);
  void CannotWrite(int error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const std::string reading_;
  const TextIndexOptions options_;
  const std::shared_ptr<ObjectStore> store_;

  mutable absl::Mutex mutex_;
  // Held while the file is written, when mutex_ is not: readers go on.
  absl::Mutex save_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::optional<Identity> identity_ ABSL_GUARDED_BY(mutex_);  // Empty: it can't be read.
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;              // Of the file, counted from 1.
  bool is_loaded_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<RowPlace> places_ ABSL_GUARDED_BY(mutex_);   // ascending
  std::vector<KeptPoint> points_ ABSL_GUARDED_BY(mutex_);  // ascending
  std::optional<RowCount> rows_ ABSL_GUARDED_BY(mutex_);
  int64_t saved_offset_ ABSL_GUARDED_BY(mutex_) = 0;  // Of the last place, as Save() was called.
  // What the file has: bytes (0: it is to be replaced), places and points from the first on, rows.
  int64_t file_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t file_places_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t file_points_ ABSL_GUARDED_BY(mutex_) = 0;
  bool file_has_rows_ ABSL_GUARDED_BY(mutex_) = false;
  bool cannot_write_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_TEXT_INDEX_H_
