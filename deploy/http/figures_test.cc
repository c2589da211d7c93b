#include "deploy/http/figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/monitor.pb.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// "ServerStats.uptime_s", "ServerStats.stages.count": all numbers in a message, also in those that
// it is made of. Stages are named by what they are a part of.
void AddNumbersOf(const Descriptor* message, const std::string& name, std::set<std::string>* all) {
  for (int i = 0; i < message->field_count(); ++i) {
    const FieldDescriptor* const field = message->field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) continue;
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      all->insert(absl::StrCat(name, ".", field->name()));
      continue;
    }
    const Descriptor* const part = field->message_type();
    // A time is a figure as a whole, and what it is made of is listed once.
    if (part == LatencyStats::descriptor()) all->insert(absl::StrCat(name, ".", field->name()));
    AddNumbersOf(
        part,
        part == StageStats::descriptor() ? absl::StrCat(message->name(), ".stages") : part->name(),
        all);
  }
}

TEST(Figures, HaveEachNumberOfTheStatsOrSayWhyNot) {
  std::set<std::string> numbers, known;
  for (const Descriptor* message :
       {ServerStats::descriptor(), WorkerStats::descriptor(), JobFigures::descriptor()}) {
    AddNumbersOf(message, message->name(), &numbers);
  }
  for (const Figure& figure : AllFigures()) {
    EXPECT_TRUE(known.insert(absl::StrCat(figure.message, ".", figure.field)).second)
        << figure.field;
  }
  for (const LeftOut& field : FieldsLeftOut()) {
    EXPECT_TRUE(known.insert(absl::StrCat(field.message, ".", field.field)).second) << field.field;
    EXPECT_NE(field.why, "");
  }
  EXPECT_EQ(numbers, known);
}

TEST(Figures, HaveNamesOfTheirKindAndSentencesForHelp) {
  std::map<absl::string_view, const Figure*> first;
  for (const Figure& figure : AllFigures()) {
    EXPECT_TRUE(absl::StartsWith(figure.name, "thermocline_")) << figure.name;
    EXPECT_EQ(absl::EndsWith(figure.name, "_total"), figure.kind == FigureKind::kCounter)
        << figure.name;
    EXPECT_TRUE(absl::EndsWith(figure.help, ".")) << figure.name;
    // A name that two messages share means the same in both.
    const Figure* const other = first.try_emplace(figure.name, &figure).first->second;
    EXPECT_EQ(other->kind, figure.kind) << figure.name;
    EXPECT_EQ(other->help, figure.help) << figure.name;
  }
}

TEST(AddCounters, AddsCountersAndKeepsTheRest) {
  ServerStats from, to;
  from.set_pulls_held(5);
  from.set_pulls_waiting(3);
  to.set_pulls_held(2);
  to.set_pulls_waiting(1);
  AddCounters(from, &to);
  EXPECT_EQ(to.pulls_held(), 7u);
  EXPECT_EQ(to.pulls_waiting(), 1u);
}

TEST(AddCounters, JoinsListsByTheNamesOfTheirEntries) {
  ServerStats from, to;
  for (const auto& [name, pulled] : {std::pair("A", 1), std::pair("B", 2)}) {
    TableStats* const table = from.add_tables();
    table->set_name(name);
    table->set_keys_pulled(pulled);
    table->set_rows(100);
  }
  TableStats* const b = to.add_tables();
  b->set_name("B");
  b->set_keys_pulled(40);
  b->set_rows(7);
  from.mutable_tables(0)->set_role(TableSpec::DENSE);
  AddCounters(from, &to);
  ASSERT_EQ(to.tables_size(), 2);
  EXPECT_EQ(to.tables(1).role(), TableSpec::DENSE);
  EXPECT_EQ(to.tables(0).keys_pulled(), 42u);
  EXPECT_EQ(to.tables(0).rows(), 7u);
  EXPECT_EQ(to.tables(1).name(), "A");
  EXPECT_EQ(to.tables(1).keys_pulled(), 1u);
  EXPECT_EQ(to.tables(1).rows(), 0u);
}

TEST(AddCounters, AddsHistograms) {
  WorkerStats from, to;
  LatencyStats* const a = from.mutable_step_time();
  a->set_count(1);
  a->set_mean_us(300);
  a->add_buckets(0);
  a->add_buckets(1);
  LatencyStats* const b = to.mutable_step_time();
  b->set_count(3);
  b->set_mean_us(100);
  b->add_buckets(3);
  AddCounters(from, &to);
  EXPECT_EQ(to.step_time().count(), 4u);
  EXPECT_DOUBLE_EQ(to.step_time().mean_us(), 150);
  EXPECT_THAT(to.step_time().buckets(), testing::ElementsAre(3, 1));
}

TEST(AddCounters, AddsTimesByRank) {
  WorkerStats from, to;
  from.mutable_exchange()->add_wait_for_rank_s(1);
  from.mutable_exchange()->add_wait_for_rank_s(2);
  to.mutable_exchange()->add_wait_for_rank_s(10);
  AddCounters(from, &to);
  EXPECT_THAT(to.exchange().wait_for_rank_s(), testing::ElementsAre(11, 2));
}

}  // namespace
}  // namespace thermocline
