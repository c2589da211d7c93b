#include "worker/data/text/text_parser.h"

#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"
#include "common/job/job_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

TextParser CriteoParser(uint32_t integers, uint32_t categories) {
  Job job;
  job.mutable_data()->set_format(Data::CRITEO_TSV);
  job.mutable_data()->set_num_dense(integers);
  job.mutable_data()->set_num_categorical(categories);
  ResolveJob(&job);
  const Data data = DescribeData(job.data());
  auto parser = TextParser::Make(
      job, data,
      {TextColumns(data.train()), absl::StrCat("1 label + data.num_dense=", integers,
                                               " + data.num_categorical=", categories)});
  CHECK(parser.ok());
  return *std::move(parser);
}

// Two integers, two categories.
const TextParser& Parser() {
  static const TextParser* const parser = new TextParser(CriteoParser(2, 2));
  return *parser;
}

struct Parsed {
  Batch batch;
  std::vector<int64_t> bad;
};

RawBatch RawOf(const std::vector<std::string>& lines) {
  RawBatch raw;
  raw.ClearText();
  for (const std::string& line : lines) {
    raw.text.insert(raw.text.end(), line.begin(), line.end());
    raw.text.push_back('\n');
    raw.line_begin.push_back(raw.text.size());
    ++raw.num_rows;
  }
  raw.text.insert(raw.text.end(), kTextPadding, 'x');
  return raw;
}

Parsed Parse(const TextParser& parser, const std::vector<std::string>& lines) {
  const RawBatch raw = RawOf(lines);
  Parsed parsed;
  parser.ParseRows(raw, 0, raw.num_rows, &parsed.batch, &parsed.bad);
  return parsed;
}

std::vector<Key> KeysOf(const FeatureLookups& feature, int sample) {
  return {feature.keys.begin() + feature.offsets[sample],
          feature.keys.begin() + feature.offsets[sample + 1]};
}

TEST(CriteoText, ReadsEveryColumn) {
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

TEST(CriteoText, IntegersAndDecimalsOfAllSizes) {
  const TextParser parser = CriteoParser(1, 0);
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

TEST(CriteoText, SixteenDigitsAreAKey) {
  const TextParser parser = CriteoParser(0, 1);
  EXPECT_EQ(Parse(parser, {"0\tfffffffffffffffe"}).batch.features[0].keys[0], ~Key{1});
  EXPECT_EQ(Parse(parser, {"0\t0123456789ABCDEF"}).batch.features[0].keys[0], 0x0123456789ABCDEFu);
}

// Every byte in every place of eight, the usual length, and of seven.
TEST(CriteoText, HexadecimalDigitsAreTheOnlyOnes) {
  const TextParser parser = CriteoParser(0, 1);
  for (const std::string number : {"89abcdef", "9abcdef"}) {
    for (size_t place = 0; place < number.size(); ++place) {
      std::vector<std::string> lines;
      std::vector<int64_t> bad;
      UninitializedVector<Key> keys;
      for (int c = 0; c < 256; ++c) {
        if (c == '\t' || c == '\n' || c == '\r' || c == ',') continue;
        std::string text = number;
        text[place] = static_cast<char>(c);
        if (std::isxdigit(c) != 0) {
          keys.push_back(std::stoull(text, nullptr, 16));
        } else {
          bad.push_back(static_cast<int64_t>(lines.size()));
        }
        lines.push_back("1\t" + text);
      }
      const Parsed parsed = Parse(parser, lines);
      EXPECT_EQ(parsed.bad, bad);
      EXPECT_EQ(parsed.batch.features[0].keys, keys);
    }
  }
}

TEST(CriteoText, MalformedLinesAreLeftOutAndSaidWhy) {
  const std::string good = "1\t3\t4\tab\tcd";
  const std::vector<std::pair<std::string, std::string>> lines = {
      {"2\t3\t4\tab\tcd", "column 1 ('label'): '2' is not 0 or 1"},
      {"\t3\t4\tab\tcd", "column 1 ('label'): '' is not 0 or 1"},
      {"01\t3\t4\tab\tcd", "column 1 ('label'): '01' is not 0 or 1"},
      {"1\tx\t4\tab\tcd", "column 2 ('I1'): 'x' is not a number"},
      {"1\t3\t4-\tab\tcd", "column 3 ('I2'): '4-' is not a number"},
      {"1\t3\t--\tab\tcd", "column 3 ('I2'): '--' is not a number"},
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
       "5 columns separated by commas; CRITEO_TSV separates them by tabs; describe the file with "
       "data.train { csv {} } and `feature`"},
      {"click,I1,I2,C1,C2",
       "5 columns separated by commas; CRITEO_TSV separates them by tabs, and has no header, which "
       "the line looks like ('click,I1,I2,C1,C2'); describe the file with data.train { csv {} } "
       "and "
       "`feature`"},
      {"\"id\",\"click\",_x\r",
       "3 columns separated by commas; CRITEO_TSV separates them by tabs, and has no header, which "
       "the line looks like ('\\\"id\\\",\\\"click\\\",_x'); describe the file with data.train { "
       "csv {} } and `feature`"},
      {"label\tI1\tI2\tC1\tC2",
       "the line looks like a header ('label\\tI1\\tI2\\tC1\\tC2'), which CRITEO_TSV doesn't have; "
       "leave it out: tail -n +2, or describe the file with data.train { csv {} } and `feature`"},
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
TEST(CriteoText, BatchesAreUsedAgain) {
  const TextParser parser = CriteoParser(0, 1);
  Batch batch;
  for (int rows : {2, 100, 1}) {
    std::vector<std::string> lines;
    for (int i = 0; i < rows; ++i) lines.push_back(i % 2 == 0 ? "1\t1,2,3" : "0\t4");
    std::vector<int64_t> bad;
    parser.ParseRows(RawOf(lines), 0, rows, &batch, &bad);
    EXPECT_EQ(batch.size, rows);
    EXPECT_EQ(batch.features[0].keys.size(), static_cast<size_t>(4 * (rows / 2) + 3 * (rows % 2)));
    EXPECT_EQ(KeysOf(batch.features[0], rows - 1).size(), rows % 2 == 1 ? 3u : 1u);
  }
}

// ---- described text

// The columns are a, b, c, label and when.
TextParser DescribedParser(const std::string& features, const std::string& data = "",
                           const std::string& csv = "") {
  const auto job = ParseJob(
      absl::StrCat(R"(name: "j" data { train { path: "f" csv { column: ["a", "b", "c", "label",
                                                                       "when"] )",
                   csv, R"( } } )",
                   data.find("label {") == data.npos ? "label { column: 'label' } " : "", data,
                   "} ", features, R"( feature { column: "c" numeric { missing: 0 } }
      dlrm { bottom: 8 top: 8 } train { batch_size: 4 learning_rate { base: 0.1 } })"),
      "j", {});
  if (!job.ok()) ADD_FAILURE() << job.status();
  const Data described = DescribeData(job->data());
  auto parser = TextParser::Make(*job, described, {TextColumns(described.train()), "the job"});
  if (!parser.ok()) ADD_FAILURE() << parser.status();
  return *std::move(parser);
}

// The keys of the first feature for each line, of which none is malformed.
std::vector<std::vector<Key>> KeysOfLines(const TextParser& parser,
                                          const std::vector<std::string>& lines) {
  const Parsed parsed = Parse(parser, lines);
  EXPECT_TRUE(parsed.bad.empty()) << parser.Describe(lines[parsed.bad.empty() ? 0 : parsed.bad[0]]);
  std::vector<std::vector<Key>> keys;
  for (int i = 0; i < parsed.batch.size; ++i) keys.push_back(KeysOf(parsed.batch.features[0], i));
  return keys;
}

using Bags = std::vector<std::vector<Key>>;

// Separators at every place, in lines of all lengths: as a plain search finds them.
TEST(DescribedText, LinesSplitAtEverySeparator) {
  uint64_t state = 1;
  LineColumns split;
  for (size_t length = 0; length < 140; ++length) {
    for (const uint64_t one_in : {1, 2, 7, 50}) {
      std::string line(length, 'x');
      for (char& c : line)
        c = Mix64(state++) % one_in == 0 ? ',' : static_cast<char>(state % 128 | 64);
      SplitLine(line, {',', false}, &split);
      const std::vector<std::string> wanted = absl::StrSplit(line, ',');
      ASSERT_EQ(std::vector<std::string>(split.columns.begin(), split.columns.end()), wanted);
    }
  }
}

TEST(DescribedText, QuotesAndSeparators) {
  const TextParser comma = DescribedParser(R"(feature { column: "a" categorical {} })");
  EXPECT_EQ(KeysOfLines(comma, {"x,,,1,", "\"x\",,,1,", "\"x,y\",,,0,\"\"", "\"x\"\"y\",,,0,",
                                "\"\nz\",,,0,\r", "5\",,,0,", "\"\",,,0,"}),
            (Bags{{HashText("x")},
                  {HashText("x")},
                  {HashText("x,y")},
                  {HashText("x\"y")},
                  {HashText("\nz")},
                  {HashText("5\"")},
                  {kEmptyCategoryKey}}));
  const Parsed parsed = Parse(comma, {"\"x\"y,,,1,", "x,\"y,,1,", "a,b,c,d"});
  EXPECT_EQ(parsed.bad, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(comma.Describe("\"x\"y,,,1,"),
            "column 1 begins with a quote that is not closed at its end (a quote within quotes is "
            "written twice; quotes: false reads it as it is)");
  EXPECT_EQ(comma.Describe("\"a\nb\nc\",\"x\ny\"z,,1,"),
            "column 2 begins with a quote, 2 lines further on, that is not closed at its end (a "
            "quote within quotes is written twice; quotes: false reads it as it is)");
  EXPECT_EQ(comma.Describe("a,b,c,d"), "4 columns, not 5 (the job)");
  EXPECT_EQ(comma.Describe("a;b;c;0;e"),
            "1 column, not 5 (the job); with separator: \";\" they would be 5");
  EXPECT_EQ(comma.Describe("a,b,x,1,"), "column 3 ('c'): 'x' is not a number");
  EXPECT_EQ(comma.Describe("a,b,0,2,"), "column 4 ('label'): '2' is not 0 or 1");

  const TextParser plain = DescribedParser(R"(feature { column: "a" categorical {} })", "",
                                           "separator: '|' quotes: false");
  EXPECT_EQ(KeysOfLines(plain, {"\"x,|||1|"}), (Bags{{HashText("\"x,")}}));
}

TEST(DescribedText, IdsOfEveryKind) {
  const auto keys = [](const std::string& categorical, const std::vector<std::string>& texts) {
    std::vector<std::string> lines;
    for (const std::string& text : texts) lines.push_back(text + ",,,0,");
    return KeysOfLines(
        DescribedParser("feature { column: 'a' categorical { " + categorical + " } }"), lines);
  };
  EXPECT_EQ(
      keys("id: INTEGER", {"7", "-7", "18446744073709551614", "-9223372036854775808", "-1", ""}),
      (Bags{
          {7}, {Key{0} - 7}, {~Key{1}}, {Key{1} << 63}, {kEmptyCategoryKey}, {kEmptyCategoryKey}}));
  EXPECT_EQ(keys("id: INTEGER min: 3", {"2", "3", "-5", "18446744073709551000"}),
            (Bags{{kEmptyCategoryKey}, {3}, {kEmptyCategoryKey}, {18446744073709551000u}}));
  EXPECT_EQ(keys("id: HEX", {"ff", "0A"}), (Bags{{255}, {10}}));
  EXPECT_EQ(keys("id: HEX buckets: 10", {"ff", ""}),
            (Bags{{Mix64(255) % 10}, {kEmptyCategoryKey}}));
  EXPECT_EQ(keys("buckets: 10", {"x"}), (Bags{{HashText("x") % 10}}));
  EXPECT_EQ(keys("substring { start: 6 length: 2 }", {"14102923", "141029", "1410292"}),
            (Bags{{HashText("23")}, {kEmptyCategoryKey}, {HashText("2")}}));
  EXPECT_EQ(keys("boundaries: [18, 25.5, 35]", {"-3", "18", "25", "25.5", "1e9", ""}),
            (Bags{{0}, {1}, {1}, {2}, {3}, {kEmptyCategoryKey}}));
  EXPECT_EQ(keys("missing: NO_KEY separator: ' '", {"x y", "", "x"}),
            (Bags{{HashText("x"), HashText("y")}, {}, {HashText("x")}}));
}

// docs/formats.md says how; other programs may depend on it.
TEST(DescribedText, TheHashOfTextIsFixed) {
  EXPECT_EQ(HashText(""), Mix64(0));
  EXPECT_EQ(HashText("a"), Mix64(Mix64(1) ^ 0x61));
  EXPECT_EQ(HashText("12345678"), Mix64(Mix64(8) ^ 0x3837363534333231));
  EXPECT_EQ(HashText("123456789"), Mix64(Mix64(Mix64(9) ^ 0x3837363534333231) ^ 0x39));
  EXPECT_EQ(HashText("85f751fd"), 0xdd945e02dcc5fabfu);
  const std::string text = "\xff\x01gHzA\x80-";
  for (size_t bytes = 1; bytes <= text.size(); ++bytes) {
    uint64_t number = 0;
    for (size_t i = bytes; i-- > 0;) number = number << 8 | static_cast<uint8_t>(text[i]);
    EXPECT_EQ(HashText(text.substr(0, bytes)), Mix64(Mix64(bytes) ^ number));
  }
}

TEST(DescribedText, SequencesKeepTheirLastOrFirst) {
  const std::string of =
      "feature { column: 'a' categorical { id: INTEGER } sequence { max_length: 2 ";
  const std::vector<std::string> lines = {"1|2|3,,,0,", "1,,,0,", ",,,0,", "1|2,,,0,"};
  EXPECT_EQ(KeysOfLines(DescribedParser(of + "} }"), lines), (Bags{{2, 3}, {1}, {}, {1, 2}}));
  EXPECT_EQ(KeysOfLines(DescribedParser(of + "keep: FIRST } }"), lines),
            (Bags{{1, 2}, {1}, {}, {1, 2}}));
  EXPECT_EQ(DescribedParser(of + "} }").Describe("1|x,,,0,"),
            "column 1 ('a'): 'x' is not an integer of 64 bits");
  EXPECT_EQ(DescribedParser(of + "} }").Describe("1||2,,,0,"),
            "column 1 ('a'): an empty value among several");
}

// 'a' is the list, or 'b' of a file whose columns are divided by commas.
TEST(DescribedText, AnotherCharacterThatDividesListsIsWarnedOf) {
  const auto doubts = [](const std::string& what, const std::vector<absl::string_view>& lines,
                         const std::string& csv = "separator: '\t'") {
    return DescribedParser(absl::StrCat("feature { column: 'a' ", what, " }"), "", csv)
        .DoubtSeparators(lines);
  };
  const std::string list = "sequence { max_length: 2 }";
  const std::vector<absl::string_view> commas = {"1,2,3\t\t\t0\t", "7\t\t\t0\t", "2,1\t\t\t0\t",
                                                 "\t\t\t0\t"};
  EXPECT_THAT(doubts(list, commas),
              testing::ElementsAre(
                  "none of the first 4 rows has several values in 'a': the separator of this list "
                  "is '|', and 2 rows have ','; as it is, each list is one id. If it divides them, "
                  "write categorical { separator: \",\" }"));
  EXPECT_THAT(doubts(list + " categorical { separator: ',' }", commas), testing::IsEmpty());
  EXPECT_THAT(doubts("categorical {}", commas), testing::IsEmpty()) << "it is no list";
  // A list by the job's separator, single values, and texts with a comma at their end.
  EXPECT_THAT(doubts(list, {"1,2\t\t\t0\t", "1|2\t\t\t0\t"}), testing::IsEmpty());
  EXPECT_THAT(doubts(list, {"1\t\t\t0\t", "New York\t\t\t0\t"}), testing::IsEmpty());
  EXPECT_THAT(doubts(list, {"1,2\t\t\t0\t", "1,\t\t\t0\t"}), testing::IsEmpty());
  const auto quoted = doubts(list, {"\"1,2\",,,0,"}, "");
  ASSERT_EQ(quoted.size(), 1u);
  EXPECT_THAT(quoted[0], testing::HasSubstr("The file's columns have that separator, too"));
}

TEST(DescribedText, Crosses) {
  const std::string features = R"(feature { name: "axb" cross { of: ["a", "b"] buckets: %s } }
      feature { column: ["a", "b"] categorical { id: INTEGER } })";
  const auto parser = [&](const std::string& buckets) {
    std::string text = features;
    return DescribedParser(text.replace(text.find("%s"), 2, buckets));
  };
  const Key whole = Mix64(Mix64(Mix64(2) ^ 3) ^ 4);
  EXPECT_EQ(KeysOfLines(parser("0"), {"3,4,,0,"}), (Bags{{whole}}));
  EXPECT_EQ(KeysOfLines(parser("7"), {"3,4,,0,", "4,3,,0,", ",4,,0,"}),
            (Bags{{whole % 7},
                  {Mix64(Mix64(Mix64(2) ^ 4) ^ 3) % 7},
                  {Mix64(Mix64(Mix64(2) ^ kEmptyCategoryKey) ^ 4) % 7}}));
}

TEST(DescribedText, NumbersAreTransformedInOrder) {
  const auto value = [](const std::string& numeric, const std::string& text) {
    const TextParser parser =
        DescribedParser("feature { column: 'a' numeric { " + numeric + " } }");
    const Parsed parsed = Parse(parser, {text + ",,,0,"});
    EXPECT_TRUE(parsed.bad.empty()) << parser.Describe(text + ",,,0,");
    return parsed.batch.size == 0 ? -1.0f : parsed.batch.dense[0];
  };
  EXPECT_EQ(value("", "-2.5"), -2.5f);
  EXPECT_EQ(value("missing: 9", ""), 9.0f);
  EXPECT_EQ(value("transform { log1p {} }", "7"), static_cast<float>(std::log1p(7.0)));
  EXPECT_EQ(value("transform { clip { min: 1 max: 3 } }", "7"), 3.0f);
  EXPECT_EQ(value("transform { clip { min: 1 } }", "-7"), 1.0f);
  EXPECT_EQ(
      value("transform { standardize { mean: 1 std: 4 } } transform { clip { max: 1 } }", "9"),
      1.0f);
  EXPECT_EQ(
      value("transform { clip { max: 1 } } transform { standardize { mean: 1 std: 4 } }", "9"),
      0.0f);
  EXPECT_EQ(
      value("missing: 3 transform { log1p {} } transform { standardize { mean: 0 std: 2 } }", ""),
      static_cast<float>(std::log1p(3.0) / 2));
  const TextParser strict = DescribedParser("feature { column: 'a' numeric {} }");
  EXPECT_EQ(Parse(strict, {",,,0,"}).bad.size(), 1u);
  EXPECT_EQ(strict.Describe(",,,0,"),
            "column 1 ('a'): it is empty, and numeric.missing says nothing of that");
  EXPECT_EQ(strict.Describe("1e39,,,0,"), "column 1 ('a'): '1e39' is too large a number");
}

TEST(DescribedText, WordsForMissingNumbersAreMissing) {
  const std::string number =
      "feature { column: 'a' numeric { missing: 9 transform { log1p {} } } }";
  const float nine = static_cast<float>(std::log1p(9.0)), three = static_cast<float>(std::log1p(3));
  const TextParser usual = DescribedParser(number);
  const Parsed words = Parse(usual, {"NULL,,,0,", "-,,,0,", "nan,,,0,", "\\N,,,0,", "\"n/a\",,,0,",
                                     "None,,,0,", "3,,,0,", "-9,,,0,"});
  EXPECT_TRUE(words.bad.empty());
  std::vector<float> values;
  for (int i = 0; i < words.batch.size; ++i) values.push_back(words.batch.dense_row(i)[0]);
  EXPECT_EQ(values, (std::vector<float>{nine, nine, nine, nine, nine, nine, three, 0}));
  EXPECT_EQ(usual.Describe("--,,,0,"), "column 1 ('a'): '--' is not a number");
  EXPECT_EQ(usual.Describe("inf,,,0,"), "column 1 ('a'): 'inf' is not a number");
  // The job's own: of numbers by their value, and no others.
  const TextParser own = DescribedParser(number, "missing_number: ['-9', '3', 'x']");
  const Parsed numbers = Parse(own, {"-9.0,,,0,", "3,,,0,", "x,,,0,", "4,,,0,", "NULL,,,0,"});
  EXPECT_EQ(numbers.bad, (std::vector<int64_t>{4}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(numbers.batch.dense_row(i)[0], nine) << i;
  EXPECT_EQ(numbers.batch.dense_row(3)[0], static_cast<float>(std::log1p(4.0)));
  // Without a value for a missing number the line is malformed, and the error says why.
  EXPECT_EQ(DescribedParser("feature { column: 'a' numeric {} }").Describe("NA,,,0,"),
            "column 1 ('a'): 'NA' is missing, and numeric.missing says nothing of that");
}

TEST(DescribedText, WordsForMissingNumbersAreMissingIds) {
  const auto keys = [](const std::string& categorical, const std::vector<std::string>& lines,
                       const std::string& data = "") {
    return KeysOfLines(
        DescribedParser("feature { column: 'a' categorical { " + categorical + " } }", data),
        lines);
  };
  const Key none = kEmptyCategoryKey;
  EXPECT_EQ(keys("id: INTEGER", {"NULL,,,0,", "7,,,0,", "-,,,0,"}), (Bags{{none}, {7}, {none}}));
  EXPECT_EQ(keys("id: HEX missing: NO_KEY", {"NA,,,0,", "a,,,0,"}), (Bags{{}, {10}}));
  EXPECT_EQ(keys("boundaries: [1, 5]", {"nan,,,0,", "3,,,0,"}), (Bags{{none}, {1}}));
  EXPECT_EQ(keys("id: INTEGER separator: '|' missing: NO_KEY", {"1|NULL|3,,,0,", "NULL,,,0,"}),
            (Bags{{1, 3}, {}}));
  // A number stays an id, and a text of a STRING id is itself: "NA" is a country.
  EXPECT_EQ(keys("id: INTEGER", {"-9,,,0,"}, "missing_number: '-9'"),
            (Bags{{static_cast<Key>(-9)}}));
  EXPECT_EQ(keys("boundaries: [1, 5]", {"-9,,,0,", "0,,,0,"}, "missing_number: '-9'"),
            (Bags{{none}, {0}}));
  EXPECT_EQ(keys("id: STRING", {"NA,,,0,"}), (Bags{{HashText("NA")}}));
  EXPECT_EQ(
      DescribedParser("feature { column: 'a' categorical { id: INTEGER missing: MALFORMED } }")
          .Describe("NA,,,0,"),
      "column 1 ('a'): 'NA' is missing, which categorical.missing refuses");
}

TEST(DescribedText, SamplesHaveWeights) {
  const std::string feature = "feature { column: 'a' categorical {} }";
  const TextParser parser = DescribedParser(feature, "label { column: 'label' } weight: 'when'");
  const Parsed parsed = Parse(parser, {"x,,,1,2", "x,,,0,0", "x,,,1,-1", "x,,,0,1e-3", "x,,,1,",
                                       "x,,,1,nan", "x,,,1,1e39", "x,,,1,7"});
  EXPECT_EQ(parsed.batch.weights, (UninitializedVector<float>{2, 0, 1e-3f, 7}));
  EXPECT_EQ(parsed.batch.labels, (UninitializedVector<float>{1, 0, 0, 1}));
  EXPECT_EQ(parsed.bad, (std::vector<int64_t>{2, 4, 5, 6}));
  EXPECT_EQ(parser.Describe("x,,,1,-1"),
            "column 5 ('when'): '-1' is not a weight: a number, 0 or more");
  EXPECT_TRUE(Parse(DescribedParser(feature), {"x,,,1,2"}).batch.weights.empty());
}

// What each sample's values count.
std::vector<std::vector<float>> WeightsOf(const Parsed& parsed) {
  const FeatureLookups& feature = parsed.batch.features[0];
  std::vector<std::vector<float>> weights;
  for (int i = 0; i < parsed.batch.size; ++i) {
    weights.emplace_back(feature.weights.begin() + feature.offsets[i],
                         feature.weights.begin() + feature.offsets[i + 1]);
  }
  EXPECT_EQ(feature.weights.size(), feature.keys.size());
  return weights;
}

using Weights = std::vector<std::vector<float>>;

TEST(DescribedText, ValuesOfAListHaveWeights) {
  const std::string of = "feature { column: 'a' pooling: ";
  const std::string rest = " categorical { id: INTEGER separator: '|' weights: 'b' ";
  const TextParser sum = DescribedParser(of + "SUM" + rest + "} }");
  const Parsed parsed = Parse(sum, {"7|7|8,0.5|-2|1e-3,,0,", "9,3,,0,", "7|8,1|2|3,,0,", ",,,0,",
                                    "7|8,1,,0,", "|7,1|2,,0,", "7,nan,,0,", "7|8,1|1e39,,0,",
                                    ",5,,0,", "7,,,0,", ",1|2,,0,", "x|7,1|2,,0,", "-1|7,4|5,,0,"});
  EXPECT_EQ(parsed.bad, (std::vector<int64_t>{2, 4, 5, 6, 7, 9, 10, 11}));
  EXPECT_EQ(WeightsOf(parsed), (Weights{{0.5f, -2, 1e-3f}, {3}, {1}, {5}, {4, 5}}));
  EXPECT_EQ(KeysOf(parsed.batch.features[0], 0), (std::vector<Key>{7, 7, 8}));
  EXPECT_EQ(sum.Describe("7|8,1|2|3,,0,"), "column 2 ('b'): 3 weights, but 'a' has 2 values");
  EXPECT_EQ(sum.Describe("7|8,1,,0,"), "column 2 ('b'): 1 weight, but 'a' has 2 values");
  EXPECT_EQ(sum.Describe("7,,,0,"), "column 2 ('b'): 0 weights, but 'a' has 1 value");
  EXPECT_EQ(sum.Describe(",1|2,,0,"), "column 2 ('b'): 2 weights, but 'a' has 0 values");
  EXPECT_EQ(sum.Describe("7|8,1|1e39,,0,"),
            "column 2 ('b'): '1e39' is not a weight: a finite number");
  EXPECT_EQ(sum.Describe("7,nan,,0,"), "column 2 ('b'): 'nan' is not a weight: a finite number");
  EXPECT_EQ(sum.Describe("|7,1|2,,0,"), "column 1 ('a'): an empty value among several");

  const TextParser mean = DescribedParser(of + "MEAN" + rest + "missing: NO_KEY } }");
  const Parsed divided =
      Parse(mean, {"7|8,1|3,,0,", "7|8,0|0,,0,", "-1|7,4|5,,0,", ",,,0,", "7|8,1|-3,,0,"});
  EXPECT_EQ(divided.bad, (std::vector<int64_t>{4}));
  EXPECT_EQ(WeightsOf(divided), (Weights{{0.25f, 0.75f}, {0, 0}, {1}, {}}));
  EXPECT_EQ(mean.Describe("7|8,1|-3,,0,"),
            "column 2 ('b'): '-3' is below 0, and the feature's pooling is MEAN");

  const auto kept = [&](const std::string& keep) {
    return WeightsOf(Parse(
        DescribedParser(of + "SUM" + rest + "} sequence { max_length: 2 keep: " + keep + " } }"),
        {"1|2|3,4|5|6,,0,", "7,8,,0,"}));
  };
  EXPECT_EQ(kept("LAST"), (Weights{{5, 6}, {8}}));
  EXPECT_EQ(kept("FIRST"), (Weights{{4, 5}, {8}}));

  const TextParser one = DescribedParser("feature { column: 'a' categorical { weights: 'b' } }");
  EXPECT_EQ(WeightsOf(Parse(one, {"x|y,0.5,,0,", ",2,,0,", "x,,,0,"})), (Weights{{0.5f}, {2}}));
}

TEST(DescribedText, LabelsAndWhatIsHeldOut) {
  const std::string feature = "feature { column: 'b' categorical {} }";
  const Parsed two = Parse(DescribedParser(feature, "label { column: ['label', 'a'] }"),
                           {"0,,,1,", "1,,,0,", "x,,,1,"});
  EXPECT_EQ(two.batch.labels, (UninitializedVector<float>{1, 0}));
  EXPECT_EQ(two.bad, (std::vector<int64_t>{2}));
  const TextParser third =
      DescribedParser(feature, "label { column: ['a', 'label'] positive: 'x' }");
  const Parsed first = Parse(third, {"x,,,1,", "y,,,0,", "x,,,x,"});
  EXPECT_EQ(first.batch.labels, (UninitializedVector<float>{1, 0}));
  EXPECT_EQ(first.bad, (std::vector<int64_t>{2})) << "positive is for the one that is learned";
  EXPECT_EQ(third.Describe("x,,,x,"), "column 4 ('label'): 'x' is not 0 or 1");
  const Parsed named =
      Parse(DescribedParser(feature, "label { column: 'label' positive: ['buy', 'cart'] }"),
            {",,,buy,", ",,,pv,", ",,,cart,"});
  EXPECT_EQ(named.batch.labels, (UninitializedVector<float>{1, 0, 1}));

  LineColumns scratch;
  const TextParser number = DescribedParser(feature, "split { column: 'when' test_from: '100' }");
  EXPECT_FALSE(number.IsHeldOut("a,,,0,99", {}, &scratch));
  EXPECT_TRUE(number.IsHeldOut("a,,,0,100", {}, &scratch));
  EXPECT_TRUE(number.IsHeldOut("a,,,0,1e3\n", {}, &scratch));
  EXPECT_FALSE(
      number.IsHeldOut("a,,,0,x", {}, &scratch));  // A malformed line of the training rows.
  EXPECT_EQ(Parse(number, {"a,,,0,x"}).bad.size(), 1u);
  EXPECT_EQ(number.Describe("a,,,0,x"),
            "column 5 ('when'): 'x' is not a number, as data.split.test_from is");
  const TextParser text =
      DescribedParser(feature, "split { column: 'when' test_from: '2026-11-20T00:00:00Z' }");
  EXPECT_FALSE(text.IsHeldOut("a,,,0,2026-11-19T23:59:59Z", {}, &scratch));
  EXPECT_TRUE(text.IsHeldOut("a,,,0,2026-11-20T00:00:00Z", {}, &scratch));
}

TEST(DescribedText, GroupsAreHashesOfTheirText) {
  const std::string feature = R"(feature { column: "a" categorical {} })";
  const TextParser parser = DescribedParser(feature, "group: 'b'");
  const Parsed parsed = Parse(parser, {"x,u1,,1,", "y,u2,,2,", "z,\"u1\",,0,", "z,,,0,"});
  EXPECT_EQ(parsed.bad, (std::vector<int64_t>{1}));
  EXPECT_EQ(parsed.batch.groups,
            (std::vector<uint64_t>{HashText("u1"), HashText("u1"), HashText("")}));
  EXPECT_TRUE(Parse(DescribedParser(feature), {"x,u1,,1,"}).batch.groups.empty());
}

}  // namespace
}  // namespace thermocline
