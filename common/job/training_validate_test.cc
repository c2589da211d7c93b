// What only a job that trains must satisfy: each of these jobs is refused, and read and scored all
// the same, since one that an earlier program trained may be like it.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"

namespace thermocline {
namespace {

// What is wrong with a job that trains by `text`, from its third line on; "": nothing.
std::string ErrorOf(const std::string& text) {
  const std::string job =
      absl::StrCat(R"(name: "j"
data { train { path: "x" csv { header: true } } label { column: "y" } }
)",
                   text, "\ntrain { batch_size: 4 learning_rate { base: 0.1 } }");
  for (const JobUse use : {JobUse::kRead, JobUse::kScore}) {
    EXPECT_EQ(ParseJob(job, "j", {}, {}, use).status(), absl::OkStatus());
  }
  const absl::Status trained = ParseJob(job, "j", {}, {}, JobUse::kTrain).status();
  EXPECT_TRUE(trained.ok() || absl::IsInvalidArgument(trained)) << trained;
  return std::string(trained.message());
}

TEST(ValidateTraining, ADropoutDropsSomething) {
  const std::string of_layers =
      "feature { column: 'past' sequence { max_length: 5 } } sequence { name: 'h' of: 'past' }\n"
      "layer { name: 'deep' input: 'h' self_attention { dropout: ";
  const std::string rest =
      "layer { name: 'mean' input: 'deep' pool {} } task { label: 'y' input: 'mean' }";
  EXPECT_EQ(ErrorOf("feature { column: 'a' }\nwide_deep { deep: 4 dropout: 1e-9 }"),
            "j:4: wide_deep.dropout is 1e-09, which drops nothing; it must be 0, or at least "
            "1/65536");
  EXPECT_EQ(ErrorOf(absl::StrCat(of_layers, "1e-5 } }", rest)),
            "j:4: layer[0].self_attention.dropout is 1e-05, which drops nothing; it must be 0, or "
            "at least 1/65536");
  EXPECT_EQ(ErrorOf("feature { column: 'a' }\nlayer { name: 'b' input: 'a' mlp { units: 4 "
                    "dropout: 1e-9 } }\ntask { label: 'y' input: 'b' }"),
            "j:4: layer[0].mlp.dropout is 1e-09, which drops nothing; it must be 0, or at least "
            "1/65536");
  EXPECT_EQ(ErrorOf(absl::StrCat(of_layers, "1.6e-5 } }", rest)), "");
}

TEST(ValidateTraining, AScriptHasNoPrecision) {
  const std::string script = "feature { column: 'a' } worker { command: 'a' }\n";
  EXPECT_EQ(ErrorOf(script + "precision: BFLOAT16"),
            "j:4: precision is BFLOAT16; a script (`worker`) computes in its own: see "
            "torch.autocast");
  EXPECT_EQ(ErrorOf(script), "");
}

TEST(ValidateTraining, AListHasTheLeastIdOfTheFeaturesInItsTable) {
  const auto error = [](const std::string& of_item, const std::string& of_list) {
    return ErrorOf(absl::StrCat(
        "feature { column: 'item' categorical { id: INTEGER ", of_item,
        " } }\nfeature { column: 'items' table: 'item' categorical { id: INTEGER ", of_list,
        " } sequence { max_length: 5 } }\nsequence { name: 'h' of: 'items' } din { deep: 3 }"));
  };
  EXPECT_EQ(error("min: 10", ""),
            "j:5: sequence[0].of[0] names 'items', whose categorical.min is unset, but that of "
            "'item' in the same table is 10: an id that is missing in one of them would have a row "
            "in the other");
  EXPECT_NE(error("min: 10", "min: 0"), "");
  EXPECT_NE(error("", "min: 0"), "");
  EXPECT_EQ(error("min: 10", "min: 10"), "");
}

// Two tables of one width, so that no layer would notice.
TEST(ValidateTraining, AQueryHasTheTablesOfTheSteps) {
  const auto asked = [](const std::string& query, const std::string& input = "'h'") {
    return ErrorOf(absl::StrCat(R"(feature { column: ["item", "year", "user"] }
feature { column: "items" table: "item" sequence { max_length: 5 } }
feature { column: "years" table: "year" sequence { max_length: 5 } }
sequence { name: "h" of: ["items", "years"] }
layer { name: "both" input: ["user", "user"] concat {} }
layer { name: "all" input: "h" concat {} }
layer { name: "x" input: )",
                                input, " attention { query: ", query, R"( } }
layer { name: "top" input: ["x", "fields"] mlp { units: 1 } }
layer { name: "last" input: ["all", "both"] pool { mode: LAST } }
task { input: ["top", "last"] })"));
  };
  const std::string through_a_layer =
      "'; a query that is meant so goes through a layer, such as `concat`";
  EXPECT_EQ(asked("['item', 'year']"), "");
  EXPECT_EQ(asked("['year', 'item']"),
            "j:9: layer[2].attention.query[0] names 'year', which reads the table 'year', but is "
            "compared with 'items' of 'h', which reads 'item" +
                through_a_layer);
  EXPECT_EQ(asked("['item', 'user']"),
            "j:9: layer[2].attention.query[1] names 'user', which reads the table 'user', but is "
            "compared with 'years' of 'h', which reads 'year" +
                through_a_layer);
  EXPECT_EQ(asked("'both'"), "");
  EXPECT_EQ(asked("['year', 'item']", "'all'"), "");
}

TEST(ValidateTraining, ABagIsNotWhatDinComparesStepsWith) {
  const std::string bag =
      "feature { column: 'past' table: 'tags' sequence { max_length: 5 } }\n"
      "feature { column: 'tags' categorical { separator: ';' } }\n"
      "sequence { name: 'h' of: 'past' } din { deep: 3 }\n";
  EXPECT_EQ(ErrorOf(bag),
            "j:5: din compares each step of 'h' with the sample's own features, and for 'past' "
            "there is no feature in the same table that is no list; set its `table` to the name of "
            "the feature that has one such value in each row");
  EXPECT_EQ(ErrorOf(bag + "feature { column: 'tag' table: 'tags' }"), "");
  // The layers of a checkpoint that was made with the bag read it still.
  const auto job =
      ParseJob(absl::StrCat("name: 'j' data { train { path: 'x' csv { header: true } } label { "
                            "column: 'y' } } train { batch_size: 4 learning_rate { "
                            "base: 0.1 } }",
                            bag),
               "j", {});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->layer(0).attention().query(0), "tags");
}

}  // namespace
}  // namespace thermocline
