// Where one run of a job leaves its files, and the lock that gives a folder to one launcher:
//   job.textproto        the job with every default filled in
//   servers.json         addresses of the processes, for `thermocline stats --run-dir`
//   server-N.log, worker-N.log
//   metrics.jsonl        one line an event of training (docs/operations.md)
//   worker-N.json        what each worker reported at its end, of its process
//   server_stats.json    the servers' stats at the end
//   summary.json         the result
//   data_index/          where rows begin in the text files of the data (docs/formats.md)
//   certificates/        of the job's processes, where cluster.tls.automatic made them; of a job
//                        over several hosts also the key of their authority
//   submit/              the script for an engine, its log, those of the hosts' agents
//   stop.request         `thermocline stop` asks the job to end
//   controller.json      of a job over several hosts: where the controller listens for their agents
//   hosts.json           which process ran on which host, and where its log lies there
//   http.token           the secret of the job's page
//   http.json, http.log  where the page is, and the log of the process that serves it
//   slow_hosts.json      hosts that keep the others waiting (host_watch.h)
//   lock                 held by the launcher and the processes that it starts
#ifndef THERMOCLINE_DEPLOY_PROCESSES_RUN_DIRECTORY_H_
#define THERMOCLINE_DEPLOY_PROCESSES_RUN_DIRECTORY_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace thermocline {

// The name of this machine; "": it has none.
std::string HostName();

// Lets `readers` read the files that this process, and those that it starts, make from now on (sets
// the umask).
void MakeFilesFor(Job::Readers readers);

class RunDirectory {
 public:
  // Makes `path`, or runs/<job_name>-<time> where it is empty, for `readers`; folders above it that
  // are missing have the modes that the process gives to all. Overwrites no files: an existing
  // folder must be empty, but for what a start leaves that ended before its job began, submit/ and
  // certificates/. Errors: kAlreadyExists, kPermissionDenied, kUnavailable; name the path.
  static absl::StatusOr<RunDirectory> Create(const std::string& path, const std::string& job_name,
                                             absl::Time now, Job::Readers readers = Job::OWNER);

  // The folder of an earlier run. Errors: kNotFound (no folder; names it), kUnavailable.
  static absl::StatusOr<RunDirectory> Open(const std::string& path);
  // A folder that `submit` has made for a run that has not begun. Errors: as of Open and Create.
  static absl::StatusOr<RunDirectory> OpenUnused(const std::string& path);

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;
  // Where checkpoints are unless the job says otherwise; absolute.
  std::string CheckpointDirectory() const;
  // The same of hot rows, and of the batches made of them (calibration.directory).
  std::string HotDirectory() const;
  // Sets calibration.directory to it, of a job that counts hot rows and names no folder. The job
  // file of the run leaves it out (JobReporter), so that it follows a run that is moved or copied.
  void FillHotDirectory(Job* job) const;

  // Writes a file whole or not at all. Errors: kUnavailable (names the file).
  absl::Status Write(absl::string_view name, absl::string_view text) const;
  // Removes a file; OK where there is none. Errors: kUnavailable (names it).
  absl::Status Remove(absl::string_view name) const;
  // Removes the folder with all that is in it, where Create has made it; else does nothing.
  void RemoveAll() const;

 private:
  RunDirectory(std::string path, bool is_new) : path_(std::move(path)), is_new_(is_new) {}

  std::string path_;
  bool is_new_;  // This object's Create has made it.
};

// Whether a run has begun in the folder, so that there is a job file to go on with. It is decided
// by reading that file: to a mere look, a file system that does not answer looks like one without
// the file. Tries again for `patience`. Errors: kUnavailable (the file can't be read; names it).
absl::StatusOr<bool> HasBegun(const std::string& path, absl::Duration patience);

// A lock on the file `lock` in a folder. Processes that are started while it is held hold it too,
// so that it is free only when all of them are gone, however their launcher ended. Movable.
class RunLock {
 public:
  // Called once, as the wait begins: what is waited for, in a line.
  using OnWait = std::function<void(const std::string& what)>;
  // Waits up to `patience`: the processes of a launcher that was killed take a moment to die.
  // Errors: kFailedPrecondition (another launcher uses the folder; names both, and the host),
  // kResourceExhausted (the disk is full; says which, and what is free), kUnavailable.
  static absl::StatusOr<RunLock> Take(const std::string& folder, absl::Duration patience,
                                      const OnWait& on_wait = nullptr);
  // Processes that are started from now on do not hold it.
  void KeepFromChildren();
  // Whether any process holds it.
  static bool IsHeld(const std::string& folder);

  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;
  ~RunLock();

 private:
  explicit RunLock(int fd) : fd_(fd) {}

  int fd_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PROCESSES_RUN_DIRECTORY_H_
