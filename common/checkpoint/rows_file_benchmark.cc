// How fast rows are written to and read from a file of a checkpoint. Prints setup, then each
// repeat.
//
//   rows_file_benchmark [FOLDER [MILLION_ROWS [FLOATS [REPEATS]]]]   default: /tmp 4 32 5
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/timing.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"

namespace thermocline {
namespace {

struct Setup {
  std::string folder = "/tmp";
  uint64_t rows = 4000000;
  size_t floats = 32;
  int repeats = 5;
};

// Wall time and CPU time of this process: other work on the machine counts only in the first.
class Timer {
 public:
  Timer() : cpu_s_(CpuSeconds()) {}
  void Print(const char* what, uint64_t bytes) const {
    const double cpu_s = CpuSeconds() - cpu_s_;
    const double wall_s = absl::ToDoubleSeconds(wall_.Elapsed());
    std::printf("  %-26s %6.3f s %6.0f MB/s   of processor time %6.3f s %6.0f MB/s\n", what, wall_s,
                1e-6 * bytes / wall_s, cpu_s, 1e-6 * bytes / cpu_s);
  }

 private:
  static double CpuSeconds() {
    timespec time;
    CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
    return time.tv_sec + 1e-9 * time.tv_nsec;
  }

  const Stopwatch wall_;
  const double cpu_s_;
};

// The keys are computed beforehand: a server has them sorted in its own way, and writes so many
// rows at a time.
constexpr size_t kSliceRows = 4096;
constexpr TableId kTable(1);

void Run(const Setup& setup, const std::vector<Key>& keys) {
  PosixDisk disk;
  const std::vector<uint32_t> ones(kSliceRows, 1);
  const std::vector<char> has_row(kSliceRows, 1);
  const std::vector<float> floats(kSliceRows * setup.floats, 0.25f);
  const Timer writing;
  auto writer = RowsFileWriter::Create(&disk, setup.folder, "rows_file_benchmark/rows.rows");
  CHECK(writer.ok());
  for (size_t at = 0; at < keys.size(); at += kSliceRows) {
    const auto slice = absl::MakeConstSpan(keys).subspan(at, kSliceRows);
    const auto of_slice = [&](const auto& column, size_t width) {
      return absl::MakeConstSpan(column).first(slice.size() * width);
    };
    CHECK((*writer)
              ->AddRows(kTable, setup.floats,
                        {slice, of_slice(ones, 1), of_slice(ones, 1), of_slice(has_row, 1),
                         of_slice(floats, setup.floats)})
              .ok());
  }
  writing.Print("write, without last sync", keys.size() * RowValueBytes(setup.floats));
  const auto file = (*writer)->Finish();
  CHECK(file.ok());
  writing.Print("write", (*file)->bytes());
  // A file that was just written is not in the page cache.
  for (const char* what : {"read", "read (page cache)"}) {
    const Timer reading;
    const auto reader = RowsFileReader::Open(&disk, setup.folder, **file);
    CHECK(reader.ok());
    uint64_t rows = 0;
    for (SavedRow saved;; ++rows) {
      const auto found = (*reader)->Next(&saved);
      CHECK(found.ok());
      if (!*found) break;
    }
    CHECK_EQ(rows, keys.size());
    reading.Print(what, (*file)->bytes());
  }
  CHECK(disk.Remove(setup.folder + "/rows_file_benchmark/rows.rows").ok());
  CHECK(disk.RemoveDirectory(setup.folder + "/rows_file_benchmark").ok());
}

int Main(int argc, char** argv) {
  Setup setup;
  if (argc > 1) setup.folder = argv[1];
  if (argc > 2) setup.rows = static_cast<uint64_t>(1e6 * std::atof(argv[2]));
  if (argc > 3) setup.floats = static_cast<size_t>(std::atoi(argv[3]));
  if (argc > 4) setup.repeats = std::atoi(argv[4]);
  std::printf("%llu rows of %zu floats in %s, one thread\n",
              static_cast<unsigned long long>(setup.rows), setup.floats, setup.folder.c_str());
  std::vector<Key> keys(setup.rows);
  std::iota(keys.begin(), keys.end(), 0);
  std::sort(keys.begin(), keys.end(),
            [](Key a, Key b) { return RowKeyOf(kTable, a) < RowKeyOf(kTable, b); });
  for (int repeat = 0; repeat < setup.repeats; ++repeat) Run(setup, keys);
  return 0;
}

}  // namespace
}  // namespace thermocline

int main(int argc, char** argv) { return thermocline::Main(argc, argv); }
