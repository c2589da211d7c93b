#include "common/disk/npy.h"

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

std::string TempPath(const std::string& name) { return testing::TempDir() + "/npy_test_" + name; }

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A file as NumPy writes it, version 1.
std::string NpyBytes(const std::string& dict, const std::string& data) {
  std::string header = dict;
  while ((10 + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + data;
}

TEST(Npy, WritesWhatItReads) {
  const std::string path = TempPath("round_trip.npy");
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  {
    auto writer = NpyWriter::Create(path, "<f4", {3});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append(values.data(), 1).ok());
    ASSERT_TRUE((*writer)->Append(values.data() + 3, 1).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  }
  auto npy = MappedNpy::Open(path);
  ASSERT_TRUE(npy.ok()) << npy.status();
  EXPECT_EQ((*npy)->header().dtype, "<f4");
  EXPECT_EQ((*npy)->header().shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*npy)->rows(), 2);
  EXPECT_EQ(std::memcmp((*npy)->data(), values.data(), 24), 0);
}

TEST(Npy, WritesTheHeaderThatNumpyDocuments) {
  const std::string path = TempPath("header.npy");
  auto writer = NpyWriter::Create(path, "<i4", {});
  ASSERT_TRUE(writer.ok());
  const int32_t value = 7;
  ASSERT_TRUE((*writer)->Append(&value, 1).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const std::string bytes = ReadFile(path);
  EXPECT_EQ(bytes.size(), 128u + 4);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
  const std::string dict = "{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }";
  EXPECT_EQ(bytes.substr(10, dict.size()), dict);
  EXPECT_EQ(bytes[127], '\n');
}

TEST(Npy, UnfinishedFileIsNotReadable) {
  const std::string path = TempPath("unfinished.npy");
  {
    auto writer = NpyWriter::Create(path, "<i4", {});
    ASSERT_TRUE(writer.ok());
    const int32_t value = 7;
    ASSERT_TRUE((*writer)->Append(&value, 1).ok());
  }
  EXPECT_EQ(MappedNpy::Open(path).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Npy, ReadsVersions1To3) {
  const std::string dict = "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 1), }\n";
  for (char version : {2, 3}) {
    std::string bytes("\x93NUMPY", 6);
    bytes += {version, 0, static_cast<char>(dict.size()), 0, 0, 0};
    bytes += dict;
    auto header = ParseNpyHeader(bytes, "a.npy");
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->dtype, "<i8");
    EXPECT_EQ(header->shape, (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(header->data_offset, static_cast<int64_t>(bytes.size()));
  }
  auto header = ParseNpyHeader(NpyBytes(dict, ""), "a.npy");
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->num_elements(), 2);
  EXPECT_EQ(header->data_offset % 64, 0);
}

struct BadFile {
  std::string name;
  std::string bytes;
  absl::StatusCode code;
  std::string message;  // after the path
};

TEST(Npy, BadFilesAreNamed) {
  const std::string good =
      NpyBytes("{'descr': '<f4', 'fortran_order': False, 'shape': (4, 2), }", std::string(32, 'x'));
  std::string version_9 = good;
  version_9[6] = 9;
  using Code = absl::StatusCode;
  const std::vector<BadFile> files = {
      {"empty", "", Code::kDataLoss, "the file is empty"},
      {"other", "PK\x03\x04 something else", Code::kInvalidArgument, "not an .npy file"},
      {"version", version_9, Code::kInvalidArgument, "version 9 of the .npy format is not known"},
      {"half_header", good.substr(0, 40), Code::kDataLoss,
       "the file ends within its .npy header, after 40 bytes"},
      {"magic_only", good.substr(0, 7), Code::kDataLoss,
       "the file ends within its .npy header, after 7 bytes"},
      {"cut", good.substr(0, good.size() - 5), Code::kDataLoss,
       "the file is cut off: 27 bytes of data, float32 [4, 2] needs 32"},
      {"fortran",
       NpyBytes("{'descr': '<f4', 'fortran_order': True, 'shape': (4, 2), }", std::string(32, 'x')),
       Code::kInvalidArgument, "the array is in Fortran order; C order is wanted"},
      {"big_endian",
       NpyBytes("{'descr': '>f4', 'fortran_order': False, 'shape': (4, 2), }",
                std::string(32, 'x')),
       Code::kInvalidArgument, "dtype '>f4' is not a plain little-endian number"},
      {"no_shape", NpyBytes("{'descr': '<f4', 'fortran_order': False, }", ""),
       Code::kInvalidArgument, "the .npy header has no 'shape'"},
      {"shape_text", NpyBytes("{'descr': '<f4', 'fortran_order': False, 'shape': (4, -2), }", ""),
       Code::kInvalidArgument, "the .npy header's shape is (4, -2)"},
      {"shape_overflow",
       NpyBytes("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }",
                ""),
       Code::kInvalidArgument, "the .npy header's shape is (4294967296, 4294967296)"},
  };
  for (const BadFile& file : files) {
    const std::string path = TempPath(file.name + ".npy");
    WriteFile(path, file.bytes);
    const absl::Status status = MappedNpy::Open(path).status();
    EXPECT_EQ(status.code(), file.code) << file.name << ": " << status;
    EXPECT_EQ(status.message(), path + ": " + file.message);
  }
}

TEST(Npy, MissingFileAndFolder) {
  const std::string path = TempPath("not_there.npy");
  EXPECT_EQ(MappedNpy::Open(path).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(MappedNpy::Open(path).status().message(),
            path + ": cannot open: No such file or directory");
  EXPECT_EQ(NpyWriter::Create(TempPath("no/such/folder.npy"), "<f4", {}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(MappedNpy::Open(testing::TempDir()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Npy, Names) {
  EXPECT_EQ(NpyDtypeName("<f4"), "float32");
  EXPECT_EQ(NpyDtypeName("<i8"), "int64");
  EXPECT_EQ(NpyDtypeName("|b1"), "bool");
  EXPECT_EQ(NpyDtypeName(">f4"), ">f4");
  EXPECT_EQ(NpyDtypeName("<U10"), "<U10");
  EXPECT_EQ(NpyShapeName({3}), "[3]");
  EXPECT_EQ(NpyShapeName({3, 4}), "[3, 4]");
}

}  // namespace
}  // namespace thermocline
