#include "deploy/inspect/job_draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/model/presets.h"
#include "deploy/inspect/inspection.h"
#include "deploy/inspect/suggestions.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Json Column(const std::string& name, const std::string& type, double distinct,
            const Json& more = Json::object()) {
  Json column = {{"name", name},         {"type", type},          {"why", "a test says so"},
                 {"rows", 10000},        {"missing", 0},          {"values", 10000},
                 {"distinct", distinct}, {"distinct_error", 0.0}, {"top_1_percent_share", 0.5},
                 {"once_share", 0.6}};
  column.update(more);
  return column;
}

Json Numbers(double min, double max, double skewness, double small) {
  return {{"numbers",
           {{"min", min},
            {"max", max},
            {"mean", 10.0},
            {"std", 4.0},
            {"skewness", skewness},
            {"log1p_mean", 2.0},
            {"log1p_std", 0.5},
            {"negative_share", 0.0},
            {"below_10_share", small}}}};
}

Json Texts(const Json& texts) { return {{"texts", texts}}; }

Json Csv(const std::vector<Json>& columns) {
  Json figures = {{"format", "csv"}, {"separator", ","}, {"header", true},
                  {"quotes", true},  {"files", 1},       {"bytes", 1000},
                  {"rows", 10000},   {"complete", true}, {"malformed_rows", 0}};
  figures["columns"] = columns;
  return figures;
}

Json Suggested(Json figures, const LabelChoice& choice = {}) {
  const absl::Status status = AddSuggestions(choice, &figures);
  EXPECT_TRUE(status.ok()) << status;
  return figures;
}

std::string UseOf(const Json& figures, const std::string& name) {
  for (const Json& column : figures.at("columns")) {
    if (column.at("name") == name) return column.at("use").get<std::string>();
  }
  return "";
}

// The drafted job, as `train` would load it.
Job DraftOf(const Json& figures, const std::string& model = "dlrm") {
  const auto text = DraftJob(figures, {"/data/a log.csv"}, "/jobs/my job.textproto", model);
  EXPECT_TRUE(text.ok()) << text.status();
  const auto job = ParseJob(text.value_or(""), "draft", {}, {}, JobUse::kTrain);
  EXPECT_TRUE(job.ok()) << job.status() << "\n" << text.value_or("");
  return job.ok() ? *job : Job();
}

const Json kClick = Column("click", "integer", 2, Texts({{"0", 9000}, {"1", 1000}}));

TEST(Suggestions, IntegersAreIdsOrNumbers) {
  const Json figures = Suggested(Csv({
      kClick,
      Column("user_id", "integer", 5000, Numbers(0, 90000, 0, 0.9)),
      Column("price", "integer", 5000, Numbers(0, 90000, 0, 0)),
      Column("cost", "integer", 2, Numbers(17, 4711, 0, 0)),
      Column("a", "integer", 7, Numbers(0, 7, 0, 1)),
      Column("b", "integer", 5000, Numbers(100, 90000, 0, 0)),
      Column("c", "integer", 5000, Numbers(0, 90000, 9, 0.6)),
      Column("d", "integer", 5000, Numbers(-50, 90, 0, 0.1)),
      Column("row", "integer", 10000, Numbers(0, 10000, 0, 0)),
      Column("same", "integer", 1, Numbers(3, 3, 0, 1)),
  }));
  EXPECT_EQ(UseOf(figures, "click"), kUseLabel);
  EXPECT_EQ(UseOf(figures, "user_id"), kUseCategorical);
  EXPECT_EQ(UseOf(figures, "price"), kUseNumeric);
  EXPECT_EQ(UseOf(figures, "cost"), kUseCategorical);
  EXPECT_EQ(UseOf(figures, "a"), kUseCategorical);
  EXPECT_EQ(UseOf(figures, "b"), kUseCategorical);
  EXPECT_EQ(UseOf(figures, "c"), kUseNumeric);
  EXPECT_EQ(UseOf(figures, "d"), kUseNumeric);
  EXPECT_EQ(UseOf(figures, "row"), kUseNone);
  EXPECT_EQ(UseOf(figures, "same"), kUseNone);
  EXPECT_EQ(figures["dim"], 16);
  EXPECT_GT(figures["columns"][1]["table_bytes"], 5000 * 16 * 4 * 2);
  EXPECT_THAT(RenderInspection(figures), HasSubstr("label: click, rate 0.1000; its name"));
}

// As a second label does, or what was written after the event.
TEST(Suggestions, AColumnThatSaysWhatTheLabelIsIsLeftOut) {
  const auto flag = [](const std::string& name, const char* implied) {
    Json column = Column(name, "integer", 2, Texts({{"0", 9000}, {"1", 1000}}));
    column.update(Numbers(0, 1, 0, 1));
    if (*implied != 0) column["implies"] = {{{"column", implied}, {"rows", 1000}, {"but", 3}}};
    return column;
  };
  const Json item = Column("item_id", "integer", 500, Numbers(0, 90000, 0, 0));
  const Json csv = Csv({flag("click", "shown"), flag("buy", "click"), flag("shown", ""),
                        flag("mobile", "shown"), item});
  const Json figures = Suggested(csv, {"click", {}});
  EXPECT_EQ(UseOf(figures, "buy"), kUseNone);
  EXPECT_EQ(UseOf(figures, "shown"), kUseNone);
  EXPECT_EQ(UseOf(figures, "mobile"), kUseCategorical) << "it says what another feature is";
  for (const std::string& text :
       {RenderInspection(figures), *DraftJob(figures, {"/a.csv"}, "j", "dlrm")}) {
    EXPECT_THAT(text,
                HasSubstr("where it is '1', the label click is 1 in 997 of 1,000 rows: another "
                          "label, or known only after it (--label click,buy has both)"));
    EXPECT_THAT(text,
                HasSubstr("where the label click is 1, it is '1' in 997 of 1,000 rows: another "
                          "label, or known only after it (--label click,shown has both)"));
  }
  EXPECT_EQ(DraftOf(figures).feature_size(), 2) << "mobile and item_id";
  // Where 0 is what is learned, their ones say nothing of it.
  EXPECT_EQ(UseOf(Suggested(csv, {"click", {"0"}}), "buy"), kUseCategorical);
  const Json both = Suggested(csv, {"click,buy", {}});
  EXPECT_EQ(UseOf(both, "buy"), kUseLabel);
  EXPECT_EQ(UseOf(both, "shown"), kUseNone);
}

// Ids that went through floats, as data frames write them where some are missing: "17.0".
TEST(Suggestions, WholeNumbersWrittenAsFloatsMayBeIds) {
  const auto floats = [](const std::string& name, double distinct, Json numbers, double whole) {
    numbers["numbers"]["whole_share"] = whole;
    return Column(name, "number", distinct, numbers);
  };
  const Json figures = Suggested(Csv({
      kClick,
      floats("b", 5000, Numbers(100, 90000, 0, 0), 1),
      floats("user_id", 30, Numbers(0, 90000, 0, 0.9), 1),
      floats("price", 5000, Numbers(0, 90000, 0, 0), 1),
      floats("fractions", 5000, Numbers(100, 90000, 0, 0), 0.999),
      floats("stars", 5, Numbers(1, 5, 0, 1), 1),
      floats("negative", 5000, Numbers(-50, 90, 0, 0.1), 1),
      floats("row", 10000, Numbers(0, 10000, 0, 0), 1),
  }));
  EXPECT_EQ(UseOf(figures, "b"), kUseCategorical);
  EXPECT_EQ(figures["columns"][1]["use_why"],
            "all are whole numbers, written as floats; its values look like ids");
  EXPECT_EQ(UseOf(figures, "user_id"), kUseCategorical);
  EXPECT_EQ(UseOf(figures, "price"), kUseNumeric);
  EXPECT_EQ(figures["columns"][3]["use_why"], "whole numbers, written as floats");
  EXPECT_EQ(UseOf(figures, "fractions"), kUseNumeric);
  EXPECT_EQ(figures["columns"][4]["use_why"], "numbers with fractions");
  EXPECT_EQ(UseOf(figures, "stars"), kUseNumeric);
  EXPECT_EQ(UseOf(figures, "negative"), kUseNumeric);
  EXPECT_EQ(UseOf(figures, "row"), kUseNone);
  const Job job = DraftOf(figures);
  const auto b = std::find_if(job.feature().begin(), job.feature().end(),
                              [](const Feature& feature) { return feature.name() == "b"; });
  ASSERT_NE(b, job.feature().end());
  EXPECT_EQ(b->categorical().id(), Feature::Categorical::STRING);
}

TEST(JobDraft, IsAJobThatLoads) {
  Json price = Column("price", "number", 5000, Numbers(0, 90, 9, 0));
  price["missing"] = 100;
  const Json time = Column("hour", "time", 240,
                           {{"time",
                             {{"form", "YYMMDDhh"},
                              {"first", "2014-10-21 00:00:00"},
                              {"last", "2014-10-30 23:00:00"},
                              {"descents", 5000},
                              {"hour_start", 6},
                              {"test_from", "14103000"},
                              {"test_share", 0.1}}}});
  Json list =
      Column("tags", "list", 50, {{"separator", ";"}, {"id", "string"}, {"longest_list", 3}});
  Json history = Column("history", "sequence", 50,
                        {{"separator", " "}, {"id", "integer"}, {"longest_list", 99}});
  const Json figures = Suggested(Csv({kClick, price, time, list, history,
                                      Column("a b", "hex", 5000), Column("a_b", "string", 500)}));
  const Job job = DraftOf(figures);
  EXPECT_EQ(job.name(), "my_job");
  EXPECT_EQ(job.data().train().path(0), "/data/a log.csv");
  EXPECT_EQ(job.data().split().column(), "hour");
  EXPECT_EQ(job.data().split().test_from(), "14103000");
  ASSERT_EQ(job.feature_size(), 6);
  const Feature::Numeric& numeric = job.feature(0).numeric();
  EXPECT_NEAR(numeric.missing(), 6.389, 0.001);  // e^2 - 1
  EXPECT_TRUE(numeric.transform(0).has_log1p());
  EXPECT_EQ(numeric.transform(1).standardize().mean(), 2);
  EXPECT_EQ(job.feature(1).name(), "hour_of_day");
  EXPECT_EQ(job.feature(1).categorical().substring().start(), 6);
  EXPECT_EQ(job.feature(2).categorical().separator(), ";");
  EXPECT_EQ(job.feature(3).sequence().max_length(), 50);
  EXPECT_EQ(job.feature(3).categorical().id(), Feature::Categorical::INTEGER);
  EXPECT_EQ(job.feature(4).name(), "a_b");
  EXPECT_EQ(job.feature(4).column(0), "a b");
  EXPECT_EQ(job.feature(4).categorical().id(), Feature::Categorical::HEX);
  EXPECT_EQ(job.feature(5).name(), "a_b_2");
}

TEST(JobDraft, ColumnsThatAreReadAlikeShareAStanza) {
  std::vector<Json> columns = {kClick};
  for (const char* name :
       {"I1", "C1", "C2", "I2", "C3", "C4", "a b", "C07", "C08", "C09", "last"}) {
    const std::string type = name[0] == 'I' ? "number" : "hex";
    columns.push_back(Column(name, type, 5000, Numbers(0, 90, 0, 0)));
  }
  columns.push_back(Column("word", "string", 500));
  const Json figures = Suggested(Csv(columns));
  const std::string text = DraftJob(figures, {"/a"}, "j", "dlrm").value_or("");
  EXPECT_THAT(text, HasSubstr("feature {\n  column: [\"C1..C4\"]\n  categorical { id: HEX }\n}\n"));
  EXPECT_THAT(text, HasSubstr("# hex; text: C1 (5,000 ids, 60% once), C2 (5,000 ids, 60% once), "));
  EXPECT_THAT(text,
              HasSubstr("feature { name: \"a_b\" column: \"a b\" categorical { id: HEX } }\n"));
  EXPECT_THAT(text, HasSubstr("column: [\"C07\", \"C08\", \"C09\", \"last\"]"));
  // Inputs of one kind stay in the order of the columns.
  std::vector<std::string> names;
  const Job job = DraftOf(figures);
  for (const Feature& feature : job.feature()) names.push_back(feature.name());
  EXPECT_THAT(names, ::testing::ElementsAre("I1", "I2", "C1", "C2", "C3", "C4", "a_b", "C07", "C08",
                                            "C09", "last", "word"));
}

// What makes 0 and 1 of large numbers near each other has all their digits.
TEST(JobDraft, NumbersHaveAllTheirDigits) {
  Json numbers = Numbers(1234567000, 1234568000, 0, 0);
  numbers["numbers"]["mean"] = 1234567890.0625;
  numbers["numbers"]["std"] = 1.0 / 3;
  Json x = Column("x", "number", 900, numbers);
  x["missing"] = 1;
  const Feature::Numeric numeric = DraftOf(Suggested(Csv({kClick, x}))).feature(0).numeric();
  EXPECT_EQ(numeric.missing(), 1234567890.0625);
  EXPECT_EQ(numeric.transform(0).standardize().mean(), 1234567890.0625);
  EXPECT_EQ(numeric.transform(0).standardize().std(), 1.0 / 3);
}

// Rows that were not read may have other values: ids are text, and numbers may be missing.
TEST(JobDraft, OfAPartTakesNothingForGranted) {
  Json figures =
      Csv({kClick, Column("id", "hex", 500), Column("x", "number", 900, Numbers(0, 1, 0, 1))});
  figures["complete"] = false;
  const Job job = DraftOf(Suggested(figures));
  EXPECT_TRUE(job.feature(0).numeric().has_missing());
  EXPECT_EQ(job.feature(1).categorical().id(), Feature::Categorical::STRING);
  EXPECT_EQ(job.data().split().last_share(), 0.1);
}

TEST(JobDraft, LeavesTheIndexOfADataFrameOut) {
  const Json figures =
      Suggested(Csv({Column("", "integer", 90, Texts({{"0", 5000}, {"1", 5000}})), kClick,
                     Column("Unnamed: 0", "integer", 90), Column("id", "hex", 500)}));
  EXPECT_EQ(figures["label"]["column"], "click");
  EXPECT_THAT(RenderInspection(figures), HasSubstr("(no name): integer"));
  EXPECT_THAT(DraftJob(figures, {"/a"}, "j", "dlrm").value_or(""),
              HasSubstr("# Left out: the column without a name, it is the index"));
  const Job job = DraftOf(figures);
  ASSERT_EQ(job.feature_size(), 1);
  EXPECT_EQ(job.feature(0).name(), "id");
}

// Lists of the values so far of other columns, by their names, are read step by step.
TEST(JobDraft, ModelsOfSequencesReadHistories) {
  const Json lists = {{"separator", "|"}, {"id", "integer"}, {"longest_list", 12}};
  Json longer = lists;
  longer["longest_list"] = 20;
  std::vector<Json> columns = {kClick,
                               Column("x", "number", 900, Numbers(0, 1, 0, 1)),
                               Column("item_id", "integer", 500, Numbers(0, 90000, 0, 0.9)),
                               Column("shop", "hex", 50),
                               Column("hist_item_id", "sequence", 500, lists),
                               Column("shop_history", "sequence", 50, longer),
                               Column("queries", "sequence", 50, lists)};
  const Json figures = Suggested(Csv(columns));
  for (const std::string model : {"din", "bst", "tbsm"}) {
    SCOPED_TRACE(model);
    const Job job = DraftOf(figures, model);
    ASSERT_EQ(job.sequence_size(), 1);
    EXPECT_THAT(job.sequence(0).of(), testing::ElementsAre("hist_item_id", "shop_history"));
    EXPECT_EQ(job.sequence(0).then_size(), model == "din" ? 0 : 2);
    for (const Feature& feature : job.feature()) {
      const bool is_step = feature.name() == "hist_item_id" || feature.name() == "shop_history";
      EXPECT_EQ(feature.sequence().max_length(), is_step ? 20 : 0) << feature.name();
      if (feature.name() == "shop_history") {
        EXPECT_EQ(feature.table(), "shop");
        // Its ids are read as those of 'shop', which are of another kind.
        EXPECT_EQ(feature.categorical().id(), Feature::Categorical::STRING);
      }
    }
    EXPECT_GT(ResolveTables(job).dense.size(), 0u);
  }
  // A list with fewer values does not go with the first.
  columns[5]["values"] = 90;
  EXPECT_THAT(DraftOf(Suggested(Csv(columns)), "bst").sequence(0).of(),
              testing::ElementsAre("hist_item_id"));
  columns.resize(4);
  const absl::Status none = DraftJob(Suggested(Csv(columns)), {"/a"}, "j", "bst").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(none.message()),
              HasSubstr("bst compares the rows' own values with lists"));
}

TEST(JobDraft, EachModelLoads) {
  const std::vector<Json> both = {kClick, Column("x", "number", 900, Numbers(0, 1, 0, 1)),
                                  Column("a", "hex", 500), Column("b", "hex", 500)};
  const Json figures = Suggested(Csv(both));
  const Json numbers = Suggested(Csv({both[0], both[1]}));
  const Json ids = Suggested(Csv({both[0], both[2], both[3]}));
  for (const std::string& model : PresetNames()) {
    if (model == "din" || model == "bst" || model == "tbsm") continue;
    EXPECT_GT(ResolveTables(DraftOf(figures, model)).dense.size(), 0u) << model;
    EXPECT_GT(ResolveTables(DraftOf(ids, model)).dense.size(), 0u) << model;
    EXPECT_THAT(DraftJob(figures, {"/a"}, "j", model).value_or(""),
                HasSubstr("\n" + model + " {\n"));
    if (model == "deepfm") continue;
    EXPECT_GT(ResolveTables(DraftOf(numbers, model)).dense.size(), 0u) << model;
  }
  EXPECT_EQ(DraftJob(numbers, {"/a"}, "j", "deepfm").status().code(),
            absl::StatusCode::kFailedPrecondition);
  // Crossing many columns takes matrices of low rank.
  std::vector<Json> many = both;
  for (int i = 0; i < 200; ++i) many.push_back(Column(absl::StrCat("C", i), "hex", 500));
  EXPECT_THAT(DraftJob(figures, {"/a"}, "j", "dcnv2").value_or(""),
              HasSubstr("  # cross_rank: 64"));
  EXPECT_THAT(DraftJob(Suggested(Csv(many)), {"/a"}, "j", "dcnv2").value_or(""),
              HasSubstr("\n  cross_rank: 64\n"));
}

TEST(JobDraft, SeveralLabelsAreTasks) {
  Json buy = Column("buy", "string", 2, Texts({{"no", 8000}, {"yes", 1000}}));
  buy["missing"] = 1000;
  const Json figures = Suggested(Csv({kClick, buy, Column("id", "hex", 500)}), {"click,buy", {}});
  EXPECT_EQ(UseOf(figures, "buy"), kUseLabel);
  EXPECT_THAT(RenderInspection(figures),
              HasSubstr("label: click, rate 0.1000; --label names it\n"
                        "label: buy (yes are 1), rate 0.1111; --label names it\n"));
  for (const std::string model : {"mmoe", "ple"}) {
    const Job job = DraftOf(figures, model);
    EXPECT_THAT(job.data().label().column(), testing::ElementsAre("click", "buy"));
    EXPECT_THAT(job.data().label().positive(), testing::ElementsAre("1", "yes"));
    EXPECT_TRUE(job.data().label().may_be_missing());
    EXPECT_EQ(job.task_size(), 2);
  }
  // Others learn the first.
  const Job job = DraftOf(figures, "dlrm");
  EXPECT_THAT(job.data().label().column(), testing::ElementsAre("click"));
  EXPECT_EQ(job.feature_size(), 1);
  EXPECT_THAT(DraftJob(figures, {"/a"}, "j", "dlrm").value_or(""),
              HasSubstr("  # buy is a label, too; mmoe and ple learn several."));
}

TEST(JobDraft, NpyFilesAreRead) {
  const auto number = [](const std::string& name) {
    Json numbers = Numbers(0, 1, 0, 1);
    numbers["numbers"]["mean"] = 0.5;
    return Column(name, "number", 2, numbers);
  };
  const auto npy = [&](int labels, std::vector<Json> columns) {
    for (int i = labels; i > 0; --i) {
      columns.insert(columns.begin(), number(labels == 1 ? "label" : absl::StrCat("label_", i)));
    }
    Json figures = Csv(columns);
    figures["format"] = "npy";
    figures["label_columns"] = labels;
    figures["has_test_rows"] = false;
    return figures;
  };
  const Json ids = Column("C1", "integer", 500), more = Column("C2", "integer", 500);
  Job job = DraftOf(Suggested(npy(1, {number("I1"), ids, more})));
  EXPECT_EQ(job.data().num_dense(), 1u);
  EXPECT_EQ(job.data().num_categorical(), 2u);
  EXPECT_EQ(job.data().split().last_share(), 0.1);
  EXPECT_EQ(job.feature(1).name(), "C2");
  // Lists have stanzas, and then all features.
  const Json lists = {{"separator", ""}, {"id", "integer"}, {"longest_list", 12}};
  const Json figures =
      Suggested(npy(2, {Column("item", "integer", 500), Column("hist_item", "sequence", 500, lists),
                        Column("tags", "list", 5, lists)}));
  job = DraftOf(figures, "mmoe");
  EXPECT_THAT(job.data().label().column(), testing::ElementsAre("label_1", "label_2"));
  EXPECT_EQ(job.task_size(), 2);
  ASSERT_EQ(job.feature_size(), 3);
  EXPECT_EQ(job.feature(0).name(), "item");
  EXPECT_EQ(job.feature(1).sequence().max_length(), 12u);
  EXPECT_EQ(job.feature(2).sequence().max_length(), 12u);
  job = DraftOf(figures, "din");
  EXPECT_EQ(job.feature(1).table(), "item");
  EXPECT_THAT(job.sequence(0).of(), testing::ElementsAre("hist_item"));
  EXPECT_EQ(job.feature_size(), 2);
  EXPECT_THAT(DraftJob(figures, {"/a"}, "j", "din").value_or(""), HasSubstr("# Left out: tags, a"));
}

// A column with the name of a layer is a feature of another name.
TEST(JobDraft, NamesOfLayersAreNoFeatures) {
  const Json figures = Suggested(Csv(
      {kClick, Column("top", "hex", 50), Column("deep", "hex", 50), Column("fields", "hex", 50)}));
  const Job dlrm = DraftOf(figures, "dlrm"), dcnv2 = DraftOf(figures, "dcnv2");
  EXPECT_EQ(dlrm.feature(0).name() + dlrm.feature(1).name(), "top_2deep");
  EXPECT_EQ(dcnv2.feature(0).name() + dcnv2.feature(1).name(), "topdeep_2");
  EXPECT_EQ(dcnv2.feature(2).name(), "fields_2");
  const Json of_tasks =
      Suggested(Csv({kClick, Column("shared", "hex", 50), Column("mix_click", "hex", 50),
                     Column("tower_click", "hex", 50)}));
  const auto names = [&of_tasks](const std::string& model) {
    const Job job = DraftOf(of_tasks, model);
    std::vector<std::string> names;
    for (const Feature& feature : job.feature()) names.push_back(feature.name());
    return names;
  };
  EXPECT_THAT(names("ple"), testing::ElementsAre("shared_2", "mix_click_2", "tower_click_2"));
  EXPECT_THAT(names("mmoe"), testing::ElementsAre("shared", "mix_click_2", "tower_click_2"));
}

TEST(JobDraft, MalformedRowsAreAllowedFor) {
  Json figures = Csv({kClick, Column("id", "hex", 500)});
  figures["malformed_rows"] = 3;
  figures["first_malformed"] = "a:1: x";
  EXPECT_GE(DraftOf(Suggested(figures)).data().max_bad_lines(), 3u);
}

TEST(JobDraft, NeedsALabelAndAFeature) {
  const Json none = Suggested(Csv({Column("user", "string", 500)}));
  EXPECT_EQ(DraftJob(none, {"/a"}, "j", "dlrm").status().code(),
            absl::StatusCode::kFailedPrecondition);
  const Json alone = Suggested(Csv({kClick}));
  EXPECT_EQ(DraftJob(alone, {"/a"}, "j", "dlrm").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace thermocline
