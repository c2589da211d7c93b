// Identifies packs, so that a later run finds its pack and reads no other.
#ifndef THERMOCLINE_WORKER_FAE_PACK_IDENTITY_H_
#define THERMOCLINE_WORKER_FAE_PACK_IDENTITY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/disk/disk.h"
#include "proto/job.pb.h"
#include "worker/fae/pack_format.h"

namespace thermocline {

// Whether the job has hot and cold batches; false: it needs only the hot rows, for a cache whose
// policy is STATIC.
inline bool WantsBatches(const Job& job) { return job.has_fae(); }
// The device memory for hot rows.
const std::string& HotBudget(const Job& job);
// The bytes of a row on the device: weights and optimizer state, as CacheGroupLayout::row_bytes().
int64_t DeviceRowBytes(const TableLayout& table);

// Returns PackIdentity::job of `job`, which is resolved. It is equal for jobs that differ only in
// what does not change the pack: the model, passes, learning rate, cluster.
std::string IdentifyJob(const Job& job);

// Sets `data` and `times` of *identity by the files of the training rows as they are now. Errors:
// kNotFound, kUnavailable, kInvalidArgument (a pipe, which can't be identified).
absl::Status IdentifyData(const Job& job, PackIdentity* identity);

// Sets calibration.directory of a job that counts hot rows to "hot" beside its file, if it names
// none. The launcher leaves this default out of the file, which is in the run directory, since a
// run directory may be moved or copied.
void FillPackDirectory(const std::string& job_file, Job* job);

// Returns the path of the job's pack in calibration.directory. It does not depend on the data.
std::string PackPath(const Job& job);

// Returns the names of the packs in a folder, {} if there is no folder. Errors: Disk::List's.
absl::StatusOr<std::vector<std::string>> ListPacks(Disk* disk, const std::string& directory);
// Whether a pack of this name is being made, or was left by a program that was killed.
bool IsUnfinishedPack(const std::string& name);

// Returns what differs between two of PackIdentity's texts: "fae.budget is 2MiB, was 4MiB", at most
// two such lines and how many more there are; "" if nothing does.
std::string DescribeDifference(const std::string& now, const std::string& was);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_PACK_IDENTITY_H_
