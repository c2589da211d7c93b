#include "deploy/nodes/log_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace thermocline {
namespace {

class LogRequestsTest : public testing::Test {
 protected:
  LogRequestsTest()
      : folder_(MakeFolder()),
        directory_(*RunDirectory::Open(folder_)),
        requests_("h1", directory_) {}

  static std::string MakeFolder() {
    const std::string folder = testing::TempDir() + "/log_requests";
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
    return folder;
  }
  void Write(const std::string& text) {
    std::ofstream(folder_ + "/server-0.log", std::ios::app) << text;
  }
  // Takes a request for the log of server 0, which goes on at `offset` on `host`.
  void Take(uint64_t id, const std::string& host, uint64_t offset) {
    LogRequest request;
    request.set_id(id);
    request.set_process("server 0");
    request.set_max_lines(2);
    request.set_host(host);
    request.set_offset(offset);
    *asked_.Add() = request;
    requests_.Take(now_, asked_);
  }
  // "7: LINE|LINE @end", one an answer.
  std::vector<std::string> Answers(bool is_over = false) {
    std::vector<std::string> texts;
    for (const LogLines& answer : requests_.Answer(now_, is_over)) {
      EXPECT_EQ(answer.host(), "h1");
      EXPECT_EQ(answer.path(), folder_ + "/server-0.log");
      std::string text = std::to_string(answer.id()) + ":";
      for (const std::string& line : answer.lines()) text += " " + line;
      texts.push_back(text + " @" + std::to_string(answer.offset()));
    }
    return texts;
  }

  const std::string folder_;
  const RunDirectory directory_;
  absl::Duration now_;
  google::protobuf::RepeatedPtrField<LogRequest> asked_;
  LogRequests requests_;
};

TEST_F(LogRequestsTest, TheLastLinesComeAtOnceAndOnce) {
  Write("one\ntwo\nthree\n");
  Take(7, "", 0);
  Take(7, "", 0);
  EXPECT_THAT(Answers(), testing::ElementsAre("7: two three @14"));
  EXPECT_THAT(Answers(), testing::IsEmpty());
  // On another host it went on from there.
  Take(8, "h2", 3);
  EXPECT_THAT(Answers(), testing::ElementsAre("8: two three @14"));
}

TEST_F(LogRequestsTest, ARequestThatGoesOnWaitsForLines) {
  Write("one\n");
  Take(7, "h1", 4);
  EXPECT_THAT(Answers(), testing::IsEmpty());
  Write("tw");
  EXPECT_THAT(Answers(), testing::IsEmpty());
  Write("o\nthree\n");
  EXPECT_THAT(Answers(), testing::ElementsAre("7: two three @14"));
}

TEST_F(LogRequestsTest, ItIsAnsweredWithoutLinesAfterAWhileOrAtTheEnd) {
  Write("one\n");
  Take(7, "h1", 4);
  now_ += absl::Seconds(4);
  EXPECT_THAT(Answers(), testing::IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(Answers(), testing::ElementsAre("7: @4"));
  Take(8, "h1", 4);
  EXPECT_THAT(Answers(), testing::IsEmpty());
  EXPECT_THAT(Answers(/*is_over=*/true), testing::ElementsAre("8: @4"));
}

}  // namespace
}  // namespace thermocline
