#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/data/tsv_source.h"

namespace thermocline {
namespace {

// Two integers, two categories.
const TsvParser& Parser() {
  static const TsvParser* const parser = new TsvParser(2, {"C1", "C2"});
  return *parser;
}

struct Parsed {
  Batch batch;
  std::vector<int64_t> bad;
};

Parsed Parse(const TsvParser& parser, const std::vector<std::string>& lines) {
  std::string text;
  std::vector<uint64_t> begin = {0};
  for (const std::string& line : lines) {
    text += line + "\n";
    begin.push_back(text.size());
  }
  text.append(64, 'x');
  Parsed parsed;
  parser.ParseLines(text.data(), begin.data(), 0, static_cast<int64_t>(lines.size()), &parsed.batch,
                    &parsed.bad);
  return parsed;
}

std::vector<Key> KeysOf(const FeatureLookups& feature, int sample) {
  return {feature.keys.begin() + feature.offsets[sample],
          feature.keys.begin() + feature.offsets[sample + 1]};
}

TEST(TsvParser, ReadsEveryColumn) {
  const Parsed parsed =
      Parse(Parser(), {"1\t3\t-2\t05db9164\tff", "0\t\t100000\tA0\t", "1\t0\t2\t0\t1,2,0a\r"});
  const Batch& batch = parsed.batch;
  EXPECT_TRUE(parsed.bad.empty());
  ASSERT_EQ(batch.size, 3);
  EXPECT_EQ(batch.num_dense, 2);
  EXPECT_EQ(batch.dense_stride, 8);
  EXPECT_EQ(batch.labels[0], 1);
  EXPECT_EQ(batch.labels[1], 0);
  EXPECT_EQ(batch.dense_row(0)[0], static_cast<float>(std::log1p(3.0)));
  EXPECT_EQ(batch.dense_row(0)[1], 0);
  EXPECT_EQ(batch.dense_row(1)[0], 0);
  EXPECT_EQ(batch.dense_row(1)[1], static_cast<float>(std::log1p(100000.0)));
  for (int row = 0; row < 3; ++row) {
    for (int c = 2; c < 8; ++c) EXPECT_EQ(batch.dense[row * 8 + c], 0) << row << ", " << c;
  }
  EXPECT_EQ(KeysOf(batch.features[0], 0), (std::vector<Key>{0x05db9164}));
  EXPECT_EQ(KeysOf(batch.features[0], 1), (std::vector<Key>{0xA0}));
  EXPECT_EQ(KeysOf(batch.features[1], 0), (std::vector<Key>{0xff}));
  EXPECT_EQ(KeysOf(batch.features[1], 1), (std::vector<Key>{kEmptyCategoryKey}));
  EXPECT_EQ(KeysOf(batch.features[1], 2), (std::vector<Key>{1, 2, 10}));
}

TEST(TsvParser, IntegersAndDecimalsOfAllSizes) {
  const TsvParser parser(1, {});
  const std::vector<std::pair<std::string, double>> values = {
      {"0", 0},          {"4095", 4095},      {"4096", 4096},
      {"-0", 0},         {"-99999999999", 0}, {"123456789012345678", 123456789012345678.0},
      {"1.5", 1.5},      {"-1.5", 0},         {"1234567890123456789012", 1234567890123456789012.0},
      {"2e3", 2000},     {"007", 7},          {".5", 0.5},
      {"1e-300", 1e-300}};
  for (const auto& [text, value] : values) {
    const Parsed parsed = Parse(parser, {"0\t" + text});
    ASSERT_TRUE(parsed.bad.empty()) << text;
    EXPECT_EQ(parsed.batch.dense[0], static_cast<float>(std::log1p(value))) << text;
  }
}

TEST(TsvParser, SixteenDigitsAreAKey) {
  const TsvParser parser(0, {"C1"});
  EXPECT_EQ(Parse(parser, {"0\tfffffffffffffffe"}).batch.features[0].keys[0], ~Key{1});
  EXPECT_EQ(Parse(parser, {"0\t0123456789ABCDEF"}).batch.features[0].keys[0], 0x0123456789ABCDEFu);
}

TEST(TsvParser, MalformedLinesAreLeftOutAndSaidWhy) {
  const std::string good = "1\t3\t4\tab\tcd";
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"2\t3\t4\tab\tcd", "column 1 ('label'): '2' is not 0 or 1"},
      {"\t3\t4\tab\tcd", "column 1 ('label'): '' is not 0 or 1"},
      {"01\t3\t4\tab\tcd", "column 1 ('label'): '01' is not 0 or 1"},
      {"1\tx\t4\tab\tcd", "column 2 ('I1'): 'x' is not a number"},
      {"1\t3\t4-\tab\tcd", "column 3 ('I2'): '4-' is not a number"},
      {"1\t3\t-\tab\tcd", "column 3 ('I2'): '-' is not a number"},
      {"1\t3\tnan\tab\tcd", "column 3 ('I2'): 'nan' is not a number"},
      {"1\tinf\t4\tab\tcd", "column 2 ('I1'): 'inf' is not a number"},
      {"1\t3\t4 \tab\tcd", "column 3 ('I2'): '4 ' is not a number"},
      {"1\t3\t4\txyz\tcd", "column 4 ('C1'): 'xyz' is not a hexadecimal number"},
      {"1\t3\t4\tab\tcd ", "column 5 ('C2'): 'cd ' is not a hexadecimal number"},
      {"1\t3\t4\tab\tcd\r\r", "column 5 ('C2'): 'cd\\r' is not a hexadecimal number"},
      {"1\t3\t4\ta,,b\tcd", "column 4 ('C1'): an empty value among several"},
      {"1\t3\t4\ta,\tcd", "column 4 ('C1'): an empty value among several"},
      {"1\t3\t4\tab\t,", "column 5 ('C2'): an empty value among several"},
      {"1\t3\t4\t12345678901234567\tcd",
       "column 4 ('C1'): '12345678901234567' has more than 16 digits"},
      {"1\t3\t4\tffffffffffffffff\tcd",
       "column 4 ('C1'): 'ffffffffffffffff' is reserved for empty columns"},
      {"1\t3\t4\t" + std::string(50, 'z') + "\tcd",
       "column 4 ('C1'): '" + std::string(40, 'z') + "...' is not a hexadecimal number"},
      {"1\t3\t4\tab", "4 columns, not 5 (1 label + data.num_dense=2 + data.num_categorical=2)"},
      {"1", "1 column, not 5 (1 label + data.num_dense=2 + data.num_categorical=2)"},
      {"1\t3\t4\tab\tcd\tef",
       "6 columns, not 5 (1 label + data.num_dense=2 + data.num_categorical=2)"},
      {"1\t3\t4\tab\tcd\t",
       "6 columns, not 5 (1 label + data.num_dense=2 + data.num_categorical=2)"},
      {"1,3,4,ab,cd",
       "5 columns separated by commas; CRITEO_TSV separates them by tabs; convert the file, label "
       "first: tr ',' '\\t' < FILE"},
      {"click,I1,I2,C1,C2",
       "5 columns separated by commas; CRITEO_TSV separates them by tabs, and has no header, which "
       "the line looks like ('click,I1,I2,C1,C2'); convert the file, label first: tail -n +2 FILE "
       "| tr ',' '\\t'"},
      {"\"id\",\"click\",_x\r",
       "3 columns separated by commas; CRITEO_TSV separates them by tabs, and has no header, which "
       "the line looks like ('\\\"id\\\",\\\"click\\\",_x'); convert the file, label first: tail "
       "-n "
       "+2 FILE | tr ',' '\\t'"},
      {"label\tI1\tI2\tC1\tC2",
       "the line looks like a header ('label\\tI1\\tI2\\tC1\\tC2'), which CRITEO_TSV doesn't have; "
       "leave it out: tail -n +2"},
      {"label\tI1\tI2\tC1\t", "column 1 ('label'): 'label' is not 0 or 1"},
      {"", "the line is empty"},
      {std::string("1\t3\t4\ta\0z\tcd", 11),
       "column 4 ('C1'): 'a\\x00z' is not a hexadecimal number"},
  };
  for (const auto& [line, why] : lines) {
    const Parsed parsed = Parse(Parser(), {good, line, good});
    EXPECT_EQ(parsed.bad, (std::vector<int64_t>{1})) << line;
    EXPECT_EQ(Parser().Describe(line + "\n"), why);
    // Nothing of the bad line stays.
    EXPECT_EQ(parsed.batch.size, 2);
    EXPECT_EQ(parsed.batch.labels.size(), 2u);
    EXPECT_EQ(parsed.batch.dense.size(), 16u);
    for (const FeatureLookups& feature : parsed.batch.features) {
      EXPECT_EQ(feature.keys.size(), 2u) << line;
      EXPECT_EQ(feature.offsets.size(), 3u);
    }
    EXPECT_EQ(KeysOf(parsed.batch.features[1], 1), (std::vector<Key>{0xcd}));
  }
}

// The same batch object again, larger and smaller.
TEST(TsvParser, BatchesAreUsedAgain) {
  const TsvParser parser(0, {"C1"});
  Batch batch;
  for (int rows : {2, 100, 1}) {
    std::string text;
    std::vector<uint64_t> begin = {0};
    for (int i = 0; i < rows; ++i) {
      text += i % 2 == 0 ? "1\t1,2,3\n" : "0\t4\n";
      begin.push_back(text.size());
    }
    std::vector<int64_t> bad;
    parser.ParseLines(text.data(), begin.data(), 0, rows, &batch, &bad);
    EXPECT_EQ(batch.size, rows);
    EXPECT_EQ(batch.features[0].keys.size(), static_cast<size_t>(4 * (rows / 2) + 3 * (rows % 2)));
    EXPECT_EQ(KeysOf(batch.features[0], rows - 1).size(), rows % 2 == 1 ? 3u : 1u);
  }
}

}  // namespace
}  // namespace thermocline
