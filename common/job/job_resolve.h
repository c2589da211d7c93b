// Fills in what a job file leaves out.
#ifndef THERMOCLINE_COMMON_JOB_JOB_RESOLVE_H_
#define THERMOCLINE_COMMON_JOB_JOB_RESOLVE_H_

#include <cstdint>

namespace thermocline {

class Cache;
class Job;

// Writes every default that job.proto documents into the job, a feature for each categorical column
// where none is named, and a table for each feature that names none. Resolving a resolved job
// changes nothing. Values that are wrong are left alone, for ValidateJob to report.
//
// The exception is cache.prefetch_steps: were it written, a resumed job with another window would
// be held to what nobody asked for.
void ResolveJob(Job* job);

// cache.prefetch_steps, or what follows from the window where nobody gave it.
// REQUIRES: the cache of a resolved job
uint32_t PrefetchSteps(const Cache& cache);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_RESOLVE_H_
