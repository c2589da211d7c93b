#include "common/disk/npy.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/disk/retry_io.h"

namespace thermocline {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kVersionEnd = 8;
// Headers that we write have this size whatever the number of rows, so that they can be written
// last.
constexpr size_t kWrittenHeaderBytes = 128;
// More than any header of numbers has.
constexpr size_t kMaxHeaderBytes = 64 << 10;

template <typename... Parts>
absl::Status Invalid(const std::string& path, const Parts&... what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what...));
}

uint32_t LittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return value;
}

// The text of a Python dict's value: what follows 'name': up to the end of a string, tuple or word.
absl::StatusOr<absl::string_view> ValueOf(absl::string_view dict, absl::string_view name,
                                          const std::string& path) {
  const std::string quoted = absl::StrCat("'", name, "':");
  const size_t found = dict.find(quoted);
  if (found == absl::string_view::npos) {
    return Invalid(path, "the .npy header has no '", name, "'");
  }
  const absl::string_view value =
      absl::StripLeadingAsciiWhitespace(dict.substr(found + quoted.size()));
  const char close = absl::StartsWith(value, "(") ? ')' : absl::StartsWith(value, "'") ? '\'' : ',';
  const size_t end = value.find(close, 1);
  if (value.empty() || end == absl::string_view::npos) {
    return Invalid(path, "the .npy header's '", name, "' does not end");
  }
  return close == ',' ? absl::StripAsciiWhitespace(value.substr(0, end)) : value.substr(1, end - 1);
}

absl::StatusOr<NpyHeader> ParseDict(absl::string_view dict, const std::string& path) {
  NpyHeader header;
  ASSIGN_OR_RETURN(const absl::string_view dtype, ValueOf(dict, "descr", path));
  header.dtype = std::string(dtype);
  ASSIGN_OR_RETURN(const absl::string_view order, ValueOf(dict, "fortran_order", path));
  if (order == "True") return Invalid(path, "the array is in Fortran order; C order is wanted");
  if (order != "False") {
    return Invalid(path, "the .npy header's fortran_order is '", order, "'");
  }
  ASSIGN_OR_RETURN(const absl::string_view shape, ValueOf(dict, "shape", path));
  int64_t elements = 1;
  for (absl::string_view part : absl::StrSplit(shape, ',')) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) continue;  // After the last comma.
    int64_t size;
    if (!absl::SimpleAtoi(part, &size) || size < 0 ||
        __builtin_mul_overflow(elements, std::max<int64_t>(size, 1), &elements) ||
        elements > (int64_t{1} << 58)) {
      return Invalid(path, "the .npy header's shape is (", shape, ")");
    }
    header.shape.push_back(size);
  }
  return header;
}

}  // namespace

int64_t NpyHeader::num_elements() const {
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

int NpyHeader::element_bytes() const {
  if (dtype.size() != 3 || (dtype[0] != '<' && dtype[0] != '|')) return 0;
  if (std::strchr("fiub", dtype[1]) == nullptr) return 0;
  const int bytes = dtype[2] - '0';
  if (dtype[0] == '|' && bytes != 1) return 0;
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 ? bytes : 0;
}

std::string NpyDtypeName(absl::string_view dtype) {
  if (dtype.size() == 3 && dtype[0] != '>' && dtype[2] >= '1' && dtype[2] <= '8') {
    const int bits = 8 * (dtype[2] - '0');
    if (dtype[1] == 'f') return absl::StrCat("float", bits);
    if (dtype[1] == 'i') return absl::StrCat("int", bits);
    if (dtype[1] == 'u') return absl::StrCat("uint", bits);
    if (dtype[1] == 'b') return "bool";
  }
  return std::string(dtype);
}

std::string NpyShapeName(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view bytes, const std::string& path) {
  if (bytes.substr(0, kMagic.size()) != kMagic.substr(0, bytes.size())) {
    return Invalid(path, "not an .npy file");
  }
  const absl::Status cut_off = absl::DataLossError(
      absl::StrCat(path, ": the file ends within its .npy header, after ", bytes.size(), " bytes"));
  if (bytes.size() < kVersionEnd) return cut_off;
  const int version = bytes[kMagic.size()];
  if (version < 1 || version > 3) {
    return Invalid(path, "version ", version, " of the .npy format is not known");
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t dict_begin = kVersionEnd + length_bytes;
  if (bytes.size() < dict_begin) return cut_off;
  const uint32_t length = LittleEndian(bytes.substr(kVersionEnd, length_bytes));
  if (length > kMaxHeaderBytes) {
    return Invalid(path, "an .npy header of ", length, " bytes is too long");
  }
  if (bytes.size() < dict_begin + length) return cut_off;
  ASSIGN_OR_RETURN(NpyHeader header, ParseDict(bytes.substr(dict_begin, length), path));
  header.data_offset = static_cast<int64_t>(dict_begin + length);
  return header;
}

MappedNpy::MappedNpy(std::string path, NpyHeader header, const uint8_t* base, size_t bytes)
    : path_(std::move(path)), header_(std::move(header)), base_(base), bytes_(bytes) {}

MappedNpy::~MappedNpy() { munmap(const_cast<uint8_t*>(base_), bytes_); }

absl::StatusOr<std::unique_ptr<MappedNpy>> MappedNpy::Open(const std::string& path) {
  const auto fd =
      static_cast<int>(RetryIo([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC); }));
  if (fd < 0) return FileError(path, "cannot open", errno);
  struct stat info = {};
  const int stat_error = fstat(fd, &info) == 0 ? 0 : errno;
  const size_t bytes = info.st_size;
  void* const base = stat_error == 0 && S_ISREG(info.st_mode) && bytes > 0
                         ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0)
                         : nullptr;
  const int map_error = errno;
  close(fd);
  if (stat_error != 0) return FileError(path, "cannot stat", stat_error);
  if (!S_ISREG(info.st_mode)) return Invalid(path, "not a plain file");
  if (bytes == 0) return absl::DataLossError(absl::StrCat(path, ": the file is empty"));
  if (base == MAP_FAILED) return FileError(path, "cannot map into memory", map_error);

  // Owns the mapping from here on.
  std::unique_ptr<MappedNpy> npy;
  absl::StatusOr<NpyHeader> header =
      ParseNpyHeader(absl::string_view(static_cast<const char*>(base), bytes), path);
  npy.reset(new MappedNpy(path, header.ok() ? *header : NpyHeader(),
                          static_cast<const uint8_t*>(base), bytes));
  RETURN_IF_ERROR(header.status());
  if (header->element_bytes() == 0) {
    return Invalid(path, "dtype '", header->dtype, "' is not a plain little-endian number");
  }
  const int64_t wanted = header->num_elements() * header->element_bytes();
  const int64_t found = static_cast<int64_t>(bytes) - header->data_offset;
  if (found < wanted) {
    return absl::DataLossError(absl::StrCat(path, ": the file is cut off: ", found,
                                            " bytes of data, ", NpyDtypeName(header->dtype), " ",
                                            NpyShapeName(header->shape), " needs ", wanted));
  }
  return npy;
}

NpyWriter::NpyWriter(std::string path, std::FILE* file, NpyHeader header)
    : path_(std::move(path)),
      file_(file),
      header_(std::move(header)),
      row_bytes_(header_.element_bytes()) {
  for (size_t i = 1; i < header_.shape.size(); ++i) row_bytes_ *= header_.shape[i];
}

NpyWriter::~NpyWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(
    const std::string& path, absl::string_view dtype, const std::vector<int64_t>& row_shape) {
  NpyHeader header;
  header.dtype = std::string(dtype);
  CHECK_GT(header.element_bytes(), 0);
  header.shape = {0};
  header.shape.insert(header.shape.end(), row_shape.begin(), row_shape.end());
  std::FILE* const file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return FileError(path, "cannot create", errno);
  std::unique_ptr<NpyWriter> writer(new NpyWriter(path, file, std::move(header)));
  std::setvbuf(file, nullptr, _IOFBF, 1 << 20);
  // Zeros until Finish(): no reader takes them for a header.
  const char zeros[kWrittenHeaderBytes] = {};
  if (std::fwrite(zeros, 1, sizeof(zeros), file) != sizeof(zeros)) return writer->Error();
  return writer;
}

absl::Status NpyWriter::Error() const { return FileError(path_, "cannot write", errno); }

absl::Status NpyWriter::Append(const void* data, int64_t rows) {
  const size_t bytes = static_cast<size_t>(rows * row_bytes_);
  if (std::fwrite(data, 1, bytes, file_) != bytes) return Error();
  header_.shape[0] += rows;
  return absl::OkStatus();
}

absl::Status NpyWriter::WriteHeader() {
  std::string dict = absl::StrCat(
      "{'descr': '", header_.dtype, "', 'fortran_order': False, 'shape': (",
      absl::StrJoin(header_.shape, ", "), header_.shape.size() == 1 ? "," : "", "), }");
  const size_t dict_bytes = kWrittenHeaderBytes - kVersionEnd - 2;
  CHECK_LT(dict.size(), dict_bytes);
  dict.resize(dict_bytes - 1, ' ');
  dict += '\n';
  std::string front(kMagic);
  front += {1, 0, static_cast<char>(dict_bytes & 0xff), static_cast<char>(dict_bytes >> 8)};
  front += dict;
  if (std::fseek(file_, 0, SEEK_SET) != 0) return Error();
  if (std::fwrite(front.data(), 1, front.size(), file_) != front.size()) return Error();
  return absl::OkStatus();
}

absl::Status NpyWriter::Finish() {
  absl::Status status = WriteHeader();
  std::FILE* const file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0 && status.ok()) status = Error();
  return status;
}

}  // namespace thermocline
