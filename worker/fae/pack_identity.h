// What a pack is made of, so that a later run finds it, and no run reads another's.
#ifndef THERMOCLINE_WORKER_FAE_PACK_IDENTITY_H_
#define THERMOCLINE_WORKER_FAE_PACK_IDENTITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/disk/disk.h"
#include "common/job/resolved_job.h"
#include "proto/job.pb.h"
#include "worker/fae/pack_format.h"

namespace thermocline {

// Whether hot and cold batches are wanted, or the hot rows alone (of a cache whose policy is
// STATIC).
inline bool WantsBatches(const Job& job) { return job.has_fae(); }
// The device memory for hot rows.
const std::string& HotBudget(const Job& job);
// A row on the device: weights and optimizer state, as CacheGroupLayout::row_bytes().
int64_t DeviceRowBytes(const TableLayout& table);

// PackIdentity::job of `job`, which is resolved. Equal for jobs that differ in what leaves the pack
// as it is: the model, passes, learning rate, cluster.
std::string IdentifyJob(const Job& job);

// Sets data and times as the files of the training rows are now. Errors: kNotFound, kUnavailable,
// kInvalidArgument (a pipe, which could not be told from another).
absl::Status IdentifyData(const Job& job, PackIdentity* identity);

// Sets calibration.directory of a job that counts hot rows, where it names none, to "hot" beside
// its file. The launcher leaves that default out of the file, which is in the run directory, since
// a run directory may be moved or copied.
void FillPackDirectory(const std::string& job_file, Job* job);

// The pack of a job, whatever its data, in calibration.directory.
std::string PackPath(const Job& job);

// Names of the packs in a folder. None where there is no folder. Errors: as Disk::List().
absl::StatusOr<std::vector<std::string>> ListPacks(Disk* disk, const std::string& directory);
// A pack that is being made, or was left by a program that was killed.
bool IsUnfinishedPack(const std::string& name);

// What differs between two of PackIdentity's texts: "fae.budget is 2MiB, was 4MiB", at most two
// such lines, and how many more there are; "": nothing.
std::string DescribeDifference(const std::string& now, const std::string& was);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_IDENTITY_H_
