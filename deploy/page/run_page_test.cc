#include "deploy/page/run_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "deploy/page/page_html.h"
#include "deploy/page/testing/made_run.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

std::string ReportOf(const MadeRun& run) {
  const auto page = MakeReport({run.path()});
  EXPECT_TRUE(page.ok()) << page.status();
  return page.value_or("");
}

// The document in a page.
Json DocumentIn(const std::string& page) {
  const std::string before = "<script id=\"report\" type=\"application/json\">";
  const size_t begin = page.find(before) + before.size();
  return Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

TEST(Report, NoTextOfARunLeavesItsPlace) {
  MadeRun run;
  const std::string bad = "</script><!--<script>{{REPORT}}\"'&\u2028";
  run.Append(ProgressLine(1, 1, 0.5) + EventLine("warning", 1, {{"text", bad}}) +
             EventLine("end", 2, {{"status", "INTERNAL"}, {"reason", bad}}));
  run.Write("job.textproto", absl::StrCat("# ", bad, "\nname: \"a\"\n"));
  const std::string page = ReportOf(run);
  EXPECT_EQ(DocumentIn(page)["runs"][0]["state"]["why"], "INTERNAL: " + bad);
  size_t scripts = 0;
  for (size_t at = page.find("<script"); at != std::string::npos; at = page.find("<script", at + 1))
    ++scripts;
  EXPECT_EQ(scripts, 2u);
  EXPECT_THAT(page, Not(HasSubstr("<!--")));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;!--"));  // In the tables.
  EXPECT_THAT(page, Not(HasSubstr("\u2028\"")));
}

TEST(Report, AllowsItsOwnScriptAlone) {
  MadeRun run;
  const std::string page = ReportOf(run);
  EXPECT_THAT(page, HasSubstr("script-src 'sha256-"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("unsafe-inline")));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(Report, TextThatIsNoUtf8IsReplaced) {
  MadeRun run;
  run.Write("job.textproto", "name: \"a\"  # \xff\n");
  EXPECT_THAT(DocumentIn(ReportOf(run))["runs"][0]["job"]["text"].get<std::string>(),
              HasSubstr("\ufffd"));
}

TEST(Report, TwoRunsWithTheSameFolderNameAreToldApart) {
  MadeRun run;
  for (const char* name : {"/a/run", "/b/run", "/b/other"}) {
    std::filesystem::create_directories(run.path() + name);
  }
  const Json same = DocumentIn(*MakeReport({run.path() + "/a/run", run.path() + "/b/run/"}));
  EXPECT_EQ(same["runs"][0]["label"], run.path() + "/a/run");
  EXPECT_TRUE(same["compare"].is_object());
  EXPECT_THAT(*MakeReport({run.path() + "/a/run", run.path() + "/b/other"}),
              HasSubstr("(other)</h1>"));
  const Json others = DocumentIn(*MakeReport({run.path() + "/a/run", run.path() + "/b/other"}));
  EXPECT_EQ(others["runs"][1]["label"], "other");
}

TEST(Report, NeedsAFolder) {
  EXPECT_TRUE(absl::IsNotFound(MakeReport({"/no/such/run"}).status()));
  EXPECT_TRUE(absl::IsNotFound(RunPage::Open("/no/such/run").status()));
}

TEST(StaticTables, HaveWhatThePageShows) {
  MadeRun run;
  std::string lines;
  for (int step = 1; step <= 100; ++step) lines += ProgressLine(step * 20, step, 0.625);
  run.Append(lines + EventLine("eval", 50, {{"step", 999}, {"auc", 0.7512}, {"logloss", 0.49}}) +
             EventLine("server_restart", 60, {{"process", "server 1"}, {"reason", "was killed"}}));
  const std::string page = ReportOf(run);
  const std::string tables = page.substr(page.find("<noscript>"), page.find("</noscript>"));
  EXPECT_THAT(tables, HasSubstr("<caption>Progress</caption>"));
  EXPECT_THAT(tables, HasSubstr("<td>2,000</td><td>1:40</td><td>0.625</td>"));
  EXPECT_THAT(tables, HasSubstr("<td>1,000</td><td>0.7512</td><td>0.49</td>"));
  EXPECT_THAT(tables, HasSubstr("server 1 was killed; started again"));
}

class LivePage : public testing::Test {
 protected:
  LivePage() : page_(*RunPage::Open(run_.path())) {
    run_.Append(Lines(1, 5));
    page_->Refresh(nullptr);
    whole_ = Json::parse(page_->Document());
    cursor_ = whole_["cursor"];
  }
  static std::string Lines(int first, int last) {
    std::string lines;
    for (int step = first; step <= last; ++step) lines += ProgressLine(step, step, step / 10.0);
    return lines;
  }
  // The answer to a page with cursor_, which it gets anew; null: nothing has changed.
  Json Ask() {
    page_->Refresh(nullptr);
    const auto text = page_->Changes(cursor_);
    if (!text.has_value()) return Json();
    Json answer = Json::parse(*text);
    cursor_ = answer["cursor"];
    return answer;
  }

  MadeRun run_;
  std::unique_ptr<RunPage> page_;
  Json whole_;
  std::string cursor_;
};

TEST_F(LivePage, NothingNewIsNoAnswer) {
  EXPECT_EQ(whole_["schema"], 1);
  EXPECT_EQ(whole_["runs"][0]["progress"]["step"].size(), 5u);
  EXPECT_TRUE(Ask().is_null());
}

TEST_F(LivePage, NewLinesAreATail) {
  run_.Append(Lines(6, 7));
  const Json answer = Ask();
  EXPECT_FALSE(answer.contains("schema"));
  const Json& tail = answer["run"]["progress_tail"];
  EXPECT_EQ(tail["from"], 4);  // The last point may have changed.
  EXPECT_EQ(tail["step"], Json({5, 6, 7}));
  EXPECT_EQ(tail["mean"]["loss"], Json({0.5, 0.6, 0.7}));
  EXPECT_TRUE(answer["run"].contains("figures"));
  EXPECT_FALSE(answer["run"].contains("events"));
  EXPECT_FALSE(answer["run"].contains("job"));
  EXPECT_LT(answer.dump().size(), 3000u);
  EXPECT_TRUE(Ask().is_null());
}

TEST_F(LivePage, AnEventIsAChangedField) {
  run_.Append(EventLine("warning", 6, {{"text", "slow disk"}}));
  const Json answer = Ask();
  EXPECT_EQ(answer["run"]["events"][0][2], "slow disk");
  EXPECT_EQ(answer["run"]["progress_tail"]["step"], Json::array({5}));
}

TEST_F(LivePage, ARollbackOrAMergeIsAWholeDocument) {
  run_.Append(EventLine("rollback", 6, {{"step", 2}, {"generation", 2}}));
  const Json after = Ask();
  EXPECT_EQ(after["schema"], 1);
  EXPECT_EQ(after["runs"][0]["progress"]["step"], Json({1, 2}));
  run_.Append(Lines(3, 2500));
  EXPECT_EQ(Ask()["schema"], 1);
  run_.Append(Lines(2501, 2504));
  EXPECT_FALSE(Ask().contains("schema"));
}

TEST_F(LivePage, ACursorThatIsNoneGetsAll) {
  page_->Refresh(nullptr);
  for (const std::string& cursor :
       {std::string(), std::string("x"), std::string("0_1-4_0-0_"), std::string("0_1-4_0-0_a.b"),
        std::string("0_1-99_0-0") + cursor_.substr(cursor_.rfind('_')),
        std::string("0_-1--1_0-0") + cursor_.substr(cursor_.rfind('_')), std::string(100000, '_'),
        cursor_ + "_", std::string("\0\xff", 2)}) {
    const auto answer = page_->Changes(cursor);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(Json::parse(*answer)["schema"], 1) << cursor.substr(0, 60);
  }
}

TEST_F(LivePage, StatsOfProcessesComeFromTheSnapshot) {
  StatsSnapshot stats;
  ServerStats server;
  server.set_resident_bytes(77);
  stats.servers = {{"h1:1", server, {}}, {"h2:1", absl::UnavailableError("no answer"), {}}};
  page_->Refresh(&stats);
  const Json with = Json::parse(*page_->Changes(cursor_));
  EXPECT_EQ(with["run"]["processes"]["servers"]["bytes"], Json({77, nullptr}));
  EXPECT_EQ(with["run"]["processes"]["servers"]["note"], Json({"", "no answer"}));
  cursor_ = with["cursor"];
  EXPECT_TRUE(Ask().is_null());  // They stay until there are newer ones.
}

TEST_F(LivePage, TheEndOfTheJobIsTold) {
  EXPECT_FALSE(page_->is_live());  // No process holds its lock.
  run_.Append(EventLine("end", 9, {{"status", "OK"}}));
  const Json answer = Ask();
  EXPECT_EQ(answer["live"], false);
  EXPECT_EQ(answer["run"]["state"]["kind"], "done");
}

}  // namespace
}  // namespace thermocline
