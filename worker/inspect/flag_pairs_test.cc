#include "worker/inspect/flag_pairs.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

const std::vector<std::string> kNames = {"like", "top", "other"};

// Every second of 3,000 rows is liked, every sixth is top, too, and a third column has a period of
// its own; `texts_of` may change a row's.
template <typename TextsOf>
FlagPairs Pairs(const TextsOf& texts_of) {
  FlagPairs pairs(kNames.size());
  for (int row = 0; row < 3000; ++row) {
    std::vector<std::string> texts = {row % 2 == 0 ? "1" : "0", row % 6 == 0 ? "1" : "0",
                                      row % 5 == 0 ? "yes" : "no"};
    texts_of(row, &texts);
    for (size_t c = 0; c < texts.size(); ++c) pairs.Add(c, texts[c]);
    if (row % 700 == 0) pairs.EndBlock();
  }
  pairs.EndBlock();
  return pairs;
}

Json ImpliedBy(const FlagPairs& pairs, size_t column) {
  Json figures;
  pairs.AddImplied(column, kNames, &figures);
  return figures.is_null() ? Json::array() : figures["implies"];
}

TEST(FlagPairs, ARareTextThatNeedsAnotherImpliesIt) {
  const FlagPairs pairs = Pairs([](int, std::vector<std::string>*) {});
  EXPECT_EQ(ImpliedBy(pairs, 1), Json::parse(R"([{"column":"like","rows":500,"but":0}])"));
  EXPECT_EQ(ImpliedBy(pairs, 0), Json::array()) << "two of three liked rows are not top";
  EXPECT_EQ(ImpliedBy(pairs, 2), Json::array());
}

TEST(FlagPairs, ItIsTheGreaterTextWhicheverComesFirst) {
  // All texts swap, so that rows that are not top are not liked: 2,500 rows, of which 1,000 are.
  const FlagPairs pairs = Pairs([](int, std::vector<std::string>* texts) {
    for (int c : {0, 1}) (*texts)[c] = (*texts)[c] == "1" ? "a" : "b";
  });
  EXPECT_EQ(ImpliedBy(pairs, 0), Json::parse(R"([{"column":"top","rows":1500,"but":0}])"));
  EXPECT_EQ(ImpliedBy(pairs, 1), Json::array());
}

TEST(FlagPairs, AFewExceptionsAreNoMatter) {
  const auto but = [](int exceptions) {
    const FlagPairs pairs = Pairs([&](int row, std::vector<std::string>* texts) {
      if (row % 6 == 0 && row < 6 * exceptions) (*texts)[0] = "0";
    });
    return ImpliedBy(pairs, 1);
  };
  EXPECT_EQ(but(4), Json::parse(R"([{"column":"like","rows":500,"but":4}])"));
  EXPECT_EQ(but(20), Json::array());
}

TEST(FlagPairs, RowsWithoutAValueAreOutsideAndAThirdTextEndsIt) {
  const auto implied = [](const std::string& text) {
    const FlagPairs pairs = Pairs([&](int row, std::vector<std::string>* texts) {
      if (row == 1999) (*texts)[0] = text;
      if (row == 6) (*texts)[1] = "";
    });
    return ImpliedBy(pairs, 1);
  };
  EXPECT_EQ(implied(""), Json::parse(R"([{"column":"like","rows":499,"but":0}])"));
  EXPECT_EQ(implied("2"), Json::array());
}

TEST(FlagPairs, TooFewRowsSayNothing) {
  FlagPairs pairs(2);
  for (int row = 0; row < 60; ++row) {
    pairs.Add(0, row % 2 == 0 ? "1" : "0");
    pairs.Add(1, row % 6 == 0 ? "1" : "0");
  }
  pairs.EndBlock();
  EXPECT_EQ(ImpliedBy(pairs, 1), Json::array());
}

}  // namespace
}  // namespace thermocline
