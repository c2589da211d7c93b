// Indexes of text files: readers that go to a row see what readers from the first row see, and a
// file that is no longer the same is read anew.
#include "worker/data/text_index.h"

#include <algorithm>
#include <atomic>
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
#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "worker/data/row_stream.h"
#include "worker/data/test_files.h"

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

  // As readers without an index do, from every place.
  void ExpectSame(const std::shared_ptr<TextFiles>& indexed, Keep keep) {
    const int64_t rows = Read(Files(false), keep, INT64_MAX, 1).skipped;
    for (int64_t skip = 0; skip < rows + 200; skip += rows / 29 + 1) {
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
                                                {folder_.Write("members", in_pieces(Gzip))},
                                                {folder_.Write("zstd", Zstd(text))},
                                                {folder_.Write("frames", in_pieces(Zstd))}};
  store_->Put("s3://b/plain", text);
  store_->Put("s3://b/members", in_pieces(Gzip));
  store_->Put("s3://b/frames", in_pieces(Zstd));
  sets.push_back({"s3://b/plain", "s3://b/members", sets[1][0], "s3://b/frames"});
  sets.push_back({sets[1][0], folder_.Write("short", "a,b\n1,2\n"), sets[4][0], sets[0][0]});
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
    // Of the same size and time, with another first row: the first bytes tell.
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
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  const auto is_known = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    const auto files = Files(true);
    return files->indexes[0]->rows(files->indexes[0]->Prepare()).has_value();
  };
  EXPECT_TRUE(is_known(whole));
  for (size_t i = 0; i < whole.size(); i += i < 150 ? 1 : 997) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    ASSERT_FALSE(is_known(damaged)) << i;
    ASSERT_FALSE(is_known(whole.substr(0, i))) << i;
  }
  EXPECT_FALSE(is_known(whole + "x"));
  ExpectSame(Files(true), Keep::kAll);
  EXPECT_EQ(Kept().size(), 1u);
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
// line is noticed, and the index given up.
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
