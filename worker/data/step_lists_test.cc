// Lists that are read step by step: what rows are malformed, and what becomes of columns.
#include "worker/data/step_lists.h"

#include <google/protobuf/text_format.h>

#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/text/text_parser.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

FeatureLookups Column(const std::vector<std::vector<Key>>& samples) {
  FeatureLookups column;
  column.offsets.push_back(0);
  for (const std::vector<Key>& keys : samples) {
    column.keys.insert(column.keys.end(), keys.begin(), keys.end());
    column.offsets.push_back(static_cast<int32_t>(column.keys.size()));
  }
  return column;
}

FeatureSpec Pooled(int source) {
  FeatureSpec spec;
  spec.source = source;
  return spec;
}

FeatureSpec Steps(int source, int then) {
  FeatureSpec spec = Pooled(source);
  spec.sequence = 0;
  spec.then = then;
  return spec;
}

// Columns: an item, its history, the history of years, and a year.
Batch ColumnsOfThree() {
  Batch batch;
  batch.size = 3;
  batch.features = {Column({{1}, {2}, {3}}), Column({{10, 11}, {}, {12}}),
                    Column({{90, 91}, {}, {92}}), Column({{7}, {8}, {9}})};
  return batch;
}

TEST(LookupMaker, PutsTheSampleBehindItsHistory) {
  const LookupMaker maker({Pooled(0), Steps(1, 0), Steps(2, 3)});
  std::vector<FeatureLookups> columns;
  for (int round = 0; round < 2; ++round) {  // The second one uses memory of the first.
    Batch batch = ColumnsOfThree();
    maker.MakeLookups(&batch, &columns);
    ASSERT_EQ(batch.features.size(), 3u);
    EXPECT_THAT(batch.features[0].keys, ElementsAre(1, 2, 3));
    EXPECT_THAT(batch.features[0].offsets, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(batch.features[1].keys, ElementsAre(10, 11, 1, 2, 12, 3));
    EXPECT_THAT(batch.features[1].offsets, ElementsAre(0, 3, 4, 6));
    EXPECT_THAT(batch.features[2].keys, ElementsAre(90, 91, 7, 8, 92, 9));
    EXPECT_EQ(batch.features[2].offsets, batch.features[1].offsets);
  }
}

TEST(LookupMaker, AListMayBeReadPooledAndByTwoSequences) {
  const LookupMaker maker({Pooled(1), Pooled(3), Steps(1, -1), Steps(1, 0)});
  Batch batch = ColumnsOfThree();
  std::vector<FeatureLookups> columns;
  maker.MakeLookups(&batch, &columns);
  EXPECT_THAT(batch.features[0].keys, ElementsAre(10, 11, 12));
  EXPECT_THAT(batch.features[1].keys, ElementsAre(7, 8, 9));
  EXPECT_THAT(batch.features[2].keys, ElementsAre(10, 11, 12));
  EXPECT_THAT(batch.features[2].offsets, ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(batch.features[3].keys, ElementsAre(10, 11, 1, 2, 12, 3));
}

// Text
// ------------------------------------------------------------------------------------------------

// `list`: more of the first list's `categorical`.
TextParser ParserOf(const std::string& sequence, const std::string& list = "") {
  Job job;
  CHECK(google::protobuf::TextFormat::ParseFromString(
      R"(data { train { path: "x" csv { column: ["y", "item", "items", "years"] } }
                label { column: "y" } }
         feature { column: "item" categorical { id: INTEGER } }
         feature { column: "items" categorical { id: INTEGER )" +
          list + " } sequence { " + sequence + R"( } }
         feature { column: "years" categorical { boundaries: [5, 6, 7, 8] }
                   sequence { )" +
          sequence + R"( } }
         sequence { name: "events" of: ["items", "years"] then: ["item", "item"] })",
      &job));
  ResolveJob(&job);
  const Data data = DescribeData(job.data());
  auto parser = TextParser::Make(job, data, {TextColumns(data.train()), "the job"});
  EXPECT_TRUE(parser.ok()) << parser.status();
  return *std::move(parser);
}

struct Parsed {
  Batch batch;
  std::vector<int64_t> bad;
};

Parsed Parse(const TextParser& parser, const std::vector<std::string>& lines) {
  RawBatch raw;
  raw.ClearText();
  for (const std::string& line : lines) {
    raw.text.insert(raw.text.end(), line.begin(), line.end());
    raw.text.push_back('\n');
    raw.line_begin.push_back(raw.text.size());
    ++raw.num_rows;
  }
  raw.text.insert(raw.text.end(), kTextPadding, 'x');
  Parsed parsed;
  parser.ParseRows(raw, 0, raw.num_rows, &parsed.batch, &parsed.bad);
  return parsed;
}

TEST(StepLists, LinesWithListsOfTwoLengthsAreMalformed) {
  const TextParser parser = ParserOf("max_length: 2");
  const std::vector<std::string> lines = {
      "1,4,10|11|12,5|6|7",  // The last two.
      "0,5,10|11|12,5|6",    // Both have two after truncation.
      "1,6,,",               // No step.
      "1,6,10,",
      "0,7,13,8",
  };
  const Parsed parsed = Parse(parser, lines);
  EXPECT_THAT(parsed.bad, ElementsAre(1, 3));
  ASSERT_EQ(parsed.batch.size, 3);
  EXPECT_THAT(parsed.batch.features[0].keys, ElementsAre(4, 6, 7));
  EXPECT_THAT(parsed.batch.features[1].keys, ElementsAre(11, 12, 13));
  EXPECT_THAT(parsed.batch.features[1].offsets, ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(parsed.batch.features[2].keys, ElementsAre(2, 3, 4));
  EXPECT_EQ(parsed.batch.features[2].offsets, parsed.batch.features[1].offsets);
  EXPECT_EQ(parser.Describe(lines[1]),
            "column 3 ('items') has 3 values, but column 4 ('years') has 2; the sequence 'events' "
            "reads them together");
  EXPECT_EQ(parser.Describe(lines[3]),
            "column 3 ('items') has 1 value, but column 4 ('years') has 0; the sequence 'events' "
            "reads them together");
}

TEST(StepLists, TheFirstValuesMayBeKept) {
  const Parsed parsed = Parse(ParserOf("max_length: 2 keep: FIRST"), {"1,4,10|11|12,5|6|7"});
  EXPECT_THAT(parsed.bad, IsEmpty());
  EXPECT_THAT(parsed.batch.features[1].keys, ElementsAre(10, 11));
  EXPECT_THAT(parsed.batch.features[2].keys, ElementsAre(1, 2));
}

// A pooled list leaves values without a key out. Steps would not fit together then.
TEST(StepLists, AValueWithoutAKeyMakesTheLineMalformed) {
  const std::string line = "1,4,10|NA|12,5|6|7";
  const TextParser no_key = ParserOf("max_length: 2");
  EXPECT_THAT(Parse(no_key, {line}).bad, ElementsAre(0));
  EXPECT_EQ(no_key.Describe(line),
            "column 3 ('items'): 'NA' is missing and has no key, as each step of a sequence must");
  // Also one that is left out.
  EXPECT_THAT(Parse(no_key, {"1,4,NA|11|12,5|6|7"}).bad, ElementsAre(0));
  EXPECT_EQ(no_key.Describe("1,4,10||12,5|6|7"),
            "column 3 ('items'): an empty value among several");

  const Parsed own_key = Parse(ParserOf("max_length: 2", "missing: OWN_KEY"), {line, "1,4,,"});
  EXPECT_THAT(own_key.bad, IsEmpty());
  EXPECT_THAT(own_key.batch.features[1].keys, ElementsAre(kEmptyCategoryKey, 12));
  EXPECT_THAT(own_key.batch.features[1].offsets, ElementsAre(0, 2, 2));

  const TextParser refuses = ParserOf("max_length: 2", "missing: MALFORMED");
  EXPECT_THAT(Parse(refuses, {line, "1,4,,"}).bad, ElementsAre(0, 1));
}

}  // namespace
}  // namespace thermocline
