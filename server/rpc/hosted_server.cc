#include "server/rpc/hosted_server.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/process.h"
#include "common/base/process_limits.h"
#include "common/base/scheduler.h"
#include "common/base/status_macros.h"
#include "common/base/task_queue.h"
#include "common/base/thread_pool.h"
#include "common/disk/disk.h"
#include "server/checkpoint/shard_writer.h"
#include "server/storage/journal_opener.h"
#include "server/storage/rocksdb_row_store.h"

namespace thermocline {
namespace {

// How long calls in flight may take to end.
constexpr int kShutdownGraceMs = 2000;

ServerLimits LimitsOf(const HostedServerOptions& options) {
  ServerLimits limits = options.limits;
  if (limits.load_threads == 0) limits.load_threads = std::min(HardwareThreads(), kMaxThreads);
  return limits;
}

// Pushes that are still being received may take as much memory as those that wait to be applied.
// The service takes twice as many pulls as the core holds, so that pulls which the core answers at
// once find a place beside the held pulls.
ServiceOptions ServiceOptionsOf(const HostedServerOptions& options) {
  ServiceOptions service = options.service;
  service.max_push_bytes = std::min(service.max_push_bytes, options.limits.max_pending_push_bytes);
  service.max_pulls =
      std::max<uint64_t>(service.max_pulls, 2 * uint64_t{options.limits.max_held_pulls});
  return service;
}

LogJournalOptions JournalOptionsOf(const HostedServerOptions& options) {
  LogJournalOptions journal;
  journal.directory = options.data_dir;
  journal.on_broken = [code = options.exit_code_if_broken](const absl::Status& status) {
    LogLine(absl::StrCat("push log: ", status.message(), "; ending"));
    std::_Exit(code);
  };
  journal.log_line = [](absl::string_view line) { LogLine(line); };
  return journal;
}

// Says where rows beyond the tables' memory budgets go. If that store fails, the process ends:
// pushes that were accepted and can't be applied are in the push log, if there is one.
SpillIo SpillTo(RowStoreOpener* stores, const HostedServerOptions& options) {
  SpillIo spill;
  if (!options.data_dir.empty()) spill.stores = stores;
  spill.on_broken = [code = options.exit_code_if_broken](const absl::Status& status) {
    LogLine(absl::StrCat(status.message(), "; ending"));
    std::_Exit(code);
  };
  return spill;
}

// They come on top of the thread that reads rows. A few keep a disk busy.
size_t CheckpointThreads(const HostedServerOptions& options) {
  return static_cast<size_t>(options.checkpoint_threads > 0
                                 ? options.checkpoint_threads
                                 : std::clamp(HardwareThreads() / 4, 1, 4));
}

}  // namespace

struct HostedServer::Parts {
  explicit Parts(const HostedServerOptions& options)
      : journals(&disk, &syncs, JournalOptionsOf(options)),
        stores(absl::StrCat(options.data_dir, "/spill")),
        checkpoint_tasks(static_cast<int>(CheckpointIo::MaxTasks(CheckpointThreads(options)))),
        core(LimitsOf(options), &scheduler, options.data_dir.empty() ? nullptr : &journals,
             CheckpointsOf(options), SpillTo(&stores, options)),
        service_options(ServiceOptionsOf(options)),
        service(service_options, &core) {}

  CheckpointIo CheckpointsOf(const HostedServerOptions& options) {
    CheckpointIo checkpoints = {&disk, &checkpoint_tasks, options.incarnation};
    checkpoints.num_files = CheckpointThreads(options);
    return checkpoints;
  }

  PosixDisk disk;
  TaskQueue syncs{1};  // Its thread waits for the disk of the push log.
  LogJournalOpener journals;
  RocksDbRowStoreOpener stores;
  ThreadScheduler scheduler;
  TaskQueue checkpoint_tasks;
  ServerCore core;
  const ServiceOptions service_options;
  ParameterServerService service;
  std::unique_ptr<GrpcServer> calls;  // Null: it takes none.
};

HostedServer::HostedServer(const HostedServerOptions& options)
    : parts_(std::make_unique<Parts>(options)) {}

HostedServer::~HostedServer() { Shutdown(); }

absl::Status HostedServer::Serve(GrpcServer::Options options) {
  options.job_id = parts_->service_options.job_id;
  options.max_message_bytes = parts_->service_options.max_message_bytes;
  options.service = ParameterServer::service_full_name();
  options.memory_bytes = parts_->service_options.max_bytes_in_flight();
  ASSIGN_OR_RETURN(parts_->calls, GrpcServer::Start(options, {&parts_->service}));
  return absl::OkStatus();
}

const std::string& HostedServer::address() const { return parts_->calls->address(); }
ServerCore* HostedServer::core() { return &parts_->core; }
ParameterServerService* HostedServer::service() { return &parts_->service; }

void HostedServer::Shutdown() {
  parts_->core.Shutdown();
  if (parts_->calls == nullptr) return;
  parts_->calls->Shutdown(kShutdownGraceMs);
  parts_->calls.reset();
}

}  // namespace thermocline
