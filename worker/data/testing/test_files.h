// Files that tests of this folder write, and how they compress them.
#ifndef THERMOCLINE_WORKER_DATA_TESTING_TEST_FILES_H_
#define THERMOCLINE_WORKER_DATA_TESTING_TEST_FILES_H_

#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/check.h"
#include "gtest/gtest.h"

namespace thermocline {

// A new folder, which the destructor removes with all that is in it.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = testing::TempDir() + "/thermocline_XXXXXX";
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }

  const std::string& path() const { return path_; }

  // Writes a file and returns its path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = path_ + "/" + name;
    std::ofstream out(path, std::ios::binary);
    out << bytes;
    out.close();
    CHECK(out.good());
    return path;
  }

 private:
  std::string path_;
};

// Returns `text` as one member of gzip, by zlib's level and strategy. `header` may be null.
inline std::string GzipBy(const std::string& text, int level, int strategy,
                          gz_header* header = nullptr) {
  z_stream stream = {};
  CHECK_EQ(deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, strategy), Z_OK);
  if (header != nullptr) CHECK_EQ(deflateSetHeader(&stream, header), Z_OK);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  CHECK_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

// Returns `text` as one member of gzip.
inline std::string Gzip(const std::string& text) { return GzipBy(text, 6, Z_DEFAULT_STRATEGY); }

// Returns `text` as one frame of zstd.
inline std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  const size_t size = ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3);
  CHECK(ZSTD_isError(size) == 0);
  out.resize(size);
  return out;
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_TESTING_TEST_FILES_H_
