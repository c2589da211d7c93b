#include "deploy/http/http_door.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/net/host_port.h"
#include "deploy/http/metrics_text.h"

namespace thermocline {
namespace {

// How old an answer may be where no snapshot comes: before the job's processes are up.
constexpr absl::Duration kLongestAge = absl::Seconds(1);
// Readers have one or two cursors at a time; others are computed anew.
constexpr size_t kMaxCursors = 16;
constexpr char kHtml[] = "text/html; charset=utf-8";
constexpr char kJson[] = "application/json";
constexpr char kPrometheusText[] = "text/plain; version=0.0.4; charset=utf-8";

// In time that doesn't depend on what `given` has.
bool IsToken(absl::string_view given, const std::string& token) {
  return !token.empty() && given.size() == token.size() &&
         CRYPTO_memcmp(given.data(), token.data(), token.size()) == 0;
}

// The host of "name", "name:80", "[::1]:80" in lower case, without a dot at its end.
std::string HostOfHeader(absl::string_view header) {
  const size_t colon = header.rfind(':');
  const size_t bracket = header.rfind(']');
  const bool has_port =
      colon != absl::string_view::npos && (header.empty() || header.front() != '[' ||
                                           (bracket != absl::string_view::npos && colon > bracket));
  absl::string_view host = WithoutBrackets(has_port ? header.substr(0, colon) : header);
  absl::ConsumeSuffix(&host, ".");
  return absl::AsciiStrToLower(host);
}

// The value of a cookie; "": there is none.
absl::string_view CookieNamed(absl::string_view header, absl::string_view name) {
  for (absl::string_view cookie : absl::StrSplit(header, ';')) {
    cookie = absl::StripAsciiWhitespace(cookie);
    if (absl::ConsumePrefix(&cookie, name) && absl::ConsumePrefix(&cookie, "=")) return cookie;
  }
  return "";
}

// Cookies don't tell ports of a host apart, and tunnels change them: each run has a name of its
// own, from which nobody learns its token.
std::string ShortHash(const std::string& token) {
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(hash), 6));
}

StatsSnapshot StatsOf(const MonitorSnapshot& snapshot) {
  StatsSnapshot stats;
  for (const MonitoredProcess& process : snapshot.processes()) {
    const absl::Duration took = absl::Seconds(process.answer_s());
    const absl::Status error = absl::UnavailableError(process.error());
    if (process.role() == "server") {
      stats.servers.push_back({process.address(), error, took});
      if (process.error().empty()) stats.servers.back().stats = process.server();
      continue;
    }
    stats.workers.push_back({process.address(), error, took});
    if (process.error().empty()) stats.workers.back().stats = process.worker();
  }
  return stats;
}

}  // namespace

HttpDoor::HttpDoor(MonitorSetup setup, std::unique_ptr<RunPage> page, Clock clock)
    : setup_(std::move(setup)),
      cookie_name_(absl::StrCat("thermocline-", ShortHash(setup_.token()))),
      clock_(std::move(clock)),
      page_(std::move(page)) {}

void HttpDoor::Take(MonitorSnapshot snapshot) {
  absl::MutexLock lock(&mutex_);
  snapshot_ = std::move(snapshot);
  // Pages show servers by index and workers by rank.
  std::sort(snapshot_.mutable_processes()->begin(), snapshot_.mutable_processes()->end(),
            [](const MonitoredProcess& a, const MonitoredProcess& b) {
              return std::make_pair(a.role(), a.index()) < std::make_pair(b.role(), b.index());
            });
  is_new_ = true;
  has_snapshot_ = true;
  metrics_.reset();
}

bool HttpDoor::IsKnownHost(absl::string_view host) const {
  const std::string name = HostOfHeader(host);
  return !name.empty() && std::find(setup_.host_names().begin(), setup_.host_names().end(), name) !=
                              setup_.host_names().end();
}

bool HttpDoor::HasToken(const HttpRequest& request) const {
  absl::string_view bearer = request.authorization;
  const bool is_bearer = absl::ConsumePrefix(&bearer, "Bearer ");
  return (is_bearer && IsToken(absl::StripAsciiWhitespace(bearer), setup_.token())) ||
         IsToken(CookieNamed(request.cookie, cookie_name_), setup_.token());
}

bool HttpDoor::MayEnter(const HttpRequest& request) const {
  if (HasToken(request)) return true;
  return request.peer.has_value() && request.peer->job == setup_.job() &&
         (request.peer->role == Role::kReader || request.peer->role == Role::kController);
}

// The browser keeps the token in a cookie that no script reads, and not in its history.
HttpAnswer HttpDoor::Enter(const HttpRequest& request) const {
  if (!IsToken(*request.token, setup_.token())) return {401, "", "", {}};
  const bool is_tls = !setup_.certificate().empty();
  HttpAnswer answer;
  answer.status = 303;
  answer.headers = {
      {"Location", "/"},
      {"Set-Cookie", absl::StrCat(cookie_name_, "=", setup_.token(),
                                  "; HttpOnly; SameSite=Lax; Path=/", is_tls ? "; Secure" : "")}};
  return answer;
}

HttpAnswer HttpDoor::Answer(const HttpRequest& request) {
  HttpAnswer answer;
  if (!IsKnownHost(request.host)) {
    answer.status = 403;
    answer.body =
        "This is the page of a training job, and it is not known by the name that was asked for. "
        "cluster.http.allowed_host of the job adds a name.\n";
  } else if (request.method != "GET" && request.method != "HEAD") {
    answer.status = 405;
    answer.body = "Only GET and HEAD are answered.\n";
    answer.headers.emplace_back("Allow", "GET, HEAD");
  } else if (request.path == "/" && request.token.has_value()) {
    answer = Enter(request);
  } else if (!MayEnter(request)) {
    answer.status = 401;
  } else {
    answer = Show(request);
  }
  if (answer.status == 401) {
    answer.type = "text/plain; charset=utf-8";
    answer.body = absl::StrCat(
        "The page needs the run's token, which its owner finds in the file http.token of the run "
        "directory: open /?token=TOKEN once, or send the header Authorization: Bearer TOKEN.\n");
    answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  answer.headers.emplace_back("Cache-Control", "no-store");
  answer.headers.emplace_back("X-Content-Type-Options", "nosniff");
  answer.headers.emplace_back("Referrer-Policy", "no-referrer");
  answer.headers.emplace_back("X-Frame-Options", "DENY");
  answer.headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  return answer;
}

HttpAnswer HttpDoor::ShowMetrics() {
  HttpAnswer answer;
  absl::MutexLock lock(&mutex_);
  if (!has_snapshot_) {
    // Counters of 0 would have fallen since the answers of the process before this one.
    answer.status = 503;
    answer.body = "The controller has sent no figures yet.\n";
    return answer;
  }
  if (!metrics_.has_value()) metrics_ = MetricsText(setup_.job(), snapshot_);
  answer.type = kPrometheusText;
  answer.body = *metrics_;
  return answer;
}

HttpAnswer HttpDoor::Show(const HttpRequest& request) {
  if (request.path == "/metrics") return ShowMetrics();
  absl::MutexLock lock(&page_mutex_);
  HttpAnswer answer;
  if (request.path == "/") {
    Refresh();
    if (!prepared_.page.has_value()) prepared_.page = page_->Page();
    answer.type = kHtml;
    answer.body = *prepared_.page;
  } else if (request.path == "/api/job") {
    Refresh();
    answer = ShowJob(request.cursor);
  } else {
    answer.status = 404;
    answer.body = "There is /, /api/job and /metrics.\n";
  }
  return answer;
}

HttpAnswer HttpDoor::ShowJob(const std::optional<std::string>& cursor) {
  HttpAnswer answer;
  answer.type = kJson;
  if (!cursor.has_value()) {
    if (!prepared_.document.has_value()) prepared_.document = page_->Document();
    answer.body = *prepared_.document;
    return answer;
  }
  if (prepared_.changes.size() >= kMaxCursors) prepared_.changes.clear();
  const auto [place, is_first] = prepared_.changes.try_emplace(*cursor);
  if (is_first) place->second = page_->Changes(*cursor);
  if (place->second.has_value()) {
    answer.body = *place->second;
  } else {
    answer.status = 204;
  }
  return answer;
}

void HttpDoor::Refresh() {
  const absl::Duration now = clock_();
  std::optional<StatsSnapshot> stats;  // Where there are newer ones than those that the page has.
  {
    absl::MutexLock lock(&mutex_);
    if (!is_new_ && now - refreshed_at_ < kLongestAge) return;
    if (is_new_ && snapshot_.processes_size() > 0) stats = StatsOf(snapshot_);
    is_new_ = false;
  }
  page_->Refresh(stats.has_value() ? &*stats : nullptr);
  refreshed_at_ = now;
  prepared_ = Prepared();
}

}  // namespace thermocline
