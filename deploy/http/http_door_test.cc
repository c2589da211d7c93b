#include "deploy/http/http_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

constexpr char kToken[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

class HttpDoorTest : public testing::Test {
 protected:
  void SetUp() override {
    run_dir_ = absl::StrCat(testing::TempDir(), "/http_door_test.", getpid());
    std::filesystem::create_directories(run_dir_);
    setup_.set_job("small");
    setup_.set_run_dir(run_dir_);
    setup_.set_address("127.0.0.1:4711");
    setup_.set_token(kToken);
    for (const char* name : {"127.0.0.1", "localhost", "::1", "trainer.example"}) {
      setup_.add_host_names(name);
    }
    Open();
  }
  void TearDown() override { std::filesystem::remove_all(run_dir_); }

  void Open() {
    auto page = RunPage::Open(run_dir_);
    ASSERT_TRUE(page.ok()) << page.status();
    door_ = std::make_unique<HttpDoor>(setup_, *std::move(page), [this] { return now_; });
    EXPECT_EQ(StatusOf(WithToken("/metrics")), setup_.token().empty() ? 401 : 503);
    door_->Take(MonitorSnapshot());
  }
  static HttpRequest Get(const std::string& path) {
    HttpRequest request;
    request.method = "GET";
    request.path = path;
    request.host = "127.0.0.1:4711";
    return request;
  }
  static HttpRequest WithToken(const std::string& path) {
    HttpRequest request = Get(path);
    request.authorization = absl::StrCat("Bearer ", kToken);
    return request;
  }
  // Returns the name of the cookie that the token in the address sets.
  std::string CookieName() {
    HttpRequest request = Get("/");
    request.token = kToken;
    for (const auto& [name, value] : door_->Answer(request).headers) {
      if (name == "Set-Cookie") return value.substr(0, value.find('='));
    }
    return "";
  }
  int StatusOf(const HttpRequest& request) { return door_->Answer(request).status; }
  int StatusOfHost(const std::string& host) {
    HttpRequest request = WithToken("/metrics");
    request.host = host;
    return StatusOf(request);
  }
  int StatusOfPeer(const std::string& job, Role role) {
    HttpRequest request = Get("/metrics");
    request.peer = Identity{job, role};
    return StatusOf(request);
  }
  static MonitorSnapshot WithRollbacks(uint64_t rollbacks) {
    MonitorSnapshot snapshot;
    snapshot.mutable_job()->set_rollbacks(rollbacks);
    return snapshot;
  }

  std::string run_dir_;
  MonitorSetup setup_;
  absl::Duration now_;
  std::unique_ptr<HttpDoor> door_;
};

TEST_F(HttpDoorTest, EveryPathNeedsTheToken) {
  for (const char* path : {"/", "/api/job", "/metrics", "/nothing"}) {
    const HttpAnswer answer = door_->Answer(Get(path));
    EXPECT_EQ(answer.status, 401) << path;
    EXPECT_THAT(answer.body, HasSubstr("http.token")) << path;
    EXPECT_THAT(answer.body, Not(HasSubstr(run_dir_))) << path;
  }
  for (const char* path : {"/", "/api/job", "/metrics"}) {
    EXPECT_EQ(StatusOf(WithToken(path)), 200) << path;
  }
  EXPECT_EQ(StatusOf(WithToken("/nothing")), 404);
}

TEST_F(HttpDoorTest, OnlyTheWholeTokenIsOne) {
  const std::string token = kToken;
  for (const std::string& wrong :
       {std::string(), token.substr(1), token + "0", "1" + token.substr(1), std::string(64, '0')}) {
    HttpRequest request = Get("/metrics");
    request.authorization = "Bearer " + wrong;
    EXPECT_EQ(StatusOf(request), 401) << wrong;
    request = Get("/metrics");
    request.cookie = CookieName() + "=" + wrong;
    EXPECT_EQ(StatusOf(request), 401) << wrong;
    request = Get("/");
    request.token = wrong;
    EXPECT_EQ(StatusOf(request), 401) << wrong;
  }
  HttpRequest request = Get("/metrics");
  request.authorization = "Basic " + token;
  EXPECT_EQ(StatusOf(request), 401);
  // Only the page itself takes it from the address, which ends up in histories and logs.
  request = Get("/metrics");
  request.token = token;
  EXPECT_EQ(StatusOf(request), 401);
}

TEST_F(HttpDoorTest, AJobWithoutATokenLetsNobodyIn) {
  setup_.clear_token();
  Open();
  HttpRequest request = Get("/");
  request.token = "";
  request.authorization = "Bearer ";
  request.cookie = "thermocline-e3b0c44298fc=";  // The name that an empty token has.
  EXPECT_EQ(StatusOf(request), 401);
}

TEST_F(HttpDoorTest, TheTokenInTheAddressBecomesACookie) {
  HttpRequest request = Get("/");
  request.token = kToken;
  const HttpAnswer answer = door_->Answer(request);
  EXPECT_EQ(answer.status, 303);
  EXPECT_THAT(answer.headers, Contains(Pair("Location", "/")));
  EXPECT_THAT(answer.headers,
              Contains(Pair("Set-Cookie", absl::StrCat(CookieName(), "=", kToken,
                                                       "; HttpOnly; SameSite=Lax; Path=/"))));
  EXPECT_THAT(CookieName(), Not(HasSubstr(std::string(kToken).substr(0, 8))));
  request = Get("/api/job");
  request.cookie = absl::StrCat("other=1; ", CookieName(), "=", kToken);
  EXPECT_EQ(StatusOf(request), 200);
  request.cookie = absl::StrCat(CookieName(), "0=", kToken);  // It is of another job.
  EXPECT_EQ(StatusOf(request), 401);
}

TEST_F(HttpDoorTest, WithTlsTheCookieGoesOverTlsAlone) {
  setup_.set_certificate("c.pem");
  Open();
  HttpRequest request = Get("/");
  request.token = kToken;
  EXPECT_THAT(door_->Answer(request).headers,
              Contains(Pair("Set-Cookie", testing::EndsWith("; Path=/; Secure"))));
}

TEST_F(HttpDoorTest, CertificatesOfReadersAndControllersOfTheJobMayEnter) {
  EXPECT_EQ(StatusOfPeer("small", Role::kReader), 200);
  EXPECT_EQ(StatusOfPeer("small", Role::kController), 200);
  EXPECT_EQ(StatusOfPeer("small", Role::kWorker), 401);
  EXPECT_EQ(StatusOfPeer("small", Role::kServer), 401);
  EXPECT_EQ(StatusOfPeer("small", Role::kNode), 401);
  EXPECT_EQ(StatusOfPeer("other", Role::kReader), 401);
}

TEST_F(HttpDoorTest, ItIsKnownByItsNamesAlone) {
  for (const char* host : {"127.0.0.1", "127.0.0.1:4711", "LocalHost:80", "localhost.", "[::1]",
                           "[::1]:4711", "trainer.example:4711"}) {
    EXPECT_EQ(StatusOfHost(host), 200) << host;
  }
  for (const char* host :
       {"", ":4711", "evil.example", "evil.example:4711", "127.0.0.1.evil.example",
        "localhost.evil.example", "[::2]:4711", "127.0.0.1:80:80", "[", "]:1"}) {
    EXPECT_EQ(StatusOfHost(host), 403) << host;
  }
}

TEST_F(HttpDoorTest, OnlyReadsAreAnswered) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "PATCH", ""}) {
    HttpRequest request = WithToken("/");
    request.method = method;
    EXPECT_EQ(StatusOf(request), 405) << method;
  }
  HttpRequest request = WithToken("/");
  request.method = "HEAD";
  EXPECT_EQ(StatusOf(request), 200);
}

TEST_F(HttpDoorTest, EveryAnswerForbidsCachesAndFrames) {
  for (const HttpRequest& request : {Get("/"), WithToken("/"), WithToken("/nothing")}) {
    const HttpAnswer answer = door_->Answer(request);
    EXPECT_THAT(answer.headers, Contains(Pair("Cache-Control", "no-store")));
    EXPECT_THAT(answer.headers, Contains(Pair("X-Content-Type-Options", "nosniff")));
    EXPECT_THAT(answer.headers, Contains(Pair("Referrer-Policy", "no-referrer")));
    EXPECT_THAT(answer.headers, Contains(Pair("X-Frame-Options", "DENY")));
  }
  EXPECT_THAT(door_->Answer(WithToken("/metrics")).type, HasSubstr("version=0.0.4"));
  EXPECT_EQ(door_->Answer(WithToken("/api/job")).type, "application/json");
}

TEST_F(HttpDoorTest, MetricsAreThoseOfTheNewestSnapshot) {
  door_->Take(WithRollbacks(1));
  EXPECT_THAT(door_->Answer(WithToken("/metrics")).body,
              HasSubstr("thermocline_job_rollbacks_total{job=\"small\"} 1\n"));
  door_->Take(WithRollbacks(2));
  door_->Take(WithRollbacks(3));
  EXPECT_THAT(door_->Answer(WithToken("/metrics")).body,
              HasSubstr("thermocline_job_rollbacks_total{job=\"small\"} 3\n"));
}

TEST_F(HttpDoorTest, AnswersAreMadeOnceASecondOrOnceASnapshot) {
  const std::string empty = door_->Answer(WithToken("/api/job")).body;
  std::ofstream(run_dir_ + "/metrics.jsonl")
      << "{\"event\":\"started\",\"time\":1700000000,\"wall_s\":0}\n"
      << "{\"event\":\"server_restart\",\"process\":\"server 0\",\"reason\":\"x\",\"wall_s\":1}\n";
  EXPECT_EQ(door_->Answer(WithToken("/api/job")).body, empty);
  now_ += absl::Seconds(1);
  const std::string first = door_->Answer(WithToken("/api/job")).body;
  EXPECT_NE(first, empty);
  door_->Take(WithRollbacks(1));
  std::ofstream(run_dir_ + "/metrics.jsonl", std::ios::app)
      << "{\"event\":\"server_restart\",\"process\":\"server 1\",\"reason\":\"x\",\"wall_s\":2}\n";
  EXPECT_NE(door_->Answer(WithToken("/api/job")).body, first);
}

}  // namespace
}  // namespace thermocline
