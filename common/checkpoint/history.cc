#include "common/checkpoint/history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// An answer may get lost; a record that is there is found by the next try.
constexpr int kMostTries = 3;
// Far more than any job has.
constexpr uint64_t kMostGenerations = uint64_t{1} << 48;

bool IsOf(const CheckpointRef& ref, const CheckpointId& id) {
  return ref.generation() == id.generation && ref.step() == id.step.value();
}

// Removes those that `goes` from the list, and names them as retired.
template <typename Goes>
void RetireIf(Goes goes, HistoryRecord* record) {
  auto* const committed = record->mutable_committed();
  const auto kept = std::stable_partition(committed->begin(), committed->end(),
                                          [&](const CheckpointRef& ref) { return !goes(ref); });
  for (auto ref = kept; ref != committed->end(); ++ref) *record->add_retired() = *ref;
  committed->erase(kept, committed->end());
}

void Add(const CheckpointId& id, HistoryRecord* record) {
  CheckpointRef& ref = *record->add_committed();
  ref.set_generation(id.generation);
  ref.set_step(id.step.value());
}

// Why a file with a valid checksum is no record; "": it is one.
std::string WhatIsWrong(const HistoryRecord& record) {
  const JobState& state = record.state();
  if (record.nonce().empty()) return "it has no nonce";
  if (!HistoryRecord::Kind_IsValid(record.kind())) return "it is of no kind";
  if (state.generation() == 0 || state.generation() > kMostGenerations) {
    return "it is of no generation";
  }
  if (state.base_generation() >= state.generation()) return "its base is of a later generation";
  const std::string& base = state.base_checkpoint();
  if (!base.empty() && !ParseCheckpointName(base).has_value()) {
    return absl::StrCat("'", absl::CHexEscape(base), "' is no checkpoint's name");
  }
  for (const auto* refs : {&record.committed(), &record.retired()}) {
    for (const CheckpointRef& ref : *refs) {
      if (ref.step() < 0) return "it names a checkpoint of no step";
      if (ref.generation() > state.generation()) return "it names one of a later generation";
    }
  }
  if (record.has_outcome() != (record.kind() == HistoryRecord::OUTCOME)) {
    return "what it says of an outcome is not what it is";
  }
  return JobOutcome::What_IsValid(record.outcome().what()) ? "" : "its outcome is none";
}

}  // namespace

bool Counts(const HistoryRecord& record, const CheckpointId& id) {
  return std::any_of(record.committed().begin(), record.committed().end(),
                     [&](const CheckpointRef& ref) { return IsOf(ref, id); });
}

History::History(Disk* disk, const std::string& directory, std::function<uint64_t()> random)
    : disk_(disk),
      directory_(directory),
      folder_(absl::StrCat(directory, "/", kHistoryName)),
      random_(std::move(random)) {}

std::string History::PathOf(uint64_t number) const {
  return absl::StrFormat("%s/%09d", folder_, number);
}

std::string History::NewNonce() { return absl::StrFormat("%016x%016x", random_(), random_()); }

bool History::is_open() const {
  absl::MutexLock lock(&mutex_);
  return is_open_;
}

HistoryRecord History::known() const {
  absl::MutexLock lock(&mutex_);
  CHECK(is_open_);
  return *last_;
}

// Reading
// ------------------------------------------------------------------------------------------------

absl::StatusOr<HistoryRecord> History::Read(uint64_t number) const {
  const std::string path = PathOf(number);
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(disk_, path));
  ASSIGN_OR_RETURN(const std::string payload, DecodeFrame(kHistoryFormat, bytes, path));
  HistoryRecord record;
  if (!record.ParseFromString(payload) || record.number() != number) {
    return absl::DataLossError(absl::StrCat("'", path, "' holds no record of that number"));
  }
  const std::string wrong = WhatIsWrong(record);
  if (!wrong.empty()) return absl::DataLossError(absl::StrCat("'", path, "': ", wrong));
  return record;
}

absl::StatusOr<std::optional<HistoryRecord>> History::Last() const {
  const absl::StatusOr<std::vector<std::string>> names = disk_->List(folder_);
  if (absl::IsNotFound(names.status())) return std::nullopt;
  RETURN_IF_ERROR(names.status());
  uint64_t newest = 0;
  for (const std::string& name : *names) {
    uint64_t number = 0;
    if (absl::SimpleAtoi(name, &number)) newest = std::max(newest, number);
  }
  std::optional<HistoryRecord> last;
  if (newest > 0) {
    ASSIGN_OR_RETURN(last, Read(newest));
  }
  // The folder may be shown as it was a moment ago.
  for (;;) {
    absl::StatusOr<HistoryRecord> next = Read(newest + 1);
    if (absl::IsNotFound(next.status())) return last;
    RETURN_IF_ERROR(next.status());
    last = *std::move(next);
    ++newest;
  }
}

absl::Status History::Look() {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(lost_);
  while (is_open_) {
    const absl::StatusOr<HistoryRecord> next = Read(last_number() + 1);
    if (!next.ok()) break;
    if (!Adopt(*next)) return lost_;
  }
  return absl::OkStatus();
}

// Whether it is one of this controller's own.
bool History::Adopt(const HistoryRecord& found) {
  if (own_.count(found.nonce()) != 0) {
    last_ = found;
    return true;
  }
  lost_ = absl::AbortedError(
      absl::StrCat("another controller of job '", found.job_id(), "' has taken over: generation ",
                   found.state().generation(), " stands in '", PathOf(found.number()), "'"));
  return false;
}

// Writing
// ------------------------------------------------------------------------------------------------

absl::Status History::Open(const JobState& state, uint64_t after,
                           const std::vector<CheckpointId>& existing) {
  absl::MutexLock lock(&mutex_);
  if (!is_open_) {
    RETURN_IF_ERROR(disk_->CreateDirectory(folder_));
    RETURN_IF_ERROR(disk_->SyncDirectory(directory_));
    RETURN_IF_ERROR(TestLinks());
    // A controller that died may have left its last record unsynced.
    RETURN_IF_ERROR(disk_->SyncDirectory(folder_));
    ASSIGN_OR_RETURN(last_, Last());
    if (last_number() != after) {
      return absl::AbortedError(absl::StrCat("another controller has written '",
                                             PathOf(last_number()), "' meanwhile; start again"));
    }
  }
  const bool is_first = !last_.has_value();
  RETURN_IF_ERROR(Append(
      [&](HistoryRecord* record) {
        record->set_job_id(state.job_id());
        record->set_kind(HistoryRecord::OPEN);
        *record->mutable_state() = state;
        if (!is_first) return;
        for (const CheckpointId& id : existing) Add(id, record);
      },
      nullptr));
  is_open_ = true;
  return absl::OkStatus();
}

absl::Status History::Commit(const CheckpointId& id, bool* may_exist) {
  absl::MutexLock lock(&mutex_);
  CHECK(is_open_);
  return Append(
      [&](HistoryRecord* record) {
        record->set_kind(HistoryRecord::COMMIT);
        RetireIf(
            [&](const CheckpointRef& ref) {
              return ref.step() == id.step.value() && ref.generation() != id.generation;
            },
            record);
        // A record of an earlier try may have come to stand there meanwhile.
        if (!Counts(*record, id)) Add(id, record);
      },
      may_exist);
}

absl::Status History::Retire(const std::vector<CheckpointId>& ids) {
  absl::MutexLock lock(&mutex_);
  CHECK(is_open_);
  return Append(
      [&](HistoryRecord* record) {
        record->set_kind(HistoryRecord::COMMIT);
        RetireIf(
            [&](const CheckpointRef& ref) {
              return std::any_of(ids.begin(), ids.end(),
                                 [&](const CheckpointId& id) { return IsOf(ref, id); });
            },
            record);
      },
      nullptr);
}

absl::Status History::End(const JobOutcome& outcome) {
  absl::MutexLock lock(&mutex_);
  CHECK(is_open_);
  return Append(
      [&](HistoryRecord* record) {
        record->set_kind(HistoryRecord::OUTCOME);
        *record->mutable_outcome() = outcome;
      },
      nullptr);
}

// `edit` makes the next record of what holds so far.
absl::Status History::Append(const Edit& edit, bool* may_exist) {
  for (;;) {
    RETURN_IF_ERROR(lost_);
    HistoryRecord record = last_.value_or(HistoryRecord());
    record.clear_retired();
    record.clear_outcome();
    edit(&record);
    record.set_format_version(kCheckpointFormatVersion);
    record.mutable_state()->set_format_version(kCheckpointFormatVersion);
    record.set_number(last_number() + 1);
    record.set_nonce(NewNonce());
    own_.insert(record.nonce());
    ASSIGN_OR_RETURN(const bool is_done, TryAppend(record, may_exist));
    if (is_done) return absl::OkStatus();
  }
}

// Returns false if an earlier record of this controller, which it no longer expected to succeed,
// has taken that name after all. That record counts now.
absl::StatusOr<bool> History::TryAppend(const HistoryRecord& record, bool* may_exist) {
  const std::string path = PathOf(record.number());
  const std::string temporary = absl::StrCat(folder_, "/", record.nonce(), ".tmp");
  RETURN_IF_ERROR(
      WriteTemporary(EncodeFrame(kHistoryFormat, record.SerializeAsString()), temporary));
  absl::Status linked;
  bool may_be_late = false;
  for (int tries = 0; tries < kMostTries; ++tries) {
    linked = disk_->Link(temporary, path);
    if (linked.ok()) break;
    may_be_late |= !absl::IsFailedPrecondition(linked) && !absl::IsResourceExhausted(linked);
    const absl::StatusOr<HistoryRecord> found = Read(record.number());
    if (!found.ok()) continue;
    if (found->nonce() == record.nonce()) {
      linked = absl::OkStatus();
      break;
    }
    disk_->Remove(temporary).IgnoreError();
    if (!Adopt(*found)) return lost_;
    return false;
  }
  if (linked.ok())
    linked = disk_->SyncDirectory(folder_);
  else if (!may_be_late)
    return linked;
  disk_->Remove(temporary).IgnoreError();
  // The next record is linked under the same number, and finds this one if it is there.
  if (!linked.ok()) {
    if (may_exist != nullptr) *may_exist = true;
    return absl::UnavailableError(linked.message());
  }
  last_ = record;
  return true;
}

absl::Status History::WriteTemporary(const std::string& bytes, const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, disk_->Create(path));
  RETURN_IF_ERROR(file->Append({bytes}));
  return file->Sync();
}

// Whether the file system does what all this needs: a second link under one name fails, and what
// was linked can be read.
absl::Status History::TestLinks() {
  const std::string from = absl::StrCat(folder_, "/", NewNonce(), ".tmp");
  const std::string to = absl::StrCat(folder_, "/", NewNonce(), ".tmp");
  RETURN_IF_ERROR(WriteTemporary(from, from));
  absl::Status tested = disk_->Link(from, to);
  const absl::Status again = tested.ok() ? disk_->Link(from, to) : tested;
  const absl::StatusOr<std::string> read = ReadWholeFile(disk_, to);
  if (absl::IsUnavailable(again)) tested = again;
  if (tested.ok() && !(absl::IsAlreadyExists(again) && read.ok() && *read == from)) {
    tested = absl::FailedPreconditionError(absl::StrCat(
        "the file system of '", directory_,
        "' can't hold checkpoints: a file's second name can't be made once only, or not be read"));
  }
  disk_->Remove(to).IgnoreError();
  disk_->Remove(from).IgnoreError();
  return tested;
}

}  // namespace thermocline
