// Who may ask the job's web server, and what it answers: `/` the page of the run, `/api/job` its
// data, `/metrics` what Prometheus scrapes. No sockets here.
//
// A request has to call the server by one of its names (the Host header), so that no page of
// another site can reach it through a name that suddenly means this host; and it shows the run's
// token, in the Authorization header or in the cookie that `/?token=TOKEN` sets, or a certificate
// of the job whose role is reader or controller.
#ifndef THERMOCLINE_DEPLOY_HTTP_HTTP_DOOR_H_
#define THERMOCLINE_DEPLOY_HTTP_HTTP_DOOR_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/net/certificates.h"
#include "deploy/page/run_page.h"
#include "proto/monitor.pb.h"

namespace thermocline {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // Without the query: "/api/job".
  // Headers; "": there is none.
  std::string host, authorization, cookie;
  // Parameters of the query; nullopt: there is none.
  std::optional<std::string> token, cursor;
  // In the certificate that the client has shown and the job's authority has signed.
  std::optional<Identity> peer;
};

struct HttpAnswer {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Thread-safe.
class HttpDoor {
 public:
  using Clock = std::function<absl::Duration()>;
  // `page`: of setup.run_dir. `clock` never goes back.
  HttpDoor(MonitorSetup setup, std::unique_ptr<RunPage> page, Clock clock);

  // The newest of what the controller sends.
  void Take(MonitorSnapshot snapshot);

  // Metrics are computed once for a snapshot, page and data also once a second, however many ask.
  HttpAnswer Answer(const HttpRequest& request);

 private:
  // The page's answers after its last Refresh; each is made when it is asked for first.
  struct Prepared {
    std::optional<std::string> page, document;
    std::map<std::string, std::optional<std::string>> changes;  // By cursor; nullopt: none.
  };

  bool IsKnownHost(absl::string_view host) const;
  bool HasToken(const HttpRequest& request) const;
  bool MayEnter(const HttpRequest& request) const;
  HttpAnswer Enter(const HttpRequest& request) const;
  HttpAnswer Show(const HttpRequest& request);
  HttpAnswer ShowMetrics() ABSL_LOCKS_EXCLUDED(mutex_);
  HttpAnswer ShowJob(const std::optional<std::string>& cursor)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(page_mutex_);
  void Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(page_mutex_) ABSL_LOCKS_EXCLUDED(mutex_);

  const MonitorSetup setup_;
  const std::string cookie_name_;
  const Clock clock_;
  absl::Mutex mutex_;
  bool has_snapshot_ ABSL_GUARDED_BY(mutex_) = false;
  MonitorSnapshot snapshot_ ABSL_GUARDED_BY(mutex_);
  std::optional<std::string> metrics_ ABSL_GUARDED_BY(mutex_);  // nullopt: not made yet.
  bool is_new_ ABSL_GUARDED_BY(mutex_) = false;  // The page has not seen the snapshot yet.

  // Metrics and snapshots don't wait for the page, which reads files.
  absl::Mutex page_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  const std::unique_ptr<RunPage> page_ ABSL_PT_GUARDED_BY(page_mutex_);
  absl::Duration refreshed_at_ ABSL_GUARDED_BY(page_mutex_) = -absl::InfiniteDuration();
  Prepared prepared_ ABSL_GUARDED_BY(page_mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_HTTP_DOOR_H_
