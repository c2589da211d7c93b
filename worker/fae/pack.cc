#include "worker/fae/pack.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "proto/job.pb.h"
#include "worker/fae/pack_identity.h"
#include "worker/fae/pack_source.h"

namespace thermocline {
namespace {

// As Dataset's readers do: the job's workers may all be on this host.
uint32_t ParserThreads(const Job& job) {
  if (job.data().has_parser_threads()) return job.data().parser_threads();
  const uint32_t workers = std::max(job.cluster().workers(), 1u);
  return std::clamp(static_cast<uint32_t>(HardwareThreads()) / workers, 1u, 8u);
}

class FilePack : public Pack {
 public:
  explicit FilePack(std::shared_ptr<const PackFile> file) : file_(std::move(file)) {}

  const HotSet& hot_set() const override { return file_->tail.hot_set; }
  const PackCounts& counts() const override { return file_->tail.counts; }
  const std::string& report() const override { return file_->tail.report; }
  uint64_t file_bytes() const override { return file_->file->size(); }
  std::string digest() const override { return PackDigest(file_->tail); }

  std::unique_ptr<BatchReader> OpenReader(const Job& job, const PackStretch& stretch,
                                          const BatchReader::Skipped& before, WorkerRank rank,
                                          uint32_t num_workers) const override {
    CHECK_GE(stretch.first_batch, 0);
    CHECK_GE(stretch.num_batches, 0);
    CHECK_LE(stretch.first_batch + stretch.num_batches, counts().batches[stretch.is_hot]);
    BatchReaderOptions options;
    options.batch_size = file_->tail.batch_size;
    options.rank = rank;
    options.num_workers = num_workers;
    options.start_step = stretch.first_step;
    options.read_ahead_batches = job.data().read_ahead_batches();
    options.parser_threads = ParserThreads(job);
    options.place.first_step = stretch.first_step;
    options.place.first_pass = stretch.pass;
    options.place.begins_pass = stretch.begins_pass;
    options.place.progress_before = stretch.progress_before;
    options.place.progress_through = stretch.progress_through;
    options.place.before = before;
    options.lookups = LookupLimitOf(job);
    return std::make_unique<BatchReader>(
        std::make_unique<PackSource>(file_,
                                     PackShape{options.lookups.features.size(),
                                               job.data().num_dense(), LearnedLabels(job).size()},
                                     stretch.is_hot, stretch.first_batch, stretch.num_batches),
        options);
  }

 private:
  const std::shared_ptr<const PackFile> file_;
};

// Why there is no pack of the job: what its folder has instead.
absl::Status NoPack(Disk* disk, const Job& job) {
  const std::string& directory = job.calibration().directory();
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListPacks(disk, directory));
  for (const std::string& name : names) {
    const auto other = PackFile::Open(disk, absl::StrCat(directory, "/", name));
    if (!other.ok()) continue;
    const std::string difference = DescribeDifference(IdentifyJob(job), (*other)->identity.job);
    return absl::FailedPreconditionError(
        absl::StrCat("'", (*other)->path, "' was made for another job: ", difference));
  }
  return absl::NotFoundError(absl::StrCat("'", PackPath(job), "' is not there: no pack was made"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Pack>> Pack::Open(const Job& job) {
  PosixDisk disk;
  auto file = PackFile::Open(&disk, PackPath(job));
  if (absl::IsNotFound(file.status())) return NoPack(&disk, job);
  RETURN_IF_ERROR(file.status());
  PackIdentity identity;
  identity.job = IdentifyJob(job);
  RETURN_IF_ERROR(IdentifyData(job, &identity));
  const PackIdentity& was = (*file)->identity;
  if (was.job != identity.job) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", (*file)->path,
                     "' was made for another job: ", DescribeDifference(identity.job, was.job)));
  }
  if (was.data != identity.data) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", (*file)->path,
                     "' was made of other data: ", DescribeDifference(identity.data, was.data)));
  }
  const PackTail& tail = (*file)->tail;
  const size_t num_tables = ResolveTables(job).sparse.size();
  if ((job.has_fae() && tail.batch_size != job.train().batch_size()) ||
      tail.hot_set.tables.size() != num_tables) {
    return absl::DataLossError(
        absl::StrCat("'", (*file)->path, "' is damaged in its tail: it has batches of ",
                     tail.batch_size, " rows and ", tail.hot_set.tables.size(),
                     " tables, the job has ", job.train().batch_size(), " and ", num_tables));
  }
  return std::make_shared<FilePack>(*std::move(file));
}

}  // namespace thermocline
