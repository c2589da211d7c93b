// NumPy's .npy files: arrays of numbers in C order. Format:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#ifndef THERMOCLINE_COMMON_DISK_NPY_H_
#define THERMOCLINE_COMMON_DISK_NPY_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace thermocline {

struct NpyHeader {
  std::string dtype;           // As written: "<f4", "<i4", "<i8", ...
  std::vector<int64_t> shape;  // Empty: a single number.
  int64_t data_offset = 0;     // The place of the first element in the file.

  int64_t num_elements() const;
  int element_bytes() const;  // 0: the dtype isn't a plain little-endian number.
};

// "float32", "int64", ...; `dtype` itself where it is unknown.
std::string NpyDtypeName(absl::string_view dtype);
// "[100, 13]"
std::string NpyShapeName(const std::vector<int64_t>& shape);

// Parses the beginning of a file. `path` is for messages.
// Errors: kInvalidArgument (not an .npy file, a version or header that isn't understood, Fortran
// order), kDataLoss (`bytes` ends within the header).
absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view bytes, const std::string& path);

// A file's array, mapped into memory for reading. A process that shortens the file meanwhile kills
// this one (SIGBUS).
class MappedNpy {
 public:
  // Errors: as ParseNpyHeader; kNotFound; kDataLoss also where elements are missing (wanted and
  // found bytes); kInvalidArgument also for a dtype that isn't a plain number.
  static absl::StatusOr<std::unique_ptr<MappedNpy>> Open(const std::string& path);
  ~MappedNpy();
  MappedNpy(const MappedNpy&) = delete;
  MappedNpy& operator=(const MappedNpy&) = delete;

  const std::string& path() const { return path_; }
  const NpyHeader& header() const { return header_; }
  int64_t rows() const { return header_.shape.empty() ? 1 : header_.shape[0]; }
  const uint8_t* data() const { return base_ + header_.data_offset; }

 private:
  MappedNpy(std::string path, NpyHeader header, const uint8_t* base, size_t bytes);

  const std::string path_;
  const NpyHeader header_;
  const uint8_t* const base_;
  const size_t bytes_;
};

// Writes an array row by row, so that it is never in memory as a whole.
class NpyWriter {
 public:
  // row_shape: the shape of one row. The array's shape is the number of rows, then row_shape.
  // Errors of all calls: kUnavailable (the disk: file and reason), kNotFound (no such folder).
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(const std::string& path,
                                                           absl::string_view dtype,
                                                           const std::vector<int64_t>& row_shape);
  ~NpyWriter();
  NpyWriter(const NpyWriter&) = delete;
  NpyWriter& operator=(const NpyWriter&) = delete;

  // REQUIRES: `rows` whole rows of `data`.
  absl::Status Append(const void* data, int64_t rows);
  // Writes the header with the number of rows. Without it the file is not readable.
  absl::Status Finish();

 private:
  NpyWriter(std::string path, std::FILE* file, NpyHeader header);
  absl::Status WriteHeader();
  absl::Status Error() const;

  const std::string path_;
  std::FILE* file_;
  NpyHeader header_;  // shape[0]: rows so far
  int64_t row_bytes_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_NPY_H_
