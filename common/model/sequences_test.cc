#include "common/model/sequences.h"

#include <google/protobuf/text_format.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;

Job JobOf(const std::string& text) {
  Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &job)) << text;
  return job;
}

constexpr char kEvents[] = R"(
  sequence { name: "events" of: ["items", "years"] then: ["item", "year"] } )";

// Pooled: item, year, user, items, years; then the steps of both lists.
ModelInputs Inputs() {
  ModelInputs inputs;
  for (const char* name : {"item", "year", "user"}) inputs.features.push_back({name, name, 4});
  for (const char* name : {"items", "years"}) {
    inputs.features.push_back({name, name, 4, /*is_sequence=*/true});
  }
  inputs.sequences.push_back({"events", 5, 2, true});
  for (const char* name : {"events.items", "events.years"}) {
    inputs.features.push_back({name, name, 4, /*is_sequence=*/true, /*sequence=*/0});
  }
  return inputs;
}

std::vector<std::string> Kept(const std::string& layers) {
  const ModelInputs kept = WithoutUnpooled(JobOf(kEvents + layers), Inputs());
  std::vector<std::string> names;
  for (const EmbeddedFeature& feature : kept.features) names.push_back(feature.name);
  EXPECT_EQ(names.at(kept.sequences[0].first_feature), "events.items");
  return names;
}

TEST(WithoutUnpooled, KeepsWhatALayerAGroupOrATaskNames) {
  // A feature of no sequence stays, so that the model can say that nothing reads it.
  EXPECT_THAT(Kept("layer { input: 'events' }"),
              ElementsAre("user", "events.items", "events.years"));
  EXPECT_THAT(Kept("layer { input: ['events', 'years'] }"),
              ElementsAre("user", "years", "events.items", "events.years"));
  EXPECT_THAT(Kept("layer { input: 'events' attention { query: 'item' } }"),
              ElementsAre("item", "user", "events.items", "events.years"));
  EXPECT_THAT(Kept("layer { feature_gate { by: 'item' } } layer { gate { by: 'year' } }"),
              ElementsAre("item", "year", "user", "events.items", "events.years"));
  EXPECT_THAT(Kept("group { name: 'g' feature: 'items' } task { input: 'year' }"),
              ElementsAre("year", "user", "items", "events.items", "events.years"));
  EXPECT_THAT(Kept("layer { input: 'fields' }"),
              ElementsAre("item", "year", "user", "events.items", "events.years"));
  EXPECT_EQ(Kept("layer { input: 'categorical' }").size(), 7u);
}

TEST(CheckSequenceNames, NamesTheField) {
  const auto check = [](const std::string& name, const std::string& more = "") {
    const auto error = CheckSequenceNames(JobOf("sequence { name: '" + name + "' } " + more));
    return error.has_value() ? error->field + " " + error->what : "";
  };
  EXPECT_EQ(check("events"), "");
  for (const std::string name : {"numeric", "categorical", "fields"}) {
    EXPECT_EQ(check(name),
              "sequence[0].name is '" + name + "', a word for several features; name it otherwise");
  }
  for (const std::string name : {"", "a.b"}) {
    EXPECT_EQ(check(name),
              "sequence[0].name is '" + name + "'; it must be a name of letters, digits and '_'");
  }
  EXPECT_EQ(check("e", "sequence { name: 'e' }"), "sequence[1].name is 'e' a second time");
  EXPECT_EQ(check("e", "feature { name: 'e' }"),
            "sequence[0].name is 'e', the name of a feature; name one of them otherwise");
  EXPECT_EQ(check("e", "layer { name: 'e' }"),
            "sequence[0].name is 'e', the name of a layer; name one of them otherwise");
  EXPECT_EQ(check("e", "group { name: 'e' }"),
            "sequence[0].name is 'e', the name of a group; name one of them otherwise");
}

}  // namespace
}  // namespace thermocline
