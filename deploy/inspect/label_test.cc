#include "deploy/inspect/label.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "deploy/inspect/column_names.h"
#include "deploy/inspect/inspection.h"
#include "deploy/inspect/job_draft.h"
#include "deploy/inspect/suggestions.h"

namespace thermocline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

constexpr int kRows = 10000;

// texts: null where there are many.
Json Of(const std::string& name, const Json& texts, const std::string& type = "integer") {
  Json column = {{"name", name},     {"type", type},          {"why", "a test says so"},
                 {"rows", kRows},    {"missing", 0},          {"values", kRows},
                 {"distinct", 500},  {"distinct_error", 0.0}, {"top_1_percent_share", 0.5},
                 {"once_share", 0.6}};
  if (!texts.is_null()) column["texts"] = texts;
  return column;
}

Json ZeroOne(const std::string& name) { return Of(name, {{"0", 9000}, {"1", 1000}}); }
Json Gender() { return Of("gender", {{"F", 4000}, {"M", 6000}}, "string"); }
Json User() { return Of("user", nullptr, "string"); }

Json Figures(const std::vector<Json>& columns) {
  Json figures = {{"format", "csv"}, {"separator", ","}, {"header", true},
                  {"quotes", true},  {"files", 1},       {"bytes", 1000},
                  {"rows", kRows},   {"complete", true}, {"malformed_rows", 0}};
  figures["columns"] = columns;
  return figures;
}

Json Labelled(const std::vector<Json>& columns, const LabelChoice& choice = {}) {
  Json figures = Figures(columns);
  const absl::Status status = AddLabels(choice, &figures);
  EXPECT_TRUE(status.ok()) << status;
  return figures;
}

Json LabelOf(const std::vector<Json>& columns, const LabelChoice& choice = {}) {
  const Json figures = Labelled(columns, choice);
  EXPECT_TRUE(figures.contains("label")) << figures.value("label_question", "");
  return figures.value("label", Json::object());
}

std::string Question(const std::vector<Json>& columns) {
  const Json figures = Labelled(columns);
  EXPECT_FALSE(figures.contains("label")) << figures.dump();
  return figures.value("label_question", "");
}

std::string ErrorOf(const std::vector<Json>& columns, const LabelChoice& choice) {
  Json figures = Figures(columns);
  const absl::Status status = AddLabels(choice, &figures);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(Label, NamesThatSaySo) {
  for (const char* name :
       {"label", "click", "clk", "is_click", "isClick", "isclicked", "conversion", "Purchase",
        "install", "response", "target", "y", "is_attributed", "click_label"}) {
    EXPECT_EQ(ClassifyLabelName(name), LabelName::kYes) << name;
  }
  for (const char* name : {"ad_click", "click_count", "event", "target_cpa", "prev_click"}) {
    EXPECT_EQ(ClassifyLabelName(name), LabelName::kHasWord) << name;
  }
  for (const char* name : {"is_weekend", "gender", "year", "clock", "id", ""}) {
    EXPECT_EQ(ClassifyLabelName(name), LabelName::kNo) << name;
  }
}

TEST(Label, IsTheColumnThatIsNamedSo) {
  const Json label = LabelOf({ZeroOne("is_weekend"), ZeroOne("clk"), Gender(), User()});
  EXPECT_EQ(label["column"], "clk");
  EXPECT_FALSE(label.contains("positive"));
  EXPECT_EQ(label["rate"], 0.1);
  EXPECT_EQ(label["why"], "its name, and it has 0 and 1");
  // Floats, as data frames write them, and words.
  const Json floats = LabelOf({Of("label", {{"0.0", 4000}, {"1.0", 6000}}, "number")});
  EXPECT_EQ(floats["positive"], Json::array({"1.0"}));
  EXPECT_EQ(LabelOf({Of("bought", {{"No", 4000}, {"Yes", 6000}}, "string")})["positive"],
            Json::array({"Yes"}));
  EXPECT_EQ(LabelOf({Of("y", {{"-1", 4000}, {"1", 6000}})})["positive"], Json::array({"1"}));
}

TEST(Label, TheOnlyColumnOfZeroAndOneIsCalledAGuess) {
  EXPECT_THAT(LabelOf({ZeroOne("is_new"), User()})["why"].get<std::string>(), HasSubstr("a guess"));
}

TEST(Label, SeveralCandidatesAreListedAndAskedFor) {
  EXPECT_THAT(Question({ZeroOne("is_weekend"), ZeroOne("clck"), User()}),
              AllOf(HasSubstr("several columns may be the label"),
                    HasSubstr("is_weekend with '0' (9,000), '1' (1,000)"), HasSubstr("clck with"),
                    HasSubstr("--label NAME"), Not(HasSubstr("user"))));
  EXPECT_THAT(
      Question({ZeroOne("click"), ZeroOne("conversion"), ZeroOne("is_weekend")}),
      AllOf(HasSubstr("click with"), HasSubstr("conversion with"), Not(HasSubstr("is_weekend"))));
  // A name without the values of a label is a candidate, too, beside others
  // without the name.
  EXPECT_THAT(Question({Of("target", nullptr, "number"), ZeroOne("is_weekend")}),
              AllOf(HasSubstr("target with many values"), HasSubstr("is_weekend with")));
  EXPECT_THAT(Question({User()}), HasSubstr("no column looks like a label; --label NAME"));
}

TEST(Label, AnOddOneIsAskedFor) {
  EXPECT_THAT(Question({Gender(), User()}),
              AllOf(HasSubstr("gender with 'F' (4,000), 'M' (6,000)"), HasSubstr("--positive")));
  for (const Json& texts : {Json{{"1", 5000}, {"2", 5000}}, Json{{"0", 5000}, {"2", 5000}},
                            Json{{"0", 5000}, {"1", 3000}, {"2", 2000}}}) {
    EXPECT_THAT(Question({Of("label", texts)}), HasSubstr("no plain one of 0 and 1: label with"));
    EXPECT_THAT(ErrorOf({Of("label", texts)}, {"label", {}}),
                HasSubstr("not 0 and 1; --positive TEXT,TEXT says which are a 1"));
  }
  // What asks stands where a label would, and a job is not drafted.
  Json figures = Figures({Gender(), User()});
  ASSERT_TRUE(AddSuggestions({}, &figures).ok());
  EXPECT_THAT(RenderInspection(figures), HasSubstr("label: one column may be the label"));
  const absl::Status drafted = DraftJob(figures, {"/a"}, "j", "dlrm").status();
  EXPECT_EQ(drafted.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(drafted.message(), HasSubstr("gender with"));
}

TEST(Label, IsWhatTheUserChooses) {
  const Json event = Of("event", {{"buy", 500}, {"cart", 500}, {"pv", 9000}}, "string");
  const Json label = LabelOf({event, ZeroOne("click")}, {"event", {"buy"}});
  EXPECT_EQ(label["column"], "event");
  EXPECT_EQ(label["positive"], Json::array({"buy"}));
  EXPECT_EQ(label["rate"], 0.05);
  EXPECT_FALSE(LabelOf({ZeroOne("odd"), ZeroOne("other")}, {"odd", {}}).contains("positive"));
}

TEST(Label, SeveralMayBeChosen) {
  Json cart = Of("cart", {{"no", 8000}, {"yes", 1000}}, "string");
  cart["missing"] = 1000;
  const Json figures = Labelled({ZeroOne("click"), cart, User()}, {"click,cart", {}});
  const std::vector<Json> labels = LabelsOf(figures);
  ASSERT_EQ(labels.size(), 2u);
  EXPECT_EQ(labels[0], figures["label"]);
  EXPECT_EQ(labels[1]["column"], "cart");
  EXPECT_EQ(labels[1]["positive"], Json::array({"yes"}));
  EXPECT_EQ(labels[1]["rate"], 1.0 / 9);
  // Texts that are a 1 are those of either.
  const Json event = Of("event", {{"buy", 500}, {"cart", 500}, {"pv", 9000}}, "string");
  const Json both = Labelled({cart, event}, {"cart,event", {"yes", "buy"}});
  EXPECT_EQ(LabelsOf(both)[0]["positive"], Json::array({"yes"}));
  EXPECT_EQ(LabelsOf(both)[1]["positive"], Json::array({"buy"}));
  EXPECT_THAT(ErrorOf({cart, event}, {"cart,event", {"yes", "buy", "by"}}),
              HasSubstr("--positive names 'by', which no label has"));
  EXPECT_THAT(ErrorOf({cart, event}, {"cart,event", {"yes"}}),
              HasSubstr("'event' has 'buy' (500), 'cart' (500), 'pv' (9,000), and no text that"));
  EXPECT_THAT(ErrorOf({cart, event}, {"cart,evnt", {}}), HasSubstr("did you mean 'event'"));
  EXPECT_THAT(ErrorOf({cart, event}, {"cart,cart", {}}), HasSubstr("names 'cart' twice"));
  // A name with a comma is that of one column.
  EXPECT_EQ(LabelOf({ZeroOne("a,b"), ZeroOne("a"), ZeroOne("b")}, {"a,b", {}})["column"], "a,b");
}

TEST(Label, NpyFilesHaveTheirOwn) {
  const auto numbers = [](const std::string& name, double mean) {
    Json column = Of(name, nullptr, "number");
    column["numbers"] = {{"mean", mean}};
    return column;
  };
  Json figures = Figures({numbers("label_1", 0.25), numbers("label_2", 0.5), numbers("I1", 3)});
  figures["format"] = "npy";
  figures["label_columns"] = 2;
  Json found = figures;
  ASSERT_TRUE(AddLabels({}, &found).ok());
  ASSERT_EQ(LabelsOf(found).size(), 2u);
  EXPECT_EQ(LabelsOf(found)[1]["rate"], 0.5);
  found = figures;
  EXPECT_TRUE(AddLabels({"label_1,label_2", {}}, &found).ok());
  EXPECT_THAT(
      std::string(AddLabels({"I1", {}}, &figures).message()),
      HasSubstr("--label names 'I1', and the file of labels has label_1,label_2: name all of "
                "its columns in this order, or leave --label out"));
  figures["columns"][1].erase("numbers");
  EXPECT_THAT(std::string(AddLabels({}, &figures).message()),
              HasSubstr("no row has a value of label_2"));
}

TEST(Label, AChoiceThatCanNotBeIsRefused) {
  EXPECT_THAT(ErrorOf({ZeroOne("click")}, {"clik", {}}), HasSubstr("did you mean 'click'"));
  EXPECT_THAT(ErrorOf({User()}, {"user", {}}), HasSubstr("many values"));
  EXPECT_THAT(ErrorOf({Of("same", {{"1", kRows}})}, {"same", {}}), HasSubstr("nothing to learn"));
  // --positive names what never occurs, or all that does.
  const Json event = Of("event", {{"buy", 1000}, {"pv", 9000}}, "string");
  EXPECT_THAT(ErrorOf({event}, {"event", {"buy", "cart"}}),
              AllOf(HasSubstr("'buy' (1,000), 'pv' (9,000)"), HasSubstr("no row has 'cart'")));
  EXPECT_THAT(ErrorOf({event}, {"event", {"buy", "pv"}}), HasSubstr("is 1 in all rows"));
  // The column has many values; those that --positive names were counted.
  Json many = User();
  many["counted"] = {{"buy", 2500}, {"cart", 0}};
  EXPECT_EQ(LabelOf({many}, {"user", {"buy"}})["rate"], 0.25);
  EXPECT_THAT(ErrorOf({many}, {"user", {"cart"}}), HasSubstr("no row has 'cart'"));
}

TEST(Label, RowsThatAreSortedByItAreWarnedOf) {
  Json click = ZeroOne("click");
  for (const auto& [changes, warnings] :
       std::vector<std::pair<int, int>>{{1, 1}, {89, 1}, {91, 0}}) {
    click["text_changes"] = changes;
    const Json figures = Labelled({click, User()});
    EXPECT_EQ(figures.value("warnings", Json::array()).size(), warnings) << changes;
  }
  click["text_changes"] = 1;
  Json figures = Figures({click, User()});
  ASSERT_TRUE(AddSuggestions({}, &figures).ok());
  EXPECT_THAT(RenderInspection(figures), HasSubstr("warning: the rows are sorted by the label"));
  EXPECT_THAT(DraftJob(figures, {"/a"}, "j", "dlrm").value_or(""),
              HasSubstr("# WARNING: the rows are sorted by the label, which changes 1 times"));
}

}  // namespace
}  // namespace thermocline
