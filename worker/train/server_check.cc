#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/ids.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/job/resolved_job.h"
#include "common/net/control_client.h"
#include "common/net/rpc.h"
#include "proto/parameter_server.pb.h"
#include "worker/session/retry_policy.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(500);

// A text that changes whenever the server advances; "" where there is no answer.
std::string ProgressOf(ControlClient* client, const absl::Status& refusal, absl::Duration timeout) {
  const absl::StatusOr<ServerStats> stats = client->GetStats(timeout);
  if (!stats.ok()) return "";
  return absl::StrCat(refusal.ToString(), " ", stats->replayed_chunks(), " ", stats->loaded_rows());
}

absl::Status AwaitServer(const ConfigureRequest& request, ControlClient* client,
                         absl::Duration patience) {
  std::string progress;
  bool is_told = false;
  absl::Duration pause = kFirstPause;
  const Stopwatch watch;
  absl::Duration last_progress;
  while (true) {
    const absl::Status status = client->Configure(request, patience).status();
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    std::string now = ProgressOf(client, status, patience);
    const bool is_reached = !now.empty();
    if (is_reached && now != progress) {
      progress = std::move(now);
      last_progress = watch.Elapsed();
    } else if (watch.Elapsed() - last_progress >= patience) {
      return MarkServerLoss(
          WithContext(status, absl::StrCat("can't reach server ", request.server_index())));
    }
    if (!is_reached && !std::exchange(is_told, true)) {
      LogLine(absl::StrCat("can't reach server ", request.server_index(), ": ", status.message(),
                           "; trying again"));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

}  // namespace

absl::Status AwaitServers(const Job& job, const ServerCheckOptions& options) {
  for (size_t index = 0; index < options.addresses.size(); ++index) {
    ASSIGN_OR_RETURN(const std::unique_ptr<ControlClient> client,
                     ControlClient::Create(options.addresses[index], options.tls));
    ConfigureRequest request =
        MakeConfigureRequest(job, options.job_id, options.generation, ServerIndex(index));
    request.set_check_only(true);
    RETURN_IF_ERROR(AwaitServer(request, client.get(), options.patience));
  }
  return absl::OkStatus();
}

}  // namespace thermocline
