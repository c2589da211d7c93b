// Fills in what a job file leaves out.
#ifndef THERMOCLINE_COMMON_JOB_JOB_RESOLVE_H_
#define THERMOCLINE_COMMON_JOB_JOB_RESOLVE_H_

namespace thermocline {

class Job;

// Writes every default that job.proto documents into the job, a feature for each categorical column
// where none is named, and a table for each feature that names none. Resolving a resolved job
// changes nothing. Values that are wrong are left alone, for ValidateJob to report.
void ResolveJob(Job* job);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_JOB_RESOLVE_H_
