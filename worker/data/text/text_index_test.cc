// Indexes of text files: readers that go to a row see what readers from the first row see, and a
// file that is no longer the same is read anew.
#include "worker/data/text/text_index.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "worker/data/row_stream.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

const std::atomic<bool> kNotCancelled{false};

// Rows of many lengths; some have line ends in quotes, others are blank or begin with '#'.
std::string Rows(int count) {
  std::string text = "a,b\n";
  for (int i = 0; i < count; ++i) {
    const uint64_t random = Mix64(i);
    if (random % 50 == 0) {
      text += "\n";
    } else if (random % 7 == 0) {
      absl::StrAppend(&text, i, ",\"x\n", std::string(random % 90, 'y'), "\n\"\r\n");
    } else {
      absl::StrAppend(&text, random % 3 == 0 ? "#" : "", i, ",", random, "\n");
    }
  }
  return text + "\n\n";
}

// One gzip member of many blocks, which refer to the text before them.
std::string GzipInBlocks(std::string text) {
  z_stream stream = {};
  CHECK_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(2 * text.size() + 1000, '\0');
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  for (size_t i = 0; i < text.size(); i += stream.total_in - i) {
    stream.next_in = reinterpret_cast<Bytef*>(&text[i]);
    stream.avail_in = static_cast<uInt>(std::min<size_t>(text.size() - i, 5000));
    const bool is_last = text.size() - i <= 5000;
    CHECK_EQ(deflate(&stream, is_last ? Z_FINISH : Z_BLOCK), is_last ? Z_STREAM_END : Z_OK);
  }
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Objects in memory. Not thread-safe.
class MemoryStore : public ObjectStore {
 public:
  void Put(const std::string& path, const std::string& bytes) {
    objects_[path] = {bytes, absl::StrCat("tag ", ++tags_)};
  }
  std::function<void()> on_identify;
  // Bytes that streams have given.
  int64_t bytes_read() const { return bytes_read_; }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return std::vector<std::string>{path};
  }
  absl::StatusOr<std::unique_ptr<ObjectStream>> OpenStream(const std::string& path) override {
    return std::make_unique<Stream>(objects_.at(path).bytes, &bytes_read_);
  }
  absl::StatusOr<ObjectIdentity> Identify(const std::string& path, int64_t) override {
    if (on_identify) on_identify();
    const Object& object = objects_.at(path);
    return ObjectIdentity{static_cast<int64_t>(object.bytes.size()), object.tag, "", ""};
  }

 private:
  struct Object {
    std::string bytes, tag;
  };
  class Stream : public ObjectStream {
   public:
    Stream(std::string bytes, int64_t* bytes_read)
        : bytes_(std::move(bytes)), bytes_read_(bytes_read) {}
    // In small pieces.
    absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
      const size_t size = std::min<size_t>({buffer.size(), bytes_.size() - position_, 1000});
      std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(position_), size, buffer.begin());
      position_ += size;
      *bytes_read_ += static_cast<int64_t>(size);
      return size;
    }
    void Seek(int64_t offset) override { position_ = static_cast<size_t>(offset); }
    int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }

   private:
    const std::string bytes_;
    int64_t* const bytes_read_;
    size_t position_ = 0;
  };

  std::map<std::string, Object> objects_;
  int tags_ = 0;
  int64_t bytes_read_ = 0;
};

struct Reading {
  std::vector<std::string> rows;
  std::vector<int64_t> lines;
  int64_t skipped = 0;
  int64_t scanned_bytes = 0;  // While rows were skipped.

  bool operator==(const Reading& other) const {
    return rows == other.rows && lines == other.lines && skipped == other.skipped;
  }
};

class TextIndexTest : public testing::Test {
 protected:
  // Points and places every few KiB.
  TextIndexTest() {
    options_.folder = folder_.path() + "/index";
    options_.writes = true;
    options_.row_bytes = 4 << 10;
    options_.point_bytes = 16 << 10;
    options_.write_bytes = 100 << 10;
  }

  enum class Keep { kAll, kMarked, kOthers };

  // `indexed`: with indexes of what was kept, of readers that judge rows or of those that don't.
  std::shared_ptr<TextFiles> Files(bool indexed, Keep keep = Keep::kAll) const {
    auto files = std::make_shared<TextFiles>();
    files->paths = paths_;
    files->store = store_;
    files->format = {',', true};
    files->header = {"a", "b"};
    for (const std::string& path : paths_) {
      if (!indexed) continue;
      files->indexes.push_back(std::make_shared<TextIndex>(
          path, keep == Keep::kAll ? "all rows" : "marked rows are held out", options_, store_));
    }
    return files;
  }

  // Skips rows, then reads up to `count`.
  static Reading Read(const std::shared_ptr<TextFiles>& files, Keep keep, int64_t skip,
                      int64_t count) {
    RowFilter filter;
    if (keep != Keep::kAll) {
      filter.is_held_out = [](absl::string_view line, int) { return absl::StartsWith(line, "#"); };
      filter.wants_held_out = keep == Keep::kMarked;
    }
    RowStream stream(files, filter, &kNotCancelled);
    EXPECT_TRUE(stream.Rewind().ok());
    Reading reading;
    int64_t before = -1;
    const auto skipped = stream.Skip(skip, [&](const ScanProgress& progress) {
      if (before < 0) before = progress.done_bytes;
      reading.scanned_bytes = progress.done_bytes - before;
    });
    EXPECT_TRUE(skipped.ok()) << skipped.status();
    reading.skipped = skipped.value_or(-1);
    RawBatch raw;
    raw.ClearText();
    const auto added = stream.Append(count, &raw);
    EXPECT_TRUE(added.ok()) << added.status();
    for (int64_t row = 0; row < raw.num_rows; ++row) {
      reading.rows.emplace_back(raw.TextOf(row));
      reading.lines.push_back(raw.OriginOf(row).line);
    }
    return reading;
  }

  // A reader with an index reads what one without reads, from every place.
  void ExpectSame(const std::shared_ptr<TextFiles>& indexed, Keep keep) {
    const int64_t rows = Read(Files(false), keep, INT64_MAX, 1).skipped;
    for (int64_t skip = 0; skip < rows + 200; skip += rows / RandomRuns(29) + 1) {
      const Reading wanted = Read(Files(false), keep, skip, 3);
      ASSERT_TRUE(Read(indexed, keep, skip, 3) == wanted) << skip;
    }
    EXPECT_EQ(Read(indexed, keep, INT64_MAX, 1).skipped, rows);
  }

  std::vector<std::string> Kept() const {
    std::vector<std::string> files;
    std::error_code none;
    for (const auto& file : std::filesystem::directory_iterator(options_.folder, none)) {
      files.push_back(file.path());
    }
    return files;
  }

  // The bytes of the only index that is kept.
  std::string KeptBytes() const {
    std::ifstream in(Kept().at(0), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  // How to get to the last row before `row` whose place is known.
  static std::optional<TextIndex::Way> WayTo(const TextIndex& index, uint64_t version, int64_t row,
                                             bool compressed = true) {
    return index.Find(version, 0, compressed,
                      [row](const RowCount& before) { return before.rows <= row; });
  }

  const TempFolder folder_;
  const std::shared_ptr<MemoryStore> store_ = std::make_shared<MemoryStore>();
  std::vector<std::string> paths_;
  TextIndexOptions options_;
};

// Plain, gzip (a member and several), zstd (a frame and several), and all of them in turn.
TEST_F(TextIndexTest, EveryPlaceIsThatOfAReaderFromTheFirstRow) {
  const std::string text = Rows(4000);
  const auto in_pieces = [&text](std::string (*compress)(const std::string&)) {
    std::string file;
    for (size_t i = 0; i < text.size(); i += 30'000) file += compress(text.substr(i, 30'000));
    return file;
  };
  std::vector<std::vector<std::string>> sets = {{folder_.Write("plain", text)},
                                                {folder_.Write("gzip", Gzip(text))},
                                                {folder_.Write("blocks", GzipInBlocks(text))},
                                                {folder_.Write("members", in_pieces(Gzip))},
                                                {folder_.Write("zstd", Zstd(text))},
                                                {folder_.Write("frames", in_pieces(Zstd))}};
  store_->Put("s3://b/plain", text);
  store_->Put("s3://b/members", in_pieces(Gzip));
  store_->Put("s3://b/frames", in_pieces(Zstd));
  sets.push_back({"s3://b/plain", "s3://b/members", sets[1][0], "s3://b/frames"});
  sets.push_back({sets[1][0], folder_.Write("short", "a,b\n1,2\n"), sets[5][0], sets[0][0]});
  for (const auto& paths : sets) {
    paths_ = paths;
    for (const Keep keep : {Keep::kAll, Keep::kMarked, Keep::kOthers}) {
      SCOPED_TRACE(absl::StrCat(paths[0], " ", paths.size(), " ", static_cast<int>(keep)));
      const auto files = Files(true, keep);
      Read(files, keep, INT64_MAX, 1);  // Reads all of it.
      ExpectSame(files, keep);
      ExpectSame(Files(true, keep), keep);  // From what was kept.
    }
  }
}

TEST_F(TextIndexTest, LittleIsReadBeforeARow) {
  const std::string text = Rows(20'000);
  for (const std::string& bytes : {text, Gzip(text)}) {
    paths_ = {folder_.Write("a", bytes)};
    EXPECT_GT(Read(Files(true), Keep::kAll, 19'000, 1).scanned_bytes,
              static_cast<int64_t>(bytes.size() / 2));
    Read(Files(true), Keep::kAll, INT64_MAX, 1);
    const Reading again = Read(Files(true), Keep::kAll, 19'000, 1);
    EXPECT_EQ(again.rows, Read(Files(false), Keep::kAll, 19'000, 1).rows);
    // The index counts the rows.
    const auto files = Files(true);
    const uint64_t version = files->indexes[0]->Prepare();
    EXPECT_EQ(files->indexes[0]->rows(version)->rows,
              Read(Files(false), Keep::kAll, INT64_MAX, 1).skipped);
    const auto way = files->indexes[0]->Find(
        version, 0, bytes != text, [](const RowCount& before) { return before.rows <= 19'000; });
    ASSERT_TRUE(way.has_value());
    EXPECT_GT(way->point.offset, static_cast<int64_t>(text.size() / 3));
    EXPECT_GT(way->place.offset, way->point.offset);
  }
}

TEST_F(TextIndexTest, OfAnObjectLittleIsReadBeforeARow) {
  const std::string text = Rows(20'000);
  for (const std::string& bytes : {text, Gzip(text)}) {
    paths_ = {"s3://b/a"};
    store_->Put(paths_[0], bytes);
    const auto files = Files(true);
    Read(files, Keep::kAll, INT64_MAX, 1);
    const Reading wanted = Read(Files(false), Keep::kAll, 19'000, 1);
    const int64_t before = store_->bytes_read();
    EXPECT_TRUE(Read(files, Keep::kAll, 19'000, 1) == wanted);
    EXPECT_LT(store_->bytes_read() - before, static_cast<int64_t>(bytes.size() / 3));
    // The same bytes under another tag may be others.
    store_->Put(paths_[0], bytes);
    const uint64_t version = files->indexes[0]->Prepare();
    EXPECT_FALSE(files->indexes[0]->rows(version).has_value());
  }
}

// A reader that stops amid the file leaves what it has seen.
TEST_F(TextIndexTest, APartOfAFileIsKept) {
  const std::string text = Rows(20'000);
  paths_ = {folder_.Write("a", Gzip(text))};
  Read(Files(true), Keep::kAll, 15'000, 1);
  const auto files = Files(true);
  const uint64_t version = files->indexes[0]->Prepare();
  EXPECT_FALSE(files->indexes[0]->rows(version).has_value());
  EXPECT_TRUE(
      files->indexes[0]
          ->Find(version, 0, true, [](const RowCount& before) { return before.rows <= 14'000; })
          .has_value());
  ExpectSame(files, Keep::kAll);
}

TEST_F(TextIndexTest, AChangedFileIsReadAnew) {
  std::string text = Rows(3000);
  for (const bool gzip : {false, true}) {
    paths_ = {folder_.Write("a", gzip ? Gzip(text) : text)};
    const auto files = Files(true, Keep::kMarked);
    Read(files, Keep::kMarked, INT64_MAX, 1);
    const auto time = std::filesystem::last_write_time(paths_[0]);
    // The file has the same size and time, but another first row: the first bytes show it.
    std::string other = "a,b\n#" + text.substr(5);
    ASSERT_EQ(other.size(), text.size());
    folder_.Write("a", gzip ? Gzip(other) : other);
    std::filesystem::last_write_time(paths_[0], time);
    ExpectSame(files, Keep::kMarked);
    ExpectSame(Files(true, Keep::kMarked), Keep::kMarked);
    // Longer.
    folder_.Write("a", gzip ? Gzip(text + "5,6\n") : text + "5,6\n");
    ExpectSame(files, Keep::kOthers);
    ExpectSame(Files(true, Keep::kOthers), Keep::kOthers);
  }
}

// A reader that has opened the file before it changed may go on with the old one.
TEST_F(TextIndexTest, NothingIsNotedOfAFileThatWasReplaced) {
  paths_ = {folder_.Write("a", Rows(2000))};
  TextIndex index(paths_[0], "all rows", options_);
  const uint64_t before = index.Prepare();
  EXPECT_TRUE(index.WantsPlace(before, 5000));
  std::filesystem::remove(paths_[0]);
  EXPECT_EQ(index.Prepare(), 0u);
  folder_.Write("a", Rows(3000));
  const uint64_t after = index.Prepare();
  EXPECT_FALSE(index.WantsPlace(before, 5000));
  index.Note(before, RowPlace{5000, 9, {8, 0}});
  index.NoteEnd(before, {2000, 0});
  EXPECT_FALSE(index.rows(after).has_value());
  EXPECT_FALSE(index.Find(after, 0, false, [](const RowCount&) { return true; }).has_value());
  index.NoteEnd(after, {3000, 0});
  EXPECT_EQ(index.rows(after)->rows, 3000);
  EXPECT_FALSE(index.rows(before).has_value());
}

// Every byte of what is kept matters, and no damage of it is trusted.
TEST_F(TextIndexTest, ADamagedIndexIsMadeAnew) {
  paths_ = {folder_.Write("a", Gzip(Rows(2000)))};
  Read(Files(true), Keep::kAll, INT64_MAX, 1);
  ASSERT_EQ(Kept().size(), 1u);
  const std::string path = Kept()[0];
  const std::string whole = KeptBytes();
  const auto is_known = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    const auto files = Files(true);
    return files->indexes[0]->rows(files->indexes[0]->Prepare()).has_value();
  };
  EXPECT_TRUE(is_known(whole));
  for (size_t i = 0; i < whole.size(); i += i < 400 ? 1 : 997) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    ASSERT_FALSE(is_known(damaged)) << i;
    ASSERT_FALSE(is_known(whole.substr(0, i))) << i;
  }
  ExpectSame(Files(true), Keep::kAll);
  EXPECT_EQ(Kept().size(), 1u);
}

// An index of version 1 had a checksum of all its bytes.
TEST_F(TextIndexTest, AnIndexOfAnotherVersionIsReplaced) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(2000)))};
  Read(Files(true), Keep::kAll, INT64_MAX, 1);
  const std::string whole = KeptBytes();
  std::string old = whole;
  old[8] = 1;
  const uint32_t checksum = ExtendCrc32c(Crc32c(old.data(), 12), old.data() + 16, old.size() - 16);
  std::copy_n(reinterpret_cast<const char*>(&checksum), sizeof(checksum), old.begin() + 12);
  std::ofstream(Kept()[0], std::ios::binary) << old;
  const auto files = Files(true);
  EXPECT_FALSE(files->indexes[0]->rows(files->indexes[0]->Prepare()).has_value());
  EXPECT_EQ(KeptBytes(), old);
  Read(files, Keep::kAll, INT64_MAX, 1);
  EXPECT_EQ(KeptBytes(), whole);
  EXPECT_EQ(Kept().size(), 1u);
}

// A long file's index grows with it: each write appends what is new, and leaves the rest alone.
TEST_F(TextIndexTest, WhatIsInTheFileIsNotWrittenAgain) {
  constexpr int64_t kStep = 4 << 10;
  constexpr int kPlaces = 2500;  // 10 MB of text, a write every 25 or 26 places.
  constexpr size_t kWindow = 3000;
  paths_ = {folder_.Write("a", Gzip(Rows(10)))};
  TextIndex index(paths_[0], "all rows", options_);
  const uint64_t version = index.Prepare();
  std::vector<size_t> sizes;
  ino_t file = 0;
  char damaged = 0;
  for (int i = 1; i <= kPlaces; ++i) {
    if (i % 4 == 0) {
      index.Note(version, RestartPoint{i * kStep - 9, i * 900, 3, std::string(kWindow, 'w')});
    }
    index.Note(version, RowPlace{i * kStep, i * 40, {i * 30, 0}});
    if (Kept().empty()) continue;
    struct stat info;
    ASSERT_EQ(stat(Kept()[0].c_str(), &info), 0);
    const auto size = static_cast<size_t>(info.st_size);
    if (sizes.empty()) {
      file = info.st_ino;
      // Were it written again, it would be whole again.
      std::fstream first(Kept()[0], std::ios::in | std::ios::out | std::ios::binary);
      first.seekg(static_cast<std::streamoff>(size) - 1);
      damaged = static_cast<char>(first.get() ^ 1);
      first.seekp(static_cast<std::streamoff>(size) - 1);
      first.put(damaged);
    }
    ASSERT_EQ(info.st_ino, file) << i;
    if (sizes.empty() || size != sizes.back()) sizes.push_back(size);
  }
  ASSERT_GE(sizes.size(), size_t{kPlaces / 26});
  for (size_t i = 1; i < sizes.size(); ++i) {
    EXPECT_GE(sizes[i] - sizes[i - 1], 25 * sizeof(RowPlace) + 6 * kWindow) << i;
    EXPECT_LE(sizes[i] - sizes[i - 1], 26 * sizeof(RowPlace) + 7 * (kWindow + 64)) << i;
  }
  EXPECT_EQ(KeptBytes()[sizes[0] - 1], damaged);
}

// A worker that is killed while it writes leaves a part of a record.
TEST_F(TextIndexTest, ATornTailIsCutAndTheRestGoneOnFrom) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(20'000)))};
  const int64_t rows = Read(Files(true), Keep::kAll, INT64_MAX, 1).skipped;
  const std::string path = Kept()[0];
  const std::string whole = KeptBytes();
  struct stat before, after;
  for (size_t cut = 1; cut < whole.size(); cut += cut < 100 ? 7 : whole.size() / 7) {
    SCOPED_TRACE(cut);
    const std::string torn = whole.substr(0, whole.size() - cut) + (cut % 2 == 0 ? "torn" : "");
    std::ofstream(path, std::ios::binary) << torn;
    ASSERT_EQ(stat(path.c_str(), &before), 0);
    // Who only reads takes the whole records, and leaves the file as it is.
    options_.writes = false;
    const auto reader = Files(true)->indexes[0];
    EXPECT_FALSE(reader->rows(reader->Prepare()).has_value());
    EXPECT_EQ(KeptBytes(), torn);
    options_.writes = true;
    const auto files = Files(true);
    files->indexes[0]->Prepare();
    const std::string kept = KeptBytes();
    EXPECT_LT(kept.size(), torn.size());
    EXPECT_EQ(kept, whole.substr(0, kept.size()));
    Read(files, Keep::kAll, INT64_MAX, 1);
    EXPECT_EQ(KeptBytes().substr(0, kept.size()), kept);
    ASSERT_EQ(stat(path.c_str(), &after), 0);
    EXPECT_EQ(after.st_ino, before.st_ino);
    const auto again = Files(true)->indexes[0];
    const uint64_t version = again->Prepare();
    ASSERT_TRUE(again->rows(version).has_value());
    EXPECT_EQ(again->rows(version)->rows, rows);
    EXPECT_TRUE(WayTo(*again, version, rows).has_value());
    EXPECT_EQ(Read(Files(true), Keep::kAll, rows - 99, 9).rows,
              Read(Files(false), Keep::kAll, rows - 99, 9).rows);
  }
}

// A window that is in the file is read when it is needed, and only as it was written.
TEST_F(TextIndexTest, AWindowIsReadFromTheFile) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(40'000)))};
  const auto files = Files(true);
  Read(files, Keep::kAll, INT64_MAX, 1);
  const std::string whole = KeptBytes();
  const std::string path = Kept()[0];
  // One that has written them, and one that has found them.
  for (const auto& index : {files->indexes[0], Files(true)->indexes[0]}) {
    const uint64_t version = index->Prepare();
    const auto way = WayTo(*index, version, 30'000);
    ASSERT_TRUE(way.has_value());
    ASSERT_FALSE(way->point.window.empty());
    const size_t at = whole.find(way->point.window);
    ASSERT_NE(at, std::string::npos);
    for (const size_t byte : {at, at + way->point.window.size() - 1}) {
      std::string flipped = whole;
      flipped[byte] = static_cast<char>(flipped[byte] ^ 1);
      std::ofstream(path, std::ios::binary) << flipped;
      EXPECT_FALSE(WayTo(*index, version, 30'000).has_value());
      EXPECT_TRUE(WayTo(*index, version, 10'000).has_value());
    }
    std::filesystem::resize_file(path, at + 1);
    EXPECT_FALSE(WayTo(*index, version, 30'000).has_value());
    std::filesystem::remove(path);
    EXPECT_FALSE(WayTo(*index, version, 10'000).has_value());
    std::ofstream(path, std::ios::binary) << whole;
    EXPECT_TRUE(WayTo(*index, version, 30'000).has_value());
  }
  std::filesystem::remove(path);
  ExpectSame(files, Keep::kAll);
}

TEST_F(TextIndexTest, WithoutAFileWindowsStayInMemory) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(20'000)))};
  for (const bool has_folder : {false, true}) {
    if (!has_folder) options_.folder.clear();
    if (has_folder) options_.folder = paths_[0] + "/below";  // It can't be made.
    const auto files = Files(true);
    Read(files, Keep::kAll, INT64_MAX, 1);
    const auto way = WayTo(*files->indexes[0], files->indexes[0]->Prepare(), 15'000);
    ASSERT_TRUE(way.has_value());
    EXPECT_FALSE(way->point.window.empty());
    ExpectSame(files, Keep::kAll);
  }
}

// The folder may be removed at any time; what lay there is gathered anew.
TEST_F(TextIndexTest, AnIndexThatIsRemovedAmidAReadingIsMadeByTheNext) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(20'000)))};
  const auto files = Files(true);
  Read(files, Keep::kAll, 10'000, 1);
  ASSERT_EQ(Kept().size(), 1u);
  std::filesystem::remove_all(options_.folder);
  ExpectSame(files, Keep::kAll);
  const auto again = Files(true)->indexes[0];
  EXPECT_TRUE(again->rows(again->Prepare()).has_value());
}

// Two that write a file, which should not be: what is there afterwards is true, if not of both.
TEST_F(TextIndexTest, WhatAnotherHasAppendedIsNotWrittenOver) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(20'000)))};
  const auto first = Files(true);
  Read(first, Keep::kAll, 8000, 1);
  Read(Files(true), Keep::kAll, 15'000, 1);
  const std::string kept = KeptBytes();
  Read(first, Keep::kAll, INT64_MAX, 1);
  EXPECT_EQ(KeptBytes().substr(0, kept.size()), kept);
  ExpectSame(first, Keep::kAll);
  ExpectSame(Files(true), Keep::kAll);
}

// A part of a write that failed may be in the file.
TEST_F(TextIndexTest, AFullDiskLeavesWhatWasThere) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(20'000)))};
  Read(Files(true), Keep::kAll, 10'000, 1);
  const std::string kept = KeptBytes();
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto on_signal = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit limited = before;
  limited.rlim_cur = kept.size() + 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  const auto files = Files(true);
  Read(files, Keep::kAll, INT64_MAX, 1);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, on_signal);
  const std::string torn = KeptBytes();
  EXPECT_EQ(torn.size(), kept.size() + 1000);
  EXPECT_EQ(torn.substr(0, kept.size()), kept);
  // It goes on from memory; the next takes what is whole.
  EXPECT_TRUE(WayTo(*files->indexes[0], files->indexes[0]->Prepare(), 19'000).has_value());
  ExpectSame(files, Keep::kAll);
  EXPECT_EQ(KeptBytes(), torn);
  ExpectSame(Files(true), Keep::kAll);
  EXPECT_EQ(KeptBytes().substr(0, kept.size()), kept);
}

TEST_F(TextIndexTest, ReadersShareAnIndexThatIsWritten) {
  paths_ = {folder_.Write("a", GzipInBlocks(Rows(8000)))};
  const auto files = Files(true);
  const Reading wanted = Read(Files(false), Keep::kAll, 7000, 3);
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&, i] {
      Read(files, Keep::kAll, i * 2000, 5000);
      EXPECT_TRUE(Read(files, Keep::kAll, 7000, 3) == wanted);
    });
  }
  for (std::thread& reader : readers) reader.join();
  ExpectSame(files, Keep::kAll);
  ExpectSame(Files(true), Keep::kAll);
}

TEST_F(TextIndexTest, NumbersThatCantBeAreNotTrusted) {
  paths_ = {folder_.Write("a", Rows(2000))};
  const auto is_known = [&](const RowPlace& place, const RowCount& all) {
    {
      TextIndex index(paths_[0], "all rows", options_);
      const uint64_t version = index.Prepare();
      index.Note(version, place);
      index.NoteEnd(version, all);
    }
    TextIndex index(paths_[0], "all rows", options_);
    const bool known = index.rows(index.Prepare()).has_value();
    for (const std::string& path : Kept()) std::filesystem::remove(path);
    return known;
  };
  EXPECT_TRUE(is_known({5000, 9, {8, 3}}, {2000, 3}));
  EXPECT_FALSE(is_known({5000, 9, {-8, -9}}, {2000, 3}));
  EXPECT_FALSE(is_known({5000, 9, {8, 9}}, {2000, 3}));
  EXPECT_FALSE(is_known({5000, -9, {8, 3}}, {2000, 3}));
  EXPECT_FALSE(is_known({5000, 9, {8, 3}}, {2000, 2001}));
}

// The text changed where size, time, first and last bytes don't tell: what is not the begin of a
// line is noticed, and the index is dropped.
TEST_F(TextIndexTest, APlaceWhereNoLineBeginsIsNotTrusted) {
  std::string text = Rows(40'000);
  paths_ = {folder_.Write("a", text)};
  const auto files = Files(true);
  Read(files, Keep::kAll, INT64_MAX, 1);
  const auto time = std::filesystem::last_write_time(paths_[0]);
  for (size_t i = 70'000; i < text.size() - 70'000; ++i) {
    if (text[i] == '\n' || text[i] == '"') text[i] = 'z';
  }
  folder_.Write("a", text);
  std::filesystem::last_write_time(paths_[0], time);
  for (const int64_t skip : {1000, 5000, 20'000}) {
    EXPECT_TRUE(Read(Files(true), Keep::kAll, skip, 3) == Read(Files(false), Keep::kAll, skip, 3));
  }
}

// Indexes of other ways to read a file, or of readers that only read, are apart.
TEST_F(TextIndexTest, OnlyWhoWritesWrites) {
  paths_ = {folder_.Write("a", Rows(2000))};
  options_.writes = false;
  Read(Files(true), Keep::kAll, INT64_MAX, 1);
  EXPECT_TRUE(Kept().empty());
  options_.writes = true;
  Read(Files(true), Keep::kAll, INT64_MAX, 1);
  EXPECT_EQ(Kept().size(), 1u);
  TextIndex other(paths_[0], "another way", options_);
  EXPECT_FALSE(other.rows(other.Prepare()).has_value());
  // A folder that can't be made is no error.
  options_.folder = paths_[0] + "/below";
  ExpectSame(Files(true), Keep::kAll);
}

// It may take long to answer.
TEST_F(TextIndexTest, ReadersGoOnWhileTheStoreIsAsked) {
  store_->Put("s3://logs/a", "1\n");
  TextIndex index("s3://logs/a", "a way", options_, store_);
  const uint64_t version = index.Prepare();
  std::optional<RowCount> seen;
  store_->on_identify = [&] { std::thread([&] { seen = index.rows(version); }).join(); };
  index.NoteEnd(version, {17, 0});
  ASSERT_TRUE(seen.has_value());
  EXPECT_EQ(seen->rows, 17);
  EXPECT_EQ(Kept().size(), 1u);
}

}  // namespace
}  // namespace thermocline
