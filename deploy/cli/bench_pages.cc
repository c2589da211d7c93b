// The command line of the benchmarks.
#include <memory>

#include "deploy/cli/bench_commands.h"
#include "deploy/cli/command.h"

namespace thermocline {
namespace {

void AddTrainRuns(CLI::App* command, Action* action) {
  const auto flags = std::make_shared<BenchTrainFlags>();
  CLI::App* train =
      AddCommand(command, "train", "runs a job several times: median and spread of samples/s",
                 "Checkpoints are written only on the way, where checkpoint.every_steps says so.");
  AddJobFlags(train, flags.get(), true, "gets one folder a run; default: runs/NAME-bench-TIME");
  AddValue(train, "--repeats", &flags->repeats, "N", "runs of the job; default 3")
      ->transform(WholeNumber(1, 1000));
  OnCommand(train, action, RunBenchTrain, flags);
}

void AddArms(CLI::App* command, Action* action) {
  const auto flags = std::make_shared<BenchArmsFlags>();
  CLI::App* arms =
      AddCommand(command, "arms", "runs a job in several ways of feeding the compute, side by side",
                 R"(Each arm is the job with a few fields changed, and holds rows of the same bytes:
  remote-cpu    every step pulls its rows and pushes gradients; the model is computed on the CPU
  remote-gpu    the same, with the model on a CUDA device
  fae           hot and cold batches, with an adaptive rate (`fae`)
  fae-static    the same with one change a pass (fae.schedule.fixed, rate 100)
  cache-static  the rows used most are held from the first step to the last (cache.policy STATIC)
  cache         the rows that the next batches need are brought ahead (`cache`)
The other arms compute on the job's `device`. An arm that this machine or job can't have is a line
that says why. In each round, one for each seed, every arm runs once, without evaluations on its way,
for its speed and bytes; and once more with them for the AUC after so many steps, unless another arm
has trained the same model (as a cache does). The seeds begin with the job's. With --budgets the
job's `calibration` needs no `fae` beside it. Arms and seeds with the same pack make it once.

OUT gets arms.txt (the table as it is printed), arms.csv (a line for each run), curves.csv (one for
each evaluation and each change of fae), arms.png (where python3 has matplotlib), commands.txt
(each run's `thermocline train`) and the run directories.

--link needs root, ip and tc, and local data: every server and worker runs in a network namespace of
its own, behind a link of that rate. The kernel removes them with this process.

examples:
  thermocline bench arms deploy/jobs/criteo_kaggle.textproto --data train.txt --budgets 1MiB,4MiB
  thermocline bench arms job.textproto --arms remote-cpu,cache --budgets 64MiB --link 1gbit)");
  AddJobFlags(arms, flags.get(), true, nullptr);
  AddValue(arms, "--arms", &flags->arms, "NAMES", "which: remote-cpu,fae; default: all");
  AddValue(arms, "--budgets", &flags->budgets, "SIZES",
           "bytes of rows that each worker holds: 1MiB,4MiB; default: fae.budget or cache.budget");
  AddValue(arms, "--link", &flags->link, "RATE",
           "shapes the link of every server and worker: 1gbit; default: loopback");
  AddValue(arms, "--seeds", &flags->seeds, "N", "runs of each arm and budget; default 5")
      ->transform(WholeNumber(1, 1000));
  AddValue(arms, "--evaluations", &flags->evaluations, "N",
           "in a run, where the job has no `evaluate`; default 20")
      ->transform(WholeNumber(0, 1000));
  AddValue(arms, "--auc", &flags->auc, "X",
           "that runs are timed to; default: the lowest of remote-cpu, less its spread");
  AddValue(arms, "--out", &flags->out, "DIR", "default: runs/NAME-arms-TIME");
  OnCommand(arms, action, RunBenchArms, flags);
}

void AddSweep(CLI::App* command, Action* action) {
  const auto flags = std::make_shared<BenchSweepFlags>();
  CLI::App* sweep = AddCommand(
      command, "sweep", "how speed and traffic follow the shape of a model, one knob at a time",
      R"(For each value of each knob: a job of that shape, data with random values, a short run. The knobs
are those of Acun et al. (HPCA 2021), from a base of 64 numbers, 16 tables of 100,000 rows, one
lookup, dim 16, MLPs 64^2, batch 800:
  dense      64 to 4,096 numbers a sample        lookups    1 to 32 a table
  sparse     4 to 128 tables                     dim        16 to 128
  mlp        64^2 to 2048^4 (width^layers)       batch      200 to 12,800
  hash       1e5 to 1e7 rows that a table may have
  device     CPU, CUDA
  placement  of the tables' rows: REMOTE, CACHED, DEVICE; and of small and large tables apart

OUT gets sweep.txt (the table as it is printed), sweep.csv, sweep.png (where python3 has matplotlib),
the jobs and the run directories. --link as of `bench arms`.

examples:
  thermocline bench sweep --knobs batch,dim
  thermocline bench sweep --points 4 --steps 200 --set device=CPU)");
  AddValue(sweep, "--knobs", &flags->knobs, "NAMES", "which: batch,dim; default: all");
  AddValue(sweep, "--points", &flags->points, "N",
           "values of each knob, its ends included; default 3; 4: all")
      ->transform(WholeNumber(1, 4));
  AddValue(sweep, "--steps", &flags->steps, "N", "of a run, at most; default 40")
      ->transform(WholeNumber(1, 1'000'000));
  AddValue(sweep, "--servers", &flags->servers, "N", "default 1")->transform(WholeNumber(1, 1000));
  AddValue(sweep, "--workers", &flags->workers, "N", "default 1")->transform(WholeNumber(1, 1000));
  AddValue(sweep, "--link", &flags->link, "RATE", "shapes every link: 1gbit; default: loopback");
  AddValue(sweep, "--set", &flags->set, "FIELD=VALUE",
           "changes a field of all jobs: --set device=CPU (may be repeated)")
      ->allow_extra_args(false);
  AddValue(sweep, "--out", &flags->out, "DIR", "default: runs/sweep-TIME");
  AddValue(sweep, "--bin-dir", &flags->bin_dir, "DIR",
           "the folder of thermocline-server and thermocline-worker");
  OnCommand(sweep, action, RunBenchSweep, flags);
}

}  // namespace

void AddBench(CLI::App* app, Action* action) {
  CLI::App* command = AddCommand(
      app, "bench", "measures this machine: pulls, pushes, whole training runs", R"(examples:
  thermocline bench pull
  thermocline bench train deploy/jobs/kaggle_npy.textproto --data clicklog --repeats 5
  thermocline bench arms deploy/jobs/criteo_kaggle.textproto --data train.txt --budgets 4MiB
  thermocline bench sweep --knobs batch,dim)");
  command->require_subcommand(1);
  // Only for the pages: RunCommandLine runs these two before CLI11 parses.
  const char* program =
      R"(A program of its own: bazel build //tests/benchmarks:thermocline-bench-pull
`thermocline bench pull --help` lists its flags.)";
  AddCommand(command, "pull", "pulls over loopback, beside a bare gRPC echo of the same sizes",
             program);
  AddCommand(command, "push", "pushes, likewise", program);
  AddTrainRuns(command, action);
  AddArms(command, action);
  AddSweep(command, action);
}

}  // namespace thermocline
