// What is wrong with a job's sequences is named: the line, the field, and both features.
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"

namespace thermocline {
namespace {

// more: a line of its own, the fourth
std::string ErrorOf(const std::string& sequence, const std::string& more = "") {
  const auto job = ParseJob(absl::StrCat(R"(name: "j"
data { train { path: "x" csv { header: true } } label { column: "y" } }
train { batch_size: 4 learning_rate { base: 0.1 } }
)",
                                         more, R"(
feature { column: ["item", "year", "user"] categorical { id: INTEGER } }
feature {
  column: "items" table: "item" categorical { id: INTEGER } sequence { max_length: 5 } }
feature { column: "years" table: "year" sequence { max_length: 5 } }
feature { column: "first" sequence { max_length: 5 keep: FIRST } }
feature { column: "short" sequence { max_length: 4 } }
feature { column: "weighted" categorical { weights: "w" } sequence { max_length: 5 } }
feature { column: "tags" table: "item" categorical { separator: "|" id: INTEGER } }
feature { column: "maybe" table: "item" categorical { missing: NO_KEY id: INTEGER } }
feature { column: "age" numeric {} }
sequence { )",
                                         sequence, R"( }
layer { name: "top" input: ["numeric", "categorical"] mlp { units: 1 } }
task { input: "top" }
)"),
                            "j", {});
  return std::string(job.status().message());
}

std::string Of(const std::string& of, const std::string& then = "[]") {
  return ErrorOf(absl::StrCat("name: 'events' of: ", of, " then: ", then));
}

TEST(ValidateSequences, ListsThatGoTogether) {
  EXPECT_EQ(ErrorOf("name: 'events'"),
            "j:15: sequence[0].of is empty; it names features with `sequence`");
  EXPECT_EQ(Of("['items', 'yaers']"),
            "j:15: sequence[0].of[1] names 'yaers', but there is no such feature (did you mean "
            "'years'?)");
  EXPECT_EQ(Of("['items', 'items']"), "j:15: sequence[0].of[1] names 'items', a second time");
  EXPECT_EQ(Of("'age'"), "j:15: sequence[0].of[0] names 'age', which is numeric");
  EXPECT_EQ(Of("'tags'"),
            "j:15: sequence[0].of[0] names 'tags', which has no `sequence { max_length: ... }`");
  EXPECT_EQ(Of("'weighted'"),
            "j:15: sequence[0].of[0] names 'weighted', which has weights (categorical.weights); "
            "steps have none");
  EXPECT_EQ(Of("['items', 'short']"),
            "j:15: sequence[0].of[1] names 'short', whose sequence.max_length is 4, but that of "
            "'items' is 5; they are read together");
  EXPECT_EQ(Of("['items', 'first']"),
            "j:15: sequence[0].of[1] names 'first', whose sequence.keep is FIRST, but that of "
            "'items' is LAST; they are read together");
}

TEST(ValidateSequences, ThenIsOneValueOfTheSameTable) {
  EXPECT_EQ(Of("['items', 'years']", "'item'"),
            "j:15: sequence[0].then names 1 feature, and `of` names 2; it names one for each, or "
            "none");
  EXPECT_EQ(Of("'items'", "'age'"), "j:15: sequence[0].then[0] names 'age', which is numeric");
  EXPECT_EQ(Of("'items'", "'items'"),
            "j:15: sequence[0].then[0] names 'items', which is a sequence; it must have one value");
  EXPECT_EQ(Of("'items'", "'tags'"),
            "j:15: sequence[0].then[0] names 'tags', which is a list; it must have one value");
  EXPECT_EQ(Of("'items'", "'maybe'"),
            "j:15: sequence[0].then[0] names 'maybe', which may have no key (missing: NO_KEY)");
  EXPECT_EQ(Of("'items'", "'year'"),
            "j:15: sequence[0].then[0] names 'year', which reads the table 'year', but 'items' "
            "reads 'item'; write table: \"year\" in one of them");
}

TEST(ValidateSequences, AListMakesItsKeysAsTheFeaturesInItsTable) {
  EXPECT_EQ(Of("'items'", "'item'"), "j:15: sequence[0].name is 'events', which no layer reads");
  EXPECT_EQ(
      Of("['items', 'years']", "['item', 'year']"),
      "j:15: sequence[0].of[1] names 'years', whose keys are made by categorical { id: STRING "
      "}, but those of 'year' in the same table by { id: INTEGER }: the same value would have "
      "two rows");
}

TEST(ValidateSequences, LengthsAndScripts) {
  EXPECT_EQ(ErrorOf("name: 'e' of: 'l'", "feature { column: 'l' sequence {} }"),
            "j:4: feature[0].sequence.max_length is 0; it must be at least 1");
  EXPECT_EQ(
      ErrorOf("name: 'e' of: 'l'", "feature { column: 'l' sequence { max_length: 1048577 } }"),
      "j:4: feature[0].sequence.max_length is 1048577; it must be at most 1048576");
  EXPECT_EQ(ErrorOf("name: 'e' of: 'items'", "worker { command: 'a' }"),
            "j:15: sequence is set, and `worker` as well: a script gets its lists as they are");
}

}  // namespace
}  // namespace thermocline
