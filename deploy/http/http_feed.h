// The controller's side of its web server (cluster.http): a child process that serves the job's
// page and metrics, and that is told once a second what the job's processes say.
//
// The child harms nothing: the job never waits for it, one that ends is started again after a
// pause, and one that hangs keeps what was sent last. The controller holds the listening socket, so
// that an address stays the job's while the child is away; connections wait for the next child.
#ifndef THERMOCLINE_DEPLOY_HTTP_HTTP_FEED_H_
#define THERMOCLINE_DEPLOY_HTTP_HTTP_FEED_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/timing.h"
#include "common/process/child_process.h"
#include "deploy/http/monitor_state.h"
#include "deploy/processes/run_directory.h"
#include "proto/job.pb.h"

namespace thermocline {

// In the run directory: the token that requests need, and where the page is, as JSON ("address",
// "url", "token_file"), while the job runs; and what the child has to complain of.
inline constexpr char kHttpTokenFile[] = "http.token";
inline constexpr char kHttpFile[] = "http.json";
inline constexpr char kHttpLog[] = "http.log";

// Its methods are called on the main thread.
class HttpFeed {
 public:
  // Listens at the job's cluster.http.address, writes the files above, and starts the child.
  // `directory` outlives it. Errors: kUnavailable (the address is in use, or not this machine's;
  // names it; a file can't be written), kInvalidArgument (it is no address), kDataLoss (the token's
  // file holds no token; names it); those of ReadTlsFiles; those of ChildProcess::Start.
  static absl::StatusOr<std::unique_ptr<HttpFeed>> Open(const Job& job,
                                                        const RunDirectory& directory);
  ~HttpFeed();

  // "http://127.0.0.1:9090/"
  const std::string& url() const { return url_; }
  // The same with the token. Secret: whoever has it reads the job's page.
  std::string UrlWithToken() const;
  std::string token_file() const { return directory_.File(kHttpTokenFile); }

  // `host`: where it runs; "": on this machine.
  void OnStart(const ProcessId& id, const std::string& host);
  // is_done: it has ended as it should.
  void OnEnd(const ProcessId& id, bool is_done);
  void OnEvent(const nlohmann::ordered_json& event);
  void OnStats(const std::vector<ServerReport>& servers, const std::vector<WorkerReport>& workers,
               uint64_t checkpoint_bytes);

  // Starts the child again where it has ended and the pause after it is over. Returns a line for
  // the user, the first time that it ends.
  std::optional<std::string> Look();

 private:
  static constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
  static constexpr absl::Duration kLongestPause = absl::Seconds(30);
  // A child that lived so long was well: the pause begins anew.
  static constexpr absl::Duration kLongLife = absl::Seconds(60);

  HttpFeed(const RunDirectory& directory, int listener) : directory_(directory), fd_(listener) {}

  absl::Status StartChild();
  void Send();  // The body of sender_.
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stops_ || next_connection_ >= 0 || (connection_ >= 0 && has_news_);
  }

  const RunDirectory& directory_;
  const int fd_;  // It listens.
  std::string url_;
  MonitorSetup setup_;
  const Stopwatch watch_;
  std::optional<ChildProcess> child_;
  absl::Duration started_at_, start_at_;
  absl::Duration pause_ = kFirstPause;
  bool has_told_ = false;

  absl::Mutex mutex_;
  MonitorState state_ ABSL_GUARDED_BY(mutex_);
  bool has_news_ ABSL_GUARDED_BY(mutex_) = true;
  bool stops_ ABSL_GUARDED_BY(mutex_) = false;
  int connection_ ABSL_GUARDED_BY(mutex_) = -1;       // The sender's; -1: the child is gone.
  int next_connection_ ABSL_GUARDED_BY(mutex_) = -1;  // To the next child, for the sender.
  std::thread sender_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_HTTP_FEED_H_
