#include "tests/simulation/sim_controllers.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "common/base/hash.h"
#include "common/checkpoint/history.h"
#include "deploy/checkpoints/resume.h"

namespace thermocline {
namespace {

constexpr char kDirectory[] = "/shared";
constexpr char kJobId[] = "simulated";
constexpr size_t kControllers = 3;
constexpr int kTurns = 120;
constexpr int kDeepest = 3;  // Controllers in the middle of an operation.
constexpr double kCallInterrupts = 0.08;

using CheckpointKey = std::pair<uint64_t, int64_t>;  // Generation and step of a checkpoint.

CheckpointKey KeyOf(const CheckpointId& id) { return {id.generation, id.step.value()}; }

}  // namespace

class Controllers {
 public:
  Controllers(uint64_t seed, ControllerFault fault)
      : fault_(fault), random_(Mix64(seed)), crash_random_(seed) {
    CheckpointStore store(&medium_, kDirectory);
    if (!store.Prepare().ok()) Fail("no folder");
    for (size_t i = 0; i < kControllers; ++i) hosts_.push_back(medium_.Share());
    controllers_.resize(kControllers);
  }

  ControllersResult Run() {
    for (int turn = 0; turn < kTurns && result_.failures.empty(); ++turn) {
      Act(random_.Below(kControllers));
      if (random_.Chance(0.1)) RunLate();
      Check();
    }
    return std::move(result_);
  }

 private:
  // One life of a controller.
  struct Controller {
    std::unique_ptr<NetworkDisk> disk;
    std::unique_ptr<CheckpointStore> store;
    GenerationStart start;
    std::optional<CheckpointManifest> newest;
    int64_t step = -1;
    bool is_open = false;
  };

  void Fail(const std::string& what) { result_.failures.push_back(what); }

  // In the middle of an operation of one controller others may do something.
  void Between() {
    if (depth_ >= kDeepest || !random_.Chance(kCallInterrupts)) return;
    ++result_.nested;
    Act(random_.Below(kControllers));
    if (random_.Chance(0.1)) RunLate();
  }

  void RunLate() {
    for (const auto& operation : std::exchange(late_, {})) operation();
  }

  void Act(size_t host) {
    if (!busy_.insert(host).second) return;
    ++depth_;
    if (controllers_[host] == nullptr) {
      if (random_.Chance(0.3)) Start(host);
    } else if (random_.Chance(0.04)) {
      Crash(host);
    } else if (!controllers_[host]->is_open) {
      Begin(host);
    } else {
      Work(host);
    }
    --depth_;
    busy_.erase(host);
  }

  void Start(size_t host) {
    auto controller = std::make_unique<Controller>();
    NetworkDiskFaults faults;
    faults.trusts_links = fault_ == ControllerFault::kCommitsInThePast;
    faults.links_by_looking = fault_ == ControllerFault::kTrustsOldFolders;
    controller->disk = std::make_unique<NetworkDisk>(
        hosts_[host].get(), faults, &random_, [this] { Between(); }, &late_, &result_.disk);
    controller->store = std::make_unique<CheckpointStore>(controller->disk.get(), kDirectory,
                                                          [this] { return random_.Next(); });
    controllers_[host] = std::move(controller);
  }

  void End(size_t host) { controllers_[host].reset(); }

  void Crash(size_t host) {
    ++result_.crashes;
    End(host);
    if (random_.Chance(0.5)) {
      hosts_[host]->CrashProcess();
    } else {
      hosts_[host]->CrashHost(&crash_random_);
    }
  }

  // As `thermocline train --resume` does.
  void Begin(size_t host) {
    Controller& controller = *controllers_[host];
    std::string name;
    if (random_.Chance(0.2)) {
      const auto list = controller.store->List();
      if (list.ok() && !list->empty()) name = (*list)[random_.Below(list->size())].name;
    }
    auto point = FindNextGeneration(*controller.store, kJobId, name);
    if (!point.ok() && !absl::IsNotFound(point.status())) return End(host);
    GenerationStart start;
    start.generation = 1;
    if (point.ok()) start = point->start;
    if (point.ok()) controller.newest = point->base;
    Open(host, start);
  }

  void Open(size_t host, const GenerationStart& start) {
    Controller& controller = *controllers_[host];
    const absl::Status opened = controller.store->Open(StateOf(kJobId, start), start.history);
    if (absl::IsAborted(opened)) ++result_.overtaken;
    if (!opened.ok()) return End(host);
    ++result_.generations;
    opened_.insert(start.generation);
    controller.is_open = true;
    controller.start = start;
    controller.step = start.base_step.value();
  }

  void Work(size_t host) {
    Controller& controller = *controllers_[host];
    const uint64_t what = random_.Below(12);
    if (what < 6) return Commit(host);
    if (what < 9) return Remove(host);
    if (what == 9) {  // A rollback.
      GenerationStart next = controller.start;
      ++next.generation;
      if (controller.newest.has_value()) {
        const CheckpointId id = IdOf(*controller.newest);
        next.base = CheckpointName(id.step);
        next.base_step = id.step;
        next.base_generation = id.generation;
      }
      return Open(host, next);
    }
    if (what == 10 && !controller.store->Look().ok()) {
      ++result_.overtaken;
      return End(host);
    }
    if (what < 11 || !random_.Chance(0.3)) return;
    JobOutcome outcome;
    outcome.set_what(JobOutcome::TRAINED);
    const absl::Status ended = controller.store->End(outcome);
    if (ended.ok()) ++result_.outcomes;
    End(host);
  }

  // The servers write; nothing of theirs gets lost.
  CheckpointManifest Write(const Controller& controller, const CheckpointId& id) {
    CheckpointManifest manifest;
    manifest.set_format_version(kCheckpointFormatVersion);
    manifest.set_job_id(kJobId);
    manifest.set_generation(id.generation);
    manifest.set_step(id.step.value());
    manifest.set_num_servers(1);
    manifest.set_num_workers(1);
    CheckpointShard& shard = *manifest.add_shards();
    shard.set_base_step(-1);
    const bool builds_on = controller.newest.has_value() && random_.Chance(0.6);
    if (builds_on) {
      shard.set_base_step(controller.newest->step());
      *shard.mutable_files() = controller.newest->shards(0).files();
    }
    CheckpointFile& file = *shard.add_files();
    file.set_path(RowsFilePath(id, {ServerIndex(0)}));
    const std::string path = absl::StrCat(kDirectory, "/", file.path());
    const std::string folder = path.substr(0, path.rfind('/'));
    medium_.CreateDirectory(folder).IgnoreError();
    const auto written = medium_.Create(path);
    if (!written.ok() || !(*written)->Append({file.path()}).ok() || !(*written)->Sync().ok() ||
        !medium_.SyncDirectory(folder).ok() || !medium_.SyncDirectory(kDirectory).ok()) {
      Fail("a server can't write");
    }
    file.set_bytes(file.path().size());
    return manifest;
  }

  void Commit(size_t host) {
    Controller& controller = *controllers_[host];
    controller.step += 1 + static_cast<int64_t>(random_.Below(3));
    const CheckpointId id = {controller.start.generation, Step(controller.step)};
    const CheckpointManifest manifest = Write(controller, id);
    written_[KeyOf(id)] = manifest.SerializeAsString();
    bool may_exist = false;
    const absl::Status committed = controller.store->Commit(manifest, &may_exist);
    if (committed.ok()) {
      ++result_.committed;
      committed_.insert(KeyOf(id));
      controller.newest = manifest;
      return;
    }
    if (absl::IsAborted(committed)) ++result_.overtaken;
    if (may_exist) ++result_.uncertain;
    if (absl::IsAborted(committed) || may_exist) End(host);
  }

  void Remove(size_t host) {
    Controller& controller = *controllers_[host];
    const auto keep = static_cast<uint32_t>(1 + random_.Below(2));
    absl::Status removed;
    if (fault_ == ControllerFault::kRetiresAlone) {
      CheckpointStore alone(controller.disk.get(), kDirectory);
      removed = alone.RemoveUnneeded(keep, {}).status();
    } else {
      removed = controller.store->RemoveUnneeded(keep, {}).status();
    }
    if (!absl::IsAborted(removed)) return;
    ++result_.overtaken;
    End(host);
  }

  // Checks
  // ----------------------------------------------------------------------------------------------

  void Check() {
    const auto last = CheckpointStore(&medium_, kDirectory).LastRecord();
    if (!last.ok()) return Fail(last.status().ToString());
    if (!last->has_value()) return;
    for (uint64_t number = records_.size() + 1; number <= (*last)->number(); ++number) Add(number);
    for (uint64_t number = 1; number <= records_.size(); ++number) {
      if (Bytes(number) != records_[number - 1].bytes) {
        return Fail(absl::StrCat("record ", number, " is another than it was"));
      }
    }
    CheckCommitted(**last);
  }

  static std::string PathOf(uint64_t number) {
    return absl::StrFormat("%s/%s/%09d", kDirectory, kHistoryName, number);
  }
  std::string Bytes(uint64_t number) {
    return ReadWholeFile(&medium_, PathOf(number)).value_or("");
  }

  // A record that is new: it follows from the one before.
  void Add(uint64_t number) {
    const std::string path = PathOf(number);
    const auto payload = DecodeFrame(kHistoryFormat, Bytes(number), path);
    HistoryRecord record;
    if (!payload.ok() || !record.ParseFromString(*payload)) return Fail("no record " + path);
    const HistoryRecord before = records_.empty() ? HistoryRecord() : records_.back().record;
    const JobState& state = record.state();
    if (record.kind() == HistoryRecord::OPEN) {
      if (state.generation() <= before.state().generation()) {
        Fail(absl::StrCat(path, ": generation ", state.generation(), " comes after ",
                          before.state().generation()));
      }
      const auto base = ParseCheckpointName(state.base_checkpoint());
      if (base.has_value() && !Counts(before, {state.base_generation(), base->step})) {
        Fail(absl::StrCat(path, " begins with ", state.base_checkpoint(), ", which is retired"));
      }
    } else if (state.generation() != before.state().generation()) {
      Fail(absl::StrCat(path, " is of another generation than the one before"));
    }
    for (const CheckpointRef& ref : record.committed()) {
      const CheckpointId id = {ref.generation(), Step(ref.step())};
      if (!Counts(before, id) && ref.generation() != before.state().generation()) {
        Fail(absl::StrCat(path, " commits what generation ", ref.generation(), " made, and ",
                          before.state().generation(), " has begun"));
      }
    }
    for (const CheckpointRef& ref : record.retired()) {
      if (Counts(record, {ref.generation(), Step(ref.step())})) {
        Fail(absl::StrCat(path, " retires what counts"));
      }
      retired_.insert({ref.generation(), ref.step()});
      ++result_.retired;
    }
    result_.trace = Mix64(result_.trace ^ std::hash<std::string>()(record.nonce()));
    records_.push_back({record, Bytes(number)});
  }

  // What counts is whole, and as its controller wrote it; what a controller was promised counts.
  void CheckCommitted(const HistoryRecord& last) {
    const CheckpointStore store(&medium_, kDirectory);
    for (const CheckpointRef& ref : last.committed()) {
      const std::string name = CheckpointName(Step(ref.step()));
      const auto manifest = store.Load(name, ref.generation());
      const absl::Status whole = manifest.ok() ? store.CheckFiles(*manifest) : manifest.status();
      if (!whole.ok()) {
        return Fail(absl::StrCat(name, " of generation ", ref.generation(),
                                 " counts, and: ", whole.message()));
      }
      if (manifest->SerializeAsString() != written_[{ref.generation(), ref.step()}]) {
        return Fail(absl::StrCat(name, " is another than was committed"));
      }
    }
    for (const CheckpointKey& key : committed_) {
      if (retired_.count(key) != 0 || Counts(last, {key.first, Step(key.second)})) continue;
      return Fail(absl::StrCat("step ", key.second, " of generation ", key.first,
                               " was committed, and does not count"));
    }
    for (const uint64_t generation : opened_) {
      const bool is_there = std::any_of(records_.begin(), records_.end(), [&](const Seen& seen) {
        return seen.record.kind() == HistoryRecord::OPEN &&
               seen.record.state().generation() == generation;
      });
      if (!is_there)
        return Fail(absl::StrCat("generation ", generation, " began without a record"));
    }
  }

  struct Seen {
    HistoryRecord record;
    std::string bytes;
  };

  const ControllerFault fault_;
  SimRandom random_;
  std::mt19937_64 crash_random_;
  SimulatedDisk medium_;
  std::vector<std::unique_ptr<SimulatedDisk>> hosts_;
  std::vector<std::unique_ptr<Controller>> controllers_;  // By host; null: none.
  std::set<size_t> busy_;
  int depth_ = 0;
  std::vector<std::function<void()>> late_;
  std::vector<Seen> records_;
  std::map<CheckpointKey, std::string> written_;  // Manifests
  std::set<CheckpointKey> committed_, retired_;
  std::set<uint64_t> opened_;
  ControllersResult result_;
};

ControllersResult RunControllers(uint64_t seed, ControllerFault fault) {
  // One controller is interrupted by another while it holds its locks, in any order: in one thread.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return Controllers(seed, fault).Run();
}

}  // namespace thermocline
