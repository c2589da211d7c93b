// Remembers where rows begin in a text file, so that a later reader goes to a row within seconds.
// The places are noted as the file is read the first time, and appended to a file of the run
// directory (docs/formats.md).
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

// How many rows a file has before some place of it, without its header.
struct RowCount {
  int64_t rows = 0;
  int64_t held_out = 0;  // How many of `rows` data.split.column holds out.
};

// Where a row begins.
struct RowPlace {
  int64_t offset = 0;  // In the text, more than 0.
  int64_t line = 0;    // In the file, from 1.
  RowCount before;
};

struct TextIndexOptions {
  // The folder of the indexes' files; "": none, and the places are known as long as the object
  // lives.
  std::string folder;
  // Whether this process writes the files, or only reads them.
  bool writes = false;
  // Bytes of text between places of rows, and between points from which compressed text can be
  // read.
  int64_t row_bytes = 4 << 20;
  int64_t point_bytes = 64 << 20;
  // Bytes of text between two writes, until the file's end is known.
  int64_t write_bytes = int64_t{1} << 30;
};

// The index of one file. Thread-safe: several readers of the file share it.
class TextIndex {
 public:
  //   reading: a text of all settings that decide which rows the file has, and which are held out
  //   store: may be null if `path` names no object
  TextIndex(std::string path, std::string reading, TextIndexOptions options,
            std::shared_ptr<ObjectStore> store = nullptr)
      : path_(std::move(path)),
        reading_(std::move(reading)),
        options_(std::move(options)),
        store_(std::move(store)) {}

  // A reader calls this before each reading of the file. The first call loads the index's file.
  // Later calls forget all if the text file is no longer the same, by its size, time, first and
  // last bytes (an object by its size and tag). Returns the text file's version here, which the
  // reader gives to the calls below: they do nothing, and know nothing, for another version. 0: the
  // file is no regular file, or can't be read.
  uint64_t Prepare();

  // Whether a place at byte `offset` is far enough from the last one to be noted.
  bool WantsPlace(uint64_t version, int64_t offset) const;
  void Note(uint64_t version, const RowPlace& place);
  void Note(uint64_t version, RestartPoint point);
  // Notes how many rows the file has.
  void NoteEnd(uint64_t version, const RowCount& rows);

  // How many rows the file has, once that is known.
  std::optional<RowCount> rows(uint64_t version) const;
  // How to get to a place: read from `point` on, until `place`.
  struct Way {
    RowPlace place;
    RestartPoint point;
  };
  // Finds the way to the last place for which is_before(place.before) is true; it has to be false
  // for all later places. nullopt if there is none beyond byte `offset` of the text, or if the text
  // that `point` needs can't be read from the index's file.
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

  // Forgets all, since a place of this index turned out to be wrong.
  void Drop();

  int64_t point_bytes() const { return options_.point_bytes; }

 private:
  // Identifies a file's content, so that a change is noticed. An object has its size, and the two
  // halves of its tag's hash in place of checksums.
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

  // A point whose window is either in memory or in the index's file.
  struct KeptPoint {
    RestartPoint point;
    int64_t window_at = 0;      // Where the window begins in the index's file, if it is there.
    uint32_t window_bytes = 0;  // 0: the window is in memory, or there is none.
    uint32_t window_crc = 0;
  };
  // The records that a Save() appends to the index's file.
  struct Update {
    std::string header;  // The file's header.
    int64_t at = 0;      // The file's size before; 0: the records make a new file.
    std::string records;
    // What the file has afterwards: its size, how many places, and whether the number of rows.
    int64_t end = 0;
    size_t places = 0;
    std::vector<int64_t> windows;  // Where the windows of `records` begin in the file.
    bool has_rows = false;
  };
  enum class Written { kYes, kNotOurs, kFailed };

  // Returns the point from which to read on the way from byte `offset` to `place`; nullopt if there
  // is none between them.
  std::optional<KeptPoint> PointBefore(const RowPlace& place, int64_t offset, bool compressed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Reads a point's window into memory. Returns false if it can't be read, or is damaged.
  bool ReadWindow(KeptPoint* point) const;
  // Forgets all, also what the index's file has: the next Save() replaces the file.
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string FileName() const;
  std::string EncodeHeader() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the records that the index's file lacks.
  Update NextUpdate() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes a record, whose body is at byte `at` of the index's file. Returns false, and takes
  // nothing, if its numbers are impossible.
  bool TakeRecord(absl::string_view body, int64_t at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Takes the whole records at the front of the index's file. Cuts off the rest if this process
  // writes the file.
  void Load() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the caller is to call Save() now.
  bool BeginSave() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Writes NextUpdate(). If the file can't be written, logs that once; later calls do nothing.
  void Save(uint64_t version) ABSL_LOCKS_EXCLUDED(save_mutex_, mutex_);
  // kNotOurs: the file is not the one that this object has left. kFailed: errno says why.
  Written Append(const Update& update) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(save_mutex_);
  Written Replace(const Update& update) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(save_mutex_);
  void CannotWrite(int error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  const std::string reading_;
  const TextIndexOptions options_;
  const std::shared_ptr<ObjectStore> store_;

  mutable absl::Mutex mutex_;
  // Held while the index's file is written; mutex_ is not held then, so that readers go on.
  absl::Mutex save_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::optional<Identity> identity_ ABSL_GUARDED_BY(mutex_);  // nullopt: the file can't be read.
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;              // The text file's, counted from 1.
  bool is_loaded_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<RowPlace> places_ ABSL_GUARDED_BY(mutex_);   // ascending
  std::vector<KeptPoint> points_ ABSL_GUARDED_BY(mutex_);  // ascending
  std::optional<RowCount> rows_ ABSL_GUARDED_BY(mutex_);
  int64_t saved_offset_ ABSL_GUARDED_BY(mutex_) = 0;  // The last place at the last Save().
  // What the index's file has: its size (0: it is to be replaced), how many of the first places and
  // points, and whether the number of rows.
  int64_t file_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t file_places_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t file_points_ ABSL_GUARDED_BY(mutex_) = 0;
  bool file_has_rows_ ABSL_GUARDED_BY(mutex_) = false;
  bool cannot_write_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TEXT_TEXT_INDEX_H_
