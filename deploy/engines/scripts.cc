#include "deploy/engines/scripts.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/thread_pool.h"

namespace thermocline {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
// For the agent, the controller, and what the plan does not know of.
constexpr uint64_t kHostBytes = 512 * kMiB;

uint32_t ShareOf(uint64_t processes, uint32_t hosts) {
  return static_cast<uint32_t>((processes + hosts - 1) / hosts);
}

// Letters that a shell takes as they are.
bool IsPlain(char c) { return absl::ascii_isalnum(c) || absl::StrContains("_-./:=,@%+", c); }

std::string ShellWords(const std::vector<std::string>& words) {
  return absl::StrJoin(words, " ", [](std::string* out, const std::string& word) {
    absl::StrAppend(out, ShellWord(word));
  });
}

// A name that Slurm and folders take.
std::string PlainName(const std::string& name) {
  std::string plain = name;
  for (char& c : plain) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '-' && c != '.') c = '_';
  }
  return plain;
}

// What both scripts begin with: names, and the state that an earlier start left.
constexpr char kBegin[] = R"sh(set -u
cd $FOLDER || exit 1
program=$PROGRAM
run_dir=$RUN_DIR
node_dir=$NODE_DIR

say() { echo "$(date '+%F %T') $*"; }
if [[ -e $run_dir/stop.request ]]; then
  say "not started: the user has stopped this job (thermocline stop)"
  exit 0
fi
)sh";

// `await PID` waits for a process of this shell, whose exit code it leaves in `code`. Traps handle
// the signals that come meanwhile. Bash may lose the exit code of a process that ends while `wait`
// is interrupted by such a signal (it gives 255 then), so `wait` asks only for one that has ended.
// A signal that comes in that moment ends it all the same, with a code above 128; asked again it
// has the process's own, or 127 where it has told it before. `$never` is a pipe in which nothing
// comes.
constexpr char kAwait[] = R"sh(
exec {never}<> <(:)
await() {
  while kill -0 "$1" 2>/dev/null; do read -rt 0.2 -u "$never"; done
  wait "$1"
  code=$?
  if ((code > 128)); then
    wait "$1" 2>/dev/null
    local again=$?
    ((again == 127)) || code=$again
  fi
}
)sh";

// `train` runs in the background as process $controller_pid, and `wait_for_it` returns when it has
// ended, with its exit code in `code`. Whether there is a run to go on with is for `train` to find
// out: the script removes no file.
constexpr char kController[] = R"sh(
starts=${SLURM_RESTART_COUNT:-0}
controller_pid=
start_controller() {
  local how=--restarted
  ((starts > 0)) || how=--resume  # The user wants more of it, if there is some.
  told=
  $TRAIN $how$OR_BEGIN &
  controller_pid=$!
  # The signal may have come just before its process was known here.
  if [[ -n ${early-} && -z $told ]]; then end_controller; fi
  ((starts += 1))
}
end_controller() { kill -TERM "$controller_pid" 2>/dev/null && told=1; }
wait_for_it() { await "$controller_pid"; }
is_stopped() { [[ -e $run_dir/stop.request ]]; }
)sh";

// A controller that was killed takes its agents' processes with it; it goes on from the last
// checkpoint.
constexpr char kRestarts[] =
    R"sh(# Codes of `train`: a signal killed it; $IN_USE: a controller of this run still runs. 255 is of ssh, and says
# nothing of the controller there. One that runs is waited for: the next start says how it has ended.
restarts=0
while [[ -z ${early-} ]] && ! is_stopped; do
  if ((code == $IN_USE || code == 255)); then
    ((code == ${before:-0})) || say "the controller may still run (exit code $code); looking again every 15 s"
    before=$code
    sleep 15
  elif ((code > 128 && restarts < 3)); then
    say "the controller was killed (exit code $code); starting it again"
    ((restarts += 1))
  else
    break
  fi
  start_controller
  wait_for_it
done
)sh";

constexpr char kSlurmAddress[] = R"sh(
# Where agents find the controller: the address of this host, and a port that only this job should have.
name=$(scontrol show node -o "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
address=$(getent ahostsv4 "${name:-$SLURMD_NODENAME}" | awk '$1 !~ /^127\./ { print $1; exit }')
controller=${address:-$(hostname -I | cut -d ' ' -f 1)}:$PORT
)sh";

constexpr char kSlurmAgents[] = R"sh(
# One agent a host, started again when it was killed. Slurm keeps a job (--no-kill) that has lost the host of
# this script, and so its controller. An agent without a controller ends after a while, and its host then looks
# whether that is so. Slurm's SIGTERM reaches all of the job's processes; agents leave it to the controller, which
# writes a checkpoint and ends them. Where an administrator takes out the host of this script, Slurm kills the
# script, and ends the job at once as one that has failed by that: the others learn it by the SIGTERM. (Slurm has
# then taken a host out of it, and says when.)
agent='
script_host=$1
log=$2
shift 2
lost() {
  echo "host $script_host is lost, and the script of the job with it: $LOST" >>"$log"
  $LOST
}
ended() {
  case " $(scontrol show job -o "$SLURM_JOB_ID") " in
    *" ExitCode=0:9 "*" ResizeTime="[0-9]*) lost ;;
  esac
}
trap ended TERM
$AWAIT
serve() {
  (trap "" TERM; exec "$@") &
  await $!
  return "$code"
}
until serve "$@"; do
  hosts=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N)
  [[ -z $hosts ]] || scontrol show hostnames "$hosts" | grep -qxF "$script_host" || lost
  sleep 5
done'
keep_agent() {  # HOST
  until srun --no-kill --kill-on-bad-exit=0 --overlap --nodes=1 --ntasks=1 --nodelist="$1" $CPUS\
    bash -c "$agent" agent "$SLURMD_NODENAME" "$run_dir/submit/batch.log"\
    "$program" node --controller="$controller" --run-dir="$run_dir" --name="$1" --dir="$node_dir"\
    --controller-timeout=60$NODE_FLAGS; do
    sleep 5
  done
}
for host in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  keep_agent "$host" >>"$run_dir/submit/node-$host.log" 2>&1 &
done
)sh";

constexpr char kSlurmEnd[] = R"sh(
# USR1 comes $NOTICE s before the walltime (and before a preemption, where slurm.conf says
# PreemptParameters=send_user_signal), and SIGTERM at it, to all processes; SIGKILL follows after Slurm's
# KillWait. By SIGTERM a controller writes a checkpoint, and ends.
early=
requeued=
requeue() {
  # What the user ended (thermocline stop, scancel) stays so.
  [[ -z $requeued ]] && ! is_stopped || return
  requeued=1
  say "back into the queue"
  scontrol requeue "$SLURM_JOB_ID"
}
end_early() {  # SIGNAL
  early=$1
  if [[ $1 == USR1 ]]; then say "the walltime is near"; else say "SIGTERM from Slurm"; fi
  end_controller
  [[ $1 == TERM ]] || return
  # Now: this script may be killed before the controller has ended.
  case " $(scontrol show job -o "$SLURM_JOB_ID") " in
    *" PreemptTime="[0-9]* | *" Reason=TimeLimit "*) requeue ;;
  esac
}
trap 'end_early USR1' USR1
trap 'end_early TERM' TERM

start_controller
wait_for_it
$RESTARTSif [[ $early == USR1 && $code != 0 ]]; then requeue; fi
$END)sh";

// Without checkpoints there is nothing to go on with.
constexpr char kSlurmEndOnce[] = R"sh(
trap 'early=TERM; end_controller' TERM
start_controller
wait_for_it
$END)sh";

// Slurm shows a job as it has ended: what its user has stopped has neither failed nor completed.
constexpr char kSlurmExit[] = R"sh(if ((code != 0)) && is_stopped; then
  trap '' TERM
  scancel "$SLURM_JOB_ID"
fi
exit "$code"
)sh";

constexpr char kSshAgents[] = R"sh(
ssh=(ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15)
# One agent a host. One that is killed is started again; one that ends because the job has ended is not. What
# is left on a host when this script has ended does not look for its controller for ever.
keep_agent() {  # HOST NAME
  local command
  printf -v command '%q ' "$program" node --controller="$controller" --run-dir="$run_dir" --name="$2"\
    --dir="$node_dir" --controller-timeout=60$NODE_FLAGS
  until "${ssh[@]}" "$1" "exec $command" </dev/null; do sleep 5; done
}
)sh";

constexpr char kSshEnd[] = R"sh(
# The end of this script is a stop, not the controller's death.
trap 'touch "$run_dir/stop.request"' TERM INT
for host in "${hosts[@]}"; do
  keep_agent "$host" "${host#*@}" >>"$run_dir/submit/node-${host#*@}.log" 2>&1 &
done
start_controller
wait_for_it
$RESTARTS# The agents end by themselves when the job has ended; what still tries to reach a host does not.
trap '' TERM
sleep 2
kill -TERM -- -$$ 2>/dev/null
exit "$code"
)sh";

// The same for every start of a run, and another for other runs on the same hosts. (FNV-1a)
uint32_t HashOfRun(const Submission& submission) {
  uint32_t hash = 2166136261u;
  for (const char c : submission.run_dir) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  return hash;
}

std::string NodeDirectory(const Submission& submission) {
  if (!submission.node_dir.empty()) return submission.node_dir;
  return absl::StrCat("/tmp/thermocline-", PlainName(submission.job_name), "-",
                      absl::Hex(HashOfRun(submission), absl::kZeroPad8));
}

std::string Restarts(const Submission& submission) {
  return submission.resumable
             ? absl::StrReplaceAll(kRestarts, {{"$IN_USE", absl::StrCat(kExitInUse)}})
             : "";
}

// Sets `port` and `controller`: the port is the same at each start of a run, unless another program
// has it. `host`: where the controller runs; "": here.
std::string PortLines(const Submission& submission, const std::string& host) {
  std::string port = absl::StrCat(submission.port);
  if (submission.port == 0) {
    const std::string look = absl::StrCat(
        "for ((port = ", 20000 + HashOfRun(submission) % 10000, "; port < 32000; port++)); ",
        "do (exec 3<>\"/dev/tcp/$1/$port\") 2>/dev/null || break; done; ", "echo \"port $port\"");
    const std::string there = absl::StrCat("bash -c ", ShellWord(look), " look ");
    port = absl::StrCat("$(",
                        host.empty() ? there
                                     : absl::StrCat("timeout 60 \"${ssh[@]}\" ", ShellWord(host),
                                                    " ", ShellWord(there)),
                        "\"$address\" </dev/null |\n  sed -n 's/^port //p')");
  }
  return absl::StrCat("port=", port, "\n[[ $address != *:* ]] || address=[$address]\n",
                      "controller=$address:$port\n");
}

std::string Begin(const Submission& submission) {
  const std::string node_dir = NodeDirectory(submission);
  return absl::StrReplaceAll(kBegin, {{"$FOLDER", ShellWord(submission.folder)},
                                      {"$PROGRAM", ShellWord(submission.program)},
                                      {"$RUN_DIR", ShellWord(submission.run_dir)},
                                      {"$NODE_DIR", ShellWord(node_dir)}});
}

std::string Controller(const Submission& submission, const std::string& train) {
  return absl::StrCat(
      kAwait,
      absl::StrReplaceAll(kController, {{"$TRAIN", train},
                                        {"$OR_BEGIN", submission.resumes ? "" : " --or-begin"}}));
}

std::string TrainCommand(const Submission& submission) {
  return absl::StrCat("\"$program\" train ", ShellWords(submission.train_flags), " --nodes ",
                      submission.hosts, " --listen \"$controller\" --run-dir \"$run_dir\"");
}

std::string NodeFlags(const Submission& submission) {
  return submission.node_flags.empty() ? "" : " " + ShellWords(submission.node_flags);
}

}  // namespace

HostNeeds NeedsOfHost(const Job& job, const JobPlan& plan, uint32_t hosts) {
  const uint32_t servers = ShareOf(job.cluster().servers(), hosts);
  const uint32_t workers = ShareOf(job.cluster().workers(), hosts);
  HostNeeds needs;
  if (plan.is_complete) {
    const uint64_t planned =
        servers * SumOf(plan.server) + workers * (SumOf(plan.worker) + SumOf(plan.script));
    needs.memory_bytes = (planned + planned / 4 + kHostBytes) / kMiB * kMiB;
  }
  // Without a number, a script computes with all cores of its machine. So does a worker by default,
  // and this machine's number says nothing of others.
  const auto all = static_cast<uint32_t>(HardwareThreads());
  const uint32_t threads = job.cluster().worker_threads();
  if (threads != all && (!job.has_worker() || job.worker().has_threads())) {
    needs.cores = std::max<uint32_t>(
        1, workers * (threads + job.worker().threads()) + servers * job.cluster().server_threads());
  }
  if (job.device() == Job::CUDA) needs.gpus = workers;
  return needs;
}

std::string ShellWord(const std::string& text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), IsPlain)) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string SubmitFolder(const std::string& run_dir) { return run_dir + "/submit"; }

absl::Status CheckSlurm(const Submission& submission, const SlurmRequest& request) {
  std::vector<std::pair<std::string, std::string>> values = {{"--run-dir", submission.run_dir},
                                                             {"--partition", request.partition},
                                                             {"--account", request.account},
                                                             {"--time", request.time}};
  for (const std::string& flag : request.more) values.emplace_back("--sbatch", flag);
  for (const auto& [flag, value] : values) {
    if (value.find_first_of("\n\r\"%") == std::string::npos) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        flag, " '", value, "' can't stand in a batch script: no quotes, % or ends of lines"));
  }
  for (const std::string& flag : request.more) {
    if (absl::StartsWith(flag, "-")) continue;
    return absl::InvalidArgumentError(absl::StrCat("--sbatch '", flag, "' is no flag of sbatch"));
  }
  return absl::OkStatus();
}

std::string SlurmScript(const Submission& submission, const SlurmRequest& request) {
  const HostNeeds& needs = submission.needs;
  std::string text = absl::StrCat(
      "#!/bin/bash\n"
      "# Job '",
      PlainName(submission.job_name), "' on ", submission.hosts,
      " hosts of Slurm, written by `thermocline submit`. sbatch takes this file as it is.\n");
  const auto add = [&](const std::string& flag) { absl::StrAppend(&text, "#SBATCH ", flag, "\n"); };
  add("--job-name=" + PlainName(submission.job_name));
  add(absl::StrCat("--nodes=", submission.hosts));
  add("--ntasks-per-node=1");
  add(needs.cores > 0 ? absl::StrCat("--cpus-per-task=", needs.cores) : "--exclusive");
  add(needs.memory_bytes > 0 ? absl::StrCat("--mem=", needs.memory_bytes / kMiB, "M") : "--mem=0");
  if (needs.gpus > 0) add(absl::StrCat("--gpus-per-node=", needs.gpus));
  add("--no-kill");
  add("--open-mode=append");
  if (submission.resumable) {
    add("--requeue");
    add(absl::StrCat("--signal=B:USR1@", request.notice_s));
  } else {
    add("--no-requeue");
  }
  add(absl::StrCat("--output=\"", SubmitFolder(submission.run_dir), "/batch.log\""));
  if (!request.partition.empty()) add("--partition=" + request.partition);
  if (!request.account.empty()) add("--account=" + request.account);
  if (!request.time.empty()) add("--time=" + request.time);
  for (const std::string& flag : request.more) add(flag);
  const std::string port =
      submission.port > 0 ? absl::StrCat(submission.port) : "$((20000 + SLURM_JOB_ID % 10000))";
  absl::StrAppend(
      &text, Begin(submission), absl::StrReplaceAll(kSlurmAddress, {{"$PORT", port}}),
      Controller(submission, TrainCommand(submission)),
      absl::StrReplaceAll(
          kSlurmAgents,
          {{"$AWAIT", kAwait},
           {"$CPUS", needs.cores > 0 ? absl::StrCat("--cpus-per-task=", needs.cores, " ") : ""},
           {"$LOST",
            submission.resumable ? "scontrol requeue $SLURM_JOB_ID" : "scancel $SLURM_JOB_ID"},
           {"$NODE_FLAGS", NodeFlags(submission)}}),
      absl::StrReplaceAll(submission.resumable ? kSlurmEnd : kSlurmEndOnce,
                          {{"$NOTICE", absl::StrCat(request.notice_s)},
                           {"$RESTARTS", Restarts(submission)},
                           {"$END", kSlurmExit}}));
  return text;
}

absl::Status CheckSsh(const Submission& submission, const SshRequest& request) {
  if (request.hosts.empty()) {
    return absl::InvalidArgumentError("--engine ssh needs the hosts: --hosts a,b,c");
  }
  if (submission.hosts > request.hosts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--nodes is ", submission.hosts,
                                                   ", and --hosts names ", request.hosts.size()));
  }
  std::set<std::string> names;
  for (const std::string& host : request.hosts) {
    const std::string name = host.substr(host.find('@') + 1);
    if (name.empty() || host[0] == '-' || !std::all_of(host.begin(), host.end(), IsPlain) ||
        host.find('/') != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("--hosts: '", host, "' is neither HOST nor USER@HOST"));
    }
    if (!names.insert(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--hosts names ", name, " twice: one agent runs on a host"));
    }
  }
  if (!request.controller.empty() &&
      std::count(request.hosts.begin(), request.hosts.end(), request.controller) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--controller ", request.controller, " is none of --hosts"));
  }
  return absl::OkStatus();
}

std::string SshScript(const Submission& submission, const SshRequest& request) {
  // sshd says from where to where a connection goes.
  const bool is_here = request.controller.empty();
  const std::string seen_from = is_here ? request.hosts[0] : request.controller;
  const std::string address =
      absl::StrCat("\n# Where agents find the controller: ",
                   is_here ? "the address that the first host sees of this machine"
                           : "the address at which this machine reaches that host",
                   ". What else a login shell prints is left out.\n",
                   "address=$(timeout 60 \"${ssh[@]}\" ", ShellWord(seen_from),
                   " 'echo \"connection $SSH_CONNECTION\"' </dev/null |\n  awk '$1 == "
                   "\"connection\" { address = $",
                   is_here ? 2 : 4, " } END { print address }')\n",
                   "[[ -n $address ]] || { say \"ssh ", seen_from, " does not work\"; exit 1; }\n",
                   PortLines(submission, is_here ? "" : request.controller));
  std::string train = TrainCommand(submission);
  std::string remote;
  if (!is_here) {
    // The controller's own words, quoted once more for the shell there.
    remote = absl::StrCat(
        "\ntrain_there() {  # FLAGS: of `train`\n  local command\n  printf -v command '%q ' "
        "\"$program\" train \"$@\"\n"
        "  \"${ssh[@]}\" ",
        ShellWord(request.controller), " \"cd ",
        absl::StrReplaceAll(ShellWord(submission.folder), {{"\"", "\\\""}}),
        " && exec $command\" </dev/null\n}\n");
    train = absl::StrReplaceAll(train, {{"\"$program\" train", "train_there"}});
  }
  return absl::StrCat(
      "#!/bin/bash\n# Job '", PlainName(submission.job_name), "' on ", submission.hosts,
      " hosts over ssh, written by `thermocline submit`. To run it again: setsid bash THIS_FILE\n",
      Begin(submission), "hosts=(", ShellWords(request.hosts), ")\n",
      absl::StrReplaceAll(kSshAgents, {{"$NODE_FLAGS", NodeFlags(submission)}}), address, remote,
      Controller(submission, train),
      absl::StrReplaceAll(kSshEnd, {{"$RESTARTS", Restarts(submission)}}));
}

}  // namespace thermocline
